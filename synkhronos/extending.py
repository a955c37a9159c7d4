"""Names for authors of extensions, besides the public names of `synkhronos`; `synkhronos.extensions` uses no others.

=========================================================  =============================================================
`find_engine`                                              the library of variables: their labels, types and values
`current_session`, `built_functions`                       the open session; the program's functions
`parse_batch`, `parse_groups`, `one_of`                    validation of arguments
`EXCHANGE_FORMATS`                                         the values of ``exchange`` in `synkhronos.all_reduce`
`StepProgress`, `listed`, `joined_steps`, `one_step`       several commands that together make one ``steps``
`run_asynchronously`, `StepHooks`, `AsyncRegion`           steps on any free rank, with hooks between them
`DeferredSignals`                                          a block that Ctrl-C does not divide
`is_set_by_program`, `axis_of_rows`                        state of a variable, for checkpoints
`Shard`, `nameless_file`, `check_free`                     placement by rows; files in memory
=========================================================  =============================================================
"""

from __future__ import annotations

from typing import Any, Iterable, List, Sequence

import numpy as np

from . import engines
from .calls.batches import listed as listed
from .calls.changes import is_set_by_program as is_set_by_program
from .calls.on_step import StepProgress as StepProgress
from .calls.signature import one_of as one_of
from .calls.state_rows import axis_of_rows as axis_of_rows
from .calls.steps import joined
from .collectives.mixing import parse_groups as parse_groups
from .contrib.asynchronous import AsyncRegion as AsyncRegion
from .contrib.asynchronous import StepHooks as StepHooks
from .contrib.asynchronous import run_asynchronously as run_asynchronously
from .host.signals import DeferredSignals as DeferredSignals
from .kernels.encoding import FORMATS
from .memory.memfd import check_free as check_free
from .memory.memfd import nameless_file as nameless_file
from .program.program import PROGRAM
from .selection import parse
from .sharding import Shard as Shard

EXCHANGE_FORMATS = tuple(FORMATS)
parse_batch = parse


def find_engine(variables: Iterable[Any]) -> Any:
    """Return the engine (`synkhronos.engines.base.Engine`) of the variables; None if no engine owns any of them."""
    return engines.find(variables)


def current_session() -> Any:
    """Return the open session, which supports weak references and comparison; raise `StateError` if none is open."""
    return PROGRAM.current()


def built_functions() -> List[Any]:
    """Return the program's functions that are still alive, in order of construction."""
    return PROGRAM.functions


def joined_steps(function: Any, parts: Sequence[Any], output_subset: Any = None) -> Any:
    """Return the results of several calls of ``function.steps`` as the result of one call for all their steps."""
    chosen = _chosen(function, output_subset)
    outputs = zip(*(function._form.flat(part, chosen) for part in parts))
    return function._form.wrap([joined(each) for each in outputs], chosen)


def one_step(function: Any, results: Any, output_subset: Any = None) -> Any:
    """Return the results of a call as the result of ``function.steps`` for a single step."""
    chosen = _chosen(function, output_subset)
    ops = function.output_modes if chosen is None else [function.output_modes[i] for i in chosen]
    values = zip(function._form.flat(results, chosen), ops)
    of_step = [[value] if str(op).endswith("gather") else np.asarray(value)[None] for value, op in values]
    return function._form.wrap(of_step, chosen)


def _chosen(function: Any, output_subset: Any) -> Any:
    return None if output_subset is None else function._positions(output_subset)
