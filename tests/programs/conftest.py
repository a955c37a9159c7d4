"""Restore what random programs change in this process."""

import pytest

from synkhronos.engines.graph import dividing
from synkhronos.transports import common, shared_memory


@pytest.fixture(autouse=True)
def thresholds(monkeypatch):
    of_common = [(common, "COMMON_FROM_BYTES"), (common, "ALIGNMENT")]
    for module, name in [*of_common, (dividing, "DIVIDED_FROM_BYTES"), (shared_memory, "OWN_FROM_BYTES")]:
        monkeypatch.setattr(module, name, getattr(module, name))
