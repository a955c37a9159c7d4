"""Which device every rank uses, and the command by which they open them."""

from __future__ import annotations

import importlib
import re
from typing import Any, List, Optional, Sequence

from .. import engines
from ..errors import SynkhronosError
from ..runtime.command import Command
from ..runtime.context import RankContext

#: The engine that devices are opened for.
ENGINE = "theano"

_NAMES = re.compile(r"cuda\d+|opencl\d+:\d+")


class OpenDevices(Command):
    """Have every rank open its own device: the others first, so that the master opens none where one of them cannot.

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


def place(devices: Optional[Sequence[str]], n_parallel: Optional[int], n_gpus: int) -> List[str]:
    """Return the device of every rank.

    Parameters
    ----------
    devices : sequence of str, optional
        As the user named them; all GPUs by default.
    n_parallel : int, optional
        Number of ranks; one per device by default.
    n_gpus : int
        How many GPUs CUDA would show.

    Raises
    ------
    TypeError, ValueError
        Where a device cannot exist, or there are more ranks than devices.

    Examples
    --------
    >>> place(None, None, 2)
    ['cuda0', 'cuda1']
    >>> place(["opencl0:0", "opencl0:0"], None, 0)
    ['opencl0:0', 'opencl0:0']
    """
    if devices is None:
        names = [f"cuda{i}" for i in range(n_gpus)]
        if n_parallel is not None and n_parallel > n_gpus:
            raise ValueError(
                (
                    f"n_parallel: {n_parallel} ranks, but there are {n_gpus} GPUs; where ranks shall share "
                    "them, name them "
                    f"several times, devices={[f'cuda{i % max(1, n_gpus)}' for i in range(n_parallel)]!r}"
                )
            )
        return names[:n_parallel]
    if isinstance(devices, str) or not isinstance(devices, (list, tuple)):
        raise TypeError(
            "devices must be a list with the name of every rank's device, ['cuda0', 'cuda1'] for example, "
            f"got {devices!r}"
        )
    if not devices:
        raise ValueError("devices must name one device at least, got an empty list")
    for i, name in enumerate(devices):
        if not isinstance(name, str):
            raise TypeError(f"devices[{i}] must be a str, got {name!r} of type {type(name).__name__}")
        if not _NAMES.fullmatch(name):
            raise ValueError(f"devices[{i}]: expected a name like 'cuda0' or 'opencl0:0', got {name!r}")
        if name.startswith("cuda") and int(name[4:]) >= n_gpus:
            raise ValueError(
                f"devices[{i}]: there is no {name}: this machine shows {n_gpus} GPUs (CUDA_VISIBLE_DEVICES counts)"
            )
    if n_parallel is not None and n_parallel != len(devices):
        raise ValueError(
            (
                f"n_parallel: {n_parallel} ranks, but devices names {len(devices)}: give every rank one (a "
                "device may be named "
                "several times), or leave out n_parallel"
            )
        )
    return list(devices)
