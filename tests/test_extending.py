"""The names for authors of extensions: all are documented, and results of several commands are joined."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import synkhronos as synk
from synkhronos import extending
from synkhronos.testing import numpy_engine as engine

X = np.arange(12.0)


def test_the_table_names_what_extensions_import():
    """Every name of the table exists, and extensions import no other names."""
    names = set(re.findall(r"(?<!`)`(\w+)`(?!`)", extending.__doc__.partition("====")[2]))
    assert names and all(hasattr(extending, name) for name in names)
    files = (Path(extending.__file__).parent / "extensions").rglob("*.py")
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "synkhronos.extending"]
    assert {alias.name for node in imports for alias in node.names} == names


def test_session_and_functions(make_world):
    with pytest.raises(synk.StateError):
        extending.current_session()
    make_world("threads", 2)
    session = extending.current_session()
    assert session is extending.current_session()
    x = engine.variable("x", "float64", 1)
    f = synk.function([x], engine.mean(x))
    assert extending.built_functions()[-1] is f and extending.find_engine([x]) is f.engine


@pytest.mark.parametrize("form", ["one", "list", "dict"])
@pytest.mark.parametrize("subset", [None, "second"])
def test_steps_of_several_commands(make_world, form, subset):
    """Joined steps are those of one command, also if one of the commands is a single call."""
    make_world("threads", 2)
    x = engine.variable("x", "float64", 1)
    outputs = {"one": (x * 2.0, "gather"), "list": [(x * 2.0, "gather"), engine.mean(x)]}
    outputs["dict"] = dict(zip("ab", outputs["list"]))
    f = synk.function([x], outputs[form])
    chosen = None if subset is None else {"one": [0], "list": [1], "dict": ["b"]}[form]
    batches = [[0, 1], [2, 3], [4, 5, 6], [7]]
    parts = [f.steps(X, batches=batches[:2], output_subset=chosen)]
    parts.append(extending.one_step(f, f(X, batch=batches[2], output_subset=chosen), chosen))
    parts.append(f.steps(X, batches=batches[3:], output_subset=chosen))
    found = extending.joined_steps(f, parts, chosen)
    whole = f.steps(X, batches=batches, output_subset=chosen)
    assert type(found) is type(whole)
    flat = [list(each.values()) if form == "dict" else [each] if form == "one" and subset is None else each
            for each in (found, whole)]  # fmt: skip
    for ours, theirs in zip(*flat):
        assert len(ours) == len(theirs) == 4 and all(map(np.array_equal, ours, theirs))
