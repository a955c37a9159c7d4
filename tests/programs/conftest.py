"""Restore what random programs change in this process."""

import pytest

from synkhronos.engines.graph import dividing
from synkhronos.transports import common


@pytest.fixture(autouse=True)
def thresholds(monkeypatch):
    for module, name in [(common, "COMMON_FROM_BYTES"), (common, "ALIGNMENT"), (dividing, "DIVIDED_FROM_BYTES")]:
        monkeypatch.setattr(module, name, getattr(module, name))
