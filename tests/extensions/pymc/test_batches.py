"""Likelihoods of batches from an iterable, for `pm.fit`.

Modules: `batches`.
"""

import itertools
import logging
import traceback
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses, reports

import synkhronos as synk

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')

import pytensor.tensor as pt  # noqa: E402
from pymc.variational.callbacks import Tracker  # noqa: E402
from pymc_models import BINARY, KINDS, REAL, N, X, log_density, marks  # noqa: E402

from synkhronos.errors import LoaderError  # noqa: E402
from synkhronos.extensions.pymc import data_parallel  # noqa: E402

pytestmark = marks()

FITTING = dict(random_seed=1, progressbar=False)
SIZES = (20, 20, 13)
ENDS = np.cumsum(SIZES)
BATCHES = [(X[end - size : end], BINARY[end - size : end]) for size, end in zip(SIZES, ENDS)]


def generator():
    yield from BATCHES


class RowLoader:
    """A loader like pymc-extras' DataLoader: one array per batch, ``total_size``, and a length in batches."""

    total_size = N

    def __len__(self):
        return len(BATCHES)

    def __iter__(self):
        return (np.column_stack(batch) for batch in BATCHES)


#: Sources of `BATCHES`, each with a function of their arrays.
SOURCES = {
    "a list": (lambda: BATCHES, log_density),
    "lists of lists": (lambda: [[x.tolist(), y.tolist()] for x, y in BATCHES], log_density),
    "a generator function": (lambda: generator, log_density),
    "a loader": (lambda: synk.loader(generator), log_density),
    "one array": (RowLoader, lambda rows, beta: log_density(rows[:, :3], rows[:, 3], beta)),
}


def model_of(batch, logp=log_density, **options):
    """Return a model whose likelihood is computed in batches; ``total_size`` is that of `BATCHES`, or the loader's."""
    options.setdefault("total_size", None if hasattr(batch, "total_size") else N)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        data_parallel(logp, params=[beta], batch=batch, **options)
    return model


def of_plain_pymc(n):
    """Return the losses of plain PyMC, which gets the next of `BATCHES` after each step."""
    batches = itertools.cycle(BATCHES)
    names = ("X", "y")
    with pm.Model():
        X, y = map(pm.Data, names, next(batches))
        pm.Bernoulli("likelihood", logit_p=X @ pm.Normal("beta", 0, 1, shape=3), observed=y, total_size=N)
        advi = pm.ADVI(random_seed=1)
        advi.approx.scale_cost_to_minibatch = False  # PyMC's additional factor for losses with total_size
        advi.fit(n, callbacks=[lambda *_: pm.set_data(dict(zip(names, next(batches))))], progressbar=False)
    return advi.hist


@pytest.mark.parametrize("source", SOURCES)
def test_each_step_computes_the_next_batch(make_world, source):
    make_world("threads", 3)
    batch, logp = SOURCES[source]
    found = pm.fit(7, model=model_of(batch(), logp), **FITTING)  # two passes, and one step of a third pass
    np.testing.assert_allclose(found.hist, of_plain_pymc(7), rtol=1e-9)


@pytest.mark.parametrize("launcher", ["fork", "2 hosts"])
def test_a_loader_of_another_process(make_world, launcher):
    """A model that took its first batch from a loader before `fork` can be fitted."""
    with synk.loader(generator) as loader:
        model = model_of(loader)
        make_world(launcher, 3)
        found = pm.fit(4, model=model, **FITTING)
    np.testing.assert_allclose(found.hist, of_plain_pymc(4), rtol=1e-9)


def test_a_fit_continues_with_the_next_batch(make_world):
    make_world("threads", 2)
    advi = pm.ADVI(model=model_of(BATCHES), random_seed=1)
    advi.fit(2, progressbar=False)
    advi.refine(3, progressbar=False)
    np.testing.assert_allclose(advi.hist, of_plain_pymc(5), rtol=1e-9)


def test_fewer_rows_than_ranks(make_world):
    """The sum over a batch is scaled to ``total_size``, whatever the batch's length."""
    make_world("threads", 3)
    with pm.Model() as model:
        data_parallel(lambda y, mu: y * mu, params=[pm.Normal("mu")], batch=[REAL[:20], REAL[20:22]], total_size=100)
    logp = model.compile_logp(vars=model.potentials)
    for rows in (REAL[:20], REAL[20:22], REAL[:20]):
        np.testing.assert_allclose(logp({"mu": 2.0}), 2.0 * rows.mean() * 100, rtol=1e-12)


class Counted:
    """An iterable over `BATCHES` that counts the batches it yields."""

    total_size, n = N, 0

    def __iter__(self):
        for batch in BATCHES:
            self.n += 1
            yield batch


@pytest.mark.parametrize("options", [{}, {"score": False}])
def test_a_step_uses_one_batch(make_world, options):
    """Callbacks and draws from the approximation use no batches."""
    make_world("threads", 2)
    batches = Counted()
    tracker = Tracker(mean=lambda approx, *_: approx.mean.eval())
    fitted = pm.fit(4, model=model_of(batches), callbacks=[tracker], **options, **FITTING)
    fitted.sample(5)
    assert len(tracker["mean"]) == 4 and batches.n == 4


def test_each_draw_of_a_step_uses_batches_of_its_own(make_world):
    make_world("threads", 2)
    batches = Counted()
    pm.fit(4, model=model_of(batches), obj_n_mc=2, **FITTING)
    assert batches.n >= 4 * 2
    expected = pm.fit(3, model=KINDS["logistic"](), obj_n_mc=2, **FITTING)
    found = pm.fit(3, model=model_of([(X, BINARY)]), obj_n_mc=2, **FITTING)
    np.testing.assert_allclose(found.hist, expected.hist, rtol=1e-9)


@pytest.mark.thorough
def test_example_of_the_page(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "docs" / "examples"))
    from pymc_batches import COEFFICIENTS, main

    means = main(n_files=3, rows=200, steps=300)
    np.testing.assert_allclose(means, COEFFICIENTS, atol=0.5)


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_refused_arguments():
    for one_shot in (generator(), iter(BATCHES)):
        with refuses(TypeError, "batch", "start again", "iterator", "generator function"):
            model_of(one_shot)
    with refuses(TypeError, "batch", "iterable", "0.5"):
        model_of(0.5, total_size=None)
    for rows in (X, synk.data(X), "rows.npy"):
        with refuses(TypeError, "batch", "iterable"):
            model_of(rows)
    with refuses(TypeError, "data", "None", hint="batch"), pm.Model():
        data_parallel(log_density, [X, BINARY], [pm.Normal("beta", shape=3)], batch=BATCHES, total_size=N)
    with refuses(TypeError, "batch", "an int", "iterable", "function"):
        data_parallel(KINDS["logistic"](), batch=BATCHES)
    with refuses(TypeError, "total_size", "None", "53"):
        data_parallel(KINDS["logistic"](), batch=10, total_size=53)
    for total_size in (None, 53.0, True):
        with refuses(TypeError, "total_size", "an int", repr(total_size), "rows"):
            model_of(BATCHES, total_size=total_size)
    with refuses(ValueError, "total_size", "20", "3", "rows"):  # the number of batches
        model_of(BATCHES, total_size=len(BATCHES))
    with refuses(ValueError, "batch", "the number of rows (20)", "Batches", "arguments"):
        model_of([BATCHES[0]], lambda X, y, beta: log_density(X, y, beta) + beta[0] * pt.zeros(20))
    with refuses(TypeError, "likelihood", "row", "mean needs the whole"):
        model_of(BATCHES, lambda X, y, beta: log_density(X, y, beta) - (X @ beta).mean())


def test_refused_first_batches():
    with refuses(ValueError, "batch", "batches", "without"):
        model_of([])
    with refuses(ValueError, "batch[1]", "as many rows as batch[0] (53)", "52"):
        model_of([(X, BINARY[:-1])])
    with refuses(ValueError, "batch[0]", "rows", "(0, 3)"):
        model_of([(X[:0], BINARY[:0])])
    for batch, got in (({"X": X, "y": BINARY}, "dict"), ((), "()")):
        with refuses(TypeError, "batch", "tuple", got):
            model_of([batch])


#: Invalid second batches, with words of the refusal.
BAD = {
    "one array": (X, "float64 (53, 3)"),
    "three arrays": ((X, BINARY, X), "float64 (53, 3)"),
    "columns": ((X[:, :2], BINARY), "float64 (53, 2)"),
    "dtype": ((X, BINARY.astype("float32")), "float32 (53,)"),
    "dimensions": ((X, BINARY[:, None]), "int64 (53, 1)"),
    "a number": ((X, BINARY[0]), "int64 ()"),
    "lengths": ((X, BINARY[:-1]), "int64 (52,)"),
    "no rows": ((X[:0], BINARY[:0]), "float64 (0, 3)"),
    "a dict": ({"X": X, "y": BINARY}, "dict"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused_batches(make_world, case):
    make_world("threads", 2)
    bad, got = BAD[case]
    with pytest.raises((TypeError, ValueError)) as caught:
        pm.fit(3, model=model_of([BATCHES[0], bad]), **FITTING)
    message = str(caught.value)
    assert "batch" in message and got in message
    if case != "a dict":
        assert "float64 (rows, 3), int64 (rows,)" in message
    pm.fit(3, model=data_parallel(KINDS["logistic"]()), **FITTING)


class ReadingError(Exception):
    pass


def failing(last):
    """Return a generator function of batches, which fails until the list ``last`` is empty."""

    def read_batches():
        yield BATCHES[0]
        if last:
            last.pop()
            raise ReadingError("file 2 is damaged")
        yield from BATCHES[1:]

    return read_batches


def test_an_error_of_the_iterable(make_world):
    """The caller gets an iterable's error with its traceback; the next call begins a new pass."""
    make_world("threads", 2)
    model = model_of(failing([0]))
    with reports(ReadingError, "file 2 is damaged") as caught:
        pm.fit(3, model=model, **FITTING)
    assert "in read_batches" in "".join(traceback.format_exception(caught.value))
    found = pm.fit(4, model=model, **FITTING)
    np.testing.assert_allclose(found.hist, of_plain_pymc(4), rtol=1e-9)


def test_an_iterable_that_ends_early(make_world):
    """An iterable's `StopIteration` is reported as another error, since PyMC takes it for a normal end."""
    make_world("threads", 2)

    class Ended:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter(BATCHES) if self.passes == 1 else next(iter([]))

    with reports(RuntimeError, "StopIteration"):
        pm.fit(4, model=model_of(Ended()), **FITTING)
    with refuses(ValueError, "batch", "batches", "without"):
        one_shot = generator()
        pm.fit(4, model=model_of(lambda: one_shot), **FITTING)


def test_an_error_of_a_loader(make_world):
    make_world("threads", 2)
    with synk.loader(failing([0])) as loader, reports(LoaderError, "file 2 is damaged"):
        pm.fit(3, model=model_of(loader), **FITTING)
    pm.fit(3, model=data_parallel(KINDS["logistic"]()), **FITTING)


@pytest.mark.parametrize("total_size, warns", [(52, True), (53, False), (72, False), (73, True)])
def test_a_total_size_unlike_a_pass(make_world, caplog, total_size, warns):
    """There is no warning if a pass has ``total_size`` rows, or up to a batch fewer."""
    make_world("threads", 2)
    model = model_of(BATCHES, total_size=total_size)
    with caplog.at_level(logging.WARNING, "synkhronos"):
        pm.fit(7, model=model, **FITTING)
    said = [each.getMessage() for each in caplog.records if "total_size" in each.getMessage()]
    assert len(said) == warns and all(f"{total_size}" in each and "53" in each for each in said)
