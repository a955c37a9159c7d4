"""The sum of the log-probabilities of rows, and its gradient, computed by all ranks (`Likelihood`)."""

from __future__ import annotations

import os
import threading
import uuid
from typing import Any, Iterable, List, Optional, Sequence
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import pytensor
from pymc.pytensorf import rewrite_pregrad
from pytensor.compile.mode import Mode, get_mode, optdb
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors

import synkhronos as synk
from synkhronos.errors import ArgumentValueError, StateError, WorkerError

from .batches import Batches
from .parameter_checks import ParameterChecks
from .rows import of_any_rows

CHAINS = (
    "this likelihood is computed by the ranks of another process, and a chain (or program) in a separate process "
    "cannot use them: pass cores=1 to pm.sample or pm.sample_smc; the chains then run one after the other, each on all "
    "ranks"
)

#: All likelihoods of this process by key, so that copies and pickles refer to the same objects.
_LIKELIHOODS: WeakValueDictionary[str, Likelihood] = WeakValueDictionary()


class LikelihoodFailure:
    """Record of the first error in likelihoods whose caller swallows exceptions.

    ``thread`` identifies the calling thread; by default, errors of all threads that Python did not start are recorded.
    """

    def __init__(self, thread: Optional[int] = None) -> None:
        self.thread = thread
        self.error: Optional[Exception] = None

    def is_of_this_thread(self) -> bool:
        here = threading.get_ident()
        if self.thread is not None:
            return here == self.thread
        known = [each for each in threading.enumerate() if not isinstance(each, threading._DummyThread)]
        return here not in [each.ident for each in known]


class Likelihood:
    """The sum of a log-probability over all rows, and its gradient with respect to parameters.

    A call sends the parameters to all ranks and returns the sums; the rows stay in shared memory. A likelihood belongs
    to the process that created it. A copy is the same object; an object unpickled in another process refuses calls.

    ``fixed`` are parameters without a gradient (values of ``pm.Data``). ``is_observed`` marks the replacement of an
    observed variable. ``failures`` are the records of active samplers and optimizers that swallow exceptions. With
    ``batches``, each call uses the rows of the next batch instead of ``data``, and scales the sums to ``total_size``.
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
        batches: Optional[Batches] = None,
    ) -> None:
        self.name, self.is_observed, self.n_rows, self.batches = name, is_observed, len(data[0]), batches
        self.data = list(data) if batches is None else []
        self.differentiable = [param.type.dtype.startswith("float") and param not in fixed for param in params]
        self.failures: WeakSet[LikelihoodFailure] = WeakSet()
        self.groups: Optional[synk.Groups] = None  # set by `choosing`
        self._pid, self.key = os.getpid(), uuid.uuid4().hex
        #: Whether the model contains the number of rows and therefore cannot be evaluated for a batch.
        rows, self.contains_rows = of_any_rows(rows, variables, params, name, self.n_rows)
        self._checks = ParameterChecks(rows, variables, check_bounds)
        # Rewritten as in PyMC; otherwise, the gradient of log(sigmoid(x)) could be 0 / 0.
        total = rewrite_pregrad(with_softmax(self._checks.rows.sum()))
        floats = [param for param, is_float in zip(params, self.differentiable) if is_float]
        gradients = pytensor.grad(total, floats, disconnected_inputs="ignore") if floats else []
        # A gradient that depends on no row is zero and needs no sum, as for `when` in ``switch(t < when, ...)``.
        of_rows = [not set(variables).isdisjoint(ancestors([each])) for each in gradients]
        self.dtype = total.type.dtype
        self.function = synk.function(
            list(variables),
            [
                (total, "sum"),
                *[(each, "sum" if is_sum else None) for each, is_sum in zip(gradients, of_rows)],
                *self._checks.outputs,
            ],
            bcast_inputs=[*params, *self._checks.inputs],
            mode=as_pymc_compiles(mode, check_bounds),
            name=name,
            on_unused_input="ignore",
        )
        _LIKELIHOODS[self.key] = self

    def __repr__(self) -> str:
        return f"<Likelihood {self.name}: n_rows={self.n_rows}, n_params={len(self.differentiable)}>"

    def __call__(self, params: Sequence[np.ndarray[Any, Any]], batch: Any = None) -> List[np.ndarray[Any, Any]]:
        """Return the sum of the log-probabilities of the rows (by default, of all rows), and its gradients.

        A `LinAlgError` on the ranks is raised as such, because PyMC's NUTS and HMC treat it as a divergence.
        """
        failures = [each for each in self.failures if each.is_of_this_thread()]
        if failures and all(each.error for each in failures):
            raise StateError(f"{self.name}: an earlier call failed, which ends the run")  # raised on every retry
        try:
            return self._compute(params, batch)
        except np.linalg.LinAlgError:
            raise
        except WorkerError as error:
            if all(
                _last_line(text).startswith("numpy.linalg.LinAlgError") for text in error.remote_tracebacks.values()
            ):
                raise np.linalg.LinAlgError(str(error)) from error
            record(error, self.failures)
            raise
        except Exception as error:
            record(error, self.failures)
            raise

    def _compute(self, params: Sequence[np.ndarray[Any, Any]], batch: Any) -> List[np.ndarray[Any, Any]]:
        if os.getpid() != self._pid:
            raise StateError(f"{self.name}: {CHAINS}")
        if self.groups is None or self.groups.closed:
            return self.compute(params, batch)
        result = self.groups(self.key, params)
        if isinstance(result, Exception):
            raise result
        found: List[np.ndarray[Any, Any]] = result
        return found

    def compute(self, params: Sequence[np.ndarray[Any, Any]], batch: Any = None) -> List[np.ndarray[Any, Any]]:
        """Do the same as a call, on the ranks of this process's session, which may be the process of a group."""
        if synk.is_forked() and self.n_rows < synk.size() and self.batches is None:
            hint = f"call synkhronos.fork with n_ranks={self.n_rows} or less"
            raise ArgumentValueError(
                f"data of {self.name}", f"at least {synk.size()} rows, one for each rank", str(self.n_rows), hint
            )
        data = self.data if self.batches is None else next(self.batches)
        results: List[np.ndarray[Any, Any]] = self._checks.call(self.function, *data, *params, batch=batch)
        if self.batches is None:
            return results
        return [each * (self.batches.total_size / len(data[0])) for each in results]

    def __reduce__(self) -> Any:
        return found_by, (self.key, self.name)


class Elsewhere:
    """Stand-in for a likelihood that belongs to another process."""

    def __init__(self, key: str, name: str) -> None:
        self._key, self.name = key, name

    def __call__(self, params: Sequence[Any], batch: Any = None) -> List[Any]:
        raise StateError(f"{self.name}: {CHAINS}")

    def __reduce__(self) -> Any:
        return found_by, (self._key, self.name)


def found_by(key: str, name: str) -> Any:
    """Return the likelihood with this key, or a stand-in if another process created it."""
    return _LIKELIHOODS.get(key) or Elsewhere(key, name)


def record(error: Exception, failures: Iterable[LikelihoodFailure]) -> None:
    """Record an error of this thread, unless one is recorded already; an active optimizer or sampler then raises it."""
    for failure in [each for each in failures if each.is_of_this_thread()]:
        failure.error = failure.error or error


def _last_line(text: str) -> str:
    return text.rstrip().rsplit("\n", 1)[-1]


def with_softmax(total: Variable) -> Variable:
    """Replace exponentials over their sum with a softmax, whose logarithm PyTensor computes without underflow.

    Otherwise, PyMC's canonicalization splits the quotient, unless the prior also uses it, as in the plain model.
    """
    found: Variable = rewrite_graph(
        total, include=(), custom_rewrite=optdb["stabilize"].query("+symbolic_op_recognition")
    )
    return found


def as_pymc_compiles(mode: Any, check_bounds: bool = True) -> Mode:
    """Return a mode that includes PyMC's rewrite of parameter checks."""
    checks = "local_check_parameter_to_ninf_switch" if check_bounds else "local_remove_check_parameter"
    return get_mode(mode).including(checks)
