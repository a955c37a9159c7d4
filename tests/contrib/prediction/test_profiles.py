"""Reading files that are profiles, and refusing files that are not."""

import errno
import json
import math
import os

import pytest
from refusals import refuses
from synthetic import Program, write

from synkhronos.contrib.prediction.fitting import fit
from synkhronos.contrib.prediction.profiles import read


def test_read(tmp_path):
    content = Program().profile(2, 100, steps=7)
    folder = write(tmp_path / "run", content)
    profile = read(folder)
    assert (profile.layout, profile.link) == ((2, 1, 4, 0), "shared_memory")
    assert profile.copy_rate == 1e10
    train = profile.commands["function", "train"]
    assert train.rows.tolist() == [100] * 7
    assert train.work.tolist() == [call["engine_s"] for call in content["commands"][0]["calls"]]
    assert profile.nbytes["collective", "all_reduce"] == 4e6


def test_copies_of_one_program_are_one_program(tmp_path):
    """Functions without names are identified by their places, even if the files are in different folders."""

    def profile(folder, ranks):
        content = Program().profile(ranks, 100, steps=7)
        for command, name in zip(content["commands"], ("train.py:12", "", "model.py:7")):
            command["name"] = f"{folder}/{name}" if name else command["name"]
        return read(write(tmp_path / f"run{ranks}", content))

    one, two = profile("/home/me/first copy", 1), profile("/elsewhere", 2)
    assert set(one.commands) == {("function", "train.py:12"), ("collective", "all_reduce"), ("function", "model.py:7")}
    assert set(two.commands) == set(one.commands)
    assert fit([one, two]).main == ("function", "train.py:12")


def test_files_of_one_name_stay_two(tmp_path):
    names = "/a/train.py:12", "/a/b/train.py:12"
    content = Program().profile(1, 100, steps=7)
    content["commands"][0]["name"], content["commands"][2]["name"] = names
    assert set(names) < {name for _, name in read(write(tmp_path / "run", content)).commands}


def test_devices_have_no_cores_to_share(tmp_path):
    folder = write(tmp_path / "run", Program().profile(2, 100, devices=["cuda0", "cuda1"]))
    assert read(folder).layout.cores == math.inf


@pytest.mark.parametrize(
    "text, got",
    [
        ("no json", "complete"),
        ("[]", "profile.json"),
        (
            json.dumps(dict(Program().profile(1, 10), format=7)),
            "of format 7, written by synkhronos 0.1.0",
        ),
        (json.dumps({"format": 1}), "KeyError: 'ranks'"),
        (json.dumps({"format": 1, "ranks": "two", "hosts": [], "devices": []}), "ValueError"),
    ],
)
def test_other_files(tmp_path, text, got):
    (tmp_path / "profile.json").write_text(text)
    with refuses(ValueError, "profile", "format 1", got):
        read(tmp_path)


def test_no_file(tmp_path):
    with refuses(ValueError, "profile", got="profile.json"):
        read(tmp_path)
    with refuses(ValueError, "profile", got=os.strerror(errno.ENOENT)):
        read(tmp_path / "nowhere")
