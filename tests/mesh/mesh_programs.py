"""Random programs, graphs and models on JAX's devices, and bugs that programs find. Run by test_mesh.py."""

import dataclasses
import random

import bugs
import fuzz_pytensor
import graph_check
import jax
import pytest
from fuzz_check import Tally, check
from fuzz_program import Author
from protocol import random_program
from recipe_library import Library
from recipes import BY_NAME, NOT_ON_MESH, ON_MESH
from refusals import refuses
from test_programs import closed, find_planted_bug, planting  # noqa: F401, fixtures

import synkhronos as synk
from synkhronos.kernels import copy

N = jax.local_device_count()


@pytest.fixture(autouse=True)
def every_array_is_large(monkeypatch):
    """Copy all arrays as large arrays are copied: by a kernel, which needs arrays on the host."""
    monkeypatch.setattr(copy, "CACHE_BYTES", 4)


def test_programs():
    """Check 60 draws."""
    random_program(random.Random("mesh"), Library("pytensor", ON_MESH), "mesh", 60, sizes=(N,))


def test_functions_that_programs_do_not_draw():
    """The functions whose results have a length that depends on values are refused."""
    refused = [BY_NAME[name] for name, reason in NOT_ON_MESH.items() if "length" in reason]
    library = Library("pytensor", refused)
    with synk.fork(N, devices="jax"):
        for recipe in refused:
            with refuses(ValueError, argument=f"function {recipe.name.replace(' ', '_')}", expected="operations"):
                library.functions[recipe.name]([[0.0, 1.0, 2.0]])


def test_graphs():
    """Check some graphs on all devices, in all their calls."""
    graphs = [graph for graph in (graph_check.grown(f"mesh {i}") for i in range(7)) if graph is not None]
    here = [dataclasses.replace(graph, n=N, root=min(graph.root, N - 1)) for graph in graphs]
    checked = [graph_check.check(graph, "mesh") for graph in here]
    assert sum(one.draws for one in checked) >= 10


def test_models():
    """Check 3 models."""
    tally = Tally()
    for i in range(4):
        program = Author(fuzz_pytensor, "mesh", i).program()
        if program is not None:
            check(program._replace(ranks=N, root=0), fuzz_pytensor, tally, "mesh")
    assert tally.counts["values"] >= 10


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", bugs.OF_THE_MESH, ids=lambda bug: bug.__name__)
def test_planted_bug_is_found(planting, bug):  # noqa: F811
    find_planted_bug(planting("pytensor"), "pytensor", bug, ON_MESH, "mesh")
