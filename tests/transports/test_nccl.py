"""Ranks of several hosts open one clique of their devices; pygpu and NCCL are stand-ins (pygpu_stand_in.py).

The code around NCCL's calls is tested with real devices in tests/gpu/on_nccl.py.
"""

import os
import sys
from types import ModuleType
from unittest import mock

import numpy as np
import pygpu_stand_in as stand_in
import pytest
from worlds import over_hosts

import synkhronos as synk
from synkhronos.host import machine
from synkhronos.reductions import ReduceOp
from synkhronos.runtime.command import Command

pytestmark = pytest.mark.slow

SHARED = "several ranks share a device, which requires NCCL 2.32 or later and NCCL_MULTI_RANK_GPU_ENABLE=1"


class Id:
    """Stand-in for pygpu.collectives.GpuCommCliqueId: made by this process, or received from another one."""

    def __init__(self, context, comm_id=None):
        self.comm_id = bytearray(b"of process %d" % os.getpid()) if comm_id is None else comm_id


class Done:
    """A device that is always done; it records aborted communicators."""

    aborted = []

    def __init__(self, context, comm):
        self.comm = comm

    def mark(self):
        pass

    def is_done(self):
        return True

    def abort(self):
        self.aborted.append(self.comm)


class Open(Command):
    """Open a clique; return why there is none, or the arguments of each rank's communicator, and its results.

    Parameters
    ----------
    devices : list of str
        By rank.
    machines : list of str
        By rank, the name of its machine.
    environments : list of dict
        By rank, its environment variables.
    unable : int, optional
        A rank whose communicator cannot be made.
    """

    title = "opening"

    def __init__(self, devices, machines, environments, unable=None):
        self.devices, self.machines, self.environments, self.unable = devices, machines, environments, unable

    def run(self, context):
        rank, host, made, communicators = context.rank, context.transport, [], []

        def communicator(clique_id, count, number):
            if rank == self.unable:
                raise RuntimeError("no such device")
            made.append((bytes(clique_id.comm_id), count, number))
            communicators.append(stand_in.Communicator(host, nccl.KNOWN))
            return communicators[0]

        collectives = ModuleType("pygpu.collectives")
        collectives.GpuCommCliqueId, collectives.GpuComm = Id, communicator
        with stand_in.installed() as (pygpu, _, nccl), mock.patch.dict(sys.modules, {"pygpu.collectives": collectives}):
            with mock.patch.dict(os.environ, self.environments[rank]), mock.patch.object(
                machine, "boot_id", lambda: self.machines[rank]
            ), mock.patch.object(nccl, "Cuda", Done):
                clique, why = nccl.open_clique(host, pygpu.init(self.devices[rank]), self.devices[rank])
            if clique is None:
                return why, [communicator in Done.aborted for communicator in communicators]
            values = pygpu.array(np.arange(3.0) + rank, None)
            rows = pygpu.array(np.full((rank, 2), rank, "int64"), None)
            meta = nccl.Meta(True, (3,), np.dtype("float64"))
            results = [
                clique.all_reduce(values, ReduceOp("sum")),
                clique.broadcast(values, meta, context.size - 1),
                clique.all_gather(rows, list(range(context.size))),
                clique.reduce(values, [meta] * context.size, ReduceOp("max")),
            ]
            clique.finish()
            return made, [None if result is None else np.array(result) for result in results]


THREE_HOSTS = pytest.param(((1, 2, 1), 0), marks=pytest.mark.thorough)


@pytest.fixture(params=[((2, 2), 1), ((1, 1), 0), THREE_HOSTS], ids=str)
def session(request):
    counts, root = request.param
    yield over_hosts(counts, root)
    synk.close()


def by_rank(session, of_hosts):
    """Return the item of its host for every rank."""
    return [of_hosts[session.hosts.of(rank)] for rank in range(session.size)]


def devices_of(session):
    """Return the devices of all ranks, numbered from 0 on every host."""
    return [f"cuda{i}" for ranks in session.hosts.ranks for i in range(len(ranks))]


MACHINES, SAME_MACHINE = ["first", "second", "third"], ["the only one"] * 3
SHOWN = [{"CUDA_VISIBLE_DEVICES": shown} for shown in ("0,1", "2,3", "4,5")]
SHOWN_THE_SAME = [{"CUDA_VISIBLE_DEVICES": "0,1"}] * 3
MAY_SHARE = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


@pytest.mark.parametrize(
    "machines, environments",
    [
        (MACHINES, SHOWN_THE_SAME),
        (SAME_MACHINE, SHOWN),  # hosts that are processes on one machine, each with its own GPUs
        (SAME_MACHINE, [{**each, **MAY_SHARE} for each in SHOWN_THE_SAME]),
    ],
    ids=["machines", "GPUs of one machine", "shared GPUs"],
)
def test_one_clique_of_all_hosts(session, machines, environments):
    size, root = session.size, session.root
    command = Open(devices_of(session), by_rank(session, machines), by_rank(session, environments))
    answers = session.run(command)
    assert [made for made, _ in answers] == [[(b"of process %d" % os.getpid(), size, rank)] for rank in range(size)]
    total = size * np.arange(3.0) + sum(range(size))
    for rank, (_, (summed, sent, gathered, most)) in enumerate(answers):
        np.testing.assert_array_equal(summed, total)
        np.testing.assert_array_equal(sent, np.arange(3.0) + size - 1)
        np.testing.assert_array_equal(gathered, np.repeat(np.arange(size), np.arange(size))[:, None] * [1, 1])
        assert (most is not None) == (rank == root)
    np.testing.assert_array_equal(answers[root][1][3], np.arange(3.0) + size - 1)


@pytest.mark.parametrize("may_share", [[], [0], [1]], ids=str)
def test_hosts_that_share_devices_have_none(session, may_share):
    """They have no clique even if one host allows it, because its ranks would wait for the others."""
    environments = [{**each, **(MAY_SHARE if host in may_share else {})} for host, each in enumerate(SHOWN_THE_SAME)]
    command = Open(devices_of(session), by_rank(session, SAME_MACHINE), by_rank(session, environments))
    assert session.run(command) == [(SHARED, [])] * session.size


def test_if_one_rank_cannot_there_is_no_clique(session):
    last = session.size - 1
    devices = devices_of(session)
    command = Open(devices, by_rank(session, MACHINES), by_rank(session, SHOWN_THE_SAME), unable=last)
    answers, aborted = zip(*session.run(command))
    assert list(aborted) == [[True]] * last + [[]]  # other ranks do not keep a communicator that lacks its last rank
    assert len(set(answers)) == 1 and answers[0].startswith(f"rank {last}, {devices[last]}: ")
    assert "no such device" in answers[0]
