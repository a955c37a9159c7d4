"""Counting GPUs, and assigning one to each rank, without opening any."""

import os

import pytest
from refusals import refuses

from synkhronos.host import gpus
from synkhronos.host.gpus import place

FOUR = {f"dev/nvidia{name}": "" for name in ("0", "1", "2", "3", "ctl", "-uvm", "-caps/nvidia-cap1")}


@pytest.mark.parametrize(
    "files, visible, count",
    [
        ({}, None, 0),
        ({}, "0,1", 0),
        (FOUR, None, 4),
        (FOUR, "", 0),
        (FOUR, "-1", 0),
        (FOUR, "2", 1),
        (FOUR, "3, 1", 2),
        (FOUR, "0,4,1", 1),
        (FOUR, "0,-1,1", 1),
        (FOUR, "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,1", 2),
        (FOUR, "MIG-8932f937", 1),
        (FOUR, "none", 0),
    ],
)
def test_count_gpus(fake, monkeypatch, files, visible, count):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.count_gpus(fake(files)) == count


@pytest.mark.parametrize(
    "script, count",
    [
        ("printf 'GPU 0: A (UUID: GPU-1)\\n  MIG 1g: x\\nGPU 1: B (UUID: GPU-2)\\n'", 2),
        ("echo No devices found; exit 6", 0),
    ],
)
def test_count_gpus_asks_nvidia_smi_where_there_are_no_device_files(fake, monkeypatch, script, count):
    root = fake({"bin/nvidia-smi": "#!/bin/sh\n" + script})
    os.chmod(root + "/bin/nvidia-smi", 0o755)
    monkeypatch.setenv("PATH", root + "/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus.count_gpus(root) == count


@pytest.mark.parametrize(
    "devices, n_ranks, n_gpus, expected",
    [
        (None, None, 3, ["cuda0", "cuda1", "cuda2"]),
        (None, 2, 3, ["cuda0", "cuda1"]),
        (None, 1, 1, ["cuda0"]),
        (["cuda1", "cuda0"], None, 2, ["cuda1", "cuda0"]),
        (("cuda0", "cuda0", "cuda0"), 3, 1, ["cuda0"] * 3),
        (["opencl0:0", "opencl10:2"], None, 0, ["opencl0:0", "opencl10:2"]),
    ],
)
def test_place(devices, n_ranks, n_gpus, expected):
    assert place(devices, n_ranks, n_gpus) == expected


@pytest.mark.parametrize(
    "devices, n_ranks, n_gpus, error, argument, expected, got",
    [
        (None, 3, 2, ValueError, "n_ranks", "at most 2, the number of GPUs", "3"),
        ("cuda0", None, 2, TypeError, "devices", "a list", "'cuda0'"),
        (5, None, 2, TypeError, "devices", "a list", "5"),
        ([], None, 2, ValueError, "devices", "name", "empty"),
        (["cuda0", 1], None, 2, TypeError, "devices[1]", "a str", "1 of type int"),
        (["cuda"], None, 2, ValueError, "devices[0]", "'cuda0' or 'opencl0:0'", "'cuda'"),
        (["gpu0"], None, 2, ValueError, "devices[0]", "name", "'gpu0'"),
        (["cuda0", "cuda2"], None, 2, ValueError, "devices[1]", "(number of GPUs: 2)", "cuda2"),
        (["cuda0"], 2, 1, ValueError, "n_ranks", "1, the number of names in devices", "2"),
        (["cuda0", "cuda0"], 1, 1, ValueError, "n_ranks", "2, the number of names in devices", "1"),
    ],
)
def test_what_cannot_be(devices, n_ranks, n_gpus, error, argument, expected, got):
    with refuses(error, argument, expected, got):
        place(devices, n_ranks, n_gpus)


def test_hint_shows_how_to_share_gpus():
    with refuses(ValueError, "n_ranks", hint="devices=['cuda0', 'cuda1', 'cuda0']"):
        place(None, 3, 2)


def test_visible_devices_count(monkeypatch, tmp_path):
    """The program's second device is the machine's third, and the program has no third one."""
    for i in range(4):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / (f"nvidia{i}")).write_text("")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert place(None, None, gpus.count_gpus(str(tmp_path))) == ["cuda0", "cuda1"]
