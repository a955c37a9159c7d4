"""Which device every rank uses, and the command by which they open them."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any, List, Optional, Sequence

from .. import engines
from ..errors import ArgumentValueError, SynkhronosError
from ..host import gpus
from ..host.interfaces import interfaces
from ..launchers.hosts.environment import settings_of_nccl
from ..launchers.hosts.facts import Facts
from ..runtime.command import Command
from ..runtime.context import RankContext

#: The engine that devices are opened for.
ENGINE = "theano"

logger = logging.getLogger("synkhronos")


class OpenDevices(Command):
    """Have every rank open its own device: the others first, so that the master opens none if one of them cannot.

    When another process has taken the place of a rank, all meet again; those that have a device keep it.

    Parameters
    ----------
    names : list of str
        By rank.
    over_hosts : bool
        Whether the ranks are on several.
    """

    title = "opening of the devices"
    repeats = False

    def __init__(self, names: List[str], over_hosts: bool) -> None:
        self.names, self.over_hosts = names, over_hosts

    def run(self, context: RankContext) -> None:
        if self.over_hosts:
            os.environ.update(settings_of_nccl(os.environ, interfaces()))
        engine, name = engines.get(ENGINE), self.names[context.rank]
        opened = None
        if context.rank != context.root:
            opened = _open(engine, context.rank, name)
        context.barrier.wait()
        if context.rank == context.root:
            opened = _open(engine, context.rank, name)
        gpu = importlib.import_module("synkhronos.transports.gpu")  # pygpu is there now, which it needs
        there = context.transport
        host = there.disconnect() if isinstance(there, gpu.GpuTransport) else there
        transport = gpu.GpuTransport(host, opened, name)
        transport.connect()
        context.transport = transport


def _open(engine: Any, rank: int, name: str) -> Any:
    try:
        return engine.open_device(name)
    except SynkhronosError as error:
        raise type(error)(f"rank {rank}: {error}") from error


def choose_devices(
    devices: Optional[Sequence[str]], use_gpu: Optional[bool], n_parallel: Optional[int], hosts: Sequence[Facts] = ()
) -> Optional[List[List[str]]]:
    """Return the devices of every host's ranks, or None if they are to be CPU processes.

    Parameters
    ----------
    devices, use_gpu, n_parallel
        See `fork`.
    hosts : sequence of Facts
        If there are several, this one first.
    """
    # Ranks of this host are given the environment that this process has now, in which CUDA is asked for devices.
    counts = [gpus.count_gpus(), *(host.n_gpus for host in hosts[1:])]
    if devices is None and not use_gpu and (use_gpu is not None or not any(counts)):
        return None
    if use_gpu is not None and not use_gpu:
        raise ArgumentValueError("devices", "none, as use_gpu is False", repr(devices), "leave out one of them")
    missing, names = _missing(hosts), []
    if devices is None and not all(counts):
        where = f"host {hosts[counts.index(0)].name}" if hosts else "this machine"
        missing = missing or f"there is no GPU on {where} that CUDA would show: see python -m synkhronos doctor"
    elif devices is not None or use_gpu or not missing:
        try:
            of_hosts = zip(counts, [host.name for host in hosts] or [""])
            names = [gpus.place(devices, n_parallel, count, name) for count, name in of_hosts]
        except ValueError as error:
            if devices is not None or use_gpu:
                raise
            missing = str(error)
    if hosts and len({name.startswith("cuda") for of_host in names for name in of_host}) > 1:
        raise ArgumentValueError(
            "devices", "devices of one kind, as there are several hosts", repr(devices), "name cuda or opencl alone"
        )
    if missing and devices is None and use_gpu is None:
        logger.warning(
            "the %d GPUs of %s are not used, CPU processes take their place: %s",
            sum(counts),
            "the hosts" if hosts else "this machine",
            missing,
        )
        return None
    if missing:
        raise SynkhronosError(f"{'devices' if devices is not None else 'use_gpu=True'}: {missing}")
    return names


def _missing(hosts: Sequence[Facts]) -> str:
    """Return what is missing for using devices at all, with the remedy; "" if nothing is."""
    try:
        missing = engines.get(ENGINE).check_devices()
    except ArgumentValueError as error:
        return f"only Theano computes on GPUs: {error.hint}"
    except ImportError as error:
        return f"Theano cannot be imported ({error}): python -m synkhronos doctor says what to do"
    without = [host.name for host in hosts[1:] if not host.has_pygpu]
    if without and not missing:
        return f"pygpu is not installed on host {without[0]}: docs/installation.rst says how"
    return missing
