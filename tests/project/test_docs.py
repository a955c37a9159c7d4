"""README, docs and docstrings: links exist, docstrings are complete, examples run."""

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from refusals import reports

import synkhronos as synk

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.rst"))
MARKDOWN = [ROOT / "README.md", ROOT / "CHANGES.md", ROOT / "CONTRIBUTING.md", ROOT / "demos" / "README.md"]
MARKDOWN += sorted((ROOT / "docs").glob("*.md"))
README = (ROOT / "README.md").read_text()


# -- links of pages exist -----------------------------------------------------------------------------------------------


def referred(path, text):
    """Return the files that a page links to or includes."""
    if path.suffix == ".md":
        targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
        return [path.parent / target for target in targets if not re.match(r"\w+:", target)]
    targets = re.findall(r"^\.\. (?:literal)?include:: (\S+)", text, re.MULTILINE)
    targets += re.findall(r"^\.\. (?:image|figure):: (\S+)", text, re.MULTILINE)
    targets += re.findall(r":download:`[^<`]*<([^>`]+)>`", text)
    documents = [path.parent / name for name in re.findall(r":doc:`(?:[^<`]*<)?([\w/]+)>?`", text)]
    found = [
        next((page for page in (name.with_suffix(".rst"), name.with_suffix(".md")) if page.exists()), name)
        for name in documents
    ]
    return [path.parent / target for target in targets] + found


@pytest.mark.parametrize(
    "path",
    MARKDOWN + PAGES,
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_what_a_page_refers_to_exists(path):
    assert [str(target) for target in referred(path, path.read_text()) if not target.exists()] == []


def test_references_are_found():
    readme, page = ROOT / "README.md", ROOT / "docs" / "index.rst"
    assert referred(readme, "[a](b/c.md) [d](https://e.f) [g\nh](i.rst#j)") == [ROOT / "b" / "c.md", ROOT / "i.rst"]
    text = ".. include:: a.inc\n\n.. literalinclude:: ../b.py\n   :pyobject: c\n\nSee :doc:`d`, :doc:`data`, :doc:`the tables <performance>`."
    text += "\n\n.. image:: e.svg\n\n:download:`A notebook <f.ipynb>`"
    docs = ROOT / "docs"
    expected = [
        docs / "a.inc",
        docs / ".." / "b.py",
        docs / "e.svg",
        docs / "f.ipynb",
        docs / "d",
        docs / "data.rst",
        docs / "performance.md",
    ]
    assert referred(page, text) == expected


@pytest.mark.thorough
def test_pages_build_without_warnings(tmp_path):
    pytest.importorskip("sphinx")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        str(tmp_path / "trees"),
        str(ROOT / "docs"),
        str(tmp_path / "html"),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    assert done.returncode == 0, done.stdout
    interface = "".join(path.read_text() for path in (tmp_path / "html").glob("api*.html"))
    # (of a module such as `ops`, its members)
    ids = re.findall(r'id="synkhronos\.(\w+)[".]', interface)
    assert [name for name in synk.__all__ if name not in ids] == []
    index = (tmp_path / "html" / "index.html").read_text()
    pages = PAGES + sorted((ROOT / "docs").glob("*.md"))
    assert [page.stem for page in pages if f'href="{page.stem}.html"' not in index and page.stem != "index"] == []
    assert "best peer" in (tmp_path / "html" / "performance.html").read_text()


# -- docstrings --------------------------------------------------------------------------------------------------------


def sections(docstring):
    """Return the numpydoc sections of a docstring by title, and the text before them as ``""``."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return dict(zip([""] + parts[1::2], parts[::2]))


def documented(section):
    """Return the names that a section describes."""
    heads = [line for line in section.split("\n") if line and not line.startswith(" ")]
    return [name.strip().lstrip("*") for head in heads for name in head.split(" : ")[0].split(",")]


def faults(thing, bound=False):
    """Return the names of the parts that a docstring lacks."""
    if not thing.__doc__:
        return ["docstring"]
    found = sections(thing.__doc__)
    signature = inspect.signature(thing)
    parameters = [name for name in signature.parameters if not (bound and name == "self")]
    lacking = [name for name in parameters if name not in documented(found.get("Parameters", ""))]
    lacking += [
        f"parameter {name} is none" for name in documented(found.get("Parameters", "")) if name not in parameters
    ]
    if signature.return_annotation not in (None, "None") and "Returns" not in found:
        lacking.append("Returns")
    example = found.get("Examples", "")
    if ">>>" not in example or "SKIP" in example:
        lacking.append("an example that runs")
    return lacking


FUNCTIONS = [name for name in synk.__all__ if inspect.isfunction(getattr(synk, name))]
CLASSES = [name for name in synk.__all__ if inspect.isclass(getattr(synk, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_of_function(name):
    assert faults(getattr(synk, name)) == []


#: Functions that need no open session, and cannot fail otherwise.
CANNOT_FAIL = {"close", "is_forked", "get_n_gpu"}


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - CANNOT_FAIL))
def test_docstring_says_what_is_raised(name):
    assert "Error" in sections(getattr(synk, name).__doc__).get("Raises", "")


@pytest.mark.parametrize("name", ["__call__", "as_theano", "build_inputs"])
def test_docstring_of_method_of_function(name):
    assert faults(getattr(synk.Function, name), bound=True) == []


@pytest.mark.parametrize("name", ["set_value", "set_length", "set_shape", "condition_data"])
def test_docstring_of_method_of_data(name):
    assert faults(getattr(synk.Data, name), bound=True) == []


@pytest.mark.parametrize("name", CLASSES)
def test_docstring_of_class(name):
    described = documented(sections(getattr(synk, name).__doc__).get("Attributes", ""))
    members = [
        member
        for member, value in vars(getattr(synk, name)).items()
        if not member.startswith("_") and member not in described and not inspect.getdoc(value)
    ]
    assert getattr(synk, name).__doc__ and members == []


@pytest.mark.theano
def test_docstrings_of_update_rules():
    pytest.importorskip("theano")
    from synkhronos.extensions import updates

    common = sections(updates.__doc__)  # for everything that all rules share, a rule refers to this function
    assert {"Parameters", "Returns", "Raises"} < set(common)
    for name in updates.__all__:
        rule = getattr(updates, name)
        found = sections(rule.__doc__)
        shared = [*documented(common["Parameters"]), "Returns"] * ("`synkhronos.extensions.updates`" in found[""])
        assert [fault for fault in faults(rule) if fault not in shared] == [], name
        assert shared or {"Returns", "Raises"} < set(found), name
        assert ":=" in found[""], name


@pytest.mark.theano
def test_docstrings_of_training_functions():
    pytest.importorskip("theano")
    from synkhronos.extensions import train

    for name in ("make_train_function", "make_train_function_theano", "average_batch_norm"):
        function = getattr(train, name)
        assert faults(function) == [], name
        assert "Raises" in sections(function.__doc__), name


def test_faults_of_docstrings_are_found():
    def good(a, *b):
        """Do it.

        Parameters
        ----------
        a, *b : int
            Numbers.

        Returns
        -------
        int

        Examples
        --------
        >>> 1
        1
        """

    def bad(a, b) -> None:
        """Do it.

        Parameters
        ----------
        a : int
        c : int

        Examples
        --------
        >>> bad()  # doctest: +SKIP
        """

    def bare():
        pass

    assert faults(good) == []
    assert faults(bad) == ["b", "parameter c is none", "an example that runs"]
    assert faults(bare) == ["docstring"]


# -- examples of pages run ----------------------------------------------------------------------------------------------


#: A line with PyTensor's import and Theano's equivalent: such a page or program runs with either engine.
EITHER = r"(import pytensor.*?) +# Theano: (import .*)"


def page_with_examples(path):
    """Return test parameters for a page: one for each engine that the page imports or shows how to import."""
    text = path.read_text()
    engines = ["pytensor" if re.search(r">>> import .*\bpytensor\b", text) else "theano"]
    if re.search(EITHER, text):
        engines = ["pytensor", "theano"]
    ids = [path.name, f"{path.name}-theano"]
    return [pytest.param(path, engine, id=id, marks=getattr(pytest.mark, engine)) for engine, id in zip(engines, ids)]


@pytest.mark.thorough("porting|exact|training|batches|large|communicating|data|trouble")
@pytest.mark.timeout(300)  # compilation is slow if the cache is empty
@pytest.mark.parametrize(
    "path, engine", [one for path in PAGES if ">>>" in path.read_text() for one in page_with_examples(path)]
)
def test_examples_of_page(path, engine, tmp_path):
    """The examples run in a separate process, where Python code evaluates graphs, to save minutes of compilation."""
    pytest.importorskip(engine)
    if ">>> import jax" in path.read_text() and importlib.util.find_spec("jax") is None:
        pytest.skip("needs JAX: pip install jax")
    page = tmp_path / path.name
    page.write_text(with_engine(path.read_text(), engine))
    variable = f"{engine.upper()}_FLAGS"
    flags = ",".join(filter(None, [os.environ.get(variable), "linker=py,cxx="]))
    done = subprocess.run(
        [sys.executable, "-c", RUN_EXAMPLES, str(page)],
        cwd=str(ROOT),
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "2", variable: flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=280,
    )
    assert done.returncode == 0 and "Warning: " not in done.stdout, done.stdout[-8000:]


RUN_EXAMPLES = """
import doctest, sys, warnings
warnings.filterwarnings("ignore", "DeprecationWarning: there is no c")  # issued by Theano
warnings.filterwarnings("ignore", "overflow", RuntimeWarning)  # in the serial program, without the optimizer
import synkhronos
results = doctest.testfile(sys.argv[1], module_relative=False, optionflags=doctest.REPORT_NDIFF)
synkhronos.close()
sys.exit(bool(results.failed or not results.attempted))
"""


def with_engine(text, engine):
    """Return a text with only one engine's import where its lines show both engines' imports."""
    return re.sub(EITHER, r"\2" if engine == "theano" else r"\1", text)


ENGINES = [pytest.param(engine, marks=getattr(pytest.mark, engine)) for engine in ("theano", "pytensor")]


@pytest.mark.thorough
@pytest.mark.timeout(300)  # Numba compiles
@pytest.mark.parametrize("engine", ENGINES)
def test_program_of_landing_page(tmp_path, engine):
    pytest.importorskip(engine)
    page = (ROOT / "docs" / "index.rst").read_text()
    (program,) = re.findall(r"^\.\. code-block:: python\n((?:\n|   .*\n)+)", page, re.MULTILINE)
    (said,) = re.findall(r"On two cores the program prints ``(.*?)``", page)
    text = "import os\nos.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])\n" + textwrap.dedent(program)
    assert run_program(tmp_path, with_engine(text, engine)) == said + "\n"


@pytest.mark.thorough
@pytest.mark.timeout(300)  # Theano compiles
@pytest.mark.parametrize("engine", ENGINES)
def test_conftest_and_test_of_users(tmp_path, engine):
    """The files shown in notebooks_and_containers.rst work."""
    pytest.importorskip(engine)
    page = (ROOT / "docs" / "notebooks_and_containers.rst").read_text()
    blocks = re.findall(
        r"^\.\. code-block:: python\n((?:\n|   .*\n)+)", page.partition("\npytest\n---")[2], re.MULTILINE
    )
    for name, block in zip(("conftest.py", "test_mean.py"), blocks):
        (tmp_path / name).write_text(with_engine(textwrap.dedent(block), engine))
    program = "import sys, pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
    assert "1 passed" in run_program(
        tmp_path, program, [], ["--rootdir", str(tmp_path), str(tmp_path / "test_mean.py")]
    )


#: Program that runs the cells of a notebook in sequence, as Jupyter does, and prints the last expression of each cell.
CELLS = """
import ast, json, sys

namespace = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
            print("Out:", repr(value)) if value is not None else None
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)  # Numba compiles
@pytest.mark.parametrize("engine", ENGINES)
def test_notebook(tmp_path, engine):
    pytest.importorskip(engine)
    notebook = ROOT / "docs" / "notebook.ipynb"
    assert not any(cell.get("outputs") for cell in json.loads(notebook.read_text())["cells"])
    printed = run_program(tmp_path, CELLS, [], [str(notebook)]).splitlines()
    assert [line for line in printed if line.startswith("Out:")] == [
        "Out: 2",
        "Out: <Data: float64 (2000, 20)>",
        "Out: agrees with the serial function",
        "Out: in sync",
    ]
    (last,) = [line for line in printed if line.startswith("epoch 5")]
    assert float(last.split()[-1]) > 0.95


TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.rst").read_text()

#: Texts that are not the library's, and programs that end with them or print them.
FOREIGN = {
    "module 'numpy.distutils.__config__' has no attribute 'blas_opt_info'": "import theano",
    "cannot import name 'downsample' from 'theano.tensor.signal'": """
import sys, synkhronos
sys.meta_path = [finder for finder in sys.meta_path if type(finder).__name__ != "_MissingDownsample"]
import lasagne
""",
    "No module named 'pkg_resources'": """
import synkhronos
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *others: None if name == "pkg_resources" else find(name, *others)
import lasagne
""",
    "Using NumPy C-API based implementation for BLAS functions.": """
import numpy.distutils.__config__, sys
numpy.distutils.__config__.blas_opt_info = {}
sys.modules["theano.scan_module.scan_perform_ext"] = None
import theano.tensor
""",
    "Theano runs on Python 3.8 to 3.11": """
import sys
sys.version_info = (3, 12, 1, "final", 0)
import synkhronos, theano
""",
    "Unable to create the compiledir directory": """
import os
os.environ["THEANO_FLAGS"] = "base_compiledir=/dev/null/folder"
import synkhronos, theano
""",
    "debugprint cannot print an object of this type": """
import synkhronos, theano
theano.printing.debugprint(synkhronos.function([], []))
""",
}


def test_every_environment_variable_is_on_the_page():
    """The page lists exactly the variables that users may set."""
    sources = [*(ROOT / "synkhronos").rglob("*.py"), *(ROOT / "demos").rglob("*.py")]
    used = {name for path in sources for name in re.findall(r"\bSYNK_[A-Z_]+", path.read_text())}
    page = (ROOT / "docs" / "environment_variables.rst").read_text()
    assert set(re.findall(r"^   \* - ``(SYNK_\w+)``", page, re.MULTILINE)) == used and len(used) > 8


def run_alone(tmp_path, *arguments):
    """Run Python without any settings for Theano; return its exit status and its standard error."""
    environment = {name: value for name, value in os.environ.items() if name != "THEANO_FLAGS"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=str(tmp_path),
        env=dict(environment, PYTHONPATH=str(ROOT), THEANORC=str(tmp_path / "none")),
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    return done.returncode, done.stderr


@pytest.mark.thorough
def test_texts_of_troubleshooting_are_what_the_library_says():
    """Texts with an example are checked by running it; the others must be in the sources."""
    headings = re.findall(r"^(``.*)\n---", TROUBLESHOOTING, re.MULTILINE)
    texts = [text for heading in headings for text in re.findall("``(.*?)``", heading)]
    assert texts[0] == next(iter(FOREIGN)) and len(headings) == TROUBLESHOOTING.count("\n---") > 15
    sources = "".join(path.read_text() for path in (ROOT / "synkhronos").rglob("*.py"))
    said = re.sub(r'"\s*f?"', "", sources)  # joins strings that are split over lines
    said += "".join(re.findall(r"^synkhronos\.errors\..*", TROUBLESHOOTING, re.MULTILINE))
    assert [text for text in texts if text not in said and text not in FOREIGN] == []
    assert set(FOREIGN) < set(texts)


@pytest.mark.thorough
@pytest.mark.theano
@pytest.mark.parametrize("text", FOREIGN, ids=range(len(FOREIGN)))
def test_texts_of_troubleshooting_are_what_others_say(tmp_path, text):
    pytest.importorskip("lasagne")
    if "blas_opt_info" in text and sys.version_info < (3, 11):
        pytest.skip("NumPy is as old as Theano")
    assert text in run_alone(tmp_path, "-c", FOREIGN[text])[1]


@pytest.mark.theano
def test_remedies_of_troubleshooting(tmp_path):
    pytest.importorskip("lasagne")
    (tmp_path / "program.py").write_text("import theano, lasagne")
    for arguments in (["-m", "synkhronos", "program.py"], ["-c", "import synkhronos as synk, theano, lasagne"]):
        # (Some versions of setuptools issue a warning in Lasagne.)
        quiet = ["-W", "ignore:pkg_resources is deprecated as an API:UserWarning"]
        assert run_alone(tmp_path, *quiet, *arguments) == (0, "")


@pytest.mark.parametrize("launcher, n, root", [("threads", 1, 0), ("threads", 2, 1), ("threads", 3, 0), ("fork", 3, 2)])
def test_collective_of_extending(make_world, monkeypatch, launcher, n, root):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))  # before the fork, because the ranks import it, too
    from rotate import rotate

    world = make_world(launcher, n, root)
    a, b = world.shared(np.zeros(2), "a"), world.shared(np.zeros((2, 3)), "b")
    world.set_values(a, [np.array([rank, 10.0]) for rank in range(n)])
    world.set_values(b, [np.full((2, 3), -rank) for rank in range(n)])
    rotate([a, b])
    assert [value.tolist() for value in world.values(a)] == [[(rank - 1) % n, 10.0] for rank in range(n)]
    assert [value[1, 2] for value in world.values(b)] == [-((rank - 1) % n) for rank in range(n)]


PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

(DIFF,) = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)

#: The parts of the program that the README leaves to the reader. The last batch of an epoch has 7 rows, which do not divide evenly.
GIVEN = """
import os
import numpy as np
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # fork() takes all cores
num_epochs = 2

def load_dataset():
    random = np.random.RandomState(1)
    return random.rand(307, 784), random.randint(0, 10, 307).astype("int32")

def iter_minibatch_idxs(length, size, shuffle):
    order = np.random.RandomState(2).permutation(length)
    return [order[begin : begin + size] for begin in range(0, length, size)]

"""

#: Code to insert after the imports, so that the initial values are equal.
SEEDED = "\nlasagne.random.set_rng(np.random.RandomState(3))\n"

#: Code that prints the results of the program.
SHOWN = """
print(*losses)
for p in params:
    print(*p.get_value().ravel()[:100])
"""


def changed(program, diff):
    """Return a program with a diff applied: lines with ``-`` are removed, ``+`` added, others locate the change."""
    lines, position = program.split("\n"), 0
    for line in filter(None, diff.split("\n")):
        if line[0] == "+":
            lines.insert(position, line[1:])
            position += 1
        else:
            position = lines.index(line[1:], position)
            if line[0] == "-":
                del lines[position]
            else:
                position += 1
    return "\n".join(lines)


def test_changed():
    assert changed("a\nb\nc\nd", " a\n+A\n-c\n+C\n+\n\n-d\n") == "a\nA\nb\nC\n"
    with reports(ValueError, "'e'"):
        changed("a\nb", "-e\n")


def run_program(tmp_path, text, options=(), arguments=()):
    """Run a program as a script and return what it prints."""
    path = tmp_path / "program.py"
    path.write_text(text)
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [sys.executable, *options, str(path), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.theano
@pytest.mark.timeout(300)  # compilation is slow if the cache is empty
def test_program_of_readme_arrives_at_the_same(tmp_path):
    pytest.importorskip("lasagne")
    before = PROGRAMS[0]
    after = changed(before, DIFF)  # run in this form; Python 3.11 does not import Theano by itself
    assert [line[0] for line in DIFF.split("\n") if line].count("-") == 2 and "synk" not in before

    def shown(text, *options):
        seeded = text.replace("import theano.tensor as T\n", "import theano.tensor as T\n" + SEEDED)
        assert seeded != text
        return np.array(run_program(tmp_path, GIVEN + seeded + SHOWN, options).split(), float)

    serial, parallel = shown(before, "-m", "synkhronos"), shown(after)
    assert serial.shape == (4 + 2 * 100 + 100 + 10,)
    np.testing.assert_allclose(parallel, serial, rtol=1e-7, atol=1e-9)
    wrong = after.replace(", exact=True", "")
    assert not np.allclose(shown(wrong), serial, rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
def test_complete_program_of_readme_prints_what_is_said(tmp_path, engine):
    """For PyTensor, the import is replaced as the program's comment says."""
    pytest.importorskip(engine)
    (said,) = re.findall(r"It prints `(.*?)`", README)
    before, after = re.search(r"(import theano.*) # Python 3.12 and later: (import pytensor.*)", PROGRAMS[1]).groups()
    program = PROGRAMS[1].replace(before, after) if engine == "pytensor" else PROGRAMS[1]
    assert run_program(tmp_path, program) == said + "\n"
