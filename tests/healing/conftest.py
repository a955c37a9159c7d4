"""Fixtures of the tests in which dead ranks are replaced."""

import pytest
from clocks import Clock

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.runtime import session as session_module


@pytest.fixture(autouse=True)
def closed():
    """Close sessions before and after each test."""
    synk.close()
    yield
    synk.close()


@pytest.fixture(scope="module")
def keeper():
    """End the keeper after this file, because ranks of later files would not inherit Theano's cache of modules."""
    yield
    PROGRAM.shut_down()


@pytest.fixture
def clock(monkeypatch):
    """Return a fake clock for the timeouts of sessions."""
    clock = Clock()
    monkeypatch.setattr(session_module, "time", clock)
    monkeypatch.setattr(session_module, "STACKS_TIMEOUT_S", 30.0)
    return clock
