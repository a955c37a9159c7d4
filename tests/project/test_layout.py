"""A module's tests are in the file of the same name, or in a file whose docstring names the module.

The docstring uses the short name in the same folder, and the full name in another folder.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = ROOT / "synkhronos", ROOT / "tests"
FOLDERS = sorted({path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")})


def named_in(files):
    """Return the names in backquotes in the docstrings of test files."""
    texts = [ast.get_docstring(ast.parse(path.read_text())) or "" for path in files]
    return {name for text in texts for name in re.findall(r"`([\w.]+)`", text)}


@pytest.fixture(scope="module")
def named_anywhere():
    """Return the names in docstrings in all folders."""
    return named_in(TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_every_module_has_tests(folder, named_anywhere):
    here, found = TESTS / folder, []
    names = named_in(here.glob("test_*.py"))
    for path in sorted((PACKAGE / folder).glob("*.py")):
        full = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.stem != "__init__" and not (here / f"test_{path.stem}.py").exists() and path.stem not in names:
            found += [full] if full not in named_anywhere else []
    assert found == [], f"name each in the docstring of the file that tests it, at best in {here.relative_to(ROOT)}"


def test_folders_inside_others_are_those_of_the_package():
    for folder in (path for path in TESTS.rglob("*") if path.is_dir() and any(path.glob("test_*.py"))):
        parts = folder.relative_to(TESTS).parts
        assert len(parts) == 1 or (PACKAGE / Path(*parts)).is_dir(), folder
