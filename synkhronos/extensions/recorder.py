"""Training recorder: measured values and a breakdown of time for each epoch.

The times of an epoch are wall-clock seconds of the master. Each second is counted in one column:

=================  ==================================================================================
column             seconds that the master spent
=================  ==================================================================================
``computing``      in compiled functions, without the collectives in their graphs
``waiting``        waiting for other ranks to arrive at a collective or to answer
``communicating``  copying between ranks and reducing, sending commands and reading answers
``loading``        waiting for a batch of a `synkhronos.loader`, or in `Recorder.loading`
``other``          elsewhere: the program's own code, and the library's overhead around calls
=================  ==================================================================================

Times are measured only during epochs, at trace points (`synkhronos.trace`), which slows down calls by tens of
microseconds. Work on other ranks appears as waiting. Asynchronous device work counts where the master waits for it.
"""

from __future__ import annotations

import csv
import json
import threading
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

import numpy as np

from synkhronos import trace
from synkhronos.errors import ArgumentTypeError, ArgumentValueError, StateError

__all__ = ["PARTS", "Recorder"]

PARTS = ("computing", "waiting", "communicating", "loading", "other")

_OWN = ("epoch", "seconds", *PARTS)

#: Time columns by trace point. Unlisted trace points (``command``, ``memory``, ...) do not change the current column.
_PART_OF = {
    "engine": "computing",
    "barrier": "waiting",
    "commit": "communicating",
    "transport": "communicating",
    "channel": "communicating",
    "loader": "loading",
}


class Recorder:
    """Recorder of times and values for each epoch of a training run.

    Examples
    --------
    >>> from synkhronos.extensions.recorder import Recorder
    >>> recorder = Recorder()
    >>> for rate in (0.1, 0.05):
    ...     with recorder.epoch(rate=rate):
    ...         for loss, rows in ((3.0, 100), (1.0, 50)):
    ...             recorder.batch(rows, loss=loss)
    ...     recorder.note(accuracy=0.5)
    >>> print(recorder)     # doctest: +ELLIPSIS
    epoch  seconds  computing  waiting  communicating  loading  other  rate   loss  accuracy
        1 ... 0.1  2.333       0.5
        2 ... 0.05  2.333       0.5
    """

    def __init__(self) -> None:
        self._rows: List[Dict[str, Any]] = []
        self._row: Optional[Dict[str, Any]] = None  # the open epoch
        self._clock = _Clock()
        self._sums: Dict[str, List[float]] = {}

    def __repr__(self) -> str:
        return f"<Recorder: n_epochs={len(self._rows)}>"

    def __str__(self) -> str:
        columns = self.columns
        cells = [columns] + [[_written(name, row.get(name, "")) for name in columns] for row in self._rows]
        widths = [max(map(len, column)) for column in zip(*cells)]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in cells)

    @property
    def columns(self) -> List[str]:
        """The names of the columns: the epoch number, the times, then the values in order of their first use."""
        named = [name for row in self._rows for name in row]
        return list(dict.fromkeys([*_OWN, *named]))

    @property
    def rows(self) -> List[Dict[str, Any]]:
        """The completed epochs, each as a dict."""
        return [dict(row) for row in self._rows]

    @property
    def state(self) -> str:
        """Completed epochs as JSON for ``checkpoint.save(..., recorder=recorder.state)``; assign it to restore them."""
        return json.dumps(self._rows)

    @state.setter
    def state(self, state: Any) -> None:
        rows = json.loads(str(state))
        if self._row is not None:
            raise StateError("an epoch is open: set the state before the epoch begins")
        self._rows = rows

    @contextmanager
    def epoch(self, **values: Any) -> Iterator[None]:
        """Record the time of a ``with`` block as one epoch; a block that ends with an exception is not recorded.

        ``values`` are numbers or strings known in advance, such as the learning rate.
        """
        if self._row is not None:
            raise StateError("an epoch is open already: epochs cannot be nested")
        row: Dict[str, Any] = {"epoch": len(self._rows) + 1, "seconds": 0.0, **dict.fromkeys(PARTS, 0.0)}
        self._row, self._sums = row, {}
        clock = self._clock = _Clock()
        try:
            self.note(**values)
            trace.observe(clock)
            try:
                yield
            finally:
                clock.stop()
                trace.ignore(clock)
            means = {name: total / weight if weight else float("nan") for name, (total, weight) in self._sums.items()}
            row.update(clock.seconds, seconds=sum(clock.seconds.values()), **means)
            self._rows.append(row)
        finally:
            self._row = None

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Count the time of a ``with`` block as loading, for programs that read batches themselves."""
        self._clock.enter("loading")
        try:
            yield
        finally:
            self._clock.leave()

    def batch(self, rows: Any = 1, **values: Any) -> None:
        """Add the values of one or several batches; the epoch's values are their means, weighted by rows.

        ``rows`` (the number of rows) and the values (loss, ...) are numbers, or arrays with one element per batch.
        """
        if self._row is None:
            raise StateError("no epoch is open: call this inside `with recorder.epoch():`")
        _check_names(values)
        weights = np.asarray(rows, float)
        for name, value in values.items():
            each, n_rows = np.broadcast_arrays(np.asarray(value, float), weights)
            total = self._sums.setdefault(name, [0.0, 0.0])
            counted = n_rows != 0  # the loss of a batch without rows may be NaN
            total[0] += float(np.sum(each[counted] * n_rows[counted]))
            total[1] += float(np.sum(n_rows))

    def note(self, **values: Any) -> None:
        """Set numbers or strings, such as validation results, for the open epoch; if none is open, for the last one."""
        row = self._row if self._row is not None else self._rows[-1] if self._rows else None
        if row is None:
            raise StateError("no epoch has been recorded yet: call this inside `with recorder.epoch():` or after it")
        _check_names(values)
        row.update({name: _plain(name, value) for name, value in values.items()})

    def save_csv(self, path: str) -> None:
        """Write the table as comma-separated values to the file ``path``."""
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self._rows)

    def plot(self, path: str) -> None:
        """Plot the seconds of every epoch as bars, and every numeric value as a curve over the epochs.

        The extension of ``path`` selects the image format. Raises `ImportError` without matplotlib.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("Recorder.plot needs matplotlib: python -m pip install matplotlib") from error
        curves = [
            name
            for name in self.columns
            if name not in _OWN and not any(isinstance(row.get(name), str) for row in self._rows)
        ]
        epochs = [row["epoch"] for row in self._rows]
        figure = Figure(figsize=(4.0 * (1 + len(curves)), 4.0), layout="tight")
        bars, *others = figure.subplots(1, 1 + len(curves), squeeze=False)[0]
        below = np.zeros(len(epochs))
        for part in PARTS:
            heights = np.array([row[part] for row in self._rows])
            bars.bar(epochs, heights, bottom=below, label=part)
            below = below + heights
        bars.set_ylabel("seconds")
        bars.legend(fontsize="small")
        for axes, name in zip(others, curves):
            axes.plot(epochs, [row.get(name, np.nan) for row in self._rows], marker=".")
            axes.set_ylabel(name)
        for axes in [bars, *others]:
            axes.set_xlabel("epoch")
        figure.savefig(path)


class _Clock(trace.TraceObserver):
    """Clock that attributes one thread's time to the innermost open part, one of `PARTS`."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._thread, self._parts = threading.get_ident(), ["other"]
        self._since = time.perf_counter()

    def begin(self, point: trace.Point, owner: Any, arguments: Any) -> None:
        if threading.get_ident() == self._thread:
            awaits_answer = point.name == "channel" and point.method == "wait"
            self.enter("waiting" if awaits_answer else _PART_OF.get(point.name, self._parts[-1]))

    def end(self, point: trace.Point, owner: Any, arguments: Any) -> None:
        if threading.get_ident() == self._thread:
            self.leave()

    def enter(self, part: str) -> None:
        self.stop()
        self._parts.append(part)

    def leave(self) -> None:
        self.stop()
        if len(self._parts) > 1:  # otherwise the part was entered before this clock existed
            self._parts.pop()

    def stop(self) -> None:
        now = time.perf_counter()
        self.seconds[self._parts[-1]] += now - self._since
        self._since = now


def _check_names(values: Dict[str, Any]) -> None:
    for name in values:
        if name in _OWN:
            raise ArgumentValueError(name, f"a name other than the table's own columns ({', '.join(_OWN)})", repr(name))


def _plain(name: str, value: Any) -> Any:
    plain = value.item() if hasattr(value, "item") and np.size(value) == 1 else value
    if not isinstance(plain, (bool, int, float, str)):
        raise ArgumentTypeError(name, "a number or a str", repr(value))
    return plain


def _written(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if name in _OWN else f"{value:.4g}"
