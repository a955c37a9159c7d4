"""Pickling deep graphs without changing the interpreter's settings."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from refusals import reports

from synkhronos.engines import pickling as travel
from synkhronos.errors import SynkhronosError


def depth(levels):
    return 0 if levels == 0 else 1 + depth(levels - 1)


def nested(levels):
    result = []
    for _ in range(levels):
        result = [result]
    return result


def settings():
    return sys.getrecursionlimit(), threading.stack_size()


def test_deep_goes_deep_and_restores_the_limits():
    before = settings()
    with pytest.raises(RecursionError):
        depth(20000)
    assert travel.deep(depth, 20000) == 20000
    assert settings() == before


def test_deep_raises_what_the_function_raised():
    before = settings()
    with pytest.raises(ZeroDivisionError):
        travel.deep(lambda: 1 / 0)
    with pytest.raises(SystemExit):
        travel.deep(sys.exit, 3)
    assert settings() == before


def test_deep_from_several_threads():
    before, results = settings(), []
    threads = [threading.Thread(target=lambda: results.append(travel.deep(depth, 20000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [20000] * 4
    assert settings() == before


def test_deep_prepares_its_thread(monkeypatch):
    """`travel.deep` prepares its thread: a CUDA device must be made current in each thread that loads functions."""
    prepared = []
    monkeypatch.setattr(travel, "prepare_thread", lambda: prepared.append(threading.get_ident()))
    assert travel.deep(threading.get_ident) == prepared[0] != threading.get_ident()


def test_ctrl_c_waits_for_the_end():
    before, finished = settings(), []
    with pytest.raises(KeyboardInterrupt):
        travel.deep(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(0.1), finished.append(1)))
    assert finished == [1] and settings() == before


def test_a_higher_limit_of_the_user_is_kept():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(travel.RECURSION_LIMIT + 5)
    try:
        assert travel.deep(sys.getrecursionlimit) == travel.RECURSION_LIMIT + 5
        assert sys.getrecursionlimit() == travel.RECURSION_LIMIT + 5
    finally:
        sys.setrecursionlimit(before)


def dumps(things, known=None):
    return travel.dumps(things, known or {}, lambda thing: NotImplemented, repr, lambda function: [])


#: On these versions, pickle's C code recurses about a thousand levels at most. (Graphs are not pickled recursively.)
IS_SHALLOW = sys.version_info[:2] in ((3, 12), (3, 13))


@pytest.mark.parametrize("times", [300, pytest.param(100000, marks=pytest.mark.skipif(IS_SHALLOW, reason="too deep"))])
def test_nested_many_times(times):
    (result,) = travel.loads(dumps([nested(times)]), None)
    levels = 0
    while result:
        result, levels = result[0], levels + 1
    assert levels == times


@pytest.mark.skipif(not IS_SHALLOW, reason="this Python goes as deep as the stack")
def test_nested_too_many_times_for_this_python():
    with reports(TypeError, "f", "recursion"):
        travel.dumps([nested(100000)], {}, lambda thing: NotImplemented, lambda thing: "f", lambda thing: [])


def test_named_objects_are_looked_up():
    storage, other, third = [1.0], [1.0], [1.0]
    known = travel.names({id(storage): 7}, {id(other): 8}, {id(third): (9, "there")})
    (result,) = travel.loads(dumps([(storage, other, third, [1.0])], known), lambda kind, place: f"{kind} {place}")
    assert result == ("storage 7", "variable 8", "constant (9, 'there')", [1.0])


class Collecting:
    """Object that unpickles to True if garbage collection is enabled at this moment, and to False otherwise."""

    def __reduce__(self):
        return gc.isenabled, ()


class Failing:
    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize("before", [True, False])
def test_loading_is_not_interrupted_by_the_garbage_collection(before):
    was = gc.isenabled()
    (gc.enable if before else gc.disable)()
    try:
        assert travel.loads(dumps([Collecting()]), None) == [False] and gc.isenabled() == before
        with reports(ValueError, "no number"):
            travel.loads(dumps([Failing()]), None)
        assert gc.isenabled() == before
    finally:
        (gc.enable if was else gc.disable)()


def test_where_the_address_space_is_small():
    program = """
import resource, sys
from synkhronos.engines import pickling as travel
from synkhronos.errors import SynkhronosError
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), -1))
def depth(levels):
    return 0 if levels == 0 else 1 + depth(levels - 1)
print(travel.deep(depth, 5000))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    assert done.stdout.strip() == b"5000", done.stderr.decode()


def test_where_no_thread_can_be_started(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    before = settings()
    monkeypatch.setattr(threading.Thread, "start", start)
    with reports(SynkhronosError, "can't start new thread", "ulimit -u"):
        travel.deep(len, "abc")
    monkeypatch.undo()
    assert settings() == before and travel.deep(len, "abc") == 3
