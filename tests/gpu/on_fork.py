"""Devices of ranks: opened in order, refused with messages, released."""

import logging
import os
import re
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest
import theano
from refusals import lacks, reports
from worlds import DEVICE

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command


@pytest.fixture(autouse=True)
def closed():
    yield
    synk.close()


class Device(Command):
    """Return a rank's process, the name of its device, and the type of new shared variables."""

    def run(self, context):
        return os.getpid(), context.transport.device, type(theano.shared(np.zeros(2, "float32"))).__name__


def test_what_is_wrong_is_said_before_any_device_is_open():
    for keywords, error, facts in [
        (dict(devices=["opencl0:77"]), synk.SynkhronosError, ["rank 0", "opencl0:77"]),
        (dict(devices=[DEVICE, "opencl0:77"]), synk.WorkerError, ["rank 1", "opencl0:77"]),
        (dict(devices=["opencl0:77", DEVICE]), synk.SynkhronosError, ["rank 0", "opencl0:77"]),
        (dict(devices=[DEVICE], n_ranks=2), ValueError, ["n_ranks", "devices", 1, 2]),
        (
            dict(devices=[f"cuda{synk.get_n_gpu()}"]),
            ValueError,
            ["devices[0]", synk.get_n_gpu(), "machine"],
        ),
        (dict(devices=[DEVICE], use_gpu=False), ValueError, ["devices", "use_gpu"]),
    ]:
        with reports(error, *facts):
            synk.fork(**keywords)
        assert not synk.is_forked()
    # This process opened no device, so CPU ranks are still possible; their graphs stay on the CPU.
    assert synk.fork(2, use_gpu=False) == 2


def test_cpu_graphs_stay_on_the_cpu():
    x = theano.tensor.fvector("x")
    w = theano.shared(np.arange(3, dtype="float32"), "w")
    f = synk.function([x], x.sum() * w.sum(), updates=[(w, w + x.sum())])
    assert isinstance(w.type, theano.tensor.TensorType)
    synk.fork(devices=[DEVICE] * 2)
    np.testing.assert_allclose(f(np.ones(4, "float32")), 12)
    v = theano.shared(np.arange(3, dtype="float32"), "v")
    assert not isinstance(v.type, theano.tensor.TensorType)
    g = synk.function([x], x.sum() + v.sum(), updates=[(v, v + x.sum())])
    np.testing.assert_allclose(g(np.ones(4, "float32")), 5)
    synk.set_value(1, [v, w], [np.full(3, 5, "float32"), np.full(3, 7, "float32")])
    synk.all_reduce([w, v])  # arrays on host and device in one collective take separate routes
    np.testing.assert_allclose(synk.gather([w, v]), np.array([[[4.5, 5, 5.5]] * 2, [[3.5, 4, 4.5]] * 2]))
    assert isinstance(w.get_value(borrow=True), np.ndarray)


@pytest.mark.parametrize("n, root", [(1, 0), (2, 0), (3, 1)])
def test_every_rank_has_its_own(n, root):
    synk.fork(devices=[DEVICE] * n, master_rank=root)
    seen = PROGRAM.current().run(Device())
    assert len({pid for pid, _, _ in seen}) == n and seen[root][0] == os.getpid()
    assert {(name, kind) for _, name, kind in seen} == {(DEVICE, "GpuArraySharedVariable")}


class KernelCache(Command):
    """Return the folder of a rank's compiled kernels."""

    def run(self, context):
        return os.environ.get("POCL_CACHE_DIR")


@pytest.mark.skipif(not DEVICE.startswith("opencl"), reason="needs OpenCL: tools/install_opencl.sh")
def test_no_two_ranks_compile_into_one_cache():
    for _ in range(2):  # ranks of the second session inherit the environment of a master with its own cache
        synk.fork(devices=[DEVICE] * 3)
        folders = PROGRAM.current().run(KernelCache())
        assert len(set(folders)) == 3 and len({os.path.dirname(folder) for folder in folders}) == 1
        synk.close()


def test_the_master_keeps_its_device():
    synk.fork(devices=[DEVICE] * 2)
    synk.close()
    with reports(synk.StateError, DEVICE, "synkhronos.fork()"):
        synk.fork(2, use_gpu=False)
    with reports(synk.StateError, DEVICE, "synkhronos.fork()"):
        synk.fork(devices=["opencl0:77"])
    assert synk.fork(devices=[DEVICE] * 2) == 2


@pytest.mark.parametrize(
    "program, culprit",
    [
        ("import synkhronos, theano.gpuarray; theano.gpuarray.use(%r)", r"theano\.gpuarray\.use"),
        ("import synkhronos, theano; %r", "flag device is"),
    ],
)
def test_a_device_that_is_open_before(program, culprit):
    environment = dict(os.environ)
    environment.pop("THEANO_GPU_IS_ALREADY_ACTIVE", None)  # (Theano's marker for child processes)
    environment["THEANO_FLAGS"] = os.environ.get("THEANO_FLAGS", "") + (",device=" + DEVICE) * ("flag" in culprit)
    done = subprocess.run(
        [sys.executable, "-c", program % DEVICE + f"\nsynkhronos.fork(devices=[{DEVICE!r}] * 2)"],
        stderr=subprocess.PIPE,
        universal_newlines=True,
        env=environment,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert not lacks(last, "StateError", "synkhronos.fork()", "device=cpu")
    assert re.search(culprit, last)


def test_gpus_that_cannot_be_used_are_no_reason_to_fail():
    """If GPUs cannot be opened (here, there are none), ranks run on CPUs, and the log states the reason."""
    program = (
        "import logging, sys; logging.basicConfig(stream=sys.stdout)\n"
        "import synkhronos as synk; from synkhronos.host import gpus\n"
        "gpus.count_gpus = lambda: 2\n"
        "print('ranks', synk.fork(2))\n"
        "import theano, numpy\n"
        "print(type(theano.shared(numpy.zeros(2))).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        universal_newlines=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert "ranks 2" in done.stdout and "TensorSharedVariable" in done.stdout
    assert "GPUs are not used; CPU processes are started instead: rank 1 raised" in done.stdout


def test_nccl_is_not_there_and_said_so_once(caplog):
    with caplog.at_level(logging.INFO, "synkhronos"):
        synk.fork(devices=[DEVICE] * 2)
        w = theano.shared(np.zeros(3, "float32"), "w")
        step = synk.function([], updates=[(w, w + 1)])
        step()
        synk.all_reduce(w)
        synk.all_reduce(w)
    if DEVICE.startswith("opencl"):
        assert [record.message for record in caplog.records if "NCCL" in record.message] == [
            f"NCCL is not used (rank 0, {DEVICE}: Collectives unavailable): arrays on devices go through the host's shared "
            "memory"
        ]


def test_a_rank_that_dies_frees_the_others():
    synk.fork(devices=[DEVICE] * 3)
    w = theano.shared(np.zeros(3, "float32"), "w")
    step = synk.function([], updates=[(w, w + 1)])
    step()
    ranks = [pid for pid, _, _ in PROGRAM.current().run(Device()) if pid != os.getpid()]
    psutil.Process(ranks[0]).kill()
    with reports(synk.WorkerDied, rank=1):
        synk.all_reduce(w)
        synk.all_reduce(w)
    assert not any(psutil.pid_exists(pid) for pid in ranks)
    np.testing.assert_array_equal(w.get_value(), 1)
    synk.fork(devices=[DEVICE] * 2)  # earlier functions are distributed again
    step()
    np.testing.assert_array_equal(synk.gather(w), 2)


def test_threads_of_the_program():
    """Every thread may build functions, call them, and run collectives."""
    T, failures = theano.tensor, []
    synk.fork(devices=[DEVICE] * 2)
    x, w = T.fmatrix("x"), theano.shared(np.ones((50, 3), "float32"), "w")
    f = synk.function([x], (T.dot(x, w).sum(), "sum"))
    f(np.ones((4, 50), "float32"))  # a second use of a kernel is what once failed in other threads

    def work(seed):
        try:
            rows = np.random.RandomState(seed).rand(9, 50).astype("float32")
            g = synk.function([x], (T.dot(x, w).sum() * np.float32(seed), "sum"))
            for _ in range(3):
                expected = 3 * rows.sum(dtype="float64")
                np.testing.assert_allclose([f(rows), g(rows)], [expected, seed * expected], rtol=1e-5)
                synk.all_reduce(w)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), np.ones((2, 50, 3)))


def test_memory_that_a_device_does_not_have():
    synk.fork(devices=[DEVICE] * 2)
    T = theano.tensor
    x = T.fvector("x")
    rows = theano.shared(np.zeros(2, "float32"), "rows")
    huge = T.alloc(np.float32(1), x.shape[0] * 10**6, 10**6)
    f = synk.function([x], (huge + x[0]).sum() * rows.sum())
    with reports(MemoryError, "rank 0", "device", "num_slices=2"):
        f(np.ones(4, "float32"))
    g = synk.function([x], x.sum() + rows.sum())
    np.testing.assert_allclose(g(np.ones(4, "float32")), 2)
