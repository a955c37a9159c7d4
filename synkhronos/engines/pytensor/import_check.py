"""Clear error for ``import pytensor`` with NumPy 1, which Theano needs and PyTensor does not support."""

from __future__ import annotations

from importlib import metadata

from ..before_import import before_import


def prepare() -> None:
    """Install the check of NumPy's version that runs before each import of PyTensor; idempotent; imports nothing."""
    before_import("pytensor", check_numpy)


def check_numpy() -> None:
    """Raise ImportError if PyTensor 3 or later is installed with NumPy 1."""
    try:
        numpy, pytensor = metadata.version("numpy"), metadata.version("pytensor")
    except metadata.PackageNotFoundError:
        return
    if int(numpy.split(".")[0]) < 2 and int(pytensor.split(".")[0]) >= 3:
        raise ImportError(
            f"PyTensor {pytensor} does not run with NumPy 1 (here: {numpy}), which Theano needs: install PyTensor and "
            "Theano in separate environments, with make install ENGINE=pytensor and make install ENGINE=theano; or, if "
            'you do not use Theano, run pip install "numpy>=2"'
        )
