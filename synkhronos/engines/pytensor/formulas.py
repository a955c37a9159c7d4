"""Operations as formulas of simpler ones, of which the rules know more."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence


def with_formulas(outputs: Sequence[Any], placement: Callable[[Any], Any]) -> List[Any]:
    """Return equal expressions with formulas in place of the operations of whose results nothing is known."""
    return list(outputs)
