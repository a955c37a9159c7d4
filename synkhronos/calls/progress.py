"""Progress bars around batches; they count completed steps, although all batches are read before the first step."""

from __future__ import annotations

from typing import Any, List


class StepProgress:
    """Progress bars with tqdm's interface around arguments of `Function.steps`; the ``with`` block closes them."""

    def __init__(self) -> None:
        self._bars: List[Any] = []

    def __bool__(self) -> bool:
        return bool(self._bars)

    def taken_off(self, batches: Any) -> Any:
        """Return the iterable inside a progress bar and register the bar; return other arguments unchanged."""
        inner = getattr(batches, "iterable", None)
        if inner is None or not callable(getattr(batches, "update", None)):
            return batches
        self._bars.append(batches)
        return inner

    def add(self, n_steps: int) -> None:
        for bar in self._bars:
            bar.update(n_steps)

    def __enter__(self) -> StepProgress:
        return self

    def __exit__(self, *error: Any) -> None:
        for bar in self._bars:
            bar.close()
