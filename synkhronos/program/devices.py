"""Selection of each rank's device, and the command that opens the devices."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any, List, Optional, Sequence

from .. import engines
from ..cluster.environment import settings_of_nccl
from ..cluster.facts import HostFacts
from ..engines import pickling
from ..errors import ArgumentValueError, SynkhronosError
from ..host import gpus
from ..host.interfaces import interfaces
from ..runtime.command import Command
from ..runtime.context import RankContext

ENGINE = "theano"  #: The engine that uses devices.

logger = logging.getLogger("synkhronos")


class OpenDevices(Command):
    """Open every rank's device. The master opens its device last, and only if all other ranks succeeded.

    After a rank is replaced, all ranks run this command again; open devices stay open. ``names`` lists devices by rank.
    """

    title = "opening devices"
    repeats = False

    def __init__(self, names: List[str], over_hosts: bool) -> None:
        self.names, self.over_hosts = names, over_hosts

    def run(self, context: RankContext) -> None:
        if self.over_hosts:
            os.environ.update(settings_of_nccl(os.environ, interfaces()))
        engine, name = engines.get(ENGINE), self.names[context.rank]
        opened = None if context.rank == context.root else _open(engine, context.rank, name)
        context.barrier.wait()
        if context.rank == context.root:
            opened = _open(engine, context.rank, name)
        gpu = importlib.import_module("synkhronos.transports.gpu")  # pygpu, which it imports, is available now
        there = context.transport
        host = there.disconnect() if isinstance(there, gpu.GpuTransport) else there
        transport = gpu.GpuTransport(host, opened, name, pickling.prepare_thread)
        transport.connect()
        context.use(transport)


def _open(engine: Any, rank: int, name: str) -> Any:
    try:
        return engine.open_device(name)
    except SynkhronosError as error:
        raise type(error)(f"rank {rank}: {error}") from error


def choose_devices(
    devices: Optional[Sequence[str]], use_gpu: Optional[bool], n_ranks: Optional[int], hosts: Sequence[HostFacts] = ()
) -> Optional[List[List[str]]]:
    """Return the devices of every host's ranks (this host's first), or None for CPU processes; see `fork`."""
    # The ranks of this host inherit the current environment, so count the GPUs that are visible in it.
    counts = [gpus.count_gpus(), *(host.n_gpus for host in hosts[1:])]
    if devices is None and not use_gpu and (use_gpu is not None or not any(counts)):
        return None
    if use_gpu is not None and not use_gpu:
        raise ArgumentValueError("devices", "no devices if use_gpu is False", repr(devices), "omit devices or use_gpu")
    missing, names = _missing(hosts), []
    if devices is None and not all(counts):
        where = f"host {hosts[counts.index(0)].name}" if hosts else "this machine"
        missing = missing or f"CUDA finds no GPU on {where}: run python -m synkhronos doctor"
    elif devices is not None or use_gpu or not missing:
        try:
            of_hosts = zip(counts, [host.name for host in hosts] or [""])
            names = [gpus.place(devices, n_ranks, count, name) for count, name in of_hosts]
        except ValueError as error:
            if devices is not None or use_gpu:
                raise
            missing = str(error)
    if hosts and len({name.startswith("cuda") for of_host in names for name in of_host}) > 1:
        hint = "name only cuda or only opencl devices"
        raise ArgumentValueError("devices", "devices of one kind on several hosts", repr(devices), hint)
    if missing and devices is None and use_gpu is None:
        words = "GPUs are not used; CPU processes are started instead: %s (number of GPUs on %s: %d)"
        logger.warning(words, missing, "the hosts" if hosts else "this machine", sum(counts))
        return None
    if missing:
        raise SynkhronosError(f"{'devices' if devices is not None else 'use_gpu=True'}: {missing}")
    return names


def _missing(hosts: Sequence[HostFacts]) -> str:
    """Return the missing requirement for using devices, with the remedy; "" if there is none."""
    try:
        missing = engines.get(ENGINE).check_devices()
    except ArgumentValueError as error:
        return f"only Theano computes on GPUs: {error.hint}"
    except ImportError as error:
        return f"Theano cannot be imported ({error}): run python -m synkhronos doctor"
    without = [host.name for host in hosts[1:] if not host.has_pygpu]
    if without and not missing:
        return f"pygpu is not installed on host {without[0]}: see docs/gpus.rst"
    return missing
