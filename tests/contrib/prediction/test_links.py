"""Times of reductions, compared to manual calculations."""

import pytest

from synkhronos.cluster.mpi_thread import CHUNK_BYTES, LEAST_PIECE_BYTES
from synkhronos.contrib.prediction.links import HostLinkModel, RingModel, SharedMemory, fit


def test_shared_memory():
    link = SharedMemory(35e-6, 1 / 30e9)
    # 16 MB on 2 ranks: each reads and writes half of it twice, in total 64 MB at 60 GB/s, and 35 us.
    assert link.seconds(2, 16e6) == pytest.approx(35e-6 + 64e6 / 60e9)
    assert link.seconds(1, 16e6) == 0
    assert link.seconds(2, 0) == 0


def test_ring():
    link = RingModel(1e-5, 1e10)
    assert link.seconds(8, 1e8) == pytest.approx(14e-5 + 1.75 * 1e-2)
    assert link.seconds(1, 1e8) == 0
    assert link.seconds(8, 0) == 0


def test_over_hosts():
    link = HostLinkModel(1e-3, 1e-4, 8e-9)
    nbytes = 2.5 * CHUNK_BYTES  # three chunks
    assert link.seconds(3, nbytes) == pytest.approx(1e-3 + 4 * 3 * 1e-4 + 4 / 3 * nbytes * 8e-9)
    assert link.seconds(1, nbytes) == 0
    nbytes = 20 * LEAST_PIECE_BYTES  # two chunks for ten hosts
    assert link.seconds(10, nbytes) == pytest.approx(1e-3 + 18 * 2 * 1e-4 + 1.8 * nbytes * 8e-9)


def test_fit():
    link = HostLinkModel(1e-3, 1e-4, 8e-9)
    measured = [(hosts, nbytes, link.seconds(hosts, nbytes)) for hosts in (2, 3, 4) for nbytes in (1e5, 1e6, 1e8)]
    found = fit(measured)
    assert found[:3] == pytest.approx(link[:3])
    assert found.error < 1e-6
    spoiled = [(hosts, nbytes, 1.1 * seconds if i else seconds) for i, (hosts, nbytes, seconds) in enumerate(measured)]
    assert 0.01 < fit(spoiled).error < 0.11
