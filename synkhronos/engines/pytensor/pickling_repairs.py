"""Objects of PyTensor's graphs that it cannot pickle, or not so that another process can use them."""

from __future__ import annotations

from typing import Any


def reduce(thing: Any) -> Any:
    """Return what ``__reduce__`` should return for one of these objects, NotImplemented for all others."""
    return NotImplemented
