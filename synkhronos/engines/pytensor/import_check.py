"""Refuse ``import pytensor`` in an environment in which it would fail in the middle: one with Theano's NumPy."""

from __future__ import annotations

import sys
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Optional, Sequence


def prepare() -> None:
    """Have an import of PyTensor that cannot succeed say why; imports nothing. May be called any number of times."""
    if not any(isinstance(finder, _BeforePyTensor) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforePyTensor())


class _BeforePyTensor(MetaPathFinder):
    """Finds nothing, but sees that PyTensor is about to be imported."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Check what PyTensor needs; leave finding it to others."""
        if fullname == "pytensor" and fullname not in sys.modules:
            check_numpy()
        return None


def check_numpy() -> None:
    """Refuse PyTensor 3 with NumPy 1."""
    try:
        numpy, pytensor = metadata.version("numpy"), metadata.version("pytensor")
    except metadata.PackageNotFoundError:
        return
    if int(numpy.split(".")[0]) < 2 and int(pytensor.split(".")[0]) >= 3:
        raise ImportError(
            f"PyTensor {pytensor} does not run with NumPy 1 (here: {numpy}), which Theano needs: programs of the two "
            "need environments of their own, make install ENGINE=pytensor and make install ENGINE=theano; or, without "
            'Theano, pip install "numpy>=2"'
        )
