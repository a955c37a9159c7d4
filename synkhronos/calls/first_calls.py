"""Automatic comparison of the first calls to every function with the serial function, after ``fork(check=True)``."""

from __future__ import annotations

import logging
from typing import Any, Dict, Sequence, Set

from ..program.program import CheckedCall
from ..replication.replicator import replicator_of
from ..runtime.session import Session
from .comparison import DRAWS, Comparison, SerialError, compare
from .rank_values import preserve_values
from .signature import KEYWORDS

logger = logging.getLogger("synkhronos")

#: Number of calls compared per function: several, because in the first call an update rule's state may still be zero.
N_CALLS = 3


class FirstCalls:
    """Comparison of the first calls to one function; ``left`` calls remain to be compared."""

    def __init__(self) -> None:
        self.left = N_CALLS
        self._reported: Set[str] = set()

    def call(self, function: Any, values: Sequence[Any], options: Dict[str, Any]) -> Any:
        """Make a call and compare it with the serial function; return the call's result."""
        try:
            found = compare(function, values, options)
        except SerialError as error:
            self._warn_of_error(function, error.__cause__ or error)
            return function(*values, **options)
        self._warn(function, found)
        return found.results

    def steps(
        self,
        function: Any,
        session: Session,
        values: Sequence[Any],
        batches: Any,
        batches_s: Any,
        n_steps: Any,
        options: Dict[str, Any],
    ) -> None:
        """Make the first of these steps as compared calls, then restore all changed values."""
        engine, given = function.engine, batches if batches is not None else batches_s
        updated = engine.updated_in(function._variants.snapshot)
        n_steps, not_compared = (n_steps or 1) if given is None else len(given), ""
        if any(map(engine.is_random, function.get_shared())):
            not_compared = DRAWS
        elif any(engine.shared_type(shared) is None for shared in updated):
            not_compared = "it is called in steps and updates a variable that is not a dense array"
        if not_compared:
            self._warn(function, Comparison(None, [], not_compared))
            return
        numbers = dict.fromkeys(replicator_of(session).find(engine, shared) for shared in updated)
        with preserve_values(session, list(numbers)):  # type: ignore[arg-type]
            for i in range(min(n_steps, self.left)):
                of_step: Dict[str, Any] = dict(dict.fromkeys(KEYWORDS), **options)
                of_step["batch"] = None if batches is None else batches[i]
                of_step["batch_s"] = None if batches_s is None else batches_s[i]
                try:
                    self.call(function, values, of_step)
                except Exception:
                    if session.closed:
                        raise
                    break  # the steps will raise the error, with the number of the step
                if not self.left:
                    break

    def _warn(self, function: Any, found: Comparison) -> None:
        """Log the first difference of each output or variable, and record the comparison for the summary."""
        name = function.name or "without a name"
        function.program.checked.append(CheckedCall(name, len(found.differences), found.not_compared))
        if found.not_compared:
            self.left = 0
            logger.info("function %s is not compared with the serial function: %s", name, found.not_compared)
        for each in found.differences:
            if each.name not in self._reported:
                self._reported.add(each.name)
                logger.warning("function %s differs from the serial function: %s", name, each)

    def _warn_of_error(self, function: Any, error: BaseException) -> None:
        """Log that the serial function raised an exception, and stop comparing."""
        name, self.left = function.name or "without a name", 0
        why = (
            f"the serial function raised {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
        )
        function.program.checked.append(CheckedCall(name, 0, why))
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
