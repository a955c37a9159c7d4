"""Data parallelism for Theano and PyTensor: functions divide the rows of their inputs over ranks that run in parallel.

Public names are loaded on first use, because NumPy ignores settings such as ``OMP_NUM_THREADS`` that a program makes
after importing NumPy. ``python -m synkhronos program.py`` imports this package before the program starts.
"""

import atexit
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, List

from .cluster.environment import SLURM_NODES, place
from .engines import requirements
from .engines.pytensor import import_check
from .engines.theano.import_fixes import prepare

__version__ = "0.1.0"

#: The module that defines each public name; `ops` is itself a module.
_HOMES = {
    "ArgumentError": "errors",
    "ArgumentTypeError": "errors",
    "ArgumentValueError": "errors",
    "Data": "shared_data",
    "Function": "calls.function",
    "Groups": "program.groups",
    "LoaderError": "errors",
    "Options": "program.options",
    "RankFailure": "errors",
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
    "function": "calls.build",
    "functions": "calls.block",
    "gather": "collectives.gather",
    "get_lengths": "collectives.shapes",
    "get_n_gpu": "program.lifecycle",
    "get_shapes": "collectives.shapes",
    "get_value": "collectives.get_value",
    "hosts": "program.lifecycle",
    "in_sync": "collectives.in_sync",
    "is_forked": "program.lifecycle",
    "loader": "loading",
    "ops": "ops",
    "rank": "program.lifecycle",
    "reduce": "collectives.reduce",
    "report": "program.profiled",
    "scatter": "collectives.scatter",
    "set_value": "collectives.set_value",
    "sharded": "calls.signature",
    "size": "program.lifecycle",
    "traffic": "collectives.traffic",
}

if TYPE_CHECKING:  # the same names for type checkers and editors, which cannot evaluate `__getattr__`
    from . import ops as ops
    from .calls.block import functions as functions
    from .calls.build import function as function
    from .calls.function import Function as Function
    from .calls.signature import sharded as sharded
    from .collectives.all_gather import all_gather as all_gather
    from .collectives.all_reduce import all_reduce as all_reduce
    from .collectives.broadcast import broadcast as broadcast
    from .collectives.gather import gather as gather
    from .collectives.get_value import get_value as get_value
    from .collectives.in_sync import in_sync as in_sync
    from .collectives.reduce import reduce as reduce
    from .collectives.scatter import scatter as scatter
    from .collectives.set_value import set_value as set_value
    from .collectives.shapes import get_lengths as get_lengths
    from .collectives.shapes import get_shapes as get_shapes
    from .collectives.traffic import traffic as traffic
    from .errors import ArgumentError as ArgumentError
    from .errors import ArgumentTypeError as ArgumentTypeError
    from .errors import ArgumentValueError as ArgumentValueError
    from .errors import LoaderError as LoaderError
    from .errors import RankFailure as RankFailure
    from .errors import SharedMemoryError as SharedMemoryError
    from .errors import StateError as StateError
    from .errors import SynkhronosError as SynkhronosError
    from .errors import WorkerDied as WorkerDied
    from .errors import WorkerError as WorkerError
    from .errors import WorkerTimeout as WorkerTimeout
    from .loading import loader as loader
    from .program.groups import Groups as Groups
    from .program.lifecycle import close as close
    from .program.lifecycle import fork as fork
    from .program.lifecycle import get_n_gpu as get_n_gpu
    from .program.lifecycle import hosts as hosts
    from .program.lifecycle import is_forked as is_forked
    from .program.lifecycle import rank as rank
    from .program.lifecycle import size as size
    from .program.options import Options as Options
    from .program.profiled import report as report
    from .replication.distribute import distribute as distribute
    from .shared_data import Data as Data
    from .shared_data import data as data

else:
    __all__ = sorted(_HOMES)

    def __getattr__(name: str) -> Any:
        """Load a public name on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module 'synkhronos' has no attribute {name!r}")
        take_place()
        home = import_module("." + _HOMES[name], __name__)
        value = globals()[name] = home if _HOMES[name] == name else getattr(home, name)
        return value

    def __dir__() -> List[str]:
        return sorted(set(globals()) | set(__all__))


_placed: List[bool] = []


def take_place() -> None:
    """If an MPI launcher started this program on several hosts, return only on the first; the others serve it.

    Called by ``python -m synkhronos``, and on the first use of a public name. Only the first call has an effect.
    """
    if _placed:
        return
    _placed.append(True)
    if place(os.environ) is not None or SLURM_NODES in os.environ:  # a Slurm job may get advice
        import_module(".program.hosts", __name__).take_place()


@atexit.register  # at import, so that exit handlers that the program registers later run before the session is closed
def _shut_down() -> None:
    program = sys.modules.get(__name__ + ".program.program")
    if program is not None:
        program.PROGRAM.shut_down()


if place(os.environ) is not None:
    # Theano would initialize MPI in this process, but only the process that communicates with other hosts may do so.
    os.environ.setdefault("MPI4PY_RC_INITIALIZE", "false")
prepare()
import_check.prepare()
requirements.prepare()
del prepare
