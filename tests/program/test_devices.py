"""The choice of each rank's device; tests/gpu checks that devices can be opened."""

import re
import subprocess
import sys

import pytest
from refusals import refuses, reports
from worlds import INSTALLED

import synkhronos as synk
from synkhronos.cluster.facts import HostFacts, facts
from synkhronos.host import gpus
from synkhronos.program.devices import choose_devices

pytestmark = pytest.mark.slow


@pytest.mark.theano
def test_use_gpu_says_what_is_missing(monkeypatch, caplog):
    """The error names pygpu on a machine with GPUs but without pygpu, and GPUs on a machine without them."""
    theano_gpu = pytest.importorskip("synkhronos.engines.theano.gpu")
    monkeypatch.setattr(theano_gpu, "missing", lambda: "pygpu cannot be imported (no such thing)")
    monkeypatch.setattr(gpus, "count_gpus", lambda: 2)
    with reports(synk.SynkhronosError, "use_gpu=True", "pygpu", "no such thing"):
        synk.fork(use_gpu=True)
    with reports(synk.SynkhronosError, "devices", "pygpu", "no such thing"):
        synk.fork(devices=["opencl0:0"])
    with caplog.at_level("WARNING", "synkhronos"):
        assert synk.fork(2) == 2
    synk.close()
    assert "GPUs are not used; CPU processes are started instead: pygpu cannot" in caplog.text
    assert "(number of GPUs on this machine: 2)" in caplog.text
    monkeypatch.setattr(theano_gpu, "missing", lambda: "")
    monkeypatch.setattr(gpus, "count_gpus", lambda: 0)
    with reports(synk.SynkhronosError, "use_gpu=True", "GPU", "machine"):
        synk.fork(use_gpu=True)
    caplog.clear()
    assert synk.fork(2) == 2
    synk.close()
    assert not caplog.records


@pytest.mark.skipif("theano" in INSTALLED, reason="Theano is installed")
def test_without_theano_no_gpu_is_used(monkeypatch, caplog):
    monkeypatch.setattr(gpus, "count_gpus", lambda: 2)
    for arguments in (dict(use_gpu=True), dict(devices=["cuda0"])):
        with reports(synk.SynkhronosError, list(arguments)[0], "Theano", "GPUs"):
            synk.fork(**arguments)
    with caplog.at_level("WARNING", "synkhronos"):
        assert synk.fork(2) == 2
    synk.close()
    assert "CPU processes are started instead: only Theano computes on GPUs" in caplog.text


@pytest.mark.theano
def test_more_ranks_than_gpus(monkeypatch, caplog):
    """By default, CPU processes are started instead; if GPUs were requested, an error is raised."""
    theano_gpu = pytest.importorskip("synkhronos.engines.theano.gpu")
    monkeypatch.setattr(theano_gpu, "missing", lambda: "")
    monkeypatch.setattr(gpus, "count_gpus", lambda: 1)
    with refuses(ValueError, "n_ranks", "at most 1, the number of GPUs", "2"):
        synk.fork(2, use_gpu=True)
    with caplog.at_level("WARNING", "synkhronos"):
        assert synk.fork(2) == 2
    synk.close()
    assert "n_ranks: expected at most 1" in caplog.text


def hosts(*counts, **changes):
    """Return the facts of hosts with these numbers of GPUs, the last host's with changes."""
    facts = [HostFacts(f"node{i}", 4, {}, (1,), n_gpus=count, has_pygpu=True) for i, count in enumerate(counts)]
    return [*facts[:-1], facts[-1]._replace(**changes)]


@pytest.fixture
def usable(monkeypatch):
    """Make this host appear to have two GPUs, and everything that they require."""
    theano_gpu = pytest.importorskip("synkhronos.engines.theano.gpu")
    monkeypatch.setattr(theano_gpu, "missing", lambda: "")
    monkeypatch.setattr(gpus, "count_gpus", lambda: 2)


CHOICES = [
    # (devices, use_gpu, n_ranks, GPUs of the hosts, devices of their ranks)
    (None, None, None, (2, 2), [["cuda0", "cuda1"], ["cuda0", "cuda1"]]),
    (None, True, None, (2, 1, 3), [["cuda0", "cuda1"], ["cuda0"], ["cuda0", "cuda1", "cuda2"]]),
    (None, None, 1, (2, 1, 3), [["cuda0"], ["cuda0"], ["cuda0"]]),
    (["cuda1"], None, None, (2, 2), [["cuda1"], ["cuda1"]]),
    (["cuda0", "cuda0"], True, 2, (2, 1), [["cuda0", "cuda0"], ["cuda0", "cuda0"]]),
    (["opencl0:0"], None, None, (2, 0), [["opencl0:0"], ["opencl0:0"]]),
    (None, False, None, (2, 2), None),
]


@pytest.mark.theano
@pytest.mark.parametrize("devices, use_gpu, n, counts, expected", CHOICES)
def test_each_host_has_its_own(usable, devices, use_gpu, n, counts, expected):
    assert choose_devices(devices, use_gpu, n, hosts(*counts)) == expected


@pytest.mark.theano
def test_the_first_host_is_asked_when_ranks_are_started(usable, monkeypatch):
    """The program may have set CUDA_VISIBLE_DEVICES after the hosts were connected."""
    monkeypatch.setattr(gpus, "count_gpus", lambda: 1)
    assert choose_devices(None, True, None, hosts(8, 2)) == [["cuda0"], ["cuda0", "cuda1"]]


@pytest.mark.theano
def test_what_hosts_cannot_do(usable, caplog):
    with refuses(ValueError, "n_ranks", "at most 1, the number of GPUs on host node1", "2"):
        choose_devices(None, True, 2, hosts(2, 1))
    with refuses(ValueError, "devices[1]", "a GPU visible on host node1 (number of GPUs: 1)", "cuda1"):
        choose_devices(["cuda0", "cuda1"], None, None, hosts(2, 1))
    with refuses(ValueError, "devices", "one kind", "['cuda0', 'opencl0:0']"):
        choose_devices(["cuda0", "opencl0:0"], None, None, hosts(2, 2))
    with reports(synk.SynkhronosError, "use_gpu=True", "GPU", "node2", "CUDA"):
        choose_devices(None, True, None, hosts(2, 2, 0))
    with reports(synk.SynkhronosError, "devices", "pygpu", "node1"):
        choose_devices(["cuda0"], None, None, hosts(2, 2, has_pygpu=False))


@pytest.mark.theano
@pytest.mark.parametrize(
    "n, facts, reason",
    [
        (None, hosts(2, 0), r"CUDA finds no GPU on host node1.* \(number of GPUs on the hosts: 2\)"),
        (2, hosts(2, 1), r"n_ranks: expected at most 1, .* on host node1, got 2.* \(number of GPUs on the hosts: 3\)"),
        (
            None,
            hosts(2, 1, has_pygpu=False),
            r"pygpu is not installed on host node1.* \(number of GPUs on the hosts: 3\)",
        ),
    ],
)
def test_hosts_compute_on_cpus_if_one_of_them_has_to(usable, caplog, n, facts, reason):
    with caplog.at_level("WARNING", "synkhronos"):
        assert choose_devices(None, None, n, facts) is None
    assert re.search(reason, caplog.text)


def test_what_a_host_says_of_its_gpus(monkeypatch):
    """GPUs are counted without opening any, because the same process forks ranks."""
    monkeypatch.setattr(gpus, "count_gpus", lambda: 3)
    assert facts().n_gpus == 3
    monkeypatch.setattr(gpus, "count_gpus", lambda: 0)
    assert facts().n_gpus == 0
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from synkhronos.cluster.facts import facts; has_pygpu = facts().has_pygpu\n"
            "print([name for name in ('theano', 'pygpu') if name in sys.modules])\n"
            "try:\n    import pygpu\nexcept ModuleNotFoundError:\n    pygpu = None\n"
            "assert has_pygpu == (pygpu is not None)",
        ],
        stdout=subprocess.PIPE,
        universal_newlines=True,
    )
    assert not done.returncode and done.stdout == "[]\n"
