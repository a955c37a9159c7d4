"""Data-parallel Theano: write one serial program, run every call on all ranks at once.

The published names are loaded at their first use: ``python -m synkhronos program.py`` imports this package before the
program has begun, and what the program sets up before its own first import of NumPy must still have its effect.
"""

import atexit
import os
import sys
from importlib import import_module
from typing import Any, List

from .engines import requirements
from .engines.pytensor import import_check
from .engines.theano.import_fixes import prepare
from .launchers.hosts.environment import place

__version__ = "0.1.0"

#: Where each published name is defined; `ops` is a package.
_HOMES = {
    "Data": "shared_data",
    "Function": "functions.function",
    "LoaderError": "errors",
    "SharedMemoryError": "errors",
    "StateError": "errors",
    "SynkhronosError": "errors",
    "WorkerDied": "errors",
    "WorkerError": "errors",
    "WorkerTimeout": "errors",
    "all_gather": "collectives.all_gather",
    "all_reduce": "collectives.all_reduce",
    "broadcast": "collectives.broadcast",
    "close": "program.lifecycle",
    "data": "shared_data",
    "distribute": "replication.distribute",
    "fork": "program.lifecycle",
    "function": "functions.build",
    "gather": "collectives.gather",
    "get_lengths": "collectives.shapes",
    "get_n_gpu": "program.lifecycle",
    "get_shapes": "collectives.shapes",
    "get_value": "collectives.get_value",
    "hosts": "program.lifecycle",
    "in_sync": "collectives.in_sync",
    "is_forked": "program.lifecycle",
    "loader": "extensions.loader",
    "ops": "ops",
    "rank": "program.lifecycle",
    "reduce": "collectives.reduce",
    "report": "program.profiled",
    "scatter": "collectives.scatter",
    "set_value": "collectives.set_value",
    "sharded": "functions.sharded",
    "size": "program.lifecycle",
    "traffic": "collectives.traffic",
}

__all__ = sorted(_HOMES)

_placed: List[bool] = []


def __getattr__(name: str) -> Any:
    """Load a published name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'synkhronos' has no attribute {name!r}")
    take_place()
    home = import_module("." + _HOMES[name], __name__)
    value = globals()[name] = home if _HOMES[name] == name else getattr(home, name)
    return value


def take_place() -> None:
    """Divert this process to serve, if an MPI launcher has started it on another host than the first.

    The first use of a published name does it: the program runs on the first host alone.
    """
    if _placed:
        return
    _placed.append(True)
    if place(os.environ) is not None:
        import_module(".program.hosts", __name__).take_place()


def __dir__() -> List[str]:
    """List the published names, loaded or not."""
    return sorted(set(globals()) | set(__all__))


@atexit.register  # now, and not with the first use: exit handlers that are registered in between find the session open
def _shut_down() -> None:
    program = sys.modules.get(__name__ + ".program.program")
    if program is not None:
        program.PROGRAM.shut_down()


if place(os.environ) is not None:
    # MPI is for the process that speaks to other hosts: Theano would initialise it in this one.
    os.environ.setdefault("MPI4PY_RC_INITIALIZE", "false")
prepare()
import_check.prepare()
requirements.prepare()
del prepare
