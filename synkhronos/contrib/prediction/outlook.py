"""Predictions for several numbers of ranks: speedups and bottlenecks."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence

from .model import PARTS, CommunicationRule, Model
from .profiles import RankLayout

#: At this efficiency or better, only the computation itself counts as the limit.
GOOD_EFFICIENCY = 0.9

RULES = {
    "every 4th step": CommunicationRule(every=4),
    "every 16th step": CommunicationRule(every=16),
    "one step late": CommunicationRule(late=True),
    "16 bits": CommunicationRule(bits=16),
}


class Outlook(NamedTuple):
    """Prediction for one layout of ranks."""

    layout: RankLayout
    rows: float  # of a step over all ranks
    parts: Dict[str, float]  # seconds of a step, by `PARTS`
    speedup: float  # rows per second divided by those of one rank
    limit: str  # the part that reduces the speedup most; "computing" if the efficiency is good
    extrapolated: List[str]  # quantities that are outside the profiled range
    by_rule: Dict[str, float]  # seconds of a step with each of `RULES` that could help
    smallest_rows: Optional[int]  # fewest rows per rank that reach `GOOD_EFFICIENCY`; None if not found

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def efficiency(self) -> float:
        return self.speedup / self.layout.ranks


def outlooks(
    model: Model, layouts: Sequence[RankLayout], rows: Optional[float] = None, of_rank: Optional[float] = None
) -> List[Outlook]:
    """Predict a step on each layout, with `rows` over all ranks (default: as profiled) or `of_rank` rows per rank."""
    found = []
    for layout in layouts:
        of_all = layout.ranks * of_rank if of_rank is not None else model.rows if rows is None else rows
        of_one = of_all if of_rank is None else of_rank
        alone = model.predict(RankLayout(1, 1, layout.cores), of_one)
        parts = model.predict(layout, of_all)
        # Ideally, every rank processes as many rows per second as one rank alone.
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
    """Return the part that exceeds its ideal the most, or "computing" if the efficiency is good."""
    if efficiency >= GOOD_EFFICIENCY:
        return PARTS[0]
    return max(PARTS, key=lambda part: parts[part] - ideal[part])


def by_rule(model: Model, layout: RankLayout, rows: float, parts: Dict[str, float]) -> Dict[str, float]:
    """Return the time of a step in seconds, by rule; empty if ranks do not communicate."""
    if not parts["communicating"]:
        return {}
    # 16-bit numbers save time between hosts and devices, but not in a host's shared memory.
    return {
        name: model.seconds(layout, rows, less)
        for name, less in RULES.items()
        if less.bits == 32 or model.between is not None
    }
