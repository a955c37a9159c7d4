"""Sessions on JAX's devices, in a pytest of their own: a process in which JAX runs can fork no ranks afterwards.

Modules: `synkhronos.mesh.devices`, `synkhronos.mesh.launcher`, `synkhronos.mesh.mesh`, `synkhronos.mesh.program`,
`synkhronos.mesh.traces`, `synkhronos.mesh.engine`, `synkhronos.engines.pytensor.jax_graph`,
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

#: Tests of all worlds, which run on a mesh instead of threads.
COLLECTIVES = [f"tests/collectives/test_{name}.py" for name in ("all_reduce", "broadcast", "gather", "get_value")]
#: Tests of messages of the engine, which JAX words in another way.
OTHER_ERRORS = "error_without_rows_is_the_engines or error_that_only_some_ranks_can_see"
CALLS = ["tests/calls/test_command.py", "tests/calls/test_slices.py", "tests/calls/test_steps.py"]


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


@pytest.mark.parametrize("file", ["functions", "sessions", "donation", "steps"])
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


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_tests_of_all_worlds(n):
    run(
        n,
        "-k",
        f"mesh and not ({OTHER_ERRORS})",
        "-m",
        "not thorough and not long",
        *COLLECTIVES,
        *([] if n == 2 else CALLS),
    )
