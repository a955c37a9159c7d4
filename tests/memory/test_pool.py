"""Pools of shared memory, within one process and between several.

Modules: `attach`, `handles`.
"""

import errno
import gc
import mmap
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses, reports

from synkhronos.errors import SharedMemoryError, StateError
from synkhronos.host import machine
from synkhronos.memory import attach, memfd
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.handles import Handle
from synkhronos.memory.pool import WINDOW_BYTES, Pool, range_of

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


@pytest.fixture(params=["memfd", "posix_ipc"])
def pool(request, monkeypatch):
    if request.param == "posix_ipc":
        monkeypatch.delattr(os, "memfd_create")
    return Pool(3, window=1 << 32)


def run(program, **kwargs):
    """Run a program in a fresh interpreter and return what it printed."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, timeout=60, check=False, **kwargs
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    return done.stdout.decode().strip()


def peer_of(pool):
    peer = PoolMap()
    peer.add(pool.ident, pool.fileno())
    return peer


def address(array):
    return array.__array_interface__["data"][0]


def reserved(pool):
    """Return how many bytes of memory the pool's file occupies."""
    return os.fstat(pool.fileno()).st_blocks * 512


DTYPES = [
    "?",
    "i1",
    "u8",
    "f2",
    "f4",
    ">f8",
    "c16",
    "S3",
    "U5",
    "M8[ms]",
    "m8[s]",
    [("a", "i2"), ("b", "f8", (2,))],
    "V7",
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0, 2), (2, 3), (2, 1, 2, 1, 3)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_allocate_like_numpy_and_attach(shape, dtype, order):
    pool = Pool(7)
    array, twin = pool.allocate(shape, dtype, order), np.empty(shape, dtype, order)
    assert (array.shape, array.dtype) == (twin.shape, twin.dtype)
    assert array.size == 0 or array.strides == twin.strides
    assert array.flags.writeable and array.flags.aligned
    assert address(array) % 64 == 0
    twin[...] = np.frombuffer(os.urandom(twin.nbytes), twin.dtype).reshape(shape) if twin.dtype.kind == "V" else 1
    array[...] = twin
    handle = pickle.loads(pickle.dumps(pool.handle(array)))
    seen = peer_of(pool).attach(handle)
    assert (seen.shape, seen.dtype) == (twin.shape, twin.dtype)
    assert seen.tobytes() == twin.tobytes()
    assert seen.flags.writeable


@pytest.mark.parametrize("dtype, shape", [("S", 3), ("U", 3), (("f4", (2, 3)), 4), ("f4", np.int64(3))], ids=str)
def test_dtypes_that_numpy_completes(dtype, shape):
    array, twin = Pool(0).allocate(shape, dtype), np.zeros(shape, dtype)
    assert (array.shape, array.dtype) == (twin.shape, twin.dtype)
    array[...] = twin
    np.testing.assert_array_equal(array, twin)


VIEWS = {
    "whole": lambda x: x,
    "rows": lambda x: x[2:5],
    "step": lambda x: x[::2, 1::3],
    "reversed": lambda x: x[::-1, ::-1],
    "transposed": lambda x: x.T,
    "column": lambda x: x[:, 3],
    "element": lambda x: x[4, 5:6].reshape(()),
    "empty": lambda x: x[::-1][6:6],
    "past": lambda x: x[6:],
    "broadcast": lambda x: np.broadcast_to(x[1], (3, 7)),
    "other dtype": lambda x: x.view("u1"),
    "field": lambda x: x.view([("a", "f4"), ("b", "i4")])["b"],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_handle_of_views(pool, view):
    x = pool.allocate((6, 7), "f8")
    x[...] = np.arange(42).reshape(6, 7)
    part = view(x)
    assert pool.owns(part)
    seen = peer_of(pool).attach(pool.handle(part))
    assert seen.dtype == part.dtype
    assert seen.shape == part.shape
    np.testing.assert_array_equal(seen, part)
    if part.size:
        seen[...] = 3  # a broadcast view is writable here, which is harmless
        np.testing.assert_array_equal(part, np.full(part.shape, 3, part.dtype))


def test_handle_of_foreign_arrays(pool):
    for array in (np.zeros(3), Pool(4).allocate(3, "f8")):
        assert not pool.owns(array)
        with reports(ValueError, "(3,)", "pool 3"):
            pool.handle(array)
    assert pool.owns(np.zeros((0, 3)))
    assert peer_of(pool).attach(pool.handle(np.zeros((0, 3), "i4"))).shape == (0, 3)


def test_handle_is_small():
    pool = Pool(0)
    assert len(pickle.dumps(pool.handle(pool.allocate((1000, 1000), "f4")), -1)) < 200


def test_attach_errors(pool):
    peer = peer_of(pool)
    with reports(ValueError, "pool 9", "[3]"):
        peer.attach(Handle(9, 0, (1,), None, np.dtype("f8")))
    with reports(ValueError, (1 << 32) + 8):
        peer.attach(Handle(3, 1 << 32, (1,), None, np.dtype("f8")))
    with reports(ValueError, (1 << 32) + 72):
        peer.attach(Handle(3, (1 << 32) - 80, (10,), (16,), np.dtype("f8")))
    own = PoolMap()
    own.add(3, pool)
    with pytest.raises((TypeError, ValueError)):
        own.attach(Handle(3, 1 << 32, (1,), None, np.dtype("f8")))
    peer.remove(3)
    with reports(ValueError, "pool 3"):
        peer.attach(Handle(3, 0, (1,), None, np.dtype("f8")))


@pytest.mark.parametrize("strides", [None, (8,), (-8,)])
def test_first_attach_is_of_any_form(pool, strides):
    x = pool.allocate(4, "f8")
    x[:] = [1, 2, 3, 4]
    part = x if strides != (-8,) else x[::-1]
    handle = pool.handle(part)._replace(strides=strides)
    np.testing.assert_array_equal(peer_of(pool).attach(handle), part)


def test_attach_own_pool_is_the_same_memory(pool):
    own = PoolMap()
    own.add(3, pool)
    x = pool.allocate((4, 5), "f4")
    assert address(own.attach(pool.handle(x[1:]))) == address(x[1:])


def test_peer_maps_more_as_arrays_reach_further(monkeypatch):
    monkeypatch.setattr(attach, "_PEER_WINDOW_BYTES", MIB)
    pool = Pool(0)
    peer = peer_of(pool)
    arrays = [pool.allocate(300_000, "u1") for _ in range(40)]
    views = []
    for number, array in enumerate(arrays):
        views.append(peer.attach(pool.handle(array[::-1] if number % 2 else array)))
        views[-1][:] = number
    assert [set(array) for array in arrays] == [{number} for number in range(40)]
    assert len({id(view.base) for view in views}) < 8  # each mapping at least doubles


def test_attached_array_outlives_pool_and_map():
    pool = Pool(0)
    x = pool.allocate(1000, "i4")
    x[:] = 7
    peer = peer_of(pool)
    seen = peer.attach(pool.handle(x))
    peer.remove(0)
    del peer
    pool.close()
    del pool
    gc.collect()
    x[5] = 8
    assert seen[4] == 7 and seen[5] == 8


# --- freeing ---


def test_memory_is_used_again_when_the_last_view_dies(pool):
    a = pool.allocate(1000, "f8")
    where, view = address(a), a[::2].reshape(10, 50).T
    assert pool.used == 8000
    del a
    gc.collect()
    assert pool.used == 8000
    b = pool.allocate(1000, "f8")
    assert address(b) != where
    del view
    gc.collect()
    assert pool.used == 8000
    c = pool.allocate(500, "f8")
    assert address(c) == where


@pytest.mark.parametrize("wrap", [np.asarray, memoryview, lambda a: a.view(np.matrix), lambda a: np.frombuffer(a)])
def test_every_kind_of_view_keeps_the_range(pool, wrap):
    view = wrap(pool.allocate((2, 100), "f8"))
    gc.collect()
    assert pool.used == 1600
    del view
    gc.collect()
    assert pool.used == 0


def test_arrays_outlive_the_pool_object():
    pool = Pool(0)
    a = pool.allocate(100_000, "f8")
    b = pool.allocate(100_000, "f8")
    pool.close()
    del pool
    a[:], b[:] = 1, 2
    del a
    gc.collect()
    assert b.sum() == 200_000


def test_big_ranges_go_back_to_the_machine_at_once(pool):
    a = pool.allocate(MIB, "u1")
    a[:] = 1
    assert reserved(pool) == MIB
    del a
    assert reserved(pool) == 0
    assert not pool.allocate(MIB, "u1").any()  # a hole contains zeros


def test_freed_pages_are_those_of_no_neighbour(pool):
    """Ranges share pages at their ends. Such a page is freed once all of its ranges are free, and not before."""
    arrays = [pool.allocate(70_000, "u1") for _ in range(5)]
    for number, array in enumerate(arrays):
        array[:] = number
    arrays[1] = arrays[3] = None
    for number in (0, 2, 4):
        assert set(arrays[number]) == {number}
    arrays[2] = None
    assert set(arrays[0]) == {0} and set(arrays[4]) == {4}
    assert reserved(pool) <= 2 * 70_000 + 4 * 4096
    arrays[:] = []
    del array
    assert reserved(pool) == 0


def test_small_ranges_go_back_together(pool):
    arrays = [pool.allocate(1000, "u1") for _ in range(5000)]
    keep = pool.allocate(64, "u1")
    keep[:] = 9
    del arrays
    gc.collect()
    assert pool.used == 64
    assert reserved(pool) < 2 * MIB  # of 5 MiB
    assert set(keep) == {9}


def test_model(pool):
    """In any order of allocation and release, arrays keep their values, do not overlap, and leave one free range."""
    rng = random.Random(1)
    alive = []
    for step in range(1500):
        if alive and rng.random() < 0.48:
            array, number = alive.pop(rng.randrange(len(alive)))
            assert (array == number).all()
            del array
        else:
            array = pool.allocate(int(10 ** rng.uniform(0, 5.5)), "u1")
            assert address(array) % 64 == 0
            number = step % 251
            array[:] = number
            alive.append((array, number))
            del array
        if step % 100 == 0:
            spans = sorted((address(a), address(a) + a.nbytes) for a, _ in alive)
            assert all(stop <= start for (_, stop), (start, _) in zip(spans, spans[1:]))
            assert pool.used == sum(-(-a.nbytes // 64) * 64 for a, _ in alive)
    alive.clear()
    assert pool.used == 0
    assert list(pool._free) == [(0, 1 << 32)]


def test_arrays_that_die_in_cycles_and_threads():
    """The garbage collector may run finalizers anywhere, even while the same thread has locked the pool."""
    pool = Pool(0)
    failures = []

    class Node:
        pass

    def work(seed):
        try:
            rng = random.Random(seed)
            for _ in range(400):
                node = Node()
                node.me, node.array = node, pool.allocate(rng.randint(1, 100_000), "u1")
                node.array[:] = seed
                held = pool.allocate(rng.randint(1, 1000), "u1")
                held[:] = seed
                assert (node.array == seed).all() and (held == seed).all()
        except BaseException as error:  # noqa: BLE001 - passed to the main thread
            failures.append(error)

    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert failures == []
    assert pool.used == 0
    assert list(pool._free) == [(0, WINDOW_BYTES)]


def test_array_that_dies_while_its_own_thread_holds_the_lock():
    pool = Pool(0)
    array = pool.allocate(10, "f8")
    with pool._lock:  # it would wait for this lock forever
        del array
        assert pool.used == 128
    other = pool.allocate(100_000, "f8")
    assert pool.used == 800_000
    del other
    assert list(pool._free) == [(0, WINDOW_BYTES)]


def test_an_interrupt_when_the_array_is_registered_frees_its_range_once(pool, monkeypatch):
    """If the range were freed twice, two arrays would share memory."""

    class Interrupting(weakref.finalize):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(weakref, "finalize", Interrupting)
        with pytest.raises(KeyboardInterrupt):
            pool.allocate(1000, "f8")
    gc.collect()
    arrays = [pool.allocate(1000, "f8") for _ in range(3)]
    places = sorted(address(array) for array in arrays)
    assert all(place + 8000 <= other for place, other in zip(places, places[1:]))
    assert pool.used == 24_000


def test_an_interrupt_in_freeing_leaves_the_lock_open():
    came = 0
    for nth in range(30):
        pool, before, seen = Pool(0, window=1 << 28), sys.gettrace(), []
        array = pool.allocate(1000, "f8")
        with pool._lock:
            del array

        def trace(frame, event, argument, nth=nth, seen=seen):
            if frame.f_code.co_name != "_settle":
                return None
            if event == "line" and frame.f_lineno not in seen:  # (again at the end of a `with`, but without a signal)
                seen.append(frame.f_lineno)
                if len(seen) == nth + 1:
                    signal.raise_signal(signal.SIGINT)
            return trace

        sys.settrace(trace)
        try:
            pool._settle()
        except KeyboardInterrupt:
            came += 1
        finally:
            sys.settrace(before)
        assert not pool._lock.locked(), nth
    assert 5 < came < 30


# --- limits ---


def unchanged(pool):
    return (pool.used, list(pool._free), reserved(pool))


def test_needed_and_free_are_said(pool, monkeypatch):
    keep = pool.allocate(100, "f8")
    monkeypatch.setattr(machine, "available_memory", lambda: 100 * MIB)
    before = unchanged(pool)
    with reports(SharedMemoryError, "200.0 MiB", 209715200, "68.0 MiB", "np.memmap"):
        pool.allocate(200 * MIB, "u1")
    assert unchanged(pool) == before
    assert issubclass(SharedMemoryError, MemoryError)
    pool.allocate(10 * MIB, "u1")[:] = 1
    keep[:] = 1


def test_many_small_arrays_are_checked_too(pool, monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 0)
    arrays = []
    with pytest.raises(SharedMemoryError):
        for _ in range(40):
            arrays.append(pool.allocate(50_000, "u1"))
    assert 10 < len(arrays) < 40


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM, errno.EFBIG])
def test_full_in_the_middle_loses_nothing(pool, monkeypatch, number):
    real, calls = os.posix_fallocate, []

    def full(fd, start, size):
        calls.append(start)
        if len(calls) == 3:
            raise OSError(number, os.strerror(number))
        real(fd, start, size)

    before = unchanged(pool)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with reports(SharedMemoryError, "40.0 MiB", os.strerror(number)):
        pool.allocate(40 * MIB, "u1")
    assert len(calls) == 3
    assert unchanged(pool) == before
    pool.allocate(40 * MIB, "u1")[:] = 1


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_other_errors_lose_nothing_either(pool, monkeypatch, error):
    before = unchanged(pool)

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", fail)
        with pytest.raises(type(error)):
            pool.allocate(MIB, "u1")
    assert unchanged(pool) == before


def test_file_system_that_is_too_small(pool, monkeypatch):
    """The error names both sizes, for example for a container's /dev/shm of 64 MB, which is used without memfd."""
    real = os.fstatvfs(pool.fileno())
    small = os.statvfs_result((real.f_bsize, 4096, 16384, 16384, 16384) + tuple(real)[5:])
    monkeypatch.setattr(os, "fstatvfs", lambda fd: small)
    with reports(SharedMemoryError, "65.0 MiB", "64.0 MiB"):
        pool.allocate(65 * MIB, "u1")


def test_too_large_for_any_window(pool):
    for shape in (1 << 40, (1 << 40, 1 << 40)):
        with reports(SharedMemoryError, "address space"):
            pool.allocate(shape, "f8")
    assert pool.used == 0


@pytest.mark.parametrize(
    "shape, dtype, error, argument, got",
    [
        (3, object, TypeError, "dtype", "object"),
        (3, [("a", "O")], TypeError, "dtype", "'O'"),
        (-1, "f4", ValueError, "shape", "(-1,)"),
        ((2, -1), "f4", ValueError, "shape", "(2, -1)"),
        (2.5, "f4", TypeError, "shape", "2.5"),
        ((2, 2.5), "f4", TypeError, "shape", "(2, 2.5)"),
        ("ab", "f4", TypeError, "shape", "'ab'"),
    ],
)
def test_bad_arguments(pool, shape, dtype, error, argument, got):
    with refuses(error, argument, got=got):
        pool.allocate(shape, dtype)
    assert pool.used == 0
    assert pool.allocate(3, "f4").shape == (3,)


def test_unknown_dtype_is_refused_by_numpy(pool):
    with reports(TypeError, "no such"):
        pool.allocate(3, "no such")
    assert pool.used == 0


def test_bad_order_frees_its_range(pool):
    with pytest.raises((TypeError, ValueError)):
        pool.allocate(3, "f4", order="Z")
    gc.collect()
    assert pool.used == 0


def test_closed(pool):
    x = pool.allocate(3, "f4")
    pool.close()
    pool.close()
    with reports(StateError, "pool 3"):
        pool.allocate(3, "f4")
    with reports(StateError, "pool 3"):
        pool.fileno()
    assert "closed" in repr(pool)
    assert pool.handle(x).offset == 0


def test_signals_do_not_keep_a_reservation_from_ending():
    ticks = []
    previous = signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        Pool(0).allocate(400 * MIB, "u1")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert ticks


@pytest.mark.slow
def test_more_than_2_gib():
    size = (1 << 31) + 100_000
    pool = Pool(0)
    before = pool.allocate(1000, "u1")
    x = pool.allocate(size, "u1")
    after = pool.allocate(1000, "u1")
    after[:] = before[:] = 5
    x[-1], x[1 << 31] = 1, 2
    peer = peer_of(pool)
    seen = peer.attach(pool.handle(x[::-1]))
    assert (seen[0], seen[size - 1 - (1 << 31)], int(seen[:1000].sum())) == (1, 2, 1)
    assert peer.attach(pool.handle(after)).sum() == 5000


def test_release_without_madvise_is_harmless(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_REMOVE")
    pool = Pool(0)
    pool.allocate(MIB, "u1")[:] = 1
    assert pool.used == 0
    assert pool.allocate(MIB, "u1").shape == (MIB,)


# --- processes ---


def test_processes_see_each_others_writes_and_free_only_their_own():
    printed = run("""if True:
        import gc, os, socket, array, pickle
        from synkhronos.memory.attach import PoolMap
        from synkhronos.memory.pool import Pool
        from synkhronos.errors import StateError
        pool = Pool(0)
        x = pool.allocate(100_000, 'f8')
        x[:] = 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pid = os.fork()
        if pid == 0:
            own = Pool(1)
            y = own.allocate((2, 3), 'i4')
            y[:] = 5
            x[0] = 2                        # the mapping is inherited and shared
            try:
                pool.allocate(3, 'f4')
            except StateError as error:
                assert 'forked child' in str(error)
            else:
                os._exit(1)
            message = pickle.dumps(own.handle(y.T))
            theirs.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [own.fileno()]))])
            assert theirs.recv(1) == b'w'
            ok = y[1, 2] == 7
            del x, pool
            gc.collect()                    # must not free the parent's pages
            os._exit(0 if ok else 2)
        message, ancillary, _, _ = ours.recvmsg(1000, 1000)
        fd = array.array('i', ancillary[0][2][:4])[0]
        peers = PoolMap()
        peers.add(1, fd)
        os.close(fd)
        y = peers.attach(pickle.loads(message))
        print(y.tolist(), x[0])
        y[2, 1] = 7
        ours.send(b'w')
        print(os.waitpid(pid, 0)[1], x[1:].min(), y[2, 1])    # the dead child's writes remain
        """)
    assert printed.splitlines() == ["[[5, 5], [5, 5], [5, 5]] 2.0", "0 1.0 7"]


def test_hundreds_of_arrays_with_few_descriptors():
    printed = run("""if True:
        import os, resource
        from synkhronos.memory.attach import PoolMap
        from synkhronos.memory.pool import Pool
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        before = len(os.listdir('/proc/self/fd'))
        pools = [Pool(n) for n in range(3)]
        arrays = [[pool.allocate((n + 1, 7), 'f4') for n in range(300)] for pool in pools]
        peers = PoolMap()
        for pool in pools:
            peers.add(pool.ident, pool.fileno())
        for pool, mine in zip(pools, arrays):
            for array in mine:
                peers.attach(pool.handle(array))[:] = 1
        print(all((array == 1).all() for mine in arrays for array in mine))
        print(len(os.listdir('/proc/self/fd')) - before)
        for pool in pools:
            pool.close()
        del pools, pool, arrays, mine, array, peers
        print(len(os.listdir('/proc/self/fd')) - before)
        """)
    assert printed.splitlines() == ["True", "12", "0"]


@pytest.mark.slow
@pytest.mark.parametrize("fallback", [False, True])
def test_kill_leaves_nothing(fallback, find_leftovers, find_left_since):
    before = find_leftovers()
    program = f"""if True:
        import os, time
        if {fallback}:
            del os.memfd_create
        from synkhronos.memory.pool import Pool
        pool = Pool(0)
        x = pool.allocate(1000, 'f4')
        x[:] = 1
        print('ready', flush=True)
        time.sleep(60)
        """
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    assert not find_left_since(before)


@pytest.mark.slow
def test_limit_of_address_space():
    printed = run("""if True:
        import resource, numpy as np
        from synkhronos.memory.attach import PoolMap
        from synkhronos.memory.pool import Pool
        from synkhronos.errors import SharedMemoryError
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        pools = [Pool(n) for n in range(3)]           # each leaves address space for the others
        peers = PoolMap()
        for pool in pools:
            peers.add(pool.ident, pool.fileno())
            peers.attach(pool.handle(pool.allocate(10, 'f4')))
        x = pools[0].allocate(100 << 20, 'u1')
        peers.attach(pools[0].handle(x))[-1] = 3
        print(x[-1], pools[0]._window == 2 << 30)
        try:
            pools[0].allocate(3 << 30, 'u1')
        except SharedMemoryError as error:
            print('ulimit -v' in str(error), 'needed 3.0 GiB' in str(error))
        np.ones(100 << 20, 'u1')
        """)
    assert printed.splitlines() == ["3 True", "True True"]


def test_window_is_halved_until_it_can_be_had(monkeypatch):
    real = mmap.mmap

    def small(fd, size, *args, **kwargs):
        if size > 1 << 28:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(fd, size, *args, **kwargs)

    monkeypatch.setattr(mmap, "mmap", small)
    pool = Pool(0)
    assert pool._window == 1 << 28
    x = pool.allocate(1 << 27, "u1")
    seen = peer_of(pool).attach(pool.handle(x))
    seen[-1] = 1
    assert x[-1] == 1
    peer = peer_of(pool)
    monkeypatch.setattr(mmap, "mmap", lambda *args: small(0, 1 << 30))
    with reports(SharedMemoryError, "128.0 MiB", "ulimit -v"):
        peer.attach(pool.handle(x))
    with reports(SharedMemoryError, "64.0 MiB"):
        Pool(1)


def test_windows_of_pools_that_are_garbage_are_given_back():
    printed = run("""if True:
        import gc, resource
        from synkhronos.memory.pool import Pool
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        gc.disable()
        for _ in range(10):                           # of 2 GiB each
            pool = Pool(0)
            pool.me = pool
        print(pool._window == 2 << 30)
        """)
    assert printed == "True"


def test_limit_of_file_size():
    printed = run("""if True:
        import resource
        from synkhronos.memory.pool import Pool
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        pool = Pool(0)
        pool.allocate(100 << 20, 'u1')[-1] = 1
        print(pool._window)
        """)
    assert printed == str(1 << 30)


def test_views_alive_at_exit_are_silent():
    printed = run("""if True:
        import atexit, sys
        atexit.register(lambda: print(array[0], late.array[0]))     # runs last, when all memory must still exist
        from synkhronos.memory.pool import Pool
        pool = Pool(0)
        array = pool.allocate(100_000, 'f8')
        sys.modules['kept'] = array[::2]
        class Late:
            def __init__(self): self.array = pool.allocate(100_000, 'f8'); self.array[:] = 3
            def __del__(self): self.array[:] = 1
        late = Late(); late.me = late
        atexit.register(lambda: array.fill(2))
        """)
    assert printed == "2.0 3.0"


@pytest.mark.long
def test_attach_takes_microseconds():
    pool = Pool(0)
    x = pool.allocate((100, 10), "f4")
    peer, handle = peer_of(pool), pool.handle(x[::2])
    peer.attach(handle)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(1000):
            peer.attach(handle)
        best = min(best, (time.perf_counter() - start) / 1000)
    assert best < 2e-5


def test_repr(pool):
    keep = pool.allocate(10, "u1")
    assert repr(pool) == "<Pool 3: 64 bytes used of a window of 4.0 GiB (4294967296 bytes)>"
    assert repr(peer_of(pool)) == "<PoolMap: pools [3], files mapped: 0>"
    del keep


def test_piece_is_a_multiple_of_the_page():
    assert memfd._PIECE_BYTES % os.sysconf("SC_PAGE_SIZE") == 0


def test_a_pool_is_taken_over():
    """Named ranges are kept and all others are freed; then the pool works like any other."""
    first = Pool(5)
    kept, lost = first.allocate((3, 100_000), "float64"), first.allocate((1 << 20,), "uint8")
    more = first.allocate((7,), "int16")
    kept[:], lost[:], more[:] = np.arange(300_000).reshape(3, 100_000), 9, np.arange(7)
    handles = [first.handle(kept), first.handle(more)]
    pages = os.fstat(first.fileno()).st_blocks
    second = Pool(5, fd=os.dup(first.fileno()), taken=[range_of(handle) for handle in handles])
    assert os.fstat(first.fileno()).st_blocks <= pages - ((1 << 20) - 2 * mmap.PAGESIZE) // 512
    adopted = [second.adopt(handle) for handle in handles]
    np.testing.assert_array_equal(adopted[0], np.arange(300_000).reshape(3, 100_000))
    np.testing.assert_array_equal(adopted[1], np.arange(7))
    assert [second.handle(array) for array in adopted] == handles
    used = second.used
    fresh = second.allocate((1 << 20,), "uint8")
    fresh[:] = 1
    np.testing.assert_array_equal(adopted[0], np.arange(300_000).reshape(3, 100_000))
    del fresh
    del adopted[0]
    gc.collect()
    assert second.used == used - range_of(handles[0])[1]
    assert second.adopt(Handle(5, 0, (0, 3), None, np.dtype("f8"))).shape == (0, 3)
    with reports(ValueError, 64):
        Pool(5, fd=os.dup(first.fileno()), taken=[(0, 128), (64, 64)])


def test_ranges_that_are_not_adopted_stay_until_they_are_freed():
    first = Pool(5)
    arrays = [first.allocate((1000,), "float64") for _ in range(3)]
    ranges = [range_of(first.handle(array)) for array in arrays]
    second = Pool(5, fd=os.dup(first.fileno()), taken=ranges)
    fresh = second.allocate((1000,), "float64")
    assert range_of(second.handle(fresh)) not in ranges
    adopted = second.adopt(first.handle(arrays[1]))
    second.free_unadopted()
    second.free_unadopted()
    again = [second.allocate((1000,), "float64") for _ in range(2)]
    assert {range_of(second.handle(array)) for array in again} == {ranges[0], ranges[2]}
    assert second.handle(adopted) == first.handle(arrays[1])
    with pytest.raises(KeyError):
        second.adopt(first.handle(arrays[1]))


def test_memory_that_survivors_may_still_write_to_is_not_reused():
    """Ranks that have not noticed a death write into the dead rank's arrays; later, these pages are released as well."""
    first = Pool(5)
    before, kept, after = (first.allocate((n,), "uint8") for n in (1 << 20, 1000, 1 << 21))
    kept[:] = 7
    before[:] = after[:] = 1
    second = Pool(5, fd=os.dup(first.fileno()), taken=[range_of(first.handle(kept))])
    pages = os.fstat(first.fileno()).st_blocks
    assert pages < (1 << 20) // 512
    fresh = [second.allocate((n,), "uint8") for n in (64, 1000, 1 << 20, 1 << 21)]
    for each in fresh:
        each[:] = 2
    before[:] = after[:] = 3
    assert all((each == 2).all() for each in fresh) and (second.adopt(first.handle(kept)) == 7).all()
    pages = os.fstat(first.fileno()).st_blocks
    second.free_unadopted()
    assert os.fstat(first.fileno()).st_blocks <= pages - (3 << 20) // 512 + 4 * mmap.PAGESIZE // 512
    assert range_of(second.handle(second.allocate((1 << 20,), "uint8")))[0] < range_of(first.handle(after))[0]
