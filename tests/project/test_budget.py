"""A maximum number of lines of code for each package, no more than it has today. Later changes lower it.

Only lines with code count: no comments, docstrings or blank lines. ``python tests/project/test_budget.py`` prints the
current table.
"""

import ast
import functools
import io
import tokenize
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "synkhronos"

#: Maximum number of lines of code in the listed files and folders; a space separates several of them. A file belongs to
#: the longest of these names that is a prefix of its path.
BUDGET = {
    "errors.py trace.py in_graph.py __init__.py __main__.py selection.py partition.py shared_data.py": 798,
    "reductions/ kernels/ host/": 1144,
    "memory/": 1167,
    "sync/": 1169,
    "runtime/": 1908,
    "transports/": 1918,
    "cluster/": 2199,
    "processes/": 876,
    "program/": 1052,
    "engines/ sharding/ ops/": 8677,
    "replication/": 489,
    "calls/": 4486,
    "collectives/": 1139,
    "mesh/": 1057,
    "profile/": 921,
    "loading/": 416,
    "extending.py": 41,
    "extensions/": 3931,
    "contrib/": 932,
    "testing/ cli/": 1923,
}

#: Tokens that do not count as code.
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def lines_of_code(text):
    """Return the number of lines with code in a module."""
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                docstring = node.body[0]
                found.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return len(found)


def row_of(file, rows):
    """Return the row of a table that a file belongs to; None if it has none."""
    names = [(len(name), row) for row in rows for name in row.split() if file.startswith(name)]
    return max(names)[1] if names else None


@functools.lru_cache(None)
def measured():
    """Return the number of lines of code for each row of the budget, and under None for files without a row."""
    found = dict.fromkeys(BUDGET, 0)
    for path in PACKAGE.rglob("*.py"):
        row = row_of(path.relative_to(PACKAGE).as_posix(), BUDGET)
        found[row] = found.get(row, 0) + lines_of_code(path.read_text())
    return found


@pytest.mark.parametrize("row", BUDGET)
def test_no_package_grows(row):
    n = measured()[row]
    assert n <= BUDGET[row], (
        f"{row}: {n} lines of code, the budget is {BUDGET[row]}: take something out, or say why not"
    )


def test_every_file_has_a_budget():
    assert None not in measured()


def test_what_counts():
    text = '"""One.\n\nTwo."""\n\nx = 1  # a comment\n# another\n\n\ndef f(\n    a,\n):\n    """Three."""\n    return """a\nb"""\n'
    assert lines_of_code(text) == 6
    assert lines_of_code("") == 0 and lines_of_code("# only this\n") == 0


def test_rows():
    rows = ["a/ b.py", "a/c/"]
    assert [row_of(file, rows) for file in ("a/x.py", "a/c/x.py", "b.py", "d.py")] == [
        "a/ b.py",
        "a/c/",
        "a/ b.py",
        None,
    ]


if __name__ == "__main__":
    table = measured()
    print("BUDGET = {")
    for row, n in table.items():
        print(f'    "{row}": {n},')
    print(f"}}  # {sum(table.values())} together")
