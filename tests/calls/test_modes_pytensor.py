"""PyTensor's modes on ranks: custom ones, which are sent, and refused ones. Expected values come from NumPy."""

import threading

import numpy as np
import pytest
from refusals import refuses, reports

import synkhronos as synk

pytestmark = pytest.mark.pytensor
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")

from pytensor.compile.mode import Mode  # noqa: E402
from pytensor.graph.rewriting.basic import in2out, node_rewriter  # noqa: E402
from pytensor.link.basic import PerformLinker  # noqa: E402


class Logging(PerformLinker):
    """Custom linker with a setting."""

    setting = 3


class Locked(PerformLinker):
    """Linker with a lock, which cannot be sent to another process."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.lock = threading.Lock()

    def clone(self, allow_gc=None):
        return Locked(self.allow_gc)


def doubled(mode):
    x = pt.dvector("x")
    return synk.function([x], x * 2, mode=mode, name="doubled")


#: Modes, by the program's own elements in them.
OWN = {
    "linker": lambda: Mode(Logging(), "fast_compile"),
    "rewrite": lambda: Mode("py", in2out(node_rewriter(None)(lambda fgraph, node: None), name="nothing")),
    "registered": lambda: Mode("py", "fast_compile").register((in2out(node_rewriter(None)(lambda *_: None)), 1)),
}


@pytest.mark.parametrize("case", OWN)
def test_modes_of_the_program_travel(make_world, case):
    make_world("fork", 2)
    np.testing.assert_array_equal(doubled(OWN[case]())(np.arange(5.0)), 2 * np.arange(5.0))


def test_a_mode_that_cannot_travel(make_world):
    make_world("fork", 2)
    f = doubled(Mode(Locked(), "fast_compile"))
    with reports(TypeError, "function 'doubled'", "mode Mode"):
        f(np.arange(5.0))
    np.testing.assert_array_equal(doubled(Mode("py", None))(np.arange(5.0)), 2 * np.arange(5.0))  # still usable


@pytest.mark.parametrize("library", ["pytorch", "mlx"])
def test_linkers_whose_arrays_are_not_numpys(library):
    linkers = pytest.importorskip(f"pytensor.link.{library}.linker")
    linker = {"pytorch": "PytorchLinker", "mlx": "MLXLinker"}[library]
    with refuses(ValueError, "mode", "Numba", linker):
        doubled(Mode(getattr(linkers, linker)(), "fast_compile"))


def test_what_is_not_a_mode():
    with refuses(TypeError, "mode", "PyTensor", "3"):
        doubled(3)
    with reports(ValueError, "FASTER"):
        doubled("FASTER")
