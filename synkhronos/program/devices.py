"""Which device every rank uses, and the command by which they open them."""

from __future__ import annotations

import importlib
import logging
from typing import Any, List, Optional, Sequence

from .. import engines
from ..errors import ArgumentValueError, SynkhronosError
from ..host import gpus
from ..runtime.command import Command
from ..runtime.context import RankContext

#: The engine that devices are opened for.
ENGINE = "theano"

logger = logging.getLogger("synkhronos")


class OpenDevices(Command):
    """Have every rank open its own device: the others first, so that the master opens none if one of them cannot.

    Parameters
    ----------
    names : list of str
        By rank.
    """

    title = "opening of the devices"

    def __init__(self, names: List[str]) -> None:
        self.names = names

    def run(self, context: RankContext) -> None:
        engine, name = engines.get(ENGINE), self.names[context.rank]
        opened = None
        if context.rank != context.root:
            opened = _open(engine, context.rank, name)
        context.barrier.wait()
        if context.rank == context.root:
            opened = _open(engine, context.rank, name)
        # pygpu is there now, which that module needs.
        transport = importlib.import_module("synkhronos.transports.gpu").GpuTransport(context.transport, opened, name)
        transport.connect()
        context.transport = transport


def _open(engine: Any, rank: int, name: str) -> Any:
    try:
        return engine.open_device(name)
    except SynkhronosError as error:
        raise type(error)(f"rank {rank}: {error}") from error


def choose_devices(
    devices: Optional[Sequence[str]], use_gpu: Optional[bool], n_parallel: Optional[int]
) -> Optional[List[str]]:
    """Return the device of every rank, or None if they are to be CPU processes."""
    if devices is None and not use_gpu and (use_gpu is not None or not gpus.count_gpus()):
        return None
    if use_gpu is not None and not use_gpu:
        raise ArgumentValueError("devices", "none, as use_gpu is False", repr(devices), "leave out one of them")
    try:
        missing = engines.get(ENGINE).check_devices()
    except ArgumentValueError:
        missing = "only Theano computes on GPUs, which is not installed: make install ENGINE=theano"
    except ImportError as error:
        missing = f"Theano cannot be imported ({error}): pip install 'synkhronos[theano]'"
    names: List[str] = []
    if devices is None and not gpus.count_gpus():
        missing = missing or "there is no GPU on this machine that CUDA would show: see python -m synkhronos doctor"
    elif devices is not None or use_gpu or not missing:
        try:
            names = gpus.place(devices, n_parallel, gpus.count_gpus())
        except ValueError as error:
            if devices is not None or use_gpu:
                raise
            missing = str(error)
    if missing and devices is None and use_gpu is None:
        logger.warning(
            "the %d GPUs of this machine are not used, CPU processes take their place: %s",
            gpus.count_gpus(),
            missing,
        )
        return None
    if missing:
        raise SynkhronosError(f"{'devices' if devices is not None else 'use_gpu=True'}: {missing}")
    return names
