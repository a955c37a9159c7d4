"""Requirements of Theano, PyTensor and Lasagne, and the error for an import of a missing library."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple, Optional, Sequence, Tuple

from .before_import import is_import


class Requirement(NamedTuple):
    """Requirements of a library: oldest and newest Python and NumPy, as (major, minor), and how to install it."""

    title: str
    pythons: Tuple[Tuple[int, int], Tuple[int, int]]
    numpys: Tuple[Tuple[int, int], Tuple[int, int]]
    packages: str
    otherwise: str = ""

    def runs_here(self) -> bool:
        return self.pythons[0] <= sys.version_info[:2] <= self.pythons[1]

    def takes(self, numpy: str) -> bool:
        numbers = tuple(int(number) for number in numpy.split(".")[:2])
        return self.numpys[0] <= numbers <= self.numpys[1]

    @property
    def command(self) -> str:
        """Command that installs the library from PyPI, for this version of Python."""
        return "pip install " + self.packages.format(old_numpy="1.22" if sys.version_info < (3, 11) else "1.24")

    def refusal(self) -> str:
        """Return a sentence that explains why the library cannot be imported here, with the remedy."""
        if self.runs_here():
            return f"{self.title} is not installed in this environment: {self.command}"
        (_, first), (_, last) = self.pythons
        here = ".".join(map(str, sys.version_info[:3]))
        return (
            f"{self.title} runs on Python 3.{first} to 3.{last} (here: {here}): "
            f"use one of these versions{self.otherwise}"
        )


#: Arguments for pip that install Theano and the newest releases of its dependencies that work with it.
OLD = '"theano==1.0.5" "numpy<{old_numpy}" "scipy<1.11" "setuptools<81"'
OF_THEANO = ((3, 8), (3, 11)), ((1, 12), (1, 23))
PORT = ", or port the program to PyTensor (docs/pytensor.rst)"

#: Requirements by package name. (The limit 2.999 accepts every release of NumPy 2.)
LIBRARIES = {
    "theano": Requirement("Theano", *OF_THEANO, OLD, PORT),
    "pytensor": Requirement("PyTensor", ((3, 11), (3, 14)), ((2, 0), (2, 999)), '"pytensor>=3.0,<4"'),
    "lasagne": Requirement("Lasagne, which needs Theano,", *OF_THEANO, "lasagne " + OLD, PORT),
}


class Missing(MetaPathFinder):
    """The last import finder, which explains how to install a missing library when a program imports it."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Raise ModuleNotFoundError with the remedy if a library in `LIBRARIES` is being imported."""
        if fullname in LIBRARIES and is_import():
            raise ModuleNotFoundError(LIBRARIES[fullname].refusal(), name=fullname)
        return None


def prepare() -> None:
    """Install the finder that explains missing libraries; idempotent."""
    if not any(isinstance(finder, Missing) for finder in sys.meta_path):
        sys.meta_path.append(Missing())
