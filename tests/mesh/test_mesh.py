"""Sessions on JAX's devices, in a pytest of their own: a process in which JAX runs can fork no ranks afterwards.

Modules: `synkhronos.mesh.devices`, `synkhronos.mesh.launcher`, `synkhronos.mesh.mesh`, `synkhronos.mesh.program`,
`synkhronos.mesh.traces`, `synkhronos.mesh.engine`, `synkhronos.mesh.collectives`, `synkhronos.engines.pytensor.jax_graph`,
`synkhronos.calls.together`, `synkhronos.calls.steps_together`.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = [
    pytest.mark.pytensor,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed: pip install jax"),
]

#: Tests of all worlds, which run on a mesh instead of threads: of every world, and those that open sessions themselves.
COLLECTIVES = ["tests/collectives", "tests/ops"]
CALLS = ["tests/calls/test_command.py", "tests/calls/test_slices.py", "tests/calls/test_steps.py"]
#: Tests that need four to eight devices.
WITH_EIGHT = (
    "test_average_of_equal_values or added_up_in_16_bits or test_groups or threads-4 and not inside or float16_is_scaled"
    " or groups_and_later or equal_rows_share or pairs_and_groups"
)
#: Tests that cannot run on a mesh, as expressions of pytest's ``-k``, and why.
NOT_ON_MESH = {
    "fork or hosts or process or large_values or test_large_arrays and test_broadcast or in_sync and large"
    " or values_that_others_read": ("ranks are processes, which JAX's threads would not survive"),
    "test_arguments or test_checked or test_inside_functions or functions_notice or takes_results_lives or keep_end_with"
    " or two_partition_rules or weights_of_a_function or uneven_shards": "functions of the NumPy engine",
    "wrong_targets or test_bad_input or test_bad_values or does_not_suit": "errors that name the NumPy engine's types",
    "test_rule": "operations without a conversion for JAX",
    "test_shard and (averages_whatever or without_exact or divides_nothing)": "slices that depend on values",
    WITH_EIGHT: "more devices than CI's three",
    "error_without_rows_is_the_engines or error_that_only_some_ranks_can_see": "JAX's errors have other texts",
}
SUITABLE = f"not ({' or '.join(NOT_ON_MESH)})"


def run(n, *arguments):
    """Run pytest in a process with n CPU devices of JAX."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = dict(os.environ, JAX_NUM_CPU_DEVICES=str(n), SYNK_TEST_MESH=str(n), PYTHONPATH=path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "ignore",
        "-p",
        "no:cacheprovider",
        "--timeout=300",
        *arguments,
    ]
    done = subprocess.run(
        command,
        cwd=str(ROOT),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    assert done.returncode == 0, done.stdout[-10000:]


@pytest.mark.parametrize("file", ["functions", "sessions", "donation", "steps", "collectives", "errors"])
def test_on_three_devices(file):
    run(3, str(HERE / f"mesh_{file}.py"))


@pytest.mark.thorough
@pytest.mark.parametrize("n, file", [(1, "functions"), (2, "functions"), (8, "functions"), (8, "sessions")])
def test_on_other_numbers_of_devices(n, file):
    run(n, str(HERE / f"mesh_{file}.py"))


@pytest.mark.parametrize(
    "networks",
    ["convolution or transformer", pytest.param("mlp or norm or lstm or pool", marks=pytest.mark.thorough)],
)
def test_networks_of_pytensor_ml(networks):
    """Attention and convolutions have conversions of their own for JAX."""
    pytest.importorskip("pytensor_ml")
    chosen = f"test_networks and ({networks})"
    run(3, "-k", chosen, "-m", "not thorough and not long", "tests/extensions/test_pytensor_ml.py")


def test_models_of_pymc():
    pytest.importorskip("pymc")
    run(2, "-m", "not thorough and not long", str(HERE / "mesh_pymc.py"))


@pytest.mark.parametrize(
    "n, tests", [(2, []), (3, CALLS), pytest.param(1, CALLS, marks=pytest.mark.thorough)], ids=["2", "3", "1"]
)
def test_tests_of_all_worlds(n, tests):
    chosen = "not long" if n == 1 else "not thorough and not long"  # worlds of one rank are thorough
    run(n, "-k", f"mesh and {SUITABLE}", "-m", chosen, *COLLECTIVES, *tests)


@pytest.mark.parametrize("n", [3, pytest.param(2, marks=pytest.mark.thorough), pytest.param(8, marks=pytest.mark.long)])
def test_collectives_of_values_on_devices(n, monkeypatch):
    """All collectives, of values that are on the devices when they begin."""
    monkeypatch.setenv("SYNK_TEST_MESH_VALUES", "devices")
    run(n, "-k", f"mesh and {SUITABLE}", "-m", "not thorough and not long", "tests/collectives")


@pytest.mark.thorough
@pytest.mark.parametrize("n", [3, 8])
def test_tests_that_open_sessions(n):
    """Sessions of one to three ranks, and on eight devices of up to eight."""
    run(n, "-k", f"not mesh and ({SUITABLE}{f' or {WITH_EIGHT}' * (n == 8)})", "-m", "quick", *COLLECTIVES)


@pytest.mark.parametrize("n", [3, pytest.param(2, marks=pytest.mark.thorough), pytest.param(8, marks=pytest.mark.long)])
def test_random_programs(n):
    run(n, "-m", "not long", str(HERE / "mesh_programs.py"))


@pytest.mark.long
@pytest.mark.timeout(2700)
def test_planted_bugs():
    """The random programs find every planted bug by a wrong value."""
    run(8, "-m", "long", "--timeout=900", str(HERE / "mesh_programs.py"))
