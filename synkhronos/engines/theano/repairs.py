"""Faults of Theano 1.0.5 that come up in programs that do nothing wrong, repaired in this process.

==============================  ==============================  ====================================================
What Theano does                What we do                      The test that holds it
==============================  ==============================  ====================================================
Writes the keys of a module in  Replace the file at once        test_the_keys_of_a_module_are_whole_at_any_moment
place. Another process that
reads them meanwhile deletes
the module as broken, and what
uses it then fails
Fails for ever if a module that Do without: it is loaded        test_a_module_that_was_deleted_is_used_on
is loaded was deleted
Keeps every variable that is    End the observation             test_variables_are_forgotten_after_a_gemm_that_cannot_be
made after an optimization
under observation has raised,
such as ``a + dot(a, b)`` has
Looks every 5 to 10 seconds     Look every 5 to 20 ms: ranks    test_the_lock_is_taken_soon_after_it_is_free
whether the lock of the         load at the same time, each
compile cache is free, and may  holding it for some ms; and
find it taken for minutes       programs compile beside others
Computes in place where         Have it computed element by     test_what_is_imaginary_may_be_written_into
``imag`` of real numbers has    element, into an array
put NumPy's read-only zeros
==============================  ==============================  ====================================================
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
from typing import Any, Iterator, List

import theano.tensor
from theano.gof import Variable, cmodule, compilelock, graph

_save_in_place = cmodule.KeyData.save_pkl
_lock = compilelock.lock


def repair() -> None:
    """Put these in the place of Theano's own."""
    cmodule.KeyData.save_pkl = _save_keys
    graph.nodes_constructed = _nodes_constructed
    # (``compile.wait`` cannot be changed in a program.)
    theano.tensor.imag.nfunc_spec = None
    compilelock.lock = functools.partial(_lock, min_wait=0.005, max_wait=0.02, verbosity=0)


def _save_keys(data: Any) -> None:
    try:
        whole = pickle.dumps(data, protocol=pickle.HIGHEST_PROTOCOL)
    except pickle.PicklingError:
        _save_in_place(data)  # which says so, and deletes the file
        return
    part = f"{data.key_pkl}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        with open(part, "wb") as file:
            file.write(whole)
        os.replace(part, data.key_pkl)


@contextlib.contextmanager
def _nodes_constructed() -> Iterator[List[Variable]]:
    nodes: List[Variable] = []
    observe = nodes.append
    Variable.append_construction_observer(observe)
    try:
        yield nodes
    finally:
        Variable.remove_construction_observer(observe)
