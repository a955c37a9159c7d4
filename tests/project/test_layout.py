"""Where a module's tests are: in the file of its name, or in one of the same folder whose docstring names it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = ROOT / "synkhronos", ROOT / "tests"
FOLDERS = sorted({path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")})


def named_in(files):
    """Return what the docstrings of test files have in backquotes."""
    texts = [ast.get_docstring(ast.parse(path.read_text())) or "" for path in files]
    return {name for text in texts for name in re.findall(r"`([\w.]+)`", text)}


@pytest.fixture(scope="module")
def named_anywhere():
    """What is in backquotes in all folders: of whole programs, some are tests of modules that they name by their full names."""
    return named_in(TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_every_module_has_tests(folder, named_anywhere):
    here, found = TESTS / folder, []
    names = named_in(here.glob("test_*.py"))
    for path in sorted((PACKAGE / folder).glob("*.py")):
        full = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.stem != "__init__" and not (here / f"test_{path.stem}.py").exists() and path.stem not in names:
            found += [full] if full not in named_anywhere else []
    assert found == [], f"name each in the docstring of the file in {here.relative_to(ROOT)} that tests it"


def test_every_folder_of_tests_in_a_package_is_one():
    """What is not about a folder of the package is beside these folders, not in them."""
    for folder in (path for path in TESTS.rglob("*") if path.is_dir() and any(path.glob("test_*.py"))):
        parts = folder.relative_to(TESTS).parts
        assert len(parts) == 1 or (PACKAGE / Path(*parts)).is_dir(), folder
