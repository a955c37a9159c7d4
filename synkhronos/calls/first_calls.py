"""Automatic comparison of the first calls to every function with the serial function, after ``fork(check=True)``."""

from __future__ import annotations

import logging
from typing import Any, List, Sequence, Set

from ..program.program import CheckedCall
from .comparison import Comparison

logger = logging.getLogger("synkhronos")

#: Number of calls compared per function: several, because in the first call an update rule's state may still be zero.
N_CALLS = 3


class FirstCalls:
    """Comparison of the first calls to one function; ``left`` calls remain to be compared."""

    def __init__(self) -> None:
        self.left = N_CALLS
        self._told: Set[str] = set()

    def warn(self, function: Any, found: Comparison, checked: List[CheckedCall]) -> None:
        """Log the first difference of each output or variable, and record the comparison for the summary."""
        name = function.name or "without a name"
        checked.append(CheckedCall(name, len(found.differences), found.not_compared))
        if found.not_compared:
            self.left = 0
            logger.info("function %s is not compared with the serial function: %s", name, found.not_compared)
        for each in found.differences:
            if each.name not in self._told:
                self._told.add(each.name)
                logger.warning("function %s differs from the serial function: %s", name, each)

    def warn_of_error(self, function: Any, error: BaseException, checked: List[CheckedCall]) -> None:
        """Log that the serial function raised an exception, and stop comparing."""
        name, self.left = function.name or "without a name", 0
        why = (
            f"the serial function raised {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
        )
        checked.append(CheckedCall(name, 0, why))
        logger.warning("function %s is not compared with the serial function: %s", name, why)


def summary(checked: Sequence[CheckedCall]) -> str:
    """Return one line with the results of all comparisons, and the reasons why functions were not compared."""
    compared = [each for each in checked if not each.not_compared]
    names = list(dict.fromkeys(each.name for each in compared))
    differing = list(dict.fromkeys(each.name for each in checked if each.n_differences))
    others = list(dict.fromkeys(f"{each.name} ({each.not_compared})" for each in checked if each.not_compared))
    found = f"{', '.join(differing)} differ{'s' if len(differing) == 1 else ''}" if differing else "all agree"
    calls, functions = _count(len(compared), "call"), _count(len(names), "function")
    line = f"{calls} to {functions} compared with the serial function{'' if len(names) == 1 else 's'}"
    line += f": {found}" if compared or differing else ""
    return line + (f"; not compared: {'; '.join(others)}" if others else "")


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
