"""Predictions for several numbers of ranks: how fast, and what limits it."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence

from .model import PARTS, Layout, Less, Model

#: With this part of the ideal speedup nothing but the work itself limits.
GOOD_EFFICIENCY = 0.9

#: Rules of less communication, and their names.
RULES = {
    "every 4th step": Less(every=4),
    "every 16th step": Less(every=16),
    "one step late": Less(late=True),
    "16 bits": Less(bits=16),
}


class Outlook(NamedTuple):
    """What is predicted for one number of ranks.

    Attributes
    ----------
    layout : Layout
    rows : float
        Of a step, of all ranks.
    parts : dict of str to float
        Seconds of a step, by `PARTS`.
    speedup : float
        Rows per second beside those of one rank.
    limit : str
        The part that costs most of what is missing to the ideal speedup.
    extrapolated : list of str
        What lies beyond what was profiled.
    by_rule : dict of str to float
        Seconds of a step by each of `RULES` that could help.
    smallest_rows : int or None
        Of a rank, with which the efficiency is `GOOD_EFFICIENCY`.
    """

    layout: Layout
    rows: float
    parts: Dict[str, float]
    speedup: float
    limit: str
    extrapolated: List[str]
    by_rule: Dict[str, float]
    smallest_rows: Optional[int]

    @property
    def seconds(self) -> float:
        """Of a step."""
        return sum(self.parts.values())

    @property
    def efficiency(self) -> float:
        """Speedup by ranks."""
        return self.speedup / self.layout.ranks


def outlooks(
    model: Model, layouts: Sequence[Layout], rows: Optional[float] = None, of_rank: Optional[float] = None
) -> List[Outlook]:
    """Return what is predicted for each layout.

    Parameters
    ----------
    model : Model
    layouts : sequence of Layout
    rows : float, optional
        Of a step, which all ranks divide among them; as profiled by default.
    of_rank : float, optional
        Rows of each rank instead: with more ranks a step has more.
    """
    found = []
    for layout in layouts:
        of_all = layout.ranks * of_rank if of_rank is not None else model.rows if rows is None else rows
        of_one = of_all if of_rank is None else of_rank
        alone = model.predict(Layout(1, 1, layout.cores), of_one)
        parts = model.predict(layout, of_all)
        # As many rows per second and rank as one rank alone has.
        ideal = of_all / max(of_one, 1) / layout.ranks if of_rank is not None else 1 / layout.ranks
        speedup = layout.ranks * ideal * sum(alone.values()) / sum(parts.values())
        found.append(
            Outlook(
                layout,
                of_all,
                parts,
                speedup,
                limit_of(parts, {part: ideal * seconds for part, seconds in alone.items()}, speedup / layout.ranks),
                model.extrapolated(layout, of_all),
                by_rule(model, layout, of_all, parts),
                None if layout.ranks == 1 else model.smallest_rows(layout, GOOD_EFFICIENCY),
            )
        )
    return found


def limit_of(parts: Dict[str, float], ideal: Dict[str, float], efficiency: float) -> str:
    """Return the part that exceeds its ideal most, or "computing" if all of them together are little."""
    if efficiency >= GOOD_EFFICIENCY:
        return PARTS[0]
    return max(PARTS, key=lambda part: parts[part] - ideal[part])


def by_rule(model: Model, layout: Layout, rows: float, parts: Dict[str, float]) -> Dict[str, float]:
    """Return the seconds of a step by rules of less communication; none if there is nothing to save."""
    if not parts["communicating"]:
        return {}
    # In the memory of one host numbers of 16 bits save nothing: that is between hosts, and devices.
    return {
        name: model.seconds(layout, rows, less)
        for name, less in RULES.items()
        if less.bits == 32 or model.between is not None
    }
