"""Make ``import theano`` and ``import lasagne`` work on Pythons and NumPys that are newer than they are.

Theano 1.0.5 runs unaided on Python 3.8 to 3.10 with NumPy 1.21. On Python 3.11, which needs a newer NumPy, three
things have to be done before its import, and Lasagne 0.1 imports a module that Theano no longer has. `prepare`
makes all this happen at the moment of the import and not before: a program that never imports Theano loses no time,
and what it sets until then (``THEANO_FLAGS``, ``OMP_NUM_THREADS``) has its effect.
"""

from __future__ import annotations

import configparser
import logging
import os
import shlex
import sys
import warnings
from importlib import import_module, metadata, util
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Optional, Sequence, Set

from .. import is_installed
from ..before_import import before_import
from ..requirements import LIBRARIES

# Options of Theano, and their values if the user has chosen none. With empty `blas.ldflags` Theano calls
# the BLAS inside NumPy, which is as fast as linking it and, unlike that, multiplies empty matrices.
DEFAULT_FLAGS = {"blas.ldflags": ""}
#: What Theano warns of at every start because of it, though nothing is wrong.
BLAS_MESSAGE = "Using NumPy C-API based implementation for BLAS functions."
DOWNSAMPLE = "theano.tensor.signal.downsample"
#: The parameters of ``gemm`` as ``BatchedDot`` declares them, and as that one has them which calls NumPy's BLAS.
DECLARED_GEMM = "const dtype*, const dtype*, const int*, const dtype*, const int*, const dtype*, dtype*, const int*)"
DEFINED_GEMM = "const dtype*, dtype*, const int*, dtype*, const int*, const dtype*, dtype*, const int*)"
STRIDES = "/* encode the stride structure"
EMPTY = "if (!PyArray_SIZE(xs) || !PyArray_SIZE(ys)) { PyArray_FILLWBYTE(zs, 0); return 0; }\n"


def prepare() -> None:
    """Make ``import theano`` and ``import lasagne`` work, now or later; imports neither.

    May be called any number of times. If Theano has been imported already, the names that its functions look up while
    they run are still restored. If its import has failed before this call, it succeeds after it.

    Examples
    --------
    >>> prepare()
    >>> import theano
    >>> theano.config.openmp
    False
    """
    before_import("theano", _prepare_import)
    before_import("theano.tensor.blas_c", repair_batched_dot)  # the module after the one with the operation
    if not any(isinstance(finder, _MissingDownsample) for finder in sys.meta_path):
        sys.meta_path.append(_MissingDownsample())  # the last: it is asked only when there is no such module
    if "theano" in sys.modules:
        restore_numpy_names()
        repair_batched_dot()


def _prepare_import() -> None:
    check_python()
    check_numpy()
    if util.find_spec("numpy") is None:
        return  # whoever imports Theano will say that it is missing, or that Theano is
    drop_failed_import()
    set_default_flags()
    restore_numpy_names()
    restore_blas_info()
    logging.getLogger("theano.tensor.blas").addFilter(is_worth_saying)
    if sys.version_info >= (3, 11):
        # The C source of scan's inner loop does not compile on 3.11; without it scan runs it in Python.
        sys.modules["theano.scan_module.scan_perform_ext"] = None  # type: ignore[assignment]


class _MissingDownsample(MetaPathFinder):
    """Finds the module that Lasagne 0.1 imports and Theano 1.0 has dropped."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Return our replacement of the one module, if the installed Lasagne needs it."""
        if fullname == DOWNSAMPLE and lasagne_is_old():
            return util.spec_from_file_location(fullname, str(Path(__file__).with_name("downsample.py")))
        return None


def lasagne_is_old() -> bool:
    """Return whether the installed Lasagne is a 0.1: newer ones use what Theano 1.0 has."""
    try:
        return metadata.version("Lasagne").split(".")[:2] == ["0", "1"]
    except metadata.PackageNotFoundError:
        return False


def check_python() -> None:
    """Refuse an import that newer Pythons let fail in the middle, if Theano is installed at all."""
    try:
        metadata.version("theano")
    except metadata.PackageNotFoundError:
        return
    if not LIBRARIES["theano"].runs_here():
        raise ImportError(LIBRARIES["theano"].refusal())


def check_numpy() -> None:
    """Refuse an import that NumPy 2 would let fail in the middle, if Theano is installed at all."""
    try:
        numpy = metadata.version("numpy")
    except metadata.PackageNotFoundError:
        return
    if int(numpy.split(".")[0]) >= 2 and is_installed("theano"):
        raise ImportError(
            f"Theano 1.0 does not run with NumPy 2 (here: {numpy}), which PyTensor 3 needs: programs of the two need "
            "environments of their own, make install ENGINE=theano and make install ENGINE=pytensor"
        )


def drop_failed_import() -> None:
    """Forget the submodules that an import of Theano left behind when it failed.

    The next attempt would take them for imported, and fail on options that are registered twice.
    """
    leftovers = [name for name in sys.modules if name.startswith("theano.")]
    for name in leftovers:
        del sys.modules[name]
    if leftovers:
        # Theano adds its handler while it is imported; with two of them every message would come twice.
        logging.getLogger("theano").handlers.clear()


def set_default_flags() -> None:
    """Add `DEFAULT_FLAGS` to ``THEANO_FLAGS``, except what the user set there or in a Theano configuration file."""
    chosen = flags_of_user()
    ours = [f"{name}={value}" for name, value in DEFAULT_FLAGS.items() if name not in chosen]
    theirs = os.environ.get("THEANO_FLAGS", "")
    if ours:
        os.environ["THEANO_FLAGS"] = ",".join(([theirs] if theirs else []) + ours)


def flags_of_user() -> Set[str]:
    """Return the names of the options set in ``THEANO_FLAGS`` and in the files of ``THEANORC``."""
    words = shlex.shlex(os.environ.get("THEANO_FLAGS", ""), posix=True)
    words.whitespace = ","
    words.whitespace_split = True
    names = {word.split("=", 1)[0].strip() for word in words}
    parser = configparser.RawConfigParser()
    files = os.environ.get("THEANORC", "~/.theanorc").split(os.pathsep)
    parser.read([os.path.expanduser(name) for name in files])
    for section in parser.sections():
        prefix = "" if section == "global" else section + "."
        names.update(prefix + option for option in parser.options(section))
    return names


def is_worth_saying(record: logging.LogRecord) -> bool:
    """Return whether a message of Theano's about BLAS is another than the one that comes at every start."""
    return record.getMessage() != BLAS_MESSAGE


def repair_batched_dot() -> None:
    """Have the C code of ``batched_dot`` call the BLAS inside NumPy, if Theano links none.

    It asks for a ``gemm`` with other parameters than that has: one that was to be linked, so that the module does not
    load (undefined symbol: dgemm_). And it takes no empty matrices, which have no strides in newer versions of NumPy.
    """
    blas = sys.modules.get("theano.tensor.blas")
    original: Any = None if blas is None else blas.BatchedDot.c_support_code
    if blas is None or original.__module__ == __name__:
        return

    def c_support_code(op: object) -> str:
        code: str = original(op)
        if not blas.config.blas.ldflags:
            code = code.replace(DECLARED_GEMM, DEFINED_GEMM).replace(STRIDES, EMPTY + STRIDES)
        return code

    blas.BatchedDot.c_support_code = c_support_code


def restore_numpy_names() -> None:
    """Give NumPy 1.24 and later back the aliases of Python types that Theano uses (``np.bool``, ``np.int``, ...)."""
    numpy = import_module("numpy")
    if tuple(int(number) for number in numpy.__version__.split(".")[:2]) >= (1, 24):
        for alias in (bool, int, float, complex, object, str):
            if alias.__name__ not in vars(numpy):
                setattr(numpy, alias.__name__, alias)


def restore_blas_info() -> None:
    """Give NumPy 1.22 and later back the empty ``blas_opt_info`` that Theano reads without checking."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy calls its distutils deprecated; the program can do nothing about it
            config = import_module("numpy.distutils.__config__")
    except ImportError:
        return
    if not hasattr(config, "blas_opt_info"):
        setattr(config, "blas_opt_info", {})  # noqa: B010, mypy knows that the module has no such name
