"""Fixes for ``import theano`` and ``import lasagne`` with newer versions of Python and NumPy.

Theano 1.0.5 runs unchanged on Python 3.8 to 3.10 with NumPy 1.21. Python 3.11 needs a newer NumPy, and both need fixes.
Lasagne 0.1 imports a module that Theano no longer has. The fixes run when Theano is imported, so other programs lose
no time, and settings made before the import (``THEANO_FLAGS``, ``OMP_NUM_THREADS``) take effect.
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

# Our defaults for Theano's options. With empty `blas.ldflags`, Theano calls NumPy's BLAS, which needs no linker
# flags and can multiply empty matrices.
DEFAULT_FLAGS = {"blas.ldflags": ""}
#: Theano's harmless warning about empty `blas.ldflags`, logged at every start.
BLAS_MESSAGE = "Using NumPy C-API based implementation for BLAS functions."
DOWNSAMPLE = "theano.tensor.signal.downsample"
#: The parameters of ``gemm`` as declared by ``BatchedDot``, and as defined by the code that calls NumPy's BLAS.
DECLARED_GEMM = "const dtype*, const dtype*, const int*, const dtype*, const int*, const dtype*, dtype*, const int*)"
DEFINED_GEMM = "const dtype*, dtype*, const int*, dtype*, const int*, const dtype*, dtype*, const int*)"
STRIDES = "/* encode the stride structure"
EMPTY = "if (!PyArray_SIZE(xs) || !PyArray_SIZE(ys)) { PyArray_FILLWBYTE(zs, 0); return 0; }\n"


def prepare() -> None:
    """Make later imports of Theano and Lasagne work, even after a failed import; idempotent.

    This function imports neither. If Theano is already imported, the fixes for its functions are applied immediately.
    """
    before_import("theano", _prepare_import)
    before_import("theano.tensor.blas_c", repair_batched_dot)  # imported after theano.tensor.blas
    if not any(isinstance(finder, _MissingDownsample) for finder in sys.meta_path):
        sys.meta_path.append(_MissingDownsample())  # last, so it is used only if the module is missing
    if "theano" in sys.modules:
        restore_numpy_names()
        repair_batched_dot()


def _prepare_import() -> None:
    check_python()
    check_numpy()
    if util.find_spec("numpy") is None:
        return  # the import of Theano reports that NumPy is missing
    drop_failed_import()
    set_default_flags()
    restore_numpy_names()
    restore_blas_info()
    logging.getLogger("theano.tensor.blas").addFilter(is_worth_saying)
    if sys.version_info >= (3, 11):
        # The C source of scan's inner loop does not compile on Python 3.11, so scan's loop runs in Python.
        sys.modules["theano.scan_module.scan_perform_ext"] = None  # type: ignore[assignment]


class _MissingDownsample(MetaPathFinder):
    """Import finder for a module that Lasagne 0.1 imports and Theano 1.0 lacks."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Return the spec of our replacement for the module if the installed Lasagne needs it; else None."""
        if fullname == DOWNSAMPLE and lasagne_is_old():
            return util.spec_from_file_location(fullname, str(Path(__file__).with_name("downsample.py")))
        return None


def lasagne_is_old() -> bool:
    """Return whether the installed Lasagne is version 0.1; newer versions support Theano 1.0."""
    try:
        return metadata.version("Lasagne").split(".")[:2] == ["0", "1"]
    except metadata.PackageNotFoundError:
        return False


def check_python() -> None:
    """Raise ImportError if Theano is installed but does not support this version of Python."""
    try:
        metadata.version("theano")
    except metadata.PackageNotFoundError:
        return
    if not LIBRARIES["theano"].runs_here():
        raise ImportError(LIBRARIES["theano"].refusal())


def check_numpy() -> None:
    """Raise ImportError if Theano is installed with NumPy 2, which it does not support."""
    try:
        numpy = metadata.version("numpy")
    except metadata.PackageNotFoundError:
        return
    if int(numpy.split(".")[0]) >= 2 and is_installed("theano"):
        raise ImportError(
            f"Theano 1.0 does not run with NumPy 2 (here: {numpy}), which PyTensor 3 needs: install Theano and "
            "PyTensor in separate environments, with make install ENGINE=theano and make install ENGINE=pytensor"
        )


def drop_failed_import() -> None:
    """Drop the submodules left by a failed import, because the next import would skip them and fail."""
    leftovers = [name for name in sys.modules if name.startswith("theano.")]
    for name in leftovers:
        del sys.modules[name]
    if leftovers:
        # Theano adds its logging handler on import. Two handlers would print every message twice.
        logging.getLogger("theano").handlers.clear()


def set_default_flags() -> None:
    """Add `DEFAULT_FLAGS` to ``THEANO_FLAGS``, except options set there or in a Theano configuration file."""
    chosen = flags_of_user()
    ours = [f"{name}={value}" for name, value in DEFAULT_FLAGS.items() if name not in chosen]
    theirs = os.environ.get("THEANO_FLAGS", "")
    if ours:
        os.environ["THEANO_FLAGS"] = ",".join(([theirs] if theirs else []) + ours)


def flags_of_user() -> Set[str]:
    """Return the names of the options set in ``THEANO_FLAGS`` and in Theano's configuration files (``THEANORC``)."""
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
    """Return whether a log record about BLAS differs from the harmless warning that is logged at every start."""
    return record.getMessage() != BLAS_MESSAGE


def repair_batched_dot() -> None:
    """Make the C code of ``batched_dot`` call the BLAS inside NumPy unless Theano links a BLAS.

    The original code declares a ``gemm`` that must be linked, so its module would not load (undefined symbol: dgemm_).
    The original code also fails on empty matrices, whose strides are 0 in newer versions of NumPy.
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
    """Restore the aliases of Python types (``np.bool``, ``np.int``, ...) that Theano uses and NumPy 1.24 removed."""
    numpy = import_module("numpy")
    if tuple(int(number) for number in numpy.__version__.split(".")[:2]) >= (1, 24):
        for alias in (bool, int, float, complex, object, str):
            if alias.__name__ not in vars(numpy):
                setattr(numpy, alias.__name__, alias)


def restore_blas_info() -> None:
    """Add an empty ``blas_opt_info``, which Theano reads unconditionally, if NumPy lacks it (since NumPy 1.22)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's deprecation of distutils, which the program cannot fix
            config = import_module("numpy.distutils.__config__")
    except ImportError:
        return
    if not hasattr(config, "blas_opt_info"):
        setattr(config, "blas_opt_info", {})  # noqa: B010, mypy reports that the module lacks this name
