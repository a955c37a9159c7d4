"""Set-up for examples in docstrings: modules to skip, and a fixture that closes each example's session."""

import importlib.util

import pytest
from _pytest.doctest import DoctestItem

import synkhronos as synk

#: Modules that cannot be imported without a package.
NEEDED_BY = {
    "pygpu": ["transports/gpu.py", "reductions/device.py", "transports/nccl.py"],
    "theano": ["engines/theano/*.py", "extensions/*.py"],
    "pytensor": ["engines/pytensor/*.py"],
    "pymc": ["extensions/pymc/*.py"],
    "jax": [f"mesh/{name}.py" for name in ("collectives", "engine", "launcher", "mesh", "program", "traces")],
}

collect_ignore_glob = [
    f"synkhronos/{name}"
    for package, names in NEEDED_BY.items()
    if not importlib.util.find_spec(package)
    for name in names
]


@pytest.fixture(autouse=True)
def closed_after_example(request):
    """Close the session that an example leaves open; skip examples of Theano if Theano is not installed."""
    if isinstance(request.node, DoctestItem) and not importlib.util.find_spec("theano"):
        if any("theano" in example.source for example in request.node.dtest.examples):
            pytest.skip("the example needs Theano")
    yield
    if isinstance(request.node, DoctestItem):
        synk.close()
