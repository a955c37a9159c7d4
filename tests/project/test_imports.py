"""Imports go from higher to lower layers; few modules import an engine."""

import ast
from pathlib import Path

import pytest

import synkhronos

PACKAGE = Path(__file__).parents[2] / "synkhronos"

# Top-level folders and modules of the package, lowest first: each may import modules below it, and its neighbors on the
# same line, without cycles. A new module goes into the folder that it belongs to.
LAYERS = [
    ["errors", "trace"],
    ["reductions", "partition", "host"],
    ["kernels", "in_graph", "sharding"],
    ["selection", "memory"],
    ["sync", "profile"],
    ["transports", "engines"],
    ["runtime"],
    ["processes"],
    ["cluster", "mesh"],
    ["program"],
    ["shared_data", "replication"],
    ["calls"],
    ["collectives"],
    ["ops"],
    ["loading", "contrib"],
    ["extending"],
    ["extensions", "testing"],
    ["__init__", "cli", "__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# External packages that only some of the package's modules may import.
RESTRICTED = {
    "theano": {"engines", "extensions"},
    "lasagne": {"engines", "extensions"},
    "pytensor": {"engines", "extensions"},
    "numba": {"engines"},
    "jax": {"engines", "mesh"},
    "pymc": {"extensions"},
    "pygpu": {"transports", "engines", "reductions"},
    "mpi4py": {"cluster", "transports", "cli"},
}
# Folders that use only published names, as programs do: the public names of the package, and these modules.
PUBLIC_USERS = {"extensions"}
PUBLISHED = {"errors", "ops", "trace", "loading", "extending", "extensions"}


def top_level(path):
    """Return the top-level module of a file of the package."""
    return path.relative_to(PACKAGE).parts[0].replace(".py", "")


def imported(path, text=None):
    """Return (absolute name, line) of all imports in a file, including those inside functions."""
    here = ("synkhronos",) + path.relative_to(PACKAGE).with_suffix("").parts
    found = []
    tree = ast.parse(path.read_text() if text is None else text)
    if path == PACKAGE / "__init__.py":  # except for public names, which only type checkers import
        tree.body = [
            node
            for node in tree.body
            if not isinstance(node, ast.If) or getattr(node.test, "id", "") != "TYPE_CHECKING"
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            if module == "synkhronos":  # `from synkhronos import errors` imports the module `errors`
                found += [("synkhronos." + a.name if a.name in LEVEL else module, node.lineno) for a in node.names]
            else:
                found.append((module, node.lineno))
        elif is_call_of_import_module(node):
            name = node.args[0].value
            if name.startswith("."):  # relative to the second argument, here ``__name__``
                name = ".".join(("synkhronos",) + path.relative_to(PACKAGE).parts[:-1]) + name
            found.append((name, node.lineno))
    return found


def is_call_of_import_module(node):
    """Return whether a node is ``import_module("...")`` with a literal string."""
    return (
        isinstance(node, ast.Call)
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
        and (getattr(node.func, "id", None) or getattr(node.func, "attr", None)) == "import_module"
    )


def ours(name):
    """Return the top-level module of an import of our package; None for other packages."""
    parts = name.split(".")
    if parts[0] != "synkhronos":
        return None
    return parts[1] if len(parts) > 1 else "__init__"


def faults(path, text=None):
    """Return the faults in the imports of one file, as sentences."""
    importer, sentences = top_level(path), []
    for name, line in imported(path, text):
        where = f"{path.relative_to(PACKAGE.parent)}:{line} imports {name}"
        target = ours(name)
        allowed = RESTRICTED.get(name.split(".")[0])
        if allowed is not None and importer not in allowed:
            sentences.append("{}: only {} may".format(where, " and ".join(sorted(allowed))))
        elif target is None or (target == "__init__" and importer in PUBLIC_USERS):
            continue
        elif importer in PUBLIC_USERS and target not in PUBLISHED:
            sentences.append(f"{where}: not a published name, see synkhronos/extending.py")
        elif target not in LEVEL:
            sentences.append(f"{where}: unknown module, give it a place in LAYERS of tests/project/test_imports.py")
        elif LEVEL[target] > LEVEL[importer]:
            sentences.append(f"{where}: imports run downwards, see LAYERS in tests/project/test_imports.py")
    return sentences


def private_names(tree, of_self):
    """Return (name, line) of private attributes in a module: of ``self`` and ``cls``, or of all other objects."""
    return [
        (node.attr, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if (getattr(node.value, "id", None) in ("self", "cls")) == of_self
    ]


def defined_in(tree):
    """Return the private names that a module defines, as attributes of ``self``, functions or variables."""
    names = {name for name, _ in private_names(tree, of_self=True)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return names | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_of_module(path):
    assert top_level(path) in LEVEL, (
        f"{top_level(path)} is new: give it a place in LAYERS of tests/project/test_imports.py and in docs/design.rst"
    )
    assert faults(path) == []


@pytest.mark.slow
def test_public_users_read_no_private_attributes():
    """Extensions use private attributes only of their own objects, and of other libraries' objects."""
    core, read = set(), []
    for path in FILES:
        tree = ast.parse(path.read_text())
        if top_level(path) not in PUBLIC_USERS:
            core |= defined_in(tree)
        else:
            own = defined_in(tree)
            where = path.relative_to(PACKAGE)
            read += [(name, f"{where}:{line}") for name, line in private_names(tree, of_self=False) if name not in own]
    assert [(name, place) for name, place in read if name in core] == []


@pytest.mark.slow
def test_public_users_use_public_names_of_the_package():
    used = set()
    for path in FILES:
        if top_level(path) in PUBLIC_USERS:
            nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
            used |= {node.attr for node in nodes if getattr(node.value, "id", None) == "synk"}
    assert used and used <= set(synkhronos.__all__)


@pytest.mark.slow
def test_no_cycles():
    edges = {}
    for path in FILES:
        targets = {ours(name) for name, _ in imported(path)} - {None, top_level(path)}
        edges.setdefault(top_level(path), set()).update(targets)
    assert cycle(edges) is None


def cycle(edges):
    """Return the names along a cycle in a graph, or None."""
    finished = set()

    def visit(name, trail):
        if name in trail:
            return trail[trail.index(name) :] + [name]
        if name in finished:
            return None
        found = next(filter(None, (visit(target, trail + [name]) for target in sorted(edges.get(name, ())))), None)
        finished.add(name)
        return found

    return next(filter(None, (visit(name, []) for name in sorted(edges))), None)


@pytest.mark.parametrize(
    "module, text, fault",
    [
        ("errors.py", "import os, numpy.linalg", None),
        ("partition.py", "from . import errors", None),
        ("partition.py", "from .errors import StateError", None),
        ("collectives/reduce.py", "from ..runtime.command import Command", None),
        ("collectives/reduce.py", "from .base import x", None),
        ("engines/theano/engine.py", "import theano.tensor as T", None),
        ("engines/theano/engine.py", "from ... import reductions", None),
        ("engines/theano/gpu.py", "def f():\n    import_module('synkhronos.reductions.device')", None),
        (
            "engines/theano/gpu.py",
            "def f():\n    importlib.import_module('synkhronos.runtime.session')",
            "run downwards",
        ),
        ("engines/theano/engine.py", "def f():\n    from ...runtime.session import current", "imports run downwards"),
        ("runtime/session.py", "import_module('theano')", "only engines and extensions may"),
        ("extensions/updates.py", "import synkhronos as synk\nfrom theano import tensor", None),
        ("extensions/updates.py", "from synkhronos.errors import StateError", None),
        ("extensions/updates.py", "from synkhronos.extending import find_engine", None),
        ("extensions/updates.py", "from synkhronos.runtime.session import x", "not a published name"),
        ("extensions/updates.py", "from ..program.program import PROGRAM", "not a published name"),
        ("transports/nccl.py", "from pygpu import collectives", None),
        ("errors.py", "from .partition import x", "imports run downwards"),
        ("errors.py", "from synkhronos.runtime.session import x", "imports run downwards"),
        ("shared_data.py", "from synkhronos import fork", "imports run downwards"),
        ("shared_data.py", "from . import collectives", "imports run downwards"),
        ("shared_data.py", "def f():\n    import theano", "only engines and extensions may"),
        ("shared_data.py", "from pygpu.gpuarray import GpuArray", "only engines and reductions and transports may"),
        ("calls/command.py", "import lasagne", "only engines and extensions may"),
        ("shared_data.py", "from synkhronos.helpers import x", "unknown module"),
    ],
)
def test_the_rules_themselves(module, text, fault):
    found = faults(PACKAGE / module, text)
    assert (found == []) if fault is None else (len(found) == 1 and fault in found[0])


def test_cycle_is_found():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
