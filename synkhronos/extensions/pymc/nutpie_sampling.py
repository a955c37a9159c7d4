"""Errors of a likelihood end nutpie's sampling.

nutpie calls a model's log-probability from threads of its own, through code that takes every Python exception for a
divergence: without more, a trace of nothing but divergences would be returned as if all were well. Here its sampler is
watched while it runs::

    nutpie's threads       Likelihood.__call__ fails --> Failure.error
    the caller's thread    WatchedSampler.wait: looks every POLL_INTERVAL_S --> ends the sampler, raises that error

No signal is sent, so that it works in any thread, and Ctrl-C does what nutpie makes of it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from typing import Any, Callable, Optional, Sequence

from synkhronos.errors import StateError

from .likelihood import Failure, Likelihood

POLL_INTERVAL_S = 0.1


class WatchedSampler:
    """nutpie's sampler, which raises the error of a likelihood instead of returning draws.

    Parameters
    ----------
    start : callable
        Starts the sampler and returns it.
    likelihoods : list of Likelihood
        Those that it calls.
    """

    def __init__(self, start: Callable[[], Any], likelihoods: Sequence[Likelihood]) -> None:
        self._failure, self._likelihoods = Failure(), list(likelihoods)
        for likelihood in likelihoods:
            likelihood.failures.add(self._failure)  # before it starts
        self._sampler = start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def wait(self, timeout: Optional[float] = None) -> None:
        """Wait until all draws are made."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = POLL_INTERVAL_S if end is None else min(POLL_INTERVAL_S, max(0.0, end - time.monotonic()))
            try:
                self._sampler.wait(left)
            except TimeoutError:
                self._raise_failure()
                if end is not None and time.monotonic() >= end:
                    raise
            except Exception:  # as that no chain finds a point to begin from
                self._raise_failure()
                raise
            else:
                return self._raise_failure()

    def inspect(self) -> Any:
        """Return the draws made so far."""
        self._raise_failure()
        return self._sampler.inspect()

    def take_results(self) -> Any:
        """Return the draws."""
        results = self._sampler.take_results()
        self._raise_failure()
        return results

    def _raise_failure(self) -> None:
        if self._failure.error is not None:
            with contextlib.suppress(Exception):
                self._sampler.abort()  # its threads end with the call that each is in
            for likelihood in self._likelihoods:
                likelihood.failures.discard(self._failure)  # this object may be kept, as by a traceback
            raise self._failure.error


def watch() -> None:
    """Have the samplers of models with a data-parallel likelihood watched; call while nutpie compiles such a model.

    Raises
    ------
    StateError
        If nutpie is not as it was when this was written.
    """
    model_class: Any = getattr(sys.modules["nutpie.compile_pymc"], "CompiledPyMCModel", None)
    start = getattr(model_class, "_make_sampler", None)
    if start is None:
        raise StateError(
            "errors of ranks could not end the sampling of this version of nutpie, which would return divergences: "
            'pass nuts_sampler="pymc" to pm.sample, or install nutpie 0.16'
        )
    if hasattr(start, "__wrapped__"):
        return

    @functools.wraps(start)
    def start_watched(model: Any, *args: Any, **kwargs: Any) -> Any:
        ops = [node.op for node in model.logp_func.maker.fgraph.apply_nodes]
        likelihoods = [op.likelihood for op in ops if isinstance(getattr(op, "likelihood", None), Likelihood)]
        if not likelihoods:
            return start(model, *args, **kwargs)
        return WatchedSampler(lambda: start(model, *args, **kwargs), likelihoods)

    model_class._make_sampler = start_watched
