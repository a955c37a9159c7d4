"""Every process has a separate cache of kernels."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CLAIM = """
import os, sys
from synkhronos.engines.theano import pocl as pocl_cache
pocl_cache.claim()
first = os.environ.get("POCL_CACHE_DIR")
pocl_cache.claim()
print(first, os.environ.get("POCL_CACHE_DIR") == first, flush=True)
sys.stdin.readline()
"""


class Process:
    """Process that claims a cache and runs until it is asked to end."""

    def __init__(self, **environment):
        inherited = {
            name: value for name, value in os.environ.items() if name not in ("POCL_CACHE_DIR", "XDG_CACHE_HOME")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLAIM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            universal_newlines=True,
            env=dict(inherited, **environment),
        )
        self.folder, self.same = self.process.stdout.readline().split()

    def end(self):
        self.process.communicate("\n")
        assert self.process.returncode == 0


def test_no_two_living_processes_share_one(tmp_path):
    first, second = Process(HOME=str(tmp_path)), Process(HOME=str(tmp_path))
    base = tmp_path / ".cache" / "pocl" / "kcache"
    assert [first.folder, second.folder] == [str(base / "synkhronos-0"), str(base / "synkhronos-1")]
    assert first.same == second.same == "True"
    first.end()
    third = Process(HOME=str(tmp_path))  # finds the results of the first process
    assert third.folder == first.folder
    second.end()
    third.end()


@pytest.mark.parametrize(
    "environment, base",
    [
        ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/pocl/kcache"),
        ({"XDG_CACHE_HOME": "{}/xdg", "POCL_CACHE_DIR": "{}/mine"}, "mine"),
        ({"POCL_CACHE_DIR": "{}/mine/synkhronos-3"}, "mine"),  # the master's setting, which ranks inherit
    ],
)
def test_it_stands_where_the_user_wants_it(tmp_path, environment, base):
    process = Process(HOME=str(tmp_path), **{name: value.format(tmp_path) for name, value in environment.items()})
    process.end()
    assert process.folder == str(tmp_path / base / "synkhronos-0")


def test_where_none_can_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    process = Process(POCL_CACHE_DIR=str(tmp_path / "file"))
    process.end()
    assert process.folder == str(tmp_path / "file")
