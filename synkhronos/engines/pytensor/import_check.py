"""Refuse ``import pytensor`` in an environment in which it would fail in the middle: one with Theano's NumPy."""

from __future__ import annotations

from importlib import metadata

from ..before_import import before_import


def prepare() -> None:
    """Have an import of PyTensor that cannot succeed say why; imports nothing. May be called any number of times."""
    before_import("pytensor", check_numpy)


def check_numpy() -> None:
    """Refuse an import of PyTensor 3 with NumPy 1."""
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
