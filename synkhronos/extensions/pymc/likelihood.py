"""`Likelihood`: the sum of the log-probabilities of rows, and its gradient, computed by all ranks."""

from __future__ import annotations

import os
import threading
import uuid
from typing import Any, List, Optional, Sequence
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import pytensor
from pymc.pytensorf import rewrite_pregrad
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

import synkhronos as synk
from synkhronos.errors import ArgumentValueError, StateError, WorkerError

from .rows import refuse_mixed_rows

#: What a chain in a process of its own is told.
CHAINS = (
    "this likelihood is computed by the ranks of another process, which a chain (or program) in a process of its own "
    "cannot use: pass cores=1 to pm.sample; its chains then run one after the other, each of them on all ranks"
)

#: All likelihoods of this process, so that copies and pickles of what refers to them find them again.
_LIKELIHOODS: WeakValueDictionary[str, Likelihood] = WeakValueDictionary()


class Failure:
    """The first error of likelihoods that are called by what loses errors.

    Parameters
    ----------
    thread : int, optional
        The identifier of the thread that calls them; by default any that was not started by Python.
    """

    def __init__(self, thread: Optional[int] = None) -> None:
        self.thread = thread
        self.error: Optional[Exception] = None

    def is_of_this_thread(self) -> bool:
        """Return whether an error in this thread is to be left here."""
        here = threading.get_ident()
        if self.thread is not None:
            return here == self.thread
        known = [each for each in threading.enumerate() if not isinstance(each, threading._DummyThread)]
        return here not in [each.ident for each in known]


class Likelihood:
    """The sum over all rows of a log-probability, and its gradient with respect to parameters.

    The rows lie in shared memory from the beginning. A call sends the parameters to all ranks, and returns what they
    have added up: no row moves.

    It belongs to this process. Copies of it are itself, and what a pickle of it becomes in another process is a
    likelihood that refuses to be called.

    Parameters
    ----------
    rows : variable
        The log-probability, with an element (or an array) for each row.
    variables : list of variables
        Those for the data.
    data : list of Data
        Their values, all with the same number of rows.
    params : list of variables
        Those for the parameters.
    name : str
        Used in messages.
    mode : mode, optional
        PyTensor's, in which the ranks' function is compiled.
    fixed : list of variables, optional
        Those of the parameters without a gradient: for values of ``pm.Data``.
    check_bounds : bool
        Whether parameters out of their range give ``-inf``, as `pm.Model` has it.
    is_observed : bool
        Whether it is that of an observed variable of a plain model.

    Attributes
    ----------
    failures : set of Failure
        Of samplers and optimizers that run now and lose errors: where they are left.

    Raises
    ------
    ArgumentValueError
        If a row's log-probability depends on other rows.
    """

    def __init__(
        self,
        rows: Variable,
        variables: Sequence[Variable],
        data: Sequence[synk.Data],
        params: Sequence[Variable],
        name: str,
        mode: Any = None,
        fixed: Sequence[Variable] = (),
        check_bounds: bool = True,
        is_observed: bool = False,
    ) -> None:
        self.name, self.is_observed, self.data, self.n_rows = name, is_observed, list(data), len(data[0])
        self.differentiable = [param.type.dtype.startswith("float") and param not in fixed for param in params]
        self.failures: WeakSet[Failure] = WeakSet()
        self._pid, self._key = os.getpid(), uuid.uuid4().hex
        refuse_mixed_rows(rows, variables, params, name)
        total = rewrite_pregrad(rows.sum())  # as PyMC does: the gradient of a sigmoid's logarithm would be 0 / 0
        floats = [param for param, is_float in zip(params, self.differentiable) if is_float]
        gradients = pytensor.grad(total, floats, disconnected_inputs="ignore") if floats else []
        # What depends on no row is zero: `when` of ``switch(time < when, ...)``.
        of_rows = [not set(variables).isdisjoint(ancestors([each])) for each in gradients]
        self.dtype = total.type.dtype
        self.function = synk.function(
            list(variables),
            [(total, "sum"), *[(each, "sum" if is_sum else None) for each, is_sum in zip(gradients, of_rows)]],
            bcast_inputs=list(params),
            mode=as_pymc_compiles(mode, check_bounds),
            name=name,
            on_unused_input="ignore",
        )
        _LIKELIHOODS[self._key] = self

    def __repr__(self) -> str:
        return f"<Likelihood {self.name}: {self.n_rows} rows, {len(self.differentiable)} parameters>"

    def __call__(self, params: Sequence[np.ndarray[Any, Any]], batch: Any = None) -> List[np.ndarray[Any, Any]]:
        """Return the sum of the log-probabilities and its gradients.

        Parameters
        ----------
        params : list of array
        batch : array of int, optional
            The rows that count; all by default.

        Raises
        ------
        StateError
            If no session is open, or this is not the process that has made the likelihood.
        ArgumentValueError
            If there are fewer rows than ranks.
        LinAlgError
            If it was raised on any rank: PyMC's samplers take it for a property of the point.
        Exception
            As calls of a `synkhronos.Function`.
        """
        failures = [each for each in self.failures if each.is_of_this_thread()]
        if failures and all(each.error for each in failures):
            raise StateError(f"{self.name}: a call has failed, and the rest ends")  # at once, however often it is tried
        try:
            return self._compute(params, batch)
        except np.linalg.LinAlgError:
            raise
        except WorkerError as error:
            if all(
                _last_line(text).startswith("numpy.linalg.LinAlgError") for text in error.remote_tracebacks.values()
            ):
                raise np.linalg.LinAlgError(str(error)) from error
            _record(error, failures)
            raise
        except Exception as error:
            _record(error, failures)
            raise

    def _compute(self, params: Sequence[np.ndarray[Any, Any]], batch: Any) -> List[np.ndarray[Any, Any]]:
        if os.getpid() != self._pid:
            raise StateError(f"{self.name}: {CHAINS}")
        if synk.is_forked() and self.n_rows < synk.size():
            hint = f"call synkhronos.fork with at most {self.n_rows} ranks"
            raise ArgumentValueError(
                f"data of {self.name}", f"at least {synk.size()} rows, one for each rank", str(self.n_rows), hint
            )
        results: List[np.ndarray[Any, Any]] = self.function(*self.data, *params, batch=batch)
        return results

    def __reduce__(self) -> Any:
        return _find, (self._key, self.name)


class Elsewhere:
    """What a likelihood of another process is in this one."""

    def __init__(self, key: str, name: str) -> None:
        self._key, self.name = key, name

    def __call__(self, params: Sequence[Any], batch: Any = None) -> List[Any]:
        raise StateError(f"{self.name}: {CHAINS}")

    def __reduce__(self) -> Any:
        return _find, (self._key, self.name)


def _find(key: str, name: str) -> Any:
    return _LIKELIHOODS.get(key) or Elsewhere(key, name)


def _record(error: Exception, failures: Sequence[Failure]) -> None:
    for failure in failures:
        failure.error = failure.error or error


def _last_line(text: str) -> str:
    return text.rstrip().rsplit("\n", 1)[-1]


def as_pymc_compiles(mode: Any, check_bounds: bool = True) -> Mode:
    """Return the mode in which parameters out of their range give -inf, as in functions that PyMC compiles."""
    checks = "local_check_parameter_to_ninf_switch" if check_bounds else "local_remove_check_parameter"
    return get_mode(mode).including(checks)
