"""Which device every rank is given; that they open is tested in tests/gpu."""

import pytest
from refusals import refuses
from worlds import INSTALLED

import synkhronos as synk
from synkhronos.host import gpus


@pytest.mark.theano
def test_use_gpu_says_what_is_missing(monkeypatch, caplog):
    """Of a machine with GPUs, where pygpu is not there; then of one without."""
    theano_gpu = pytest.importorskip("synkhronos.engines.theano.gpu")
    monkeypatch.setattr(theano_gpu, "missing", lambda: "pygpu cannot be imported (no such thing)")
    monkeypatch.setattr(gpus, "count_gpus", lambda: 2)
    with pytest.raises(synk.SynkhronosError, match="use_gpu=True: pygpu cannot be imported"):
        synk.fork(use_gpu=True)
    with pytest.raises(synk.SynkhronosError, match="devices: pygpu cannot be imported"):
        synk.fork(devices=["opencl0:0"])
    with caplog.at_level("WARNING", "synkhronos"):
        assert synk.fork(2) == 2
    synk.close()
    assert "the 2 GPUs of this machine are not used, CPU processes take their place: pygpu cannot" in caplog.text
    monkeypatch.setattr(theano_gpu, "missing", lambda: "")
    monkeypatch.setattr(gpus, "count_gpus", lambda: 0)
    with pytest.raises(synk.SynkhronosError, match="use_gpu=True: there is no GPU on this machine"):
        synk.fork(use_gpu=True)
    caplog.clear()
    assert synk.fork(2) == 2
    synk.close()
    assert not caplog.records


@pytest.mark.skipif("theano" in INSTALLED, reason="Theano is installed")
def test_without_theano_no_gpu_is_used(monkeypatch, caplog):
    monkeypatch.setattr(gpus, "count_gpus", lambda: 2)
    for arguments in (dict(use_gpu=True), dict(devices=["cuda0"])):
        with pytest.raises(synk.SynkhronosError, match=f"{list(arguments)[0]}.*: only Theano computes on GPUs"):
            synk.fork(**arguments)
    with caplog.at_level("WARNING", "synkhronos"):
        assert synk.fork(2) == 2
    synk.close()
    assert "CPU processes take their place: only Theano computes on GPUs, which is not installed" in caplog.text


@pytest.mark.theano
def test_more_ranks_than_gpus(monkeypatch, caplog):
    """By default that is a reason for CPU processes; where GPUs are asked for, an error."""
    theano_gpu = pytest.importorskip("synkhronos.engines.theano.gpu")
    monkeypatch.setattr(theano_gpu, "missing", lambda: "")
    monkeypatch.setattr(gpus, "count_gpus", lambda: 1)
    with refuses(ValueError, "n_parallel", "at most 1, as there are 1 GPUs", "2"):
        synk.fork(2, use_gpu=True)
    with caplog.at_level("WARNING", "synkhronos"):
        assert synk.fork(2) == 2
    synk.close()
    assert "n_parallel: expected at most 1" in caplog.text
