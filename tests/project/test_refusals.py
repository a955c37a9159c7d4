"""Tests check fields of errors and facts in them (tests/refusals.py), so that messages can be reworded."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASKING = ("refuses", "reports", "lacks", "refused")
PHRASE = re.compile(r"([A-Za-z]+,? ){2}[A-Za-z]")


def texts_in(tree):
    """Return the text constants below a node, including those in f-strings, except docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [node.value for node in constants if isinstance(node.value, str)]


def calls_of(tree, *names):
    """Yield the calls of functions or attributes with these names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", None)) in names:
            yield node


@pytest.fixture(scope="module")
def trees():
    """Return the parsed test files."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in sorted((ROOT / "tests").rglob("*.py"))}


@pytest.fixture(scope="module")
def sentences():
    """Return all text constants of the library's modules, joined."""
    modules = (ROOT / "synkhronos").rglob("*.py")
    return "\n".join(text for path in modules for text in texts_in(ast.parse(path.read_text())))


def quoted(tree, sentences):
    """Return the library's phrases, of three or more words, that are arguments of `refuses`, `reports` or `lacks`.

    They are in the call itself, or in the parameters or loop tables of a test with such a call.
    """
    places = list(calls_of(tree, *ASKING))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(calls_of(node, *ASKING)):
            places += node.decorator_list + [each.iter for each in ast.walk(node) if isinstance(each, ast.For)]
    texts = dict.fromkeys(text for place in places for text in texts_in(place))
    return [text for text in texts if PHRASE.search(text) and text in sentences]


def test_no_test_matches_messages(trees):
    matching = [
        f"{path}:{call.lineno}"
        for path, tree in trees.items()
        for call in calls_of(tree, "raises")
        if "match" in [keyword.arg for keyword in call.keywords]
    ]
    assert matching == [], "use refusals.refuses or refusals.reports"


def test_no_test_quotes_the_library(trees, sentences):
    found = {path: quoted(tree, sentences) for path, tree in trees.items()}
    assert {path: texts for path, texts in found.items() if texts} == {}


def test_quoted():
    tree = ast.parse("reports(StateError, 'it is closed', 'w', 3); refuses(ValueError, f'of {x} rows', got='is two')")
    assert quoted(tree, "it is closed; pool is two") == ["it is closed"]
    assert quoted(tree, "it was closed") == []
    table = "@parametrize('got', ['it is a'])\ndef test(got):\n    for each in ['it is b']:\n        refuses(each, got)"
    assert quoted(ast.parse(table), "it is a; it is b") == ["it is a", "it is b"]
