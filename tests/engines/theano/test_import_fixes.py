"""Fixes made before Theano's import, with fake packages and, in separate processes, with the real ones.

Modules: `downsample`.
"""

import builtins
import importlib.util
import os
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest
from distributions import put_numpy_of_theano

from synkhronos.engines.theano import import_fixes as theano_setup

pytestmark = pytest.mark.slow

ROOT = str(Path(__file__).parents[3])
HAS_LASAGNE = importlib.util.find_spec("lasagne") is not None


@pytest.fixture
def no_user_flags(monkeypatch, tmp_path):
    monkeypatch.delenv("THEANO_FLAGS", raising=False)
    monkeypatch.setenv("THEANORC", str(tmp_path / "theanorc"))
    return tmp_path / "theanorc"


@pytest.mark.parametrize(
    "flags, configuration, expected",
    [
        (None, "", "blas.ldflags="),
        ("", "", "blas.ldflags="),
        ("floatX=float32", "", "floatX=float32,blas.ldflags="),
        ("floatX=float32,", "", "floatX=float32,,blas.ldflags="),
        ("blas.ldflags=-lopenblas", "", "blas.ldflags=-lopenblas"),
        ("blas.ldflags='-L/a,b -lx',device=cpu", "", "blas.ldflags='-L/a,b -lx',device=cpu"),
        ("blas.ldflags=", "", "blas.ldflags="),
        (None, "[blas]\nldflags = -lmkl\n", None),
        ("device=cpu", "[blas]\nldflags = -lmkl\n", "device=cpu"),
        (None, "[global]\nfloatX = float32\n[blas]\nother = 1\n", "blas.ldflags="),
        (None, "[global]\nblas.ldflags = %(odd)s\n", None),
    ],
)
def test_flags_of_the_user_win(monkeypatch, no_user_flags, flags, configuration, expected):
    no_user_flags.write_text(configuration)
    if flags is not None:
        monkeypatch.setenv("THEANO_FLAGS", flags)
    theano_setup.set_default_flags()
    assert os.environ.get("THEANO_FLAGS") == expected


def test_all_configuration_files_count(monkeypatch, tmp_path):
    (tmp_path / "second").write_text("[blas]\nldflags = -lmkl\n")
    monkeypatch.setenv("THEANORC", os.pathsep.join([str(tmp_path / "first"), str(tmp_path / "second")]))
    monkeypatch.setenv("THEANO_FLAGS", "a=1")
    theano_setup.set_default_flags()
    assert os.environ["THEANO_FLAGS"] == "a=1"


@pytest.mark.parametrize(
    "version, restored",
    [
        ("1.21.6", []),
        ("1.23.5", []),
        ("1.24.0", ["bool", "complex", "float", "int", "object", "str"]),
        ("2.1.0.dev0", ["bool", "complex", "float", "int", "object", "str"]),
    ],
)
def test_numpy_names(monkeypatch, version, restored):
    numpy = types.ModuleType("numpy")
    numpy.__version__ = version
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    theano_setup.restore_numpy_names()
    names = sorted(name for name in vars(numpy) if not name.startswith("__"))
    assert names == restored
    assert all(getattr(numpy, name) is getattr(builtins, name) for name in names)


def test_numpy_names_that_exist_stay(monkeypatch):
    numpy = types.ModuleType("numpy")
    numpy.__version__, numpy.bool = "2.0.0", "NumPy's own"
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    theano_setup.restore_numpy_names()
    assert numpy.bool == "NumPy's own" and numpy.int is int


@pytest.mark.parametrize("before, after", [({}, {}), ({"blas_opt_info": {"libraries": ["x"]}}, {"libraries": ["x"]})])
def test_blas_info(monkeypatch, before, after):
    config = types.ModuleType("numpy.distutils.__config__")
    vars(config).update(before)
    monkeypatch.setitem(sys.modules, "numpy.distutils.__config__", config)
    theano_setup.restore_blas_info()
    assert config.blas_opt_info == after


def test_blas_info_where_numpy_has_no_distutils(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy.distutils.__config__", None)
    theano_setup.restore_blas_info()


def test_prepare_adds_its_finders_once(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", ["others"])
    theano_setup.prepare()
    theano_setup.prepare()
    first, second, others, last = sys.meta_path
    assert others == "others"
    assert (
        first.find_spec("numpy") is None is second.find_spec("numpy")
        and last.find_spec("theano.tensor.signal.pool") is None
    )


@pytest.mark.parametrize(
    "version, old",
    [("0.1", True), ("0.1.1", True), ("0.2.dev1", False), ("0.10", False), ("1.0", False), (None, False)],
)
def test_downsample_is_for_lasagne_0_1_only(monkeypatch, version, old):
    def lookup(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", lookup)
    spec = theano_setup._MissingDownsample().find_spec("theano.tensor.signal.downsample")
    assert (spec is not None) == old


def run(program, tmp_path, **environment):
    """Run a program in a new process that imports from `tmp_path` first; return its output."""
    path = os.pathsep.join([str(tmp_path), ROOT])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=dict(os.environ, PYTHONPATH=path, **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def fake_theano(folder, **files):
    put_numpy_of_theano(folder)
    for name, text in dict({"__init__": ""}, **files).items():
        path = folder / "theano" / (name.replace("__slash__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_everything_happens_at_the_import_and_not_before(tmp_path):
    fake_theano(tmp_path, __init__="import os; flags = os.environ['THEANO_FLAGS']")
    program = """
import os, sys, synkhronos
before = os.environ.get("THEANO_FLAGS")
assert "numpy.distutils" not in sys.modules and "theano.scan_module.scan_perform_ext" not in sys.modules
os.environ["THEANO_FLAGS"] = "floatX=float32"  # before Theano's import, although after ours
import theano
print(before, theano.flags, "theano.scan_module.scan_perform_ext" in sys.modules)
"""
    expected = "None floatX=float32,blas.ldflags= %s" % (sys.version_info >= (3, 11))
    environment = {"THEANORC": str(tmp_path / "none")}
    assert run("import os; os.environ.pop('THEANO_FLAGS', None)\n" + program, tmp_path, **environment) == expected


def test_import_that_failed_before_is_forgotten(tmp_path):
    init = "import theano.options\nimport sys\nif not hasattr(sys, 'repaired'): raise ImportError('first')"
    fake_theano(tmp_path, __init__=init, options="count = 1")
    program = """
import sys
try:
    import theano
except ImportError:
    stale = sys.modules["theano.options"]
import synkhronos
sys.repaired = True
import theano
print(sys.modules["theano.options"] is stale, theano.options.count)
"""
    assert run(program, tmp_path) == "False 1"


def test_theano_that_is_imported_already_stays(tmp_path):
    fake_theano(tmp_path)
    (tmp_path / "numpy.py").write_text("__version__ = '1.26.4'")
    program = """
import sys, theano, theano as before, numpy
import synkhronos, theano
print(theano is before, numpy.int, "theano.scan_module.scan_perform_ext" in sys.modules)
"""
    assert run(program, tmp_path) == "True <class 'int'> False"


@pytest.mark.long
@pytest.mark.theano
def test_real_theano_computes(tmp_path):
    program = """
import synkhronos, sys
import numpy as np, pickle, theano, theano.tensor as T
x = T.vector(dtype="float64")
sums, _ = theano.scan(lambda value, total: total + value, sequences=x, outputs_info=np.float64(0))
print(theano.function([x], sums)([1, 2, 3, 4]).tolist())
a, b = T.matrices("ab")
product = pickle.loads(pickle.dumps(theano.function([a, b], T.dot(a, b))))
print(product(np.ones((0, 3), theano.config.floatX), np.ones((3, 2), theano.config.floatX)).shape)
print(repr(theano.config.blas.ldflags), theano.config.openmp)
"""
    environment = {"THEANO_FLAGS": os.environ.get("THEANO_FLAGS", ""), "THEANORC": str(tmp_path / "none")}
    assert run(program, tmp_path, **environment).splitlines() == ["[1.0, 3.0, 6.0, 10.0]", "(0, 2)", "'' False"]


BATCHES = """
import numpy as np, theano, theano.tensor as T
random = np.random.RandomState(0)
sizes = dict(n=3, i=2, k=4, j=5)
for dtype, x, y, z in ("float32", "nik", "nkj", "nij"), ("float64", "nk", "nkj", "nj"), ("float64", "nik", "nk", "ni"):
    a, b = (T.TensorType(dtype, (False,) * len(one))() for one in (x, y))
    product = T.batched_dot(a, b)
    f = theano.function([a, b], [product, *T.grad((product ** 2).sum(), [a, b])], mode="FAST_RUN")
    for empty in ("", "n", "i", "k", "j"):
        for order in "CF":
            A, B = (np.array(random.rand(*[sizes[c] * (c != empty) for c in one]), dtype, order=order) for one in (x, y))
            Z = np.einsum(f"{x},{y}->{z}", A, B)
            wanted = Z, np.einsum(f"{z},{y}->{x}", 2 * Z, B), np.einsum(f"{z},{x}->{y}", 2 * Z, A)
            for value, expected in zip(f(A, B), wanted):
                np.testing.assert_allclose(value, expected, rtol=1e-4)
print("right")
"""


@pytest.mark.theano
@pytest.mark.thorough
@pytest.mark.long("^import theano")
@pytest.mark.timeout(600)  # up to forty compilations, if Theano's cache is empty
@pytest.mark.parametrize("first", ["import synkhronos, theano", "import theano, synkhronos"])
def test_products_of_batches_compile(tmp_path, first):
    environment = {
        "THEANO_FLAGS": os.environ.get("THEANO_FLAGS", "") + ",blas.ldflags=",
        "THEANORC": str(tmp_path / "none"),
    }
    assert run(f"{first}\nassert synkhronos\n{BATCHES}", tmp_path, **environment) == "right"


@pytest.mark.theano
def test_theano_says_nothing_about_blas_and_all_else_that_it_has_to_say(tmp_path):
    program = """
import sys
sys.stderr = sys.stdout
import synkhronos, logging, theano, theano.tensor as T
T.dot(T.matrix(), T.matrix())
for text in ("Using NumPy C-API based implementation for BLAS functions.", "No BLAS at all."):
    logging.getLogger("theano.tensor.blas").warning(text)
logging.getLogger("theano").warning("Using NumPy C-API based implementation for BLAS functions.")
"""
    environment = {"THEANO_FLAGS": "", "THEANORC": str(tmp_path / "none")}
    assert run(program, tmp_path, **environment).splitlines() == [
        "WARNING (theano.tensor.blas): No BLAS at all.",
        "WARNING (theano): Using NumPy C-API based implementation for BLAS functions.",
    ]


@pytest.mark.theano
def test_real_theano_after_an_import_that_failed(tmp_path):
    # Without this, flags that another test's import of Theano has set in this process would make the first import work.
    program = """
import logging, os
flags = os.environ.get("THEANO_FLAGS", "").split(",")
os.environ["THEANO_FLAGS"] = ",".join(flag for flag in flags if not flag.startswith("blas"))
try:
    import theano
    print("worked")
except Exception as error:
    print("failed")
import synkhronos
import theano, theano.tensor as T
print(T.scalar().type, len(logging.getLogger("theano").handlers))
"""
    first = "failed" if sys.version_info >= (3, 11) else "worked"
    assert run(program, tmp_path).splitlines() == [first, "TensorType(float64, scalar) 1"]


@pytest.mark.thorough
@pytest.mark.theano
@pytest.mark.skipif(not HAS_LASAGNE, reason="Lasagne is not installed")
def test_real_lasagne_pools(tmp_path):
    program = """
import synkhronos, numpy as np, lasagne, theano
x = np.random.RandomState(0).rand(2, 3, 4, 6).astype(theano.config.floatX)
layer = lasagne.layers.MaxPool2DLayer(lasagne.layers.InputLayer((2, 3, 4, 6)), (2, 3))
pooled = lasagne.layers.get_output(layer, theano.shared(x)).eval()
print(np.array_equal(pooled, x.reshape(2, 3, 2, 2, 2, 3).max(axis=(3, 5))))
"""
    assert run(program, tmp_path) == "True"
