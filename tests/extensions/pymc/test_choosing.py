"""`data_parallel` with ``ranks``: it starts them, reports its measurements, and returns the faster model.

Modules: `choosing`.
"""

import logging

import numpy as np
import pytest
from refusals import refuses, reports

import synkhronos as synk

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')

from pymc_models import KINDS, REAL, assert_same, marks  # noqa: E402

from synkhronos.extensions.pymc import choosing, data_parallel  # noqa: E402

pytestmark = marks()


@pytest.fixture
def times(monkeypatch):
    """Return a list that a test fills with times per gradient: the plain model's, then the parallel one's."""
    found = []
    monkeypatch.setattr(choosing, "seconds_per_gradient", lambda model: found.pop(0))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seconds, pays", [([3e-3, 1e-3], True), ([1e-3, 1e-3], False)])
def test_the_faster_model(times, seconds, pays, caplog):
    times += seconds
    plain = KINDS["linear"]()
    with caplog.at_level(logging.INFO, "synkhronos"):
        chosen = data_parallel(plain, ranks=2)
    try:
        assert (chosen is not plain) == pays == synk.is_forked()
        said = caplog.records[-1]
        assert said.levelno == (logging.INFO if pays else logging.WARNING) and "n_ranks=2" in said.getMessage()
        assert ("3 times as fast" in said.getMessage()) == pays != ("plain model" in said.getMessage())
        assert_same(chosen, plain, 5)
    finally:
        synk.close()


def test_an_error_while_it_measures_leaves_no_session(monkeypatch):
    def seconds(model):
        if synk.is_forked():
            raise FloatingPointError("a gradient")
        return 1.0

    monkeypatch.setattr(choosing, "seconds_per_gradient", seconds)
    with reports(FloatingPointError, "gradient"):
        data_parallel(KINDS["linear"](), ranks=2)
    assert not synk.is_forked()


def test_what_is_measured(make_world):
    """Both models' gradients are timed at a sampler's starting point."""
    make_world("threads", 2)
    plain = KINDS["started_elsewhere"]()
    assert all(choosing.seconds_per_gradient(model) > 0 for model in (plain, data_parallel(plain)))
    with pm.Model() as discrete:
        pm.Normal("y", pm.Poisson("n", 3) + pm.Normal("a"), observed=REAL)
    assert choosing.seconds_per_gradient(discrete) > 0


def test_numbers_of_ranks_that_cannot_be(make_world):
    for ranks in (2.0, True):
        with refuses(TypeError, "ranks", "an int"):
            data_parallel(KINDS["linear"](), ranks=ranks)
    with refuses(ValueError, "ranks", "at least 1", "0"):
        data_parallel(KINDS["linear"](), ranks=0)
    make_world("threads", 2)
    with refuses(ValueError, "ranks", "2", "3", "close"):
        data_parallel(KINDS["linear"](), ranks=3)
    with pm.Model(), refuses(TypeError, "ranks", "function"):
        beta = pm.Normal("beta")
        data_parallel(lambda y: pm.logp(pm.Normal.dist(beta), y), [np.ones(3)], ranks=2)
