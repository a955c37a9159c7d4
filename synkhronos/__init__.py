"""Data-parallel Theano: write one serial program, run every call on all devices at once."""

from .collectives.all_gather import all_gather
from .collectives.all_reduce import all_reduce
from .collectives.broadcast import broadcast
from .collectives.gather import gather
from .collectives.get_value import get_value
from .collectives.in_sync import in_sync
from .collectives.reduce import reduce
from .collectives.scatter import scatter
from .collectives.set_value import set_value
from .collectives.shapes import get_lengths, get_shapes
from .data import Data, data
from .engines.theano_setup import prepare
from .errors import SharedMemoryError, StateError, SynkhronosError, WorkerDied, WorkerError, WorkerTimeout
from .forking import close, fork, get_n_gpu, is_forked, size
from .functions.function import Function, distribute, function

__version__ = "0.1.0"

__all__ = [
    "Data", "Function", "SharedMemoryError", "StateError", "SynkhronosError", "WorkerDied", "WorkerError",
    "WorkerTimeout", "all_gather", "all_reduce", "broadcast", "close", "data", "distribute", "fork", "function",
    "gather", "get_lengths", "get_n_gpu", "get_shapes", "get_value", "in_sync", "is_forked", "reduce", "scatter",
    "set_value", "size",
]

prepare()
del prepare
