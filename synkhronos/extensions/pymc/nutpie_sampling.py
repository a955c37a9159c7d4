"""Propagation of a likelihood's errors through nutpie's sampler.

nutpie calls a model's log-probability from its own threads and treats every Python exception as a divergence. Without
monitoring, nutpie would return a trace of divergences only. The sampler is therefore monitored while it runs::

    nutpie's threads       Likelihood.__call__ fails --> LikelihoodFailure.error
    the caller's thread    WatchedSampler.wait: polls every POLL_INTERVAL_S --> ends the sampler, raises that error

The monitoring works in any thread and leaves Ctrl-C to nutpie, because it uses no signals.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from typing import Any, Callable, Optional, Sequence

from synkhronos.errors import StateError

from .likelihood import Likelihood, LikelihoodFailure

POLL_INTERVAL_S = 0.1


class WatchedSampler:
    """Wrapper around nutpie's sampler that raises a likelihood's error instead of returning draws."""

    def __init__(self, start: Callable[[], Any], likelihoods: Sequence[Likelihood]) -> None:
        self._failure, self._likelihoods = LikelihoodFailure(), list(likelihoods)
        for likelihood in likelihoods:
            likelihood.failures.add(self._failure)  # before the sampler starts
        self._sampler = start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def wait(self, timeout: Optional[float] = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = POLL_INTERVAL_S if end is None else min(POLL_INTERVAL_S, max(0.0, end - time.monotonic()))
            try:
                self._sampler.wait(left)
            except TimeoutError:
                self._raise_failure()
                if end is not None and time.monotonic() >= end:
                    raise
            except Exception:  # for example, if no chain finds a starting point
                self._raise_failure()
                raise
            else:
                return self._raise_failure()

    def inspect(self) -> Any:
        self._raise_failure()
        return self._sampler.inspect()

    def take_results(self) -> Any:
        results = self._sampler.take_results()
        self._raise_failure()
        return results

    def _raise_failure(self) -> None:
        if self._failure.error is not None:
            with contextlib.suppress(Exception):
                self._sampler.abort()  # its threads end after their current calls
            for likelihood in self._likelihoods:
                likelihood.failures.discard(self._failure)  # a traceback may keep this object alive
            raise self._failure.error


def watch() -> None:
    """Monitor samplers of models with a data-parallel likelihood; call this while nutpie compiles such a model.

    Raises `StateError` if the installed version of nutpie has an unknown structure.
    """
    model_class: Any = getattr(sys.modules["nutpie.compile_pymc"], "CompiledPyMCModel", None)
    start = getattr(model_class, "_make_sampler", None)
    if start is None:
        raise StateError(
            "this version of nutpie would report errors on ranks as divergences: "
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
