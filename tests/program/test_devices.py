"""Which device every rank is given; that they open is tested in tests/gpu."""

import pytest

import synkhronos as synk
from synkhronos.host import machine
from synkhronos.program.devices import place


@pytest.mark.parametrize(
    "devices, n_parallel, n_gpus, expected",
    [
        (None, None, 3, ["cuda0", "cuda1", "cuda2"]),
        (None, 2, 3, ["cuda0", "cuda1"]),
        (None, 1, 1, ["cuda0"]),
        (["cuda1", "cuda0"], None, 2, ["cuda1", "cuda0"]),
        (("cuda0", "cuda0", "cuda0"), 3, 1, ["cuda0"] * 3),
        (["opencl0:0", "opencl10:2"], None, 0, ["opencl0:0", "opencl10:2"]),
    ],
)
def test_place(devices, n_parallel, n_gpus, expected):
    assert place(devices, n_parallel, n_gpus) == expected


@pytest.mark.parametrize(
    "devices, n_parallel, n_gpus, error, words",
    [
        (None, 3, 2, ValueError, r"3 ranks, but there are 2 GPUs.*devices=\['cuda0', 'cuda1', 'cuda0'\]"),
        ("cuda0", None, 2, TypeError, "devices must be a list .* got 'cuda0'"),
        (5, None, 2, TypeError, "devices must be a list .* got 5"),
        ([], None, 2, ValueError, "devices must name one device at least"),
        (["cuda0", 1], None, 2, TypeError, r"devices\[1\] must be a str, got 1 of type int"),
        (["cuda"], None, 2, ValueError, r"devices\[0\]: expected a name like 'cuda0' or 'opencl0:0', got 'cuda'"),
        (["gpu0"], None, 2, ValueError, "expected a name like"),
        (["cuda0", "cuda2"], None, 2, ValueError, r"devices\[1\]: there is no cuda2: this machine shows 2 GPUs"),
        (["cuda0"], 2, 1, ValueError, "n_parallel: 2 ranks, but devices names 1"),
        (["cuda0", "cuda0"], 1, 1, ValueError, "n_parallel: 1 ranks, but devices names 2"),
    ],
)
def test_what_cannot_be(devices, n_parallel, n_gpus, error, words):
    with pytest.raises(error, match=words):
        place(devices, n_parallel, n_gpus)


def test_visible_devices_count(monkeypatch, tmp_path):
    """The second device that the program sees is the third of the machine; there is no third one for it."""
    for i in range(4):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / (f"nvidia{i}")).write_text("")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert place(None, None, machine.count_gpus(str(tmp_path))) == ["cuda0", "cuda1"]


@pytest.mark.theano
def test_use_gpu_says_what_is_missing(monkeypatch, caplog):
    """Of a machine with GPUs, where pygpu is not there; then of one without."""
    theano_gpu = pytest.importorskip("synkhronos.engines.theano.gpu")
    monkeypatch.setattr(theano_gpu, "missing", lambda: "pygpu cannot be imported (no such thing)")
    monkeypatch.setattr(machine, "count_gpus", lambda: 2)
    with pytest.raises(synk.SynkhronosError, match="use_gpu=True: pygpu cannot be imported"):
        synk.fork(use_gpu=True)
    with pytest.raises(synk.SynkhronosError, match="devices: pygpu cannot be imported"):
        synk.fork(devices=["opencl0:0"])
    with caplog.at_level("WARNING", "synkhronos"):
        assert synk.fork(2) == 2
    synk.close()
    assert "the 2 GPUs of this machine are not used, CPU processes take their place: pygpu cannot" in caplog.text
    monkeypatch.setattr(theano_gpu, "missing", lambda: "")
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    with pytest.raises(synk.SynkhronosError, match="use_gpu=True: there is no GPU on this machine"):
        synk.fork(use_gpu=True)
    caplog.clear()
    assert synk.fork(2) == 2
    synk.close()
    assert not caplog.records


@pytest.mark.theano
def test_more_ranks_than_gpus(monkeypatch, caplog):
    """By default that is a reason for CPU processes; where GPUs are asked for, an error."""
    theano_gpu = pytest.importorskip("synkhronos.engines.theano.gpu")
    monkeypatch.setattr(theano_gpu, "missing", lambda: "")
    monkeypatch.setattr(machine, "count_gpus", lambda: 1)
    with pytest.raises(ValueError, match="2 ranks, but there are 1 GPUs"):
        synk.fork(2, use_gpu=True)
    with caplog.at_level("WARNING", "synkhronos"):
        assert synk.fork(2) == 2
    synk.close()
    assert "2 ranks, but there are 1 GPUs" in caplog.text
