"""Statistics of checks of many graphs: how much was refused, and why."""

import re
from collections import Counter

from graphs import NAME

from synkhronos.errors import ArgumentError

#: Maximum numbers of reasons in the document and on the terminal.
IN_DOCUMENT, IN_PRINT = 10, 25


def reason_of(error):
    """Return the reason for a refusal, without names and numbers."""
    text = error.got if isinstance(error, ArgumentError) else str(error)
    text = re.sub("^(none|an inexact value|one that depends on more): ", "", text)
    text = re.sub(r"\d+(\.\d+)?", "#", NAME.sub("_", text))
    text = re.sub(r"\(_\) ?| and _", "", re.sub(r"of _(, _)*( and _)*", "of _", text))
    return re.sub(r"\s+", " ", text)[:150]


class Tally:
    """Statistics of checks of many graphs.

    Parameters
    ----------
    values : dict, optional
        A result of `to_json`.

    Attributes
    ----------
    graphs, whole, none : int
        Numbers of all graphs, of graphs without refusals, and of graphs that were refused completely.
    offered, draws, compared, undecided : int
        Numbers of outputs and updates, of compared calls and values, and of values that depend on rounding.
    reasons, calls, broken : Counter
        Reasons for refused outputs and updates, for refused calls, and for missing serial programs.
    examples : dict
        The shortest refused text for each reason.
    """

    NUMBERS = ("graphs", "whole", "none", "offered", "draws", "compared", "undecided")
    COUNTERS = ("reasons", "calls", "broken")

    def __init__(self, values=None):
        values = values or {}
        for name in self.NUMBERS:
            setattr(self, name, values.get(name, 0))
        for name in self.COUNTERS:
            setattr(self, name, Counter(values.get(name, {})))
        self.examples = dict(values.get("examples", {}))

    def to_json(self):
        """Return the ``values`` of a tally with the same statistics."""
        return {name: getattr(self, name) for name in (*self.NUMBERS, *self.COUNTERS, "examples")}

    def add(self, checked, is_new=True):
        """Add the results of a checked graph; if it is not new, only its calls and values count."""
        self.draws, self.compared = self.draws + checked.draws, self.compared + checked.compared
        self.undecided += checked.undecided
        self.calls.update(checked.refused_calls)
        if not is_new:
            return
        self.graphs += 1
        self.whole += not checked.refused
        self.none += len(checked.refused) >= checked.offered
        self.offered += checked.offered
        for reason, text in checked.refused:
            self.reasons[reason] += 1
            self._keep(reason, text)
        if checked.broken is not None:
            self.broken[reason_of(Exception(checked.broken))] += 1

    def include(self, other):
        """Add the statistics of another tally."""
        for name in self.NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in self.COUNTERS:
            getattr(self, name).update(getattr(other, name))
        for reason, text in other.examples.items():
            self._keep(reason, text)

    def _keep(self, reason, text):
        if reason not in self.examples or len(text) < len(self.examples[reason]):
            self.examples[reason] = text

    def summary(self):
        """Return the statistics as a short text."""
        refused = sum(self.reasons.values())
        return (
            f"{self.graphs:,} graphs had {self.offered:,} outputs and updates; {refused:,} of them "
            f"({100 * refused / max(self.offered, 1):.0f} %) were refused. None was refused in {self.whole:,} graphs, and all "
            f"in {self.none:,} graphs. {self.compared:,} values of {self.draws:,} calls were compared, and {self.undecided:,} more values depend on "
            f"rounding. Refused calls: {sum(self.calls.values()):,}. Graphs without a serial function: "
            f"{sum(self.broken.values()):,}."
        )

    def document(self):
        """Return lines of Markdown: the summary, and a table of reasons."""
        lines = [self.summary(), "", "| refused because | times | for example |", "| --- | ---: | --- |"]
        for reason, number in self.reasons.most_common(IN_DOCUMENT):
            example = self.examples[reason].replace("|", "\\|")
            lines.append(f"| {reason} | {number:,} | `{example if len(example) < 120 else example[:117] + '...'}` |")
        return lines

    def __str__(self):
        lines = [self.summary()]
        lines += [
            f"{n:>6} {reason}\n         {self.examples[reason][:200]}"
            for reason, n in self.reasons.most_common(IN_PRINT)
        ]
        lines += [f"{n:>6} calls refused: {reason}" for reason, n in self.calls.most_common(IN_DOCUMENT)]
        lines += [f"{n:>6} without a serial function: {reason}" for reason, n in self.broken.most_common(IN_DOCUMENT)]
        return "\n".join(lines)
