"""All code that computes a weighted mean has the same contract (synkhronos/reductions/mean.py).

The table has every way to average, 1 to 7 ranks, and every kind of weights. Tests average columns that are equal on
all ranks, random, extreme, or not finite, also with weights of 0. Devices and NCCL are the stand-ins of
tests/pygpu_stand_in.py, or real ones if SYNK_TEST_DEVICE is set (tests/gpu).

Modules: `device`.
"""

import importlib
import os
import shutil
import sys
import threading

import numpy as np
import pygpu_stand_in as stand_in
import pytest
from refusals import reports

from synkhronos.kernels import copy as streaming
from synkhronos.kernels.reduce import Portion
from synkhronos.reductions import Accumulator, ReduceOp, combine, combine_pieces, mean
from synkhronos.reductions.mean import scaled_weights

AVG = ReduceOp("avg")
FLOATS = ("float16", "float32", "float64")
DEVICE = os.environ.get("SYNK_TEST_DEVICE")

# -- the ways ----------------------------------------------------------------------------------------------------------


def by_combine(parts, weights):
    return combine(AVG, parts, weights)


def by_combine_in_place(parts, weights):
    """Return the mean, written over a part."""
    parts = [None if part is None else part.copy() for part in parts]
    out = next(part for part in parts[::-1] if part is not None)
    return combine(AVG, parts, weights, out=out)


def by_blocks(parts, weights):
    """Return the mean, computed by blocks, as in transports."""
    out = np.full_like(next(part for part in parts if part is not None), 7)
    for begin in range(0, len(out), 5):
        block = slice(begin, begin + 5)
        combine_pieces(AVG, [([None if part is None else part[block] for part in parts], [out[block]])], weights)
    return out


def by_single_numbers(parts, weights):
    """Return means of arrays of 0 dimensions, such as losses."""
    there = next(part for part in parts if part is not None)
    numbers = [[None if part is None else part[i : i + 1].reshape(()) for part in parts] for i in range(len(there))]
    return np.array([combine(AVG, of_ranks, weights) for of_ranks in numbers])


def by_shares(parts, weights):
    """Return the mean; every rank reduces its share of the elements with the C kernel or NumPy."""
    target = np.full_like(next(part for part in parts if part is not None), 7)
    for rank in range(len(parts)):
        Portion([parts], [[target]], rank, len(parts)).combine(AVG, weights)
    return target


def by_slices(parts, weights, accumulator=Accumulator, on_device=lambda part: part):
    """Return the mean of parts as slices of one rank."""
    mean_of_slices = accumulator(AVG)
    for part, weight in zip(parts, weights or [1] * len(parts)):
        if part is not None:
            mean_of_slices.add(on_device(part), weight)
    return np.asarray(mean_of_slices.finish()[0])


def by_serial_training(parts, weights):
    """Return the mean in serial training, ignoring ranks without a value."""
    from synkhronos.extensions.train_theano import COMBINE

    parts, weights = zip(*[each for each in zip(parts, weights or [1] * len(parts)) if each[0] is not None])
    return COMBINE["avg"](list(parts), list(weights))


class Peers:
    """Ranks as threads that exchange objects. They take turns, because pygpu's devices allow one thread at a time."""

    def __init__(self, size, prepare=lambda: None):
        self.size, self._said, self._barrier = size, [None] * size, threading.Barrier(size, timeout=60)
        self._prepare, self._turn = prepare, threading.Lock()

    def run(self, function):
        """Return the function's results on all ranks; its argument is a transport for NCCL."""
        results = [None] * self.size

        def work(rank):
            try:
                with self._turn:
                    self._prepare()
                    results[rank] = function(self.Peer(self, rank))
            except BaseException as error:
                results[rank] = error
                self._barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in results:
            if isinstance(error, BaseException) and not isinstance(error, threading.BrokenBarrierError):
                raise error
        return results

    class Peer:
        def __init__(self, peers, rank):
            self._peers, self.rank, self.size = peers, rank, peers.size

        def exchange(self, notice):
            peers = self._peers
            peers._said[self.rank] = notice
            self._wait()
            said = list(peers._said)
            self._wait()
            return said

        def _wait(self):
            self._peers._turn.release()
            try:
                self._peers._barrier.wait()
            finally:
                self._peers._turn.acquire()


def make_current(context):
    """Return the ranks' function that makes the device's context current in a thread."""
    return importlib.import_module("synkhronos.engines.theano.gpu")._make_current(context)


def by_nccl(modules, call, parts, weights):
    """Return the mean by NCCL; all ranks' results must have the same bits."""
    pygpu, _, nccl = modules
    context = pygpu.init(DEVICE or "stand-in")
    prepare = make_current(context) if (DEVICE or "").startswith("cuda") else lambda: None
    there = next(part for part in parts if part is not None)
    metas = [None if part is None else nccl.Meta(True, there.shape, there.dtype) for part in parts]

    def on_rank(peer):
        communicator = stand_in.Communicator(peer, nccl.KNOWN)
        clique = nccl.Clique(communicator, context, peer.rank, peer.size, peer.size - 1, None, None)
        array = None if parts[peer.rank] is None else pygpu.array(parts[peer.rank], context=context)
        if call == "reduce":
            return clique.reduce(array, metas, AVG, weights)
        return clique.all_reduce(array, AVG, weights)

    results = Peers(len(parts), prepare).run(on_rank)
    if call == "reduce":
        assert all(result is None for result in results[:-1])
        results = results[-1:]
    results = [np.array(result) for result in results]
    assert len({result.tobytes() for result in results}) == 1
    return results[0]


@pytest.fixture(scope="module")
def modules():
    """Return pygpu, `reductions.device` and `transports.nccl`: with a real device or the stand-in."""
    if DEVICE:
        names = ["pygpu", "synkhronos.reductions.device", "synkhronos.transports.nccl"]
        yield tuple(map(importlib.import_module, names))
        return
    if shutil.which(stand_in.COMPILER) is None:
        pytest.skip(f"needs pygpu, or the C compiler {stand_in.COMPILER} for its stand-in")
    with stand_in.installed() as loaded:
        yield loaded


def test_stand_in_leaves_nothing():
    """Later tests do not import the stand-in as pygpu."""
    assert not any(sys.modules.get(module.__name__) is module for module in stand_in.modules().values())


WAYS = [
    "combine",
    "combine in place",
    "blocks",
    "single numbers",
    "kernel",
    "kernel past the caches",
    "shares by NumPy",
    "slices",
    "slices on a device",
    "NCCL all_reduce",
    "NCCL reduce",
    pytest.param("serial training", marks=pytest.mark.theano),
]
HOST = WAYS[:8]  # the ways that support complex numbers


@pytest.fixture
def way(request, monkeypatch):
    """Return the function (parts, weights) -> mean that the test's parameter names."""
    name = request.param
    if name.startswith("kernel"):
        if streaming.kernels is None:
            pytest.skip("needs the kernels in C: make install, with a compiler")
        monkeypatch.setattr(streaming, "CACHE_BYTES", 0 if "past" in name else 1 << 50)
    elif name == "shares by NumPy":
        monkeypatch.setattr(streaming, "kernels", None)
    elif name == "blocks":
        monkeypatch.setattr(mean, "BLOCK_BYTES", 16)
    elif name == "serial training":
        pytest.importorskip("theano")
    if name.startswith("slices"):
        monkeypatch.setattr(sys.modules[__name__], "HUGE", 1e300)  # numbers of rows, whose sum is also finite
    if name == "slices on a device":
        pygpu, device, _ = request.getfixturevalue("modules")
        context = pygpu.init(DEVICE or "stand-in")
        return lambda parts, weights: by_slices(
            parts, weights, device.DeviceAccumulator, lambda part: pygpu.array(part, context=context)
        )
    if name.startswith("NCCL"):
        loaded, call = request.getfixturevalue("modules"), name.split()[1]
        return lambda parts, weights: by_nccl(loaded, call, parts, weights)
    return {
        "combine": by_combine,
        "combine in place": by_combine_in_place,
        "blocks": by_blocks,
        "single numbers": by_single_numbers,
        "slices": by_slices,
        "serial training": by_serial_training,
    }.get(name, by_shares)


# -- the table ---------------------------------------------------------------------------------------------------------


#: A finite weight; the sum of two such weights is infinite.
HUGE = 1e308


def kinds_of_weights(n):
    """Return every kind of weights for n ranks."""
    kinds = [None, [1] * n, [50] * n, list(range(1, n + 1)), [(r * 7 + 3) / 10 for r in range(n)], [0] * n]
    kinds += [[HUGE] * n, [5e-324] * n]
    if n > 1:
        kinds += [[0] + [3] * (n - 1), [2] + [0] * (n - 1), [r % 2 for r in range(n)]]
    return kinds


def columns(n, dtype, weights):
    """Return all ranks' values, shape ``(n, number of columns)``; rows of weight 0 are full of NaN and infinities."""
    info, random = np.finfo(dtype), np.random.RandomState(n)
    tiny = info.tiny * info.eps  # the smallest denormal number
    equal = [1 / 3, 0.1, 1.0, -7.7, 0.0, -0.0, info.max, -info.max, info.tiny, tiny, 3 * tiny, np.inf, -np.inf, np.nan]
    ends = [info.max, -info.max, info.max / 2, 1.0, tiny, -tiny, 0.0]
    mixed = [
        *random.randn(20, n) * 10,
        *random.choice(ends, (20, n)),
        *random.choice([1.0, np.inf, -np.inf, np.nan], (8, n), p=[0.7, 0.1, 0.1, 0.1]),
        *[info.max * (1 - info.eps * random.randint(0, 9, n)) for _ in range(5)],  # rounding may make the mean inf
    ]
    values = np.array([np.full(n, value) for value in equal] + mixed).astype(dtype).T
    if weights is not None and any(weights):
        for rank, weight in enumerate(weights):
            if not weight:
                values[rank] = np.resize([np.nan, np.inf, -np.inf], values.shape[1])
    return np.ascontiguousarray(values)


def check(result, parts, weights):
    """Check every column of a result against the contract, using means of higher precision and wider range."""
    there = [rank for rank, part in enumerate(parts) if part is not None]
    weights = [1] * len(parts) if weights is None else weights
    counted = [rank for rank in there if weights[rank]] or there
    values = np.stack([parts[rank] for rank in counted])
    wide, shares = values.astype(np.longdouble), np.array([[weights[rank] or 1] for rank in counted], np.longdouble)
    info = np.finfo(values.dtype)
    assert np.finfo(np.longdouble).eps < info.eps and np.finfo(np.longdouble).max > info.max
    assert type(result) is np.ndarray and result.dtype == values.dtype and result.shape == values.shape[1:]
    bits = values.view(f"u{values.itemsize}")
    with np.errstate(all="ignore"):
        truth, size = ((shares * terms).sum(axis=0) / shares.sum() for terms in (wide, abs(wide)))
        error = abs(result.astype(np.longdouble) - truth)
    equal = (bits == bits[0]).all(axis=0) & ~np.isnan(values[0])
    finite = np.isfinite(values).all(axis=0)
    right = np.where(equal, result.view(bits.dtype) == bits[0], result == truth)
    right = np.where(np.isnan(truth), np.isnan(result), right)
    bound = 4 * (len(counted) + 2) * (info.eps * size + np.longdouble(info.tiny) * info.eps)
    between = (values.min(axis=0) <= result) & (result <= values.max(axis=0))
    right = np.where(finite & ~equal, between & (error <= bound), right)
    for column in np.flatnonzero(~right):
        raise AssertionError(f"the mean of {values[:, column]} with weights {shares[:, 0]}: {result[column]!r}")


@pytest.mark.slow(but="^2")
@pytest.mark.thorough("^[137]")
@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("n", range(1, 8))
def test_mean(way, n):
    for dtype in FLOATS:
        for weights in kinds_of_weights(n):
            parts = list(columns(n, dtype, weights))
            check(way(parts, weights), parts, weights)


@pytest.mark.thorough(but="^2")
@pytest.mark.parametrize("way", [name for name in WAYS if name != "NCCL all_reduce"], indirect=True)
@pytest.mark.parametrize("n", [2, 3, 7])
def test_mean_of_ranks_without_a_value(way, n):
    """Ranks without values do not count; if all other weights are 0, the other ranks count equally."""
    for dtype in FLOATS:
        for missing in ({0}, {n - 1}, set(range(1, n))):
            for weights in (None, [2.0] * n, [3] + [1] * (n - 1), [float(rank in missing) for rank in range(n)]):
                parts = [None if r in missing else part for r, part in enumerate(columns(n, dtype, None))]
                check(way(parts, weights), parts, weights)


@pytest.mark.slow
@pytest.mark.parametrize("way", HOST, indirect=True)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_mean_of_complex_numbers_is_that_of_their_parts(way, dtype):
    real = np.zeros(0, dtype).real.dtype
    for n in range(1, 8):
        for weights in kinds_of_weights(n):
            values = columns(n, real, weights)
            parts = np.empty(values.shape, dtype)
            parts.real, parts.imag = values, values[:, ::-1]
            result = way(list(parts), weights)
            check(result.real.copy(), list(parts.real), weights)
            check(result.imag.copy(), list(parts.imag), weights)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS[:-1], indirect=True)  # (in the serial program, weights are numbers of rows)
def test_infinity_of_a_tiny_weight_counts(way):
    """No nonzero weight is rounded to 0: 0 * inf would be NaN."""
    for dtype in FLOATS:
        parts = [np.array([np.inf, -np.inf, 1.0], dtype), np.array([1.0, 1.0, 1.0], dtype)]
        for weights in ([1e-60, 1.0], [5e-324, 1e308]):
            np.testing.assert_array_equal(way(parts, weights), parts[0])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["combine", "blocks", "kernel", "shares by NumPy"], indirect=True)
def test_bits_are_those_of_the_definition(way):
    """Results equal the formula in plain NumPy to the last bit, so that hosts agree."""
    for dtype in ("float32", "float64"):
        for n in range(2, 8):
            for weights in ([1] * n, list(range(1, n + 1)), [(r * 7 + 3) / 10 for r in range(n)]):
                parts = np.random.RandomState(n).randn(n, 1000).astype(dtype)
                scaled = scaled_weights(np.array(weights, float)).astype(dtype)
                total = parts[0] * scaled[0]
                for part, weight in zip(parts[1:], scaled[1:]):
                    total = total + part * weight
                expected = np.clip(total / scaled.sum(), parts.min(axis=0), parts.max(axis=0))
                np.testing.assert_array_equal(way(list(parts), weights), expected)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_table_finds_lost_weights(way):
    """For each way to average, the table fails if weights are lost."""
    for dtype in FLOATS:
        weights = [1, 2, 3]
        parts = list(columns(3, dtype, weights))
        with reports(AssertionError, "the mean of"):
            check(way(parts, None), parts, weights)


def test_table_finds_a_missing_clamp(monkeypatch):
    """The table fails without the clamp, which preserves equal values."""
    monkeypatch.setattr(mean, "_weighted_mean", lambda weights, values, out, scratch: np.copyto(
        out, sum(w * value for w, value in zip(weights, values)) / weights.sum(), casting="same_kind"))  # fmt: skip
    with reports(AssertionError, "the mean of"):
        test_mean(by_combine, 3)
