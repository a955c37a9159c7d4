"""Progress bars around batches: they show what has been computed, not what has been read.

All batches are read before the first step, so that a bar which is iterated over would be full then::

    f.steps(x, batches=tqdm(batches))     read: the batches, without the bar      each step of the master: bar.update(1)
"""

from __future__ import annotations

from typing import Any, List


class Progress:
    """The bars around arguments, which have what tqdm's have; the end of ``with`` closes them."""

    def __init__(self) -> None:
        self._bars: List[Any] = []

    def __bool__(self) -> bool:
        return bool(self._bars)

    def taken_off(self, batches: Any) -> Any:
        """Return what a bar is around, and show the steps in it; another argument as it is.

        Examples
        --------
        >>> Progress().taken_off([[0, 1], [2]])
        [[0, 1], [2]]
        """
        inner = getattr(batches, "iterable", None)
        if inner is None or not callable(getattr(batches, "update", None)):
            return batches
        self._bars.append(batches)
        return inner

    def add(self, n_steps: int) -> None:
        """Show that so many steps more have been made."""
        for bar in self._bars:
            bar.update(n_steps)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: Any) -> None:
        for bar in self._bars:
            bar.close()
