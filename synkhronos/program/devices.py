"""Which device every rank uses, and the command by which they open them."""

from __future__ import annotations

import importlib
from typing import Any, List

from .. import engines
from ..errors import SynkhronosError
from ..runtime.command import Command
from ..runtime.context import RankContext

#: The engine that devices are opened for.
ENGINE = "theano"


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
