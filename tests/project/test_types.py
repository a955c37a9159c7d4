"""Types for users: mypy and pyright check programs that use the published names."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from library import L, T

import synkhronos as synk

ROOT = Path(__file__).parents[2]
#: The extensions, and their public names.
EXTENSIONS = {
    path.stem if path.name != "__init__.py" else path.parent.name: [
        name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__"
        for name in ast.literal_eval(node.value)
    ]
    for path in sorted((ROOT / "synkhronos" / "extensions").rglob("*.py"))
}
EXTENSIONS = {module: names for module, names in EXTENSIONS.items() if names}

NAMES = [f"synk.{name}" for name in synk.__all__] + [f"synk.ops.{name}" for name in synk.ops.__all__]
NAMES += [f"{module}.{name}" for module, names in EXTENSIONS.items() for name in names]
METHODS = [
    f"synk.{name}.{method}"
    for name in ("Data", "Function")
    for method in vars(getattr(synk, name))
    if not method.startswith("_") and callable(getattr(getattr(synk, name), method))
]

RIGHT = """
import numpy as np
import synkhronos as synk

n: int = synk.fork(2)
f: synk.Function = synk.function([], [])
losses = f.steps(batches=[slice(10)])
data: synk.Data = synk.data(np.zeros(3))
data.set_length(2)
synk.all_reduce([], wait=False).wait()
names = [host.name for host in synk.hosts()]
seconds = synk.traffic()["all_reduce"].seconds
try:
    f(data, batch=10)
except synk.WorkerDied as death:
    print(death.rank + 1)
"""

#: Lines that are type errors, and a word of the message about each.
WRONG = {
    'synk.fork("two")': "int",
    "synk.fork(n_paralel=2)": "n_paralel",
    "synk.al_reduce": "al_reduce",
    "synk.all_reduce([], exchange=16)": "int|16",
    "synk.all_reduce([]).wait()": "wait",
    "synk.data(0).set_lenght(3)": "set_lenght",
    'synk.data(0).set_length("3")': "int",
    "synk.function([]).step(1)": "step",
    "synk.ops.reduce_all": "reduce_all",
    "rules.EASGD().exchanges": "exchanges",
    'checkpoint.laod("here")': "laod",
}
IMPORTS = f"import synkhronos as synk\nfrom synkhronos.extensions import {', '.join(EXTENSIONS)}\n"


@pytest.fixture(scope="module", params=["mypy", "pyright"])
def messages(request, tmp_path_factory):
    """Return the checker's messages for all programs, as (program, line, text)."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "names.py").write_text(IMPORTS + "".join(f"reveal_type({name})\n" for name in NAMES + METHODS))
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(IMPORTS + "".join(f"{line}\n" for line in WRONG))
    checker = pytest.importorskip(request.param) and [sys.executable, "-m", request.param]
    if request.param == "mypy":
        checker += ["--config-file=", "--cache-dir", str(folder / "cache"), "--ignore-missing-imports", "--no-color"]
    else:
        if not shutil.which("node"):
            pytest.skip("pyright runs by node, which is not here")
        checker += ["--pythonpath", sys.executable]
    done = subprocess.run(
        checker + ["names.py", "right.py", "wrong.py"],
        cwd=str(folder),
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), *sys.path])),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    found = re.findall(r"^\s*(?:\S*/)?(\w+\.py):(\d+):(?:\d+)?(?: -)? (.*)", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return [(name, int(line), text) for name, line, text in found]


def test_type_checkers_know_every_published_name(messages):
    first = IMPORTS.count("\n") + 1
    found = {line: text for name, line, text in messages if name == "names.py"}
    types = {name: found.get(line, "nothing") for line, name in enumerate(NAMES + METHODS, first)}
    unknown = r'^(error|nothing)|(is|of ".*" is) "(Any|Unknown|builtins\.object)"$'
    assert {name: text for name, text in types.items() if re.search(unknown, text)} == {}


def test_a_right_program_has_no_errors(messages):
    assert [message for message in messages if message[0] == "right.py"] == []


def test_every_wrong_line_is_an_error(messages):
    lines = (IMPORTS + "\n".join(WRONG)).splitlines()
    said = {}
    for name, number, text in messages:
        if name == "wrong.py" and text.startswith("error"):
            said.setdefault(lines[number - 1], []).append(text)
    assert sorted(said) == sorted(WRONG)
    assert {line: said[line] for line, word in WRONG.items() if not re.search(word, " ".join(said[line]))} == {}


def test_the_names_for_type_checkers_are_those_that_are_loaded():
    """`__getattr__` finds each name in the module from which type checkers import it."""
    tree = ast.parse((ROOT / "synkhronos" / "__init__.py").read_text())
    (block,) = [
        node for node in tree.body if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    ]
    given = {
        alias.asname: node.module or alias.name
        for node in block.body
        for alias in node.names
        if alias.asname == alias.name
    }
    assert given == synk._HOMES


def test_type_checkers_know_what_functions_of_the_engine_have():
    x = T.dscalar("x")
    source = Path(sys.modules[synk.Function.__module__].__file__).read_text()
    (block,) = [node for node in ast.walk(ast.parse(source)) if is_for_checkers(node)]
    known = {node.target.id for node in block.body} | set(dir(synk.Function)) | {"name"}
    of_engine = [name for name in dir(L.module.function([x], x)) if not name.startswith("_")]
    assert of_engine and [name for name in of_engine if name not in known] == []


def is_for_checkers(node):
    """Return whether a statement is ``if TYPE_CHECKING:``."""
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
