"""What an engine, and Lasagne, run with, and the sentence that an import of a missing one raises.

The names in the commands are on the package index, for the user may have no clone of this repository.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple, Optional, Sequence, Tuple

from .before_import import is_import


class Requirement(NamedTuple):
    """What a library runs with: the oldest and the newest, as (major, minor), and how it is installed."""

    title: str
    pythons: Tuple[Tuple[int, int], Tuple[int, int]]
    numpys: Tuple[Tuple[int, int], Tuple[int, int]]
    packages: str
    otherwise: str = ""

    def runs_here(self) -> bool:
        """Return whether the library runs on this Python."""
        return self.pythons[0] <= sys.version_info[:2] <= self.pythons[1]

    def takes(self, numpy: str) -> bool:
        """Return whether the library runs with this release of NumPy."""
        numbers = tuple(int(number) for number in numpy.split(".")[:2])
        return self.numpys[0] <= numbers <= self.numpys[1]

    @property
    def command(self) -> str:
        """The command that installs it, with what it needs on this Python."""
        return "pip install " + self.packages.format(old_numpy="1.22" if sys.version_info < (3, 11) else "1.24")

    def refusal(self) -> str:
        """Return why it cannot be imported here, and what to do.

        Examples
        --------
        >>> LIBRARIES["pytensor"]._replace(pythons=((3, 0), (3, 5))).refusal()  # doctest: +ELLIPSIS
        'PyTensor runs on Python 3.0 to 3.5 (here: 3...): run the program there'
        """
        if self.runs_here():
            return f"{self.title} is not installed in this environment: {self.command}"
        (_, first), (_, last) = self.pythons
        here = ".".join(map(str, sys.version_info[:3]))
        return (
            f"{self.title} runs on Python 3.{first} to 3.{last} (here: {here}): run the program there{self.otherwise}"
        )


#: With Theano come the newest releases that it works with.
OLD = '"theano==1.0.5" "numpy<{old_numpy}" "scipy<1.11" "setuptools<81"'
OF_THEANO = ((3, 8), (3, 11)), ((1, 12), (1, 23))
PORT = ", or port it to PyTensor (docs/pytensor.rst)"

#: By the name of the package. (No last minor release of NumPy 2 is known yet.)
LIBRARIES = {
    "theano": Requirement("Theano", *OF_THEANO, OLD, PORT),
    "pytensor": Requirement("PyTensor", ((3, 11), (3, 14)), ((2, 0), (2, 999)), '"pytensor>=3.0,<4"'),
    "lasagne": Requirement("Lasagne, which needs Theano,", *OF_THEANO, "lasagne " + OLD, PORT),
}


class Missing(MetaPathFinder):
    """The last finder: says of a library that no other finds what to do, if it is imported and not only looked for."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Refuse the import of one of `LIBRARIES`, as Python does, but with a sentence."""
        if fullname in LIBRARIES and is_import():
            raise ModuleNotFoundError(LIBRARIES[fullname].refusal(), name=fullname)
        return None


def prepare() -> None:
    """Have an import of a missing library say what to do; may be called any number of times."""
    if not any(isinstance(finder, Missing) for finder in sys.meta_path):
        sys.meta_path.append(Missing())
