"""Modules shared by test files, which tests and ranks import by their short names."""

import collections
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folders(request):
    """Return the folders of shared modules from pyproject.toml."""
    return [Path(path) for path in request.config.getini("pythonpath")]


def shared_in(folder):
    """Return the names that can be imported from a folder; tests themselves are imported by path."""
    names = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    return {name for name in names if not name.startswith("test_")} - {"conftest", "__init__"}


def test_each_name_is_of_one_file(folders):
    counts = collections.Counter(name for folder in folders for name in shared_in(folder))
    assert {"synkhronos", "worlds", "table", "pieces"} <= set(counts)
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_folder_that_has_some_is_named(folders):
    there = {path.parent for path in (ROOT / "tests").rglob("*.py") if shared_in(path.parent)}
    assert {folder for folder in there if not (folder / "__init__.py").exists()} <= set(folders)
