"""NumPy without warnings and errors, whatever the user has set: inf and nan are results here."""

from __future__ import annotations

from typing import Any, ContextManager, Literal

import numpy as np


def silent() -> ContextManager[object]:
    """Switch off NumPy's warnings and errors: if one rank alone raised, the others would have gone on."""
    return np.errstate(all="ignore")


class Silence:
    """`silent`, from the first `begin` to the end of the with block; switching takes longer than averaging 4 KB."""

    def __init__(self) -> None:
        self._over = ""
        self._before: Any = None

    def __enter__(self) -> Silence:
        return self

    def begin(self, over: Literal["ignore", "raise"] = "ignore") -> None:
        """Be silent; about overflow, raise FloatingPointError where that is asked for."""
        if self._over == over:
            return
        self.__exit__()
        # First what to go back to: a signal handler may raise in between.
        self._before = np.errstate(all="ignore", over=over) if _ERRORS is None else _ERRORS[0]()
        self._over = over
        if _ERRORS is None:
            self._before.__enter__()
        else:
            _ERRORS[1]([self._before[0], _OVERFLOW_RAISES if over == "raise" else 0, None])

    def __exit__(self, *exception: object) -> None:
        if self._over:
            self._over = ""
            if _ERRORS is None:
                self._before.__exit__(*exception)
            else:
                _ERRORS[1](self._before)


_ERRORS: Any = (np.geterrobj, np.seterrobj) if hasattr(np, "seterrobj") else None
"""What `numpy.errstate` of NumPy 1 is made of, at a tenth of its time; NumPy 2 has neither, and a faster one."""

_OVERFLOW_RAISES = 2 << 3
