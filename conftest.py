"""Examples in docstrings: each begins without a session, and leaves none."""

import importlib.util

import pytest
from _pytest.doctest import DoctestItem

import synkhronos as synk

#: Modules that need a package even to be imported.
NEEDED_BY = {
    "pygpu": ["transports/gpu.py", "reductions/device.py", "transports/nccl.py"],
    "theano": ["engines/theano/*.py", "extensions/*.py", "extensions/updates/*.py"],
    "pytensor": ["engines/pytensor/*.py"],
    "pymc": ["extensions/pymc/*.py"],
}

collect_ignore_glob = [
    f"synkhronos/{name}"
    for package, names in NEEDED_BY.items()
    if not importlib.util.find_spec(package)
    for name in names
]


@pytest.fixture(autouse=True)
def closed_after_example(request):
    """Close what an example forked: most leave `close` out, so that they are about one thing."""
    if isinstance(request.node, DoctestItem) and not importlib.util.find_spec("theano"):
        if any("theano" in example.source for example in request.node.dtest.examples):
            pytest.skip("an example with Theano")
    yield
    if isinstance(request.node, DoctestItem):
        synk.close()
