"""Examples in docstrings: each begins without a session, and leaves none."""

import importlib.util

import pytest
from _pytest.doctest import DoctestItem

import synkhronos as synk

# Modules that need pygpu even to be imported.
collect_ignore = (
    []
    if importlib.util.find_spec("pygpu")
    else [f"synkhronos/{name}.py" for name in ("transports/gpu", "reductions/device", "transports/nccl")]
)

# And PyMC.
if not importlib.util.find_spec("pymc"):
    collect_ignore.append("synkhronos/extensions/pymc")


@pytest.fixture(autouse=True)
def closed_after_example(request):
    """Close what an example forked: most leave `close` out, so that they are about one thing."""
    yield
    if isinstance(request.node, DoctestItem):
        synk.close()
