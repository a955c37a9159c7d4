"""Comparisons that the program has not asked for: of the first calls of every function, after ``fork(check=True)``."""

from __future__ import annotations

import logging
from typing import Any, List, Sequence, Set

from ..program.program import Checked
from .comparison import Comparison

logger = logging.getLogger("synkhronos")

#: Calls of every function that are compared: the state of a rule is no longer zeros in the second.
N_CALLS = 3


class FirstCalls:
    """The first calls of one function.

    Attributes
    ----------
    left : int
        How many are still to be compared.
    """

    def __init__(self) -> None:
        self.left = N_CALLS
        self._told: Set[str] = set()

    def tell(self, function: Any, found: Comparison, checked: List[Checked]) -> None:
        """Log what differs, each output and variable once, and note it for the end of the program."""
        name = function.name or "without a name"
        checked.append(Checked(name, len(found.differences), found.not_compared))
        if found.not_compared:
            self.left = 0
            logger.info("function %s is not compared with the serial one: %s", name, found.not_compared)
        for each in found.differences:
            if each.name not in self._told:
                self._told.add(each.name)
                logger.warning("function %s differs from the serial one: %s", name, each)

    def give_up(self, function: Any, error: BaseException, checked: List[Checked]) -> None:
        """Log that the serial function has raised."""
        name, self.left = function.name or "without a name", 0
        why = f"that one raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
        checked.append(Checked(name, 0, why))
        logger.warning("function %s is not compared with the serial one: %s", name, why)


def summary(checked: Sequence[Checked]) -> str:
    """Return what all comparisons of a program have found, in a line.

    Examples
    --------
    >>> summary([Checked("f", 0), Checked("g", 2), Checked("g", 1), Checked("h", 0, "it draws random numbers")])
    '3 calls of 2 functions compared with the serial ones: g differs; not compared: h'
    >>> summary([Checked("f", 0)])
    '1 call of 1 function compared with the serial one: all agree'
    """
    compared = [each for each in checked if not each.not_compared]
    names = list(dict.fromkeys(each.name for each in compared))
    differing = list(dict.fromkeys(each.name for each in checked if each.n_differences))
    others = list(dict.fromkeys(each.name for each in checked if each.not_compared))
    found = f"{', '.join(differing)} differ{'s' if len(differing) == 1 else ''}" if differing else "all agree"
    calls, functions = _count(len(compared), "call"), _count(len(names), "function")
    line = f"{calls} of {functions} compared with the serial one{'' if len(names) == 1 else 's'}"
    line += f": {found}" if compared or differing else ""
    return line + (f"; not compared: {', '.join(others)}" if others else "")


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
