"""Updates that ranks compute from their own rows: their treatment is logged once, when it first matters."""

import logging

import numpy as np
import pytest
from library import NAME, L, T

import synkhronos as synk

pytestmark = getattr(pytest.mark, NAME)

x = T.dmatrix("x")
ROWS = np.random.RandomState(0).randn(7, 4)


def mean_gradient(w):
    return T.grad(T.sqr(T.dot(x, w)).mean(), w)


def sum_gradient(w):
    return T.grad(T.sqr(T.dot(x, w)).sum(), w)


#: By name: an update of a vector w and its op; the log level and words of the message about ranks; words about slices.
UPDATES = {
    "of means": (lambda w: [w - 0.1 * mean_gradient(w)], "INFO", "with op 'avg'", None),
    "of a sum": (lambda w: [w - 0.1 * sum_gradient(w)], "WARNING", "the whole value", "with 'avg'"),
    "a sum": (lambda w: [x.sum(axis=0)], "INFO", "with op 'sum'", "with 'avg'"),
    "a sum, by sum": (lambda w: [x.sum(axis=0), "sum"], "INFO", "with op 'sum'", None),
    "of signs": (lambda w: [w - 0.1 * T.sgn(mean_gradient(w))], "WARNING", "the whole value", "with 'avg'"),
    "by their number": (lambda w: [w / x.shape[0]], "WARNING", "the number of rows of each rank", "with 'avg'"),
    "of all": (lambda w: [w * 2], None, None, None),
    "reduced": (lambda w: [w - synk.ops.all_reduce(mean_gradient(w), "avg")], None, None, None),
}


@pytest.fixture(autouse=True)
def world(make_world):
    return make_world("threads", 3, 1, engine=NAME)


def built(updates, inputs=(x,), **options):
    return synk.function(list(inputs), updates=updates, name="f", mode=L.quick, **options)


def said(caplog):
    """Return the levels and texts of the messages about updates since the last call."""
    found = [(one.levelname, one.getMessage()) for one in caplog.records if "the update of" in one.getMessage()]
    caplog.clear()
    return found


@pytest.mark.parametrize("rule, level, of_ranks, of_slices", UPDATES.values(), ids=UPDATES)
def test_what_is_said(rule, level, of_ranks, of_slices, caplog):
    caplog.set_level(logging.INFO, "synkhronos")
    w = L.shared(np.ones(4), "w")
    f = built([(w, *rule(w))], on_unused_input="ignore")
    expected = [] if level is None else [(level, "function f: every rank computes the update of w from its own rows")]
    found = said(caplog)
    assert [(one, text[: text.index(" rows") + 5]) for one, text in found] == expected
    assert all(of_ranks in text and "exact=True" in text for _, text in found)
    f(ROWS)
    assert not said(caplog)
    f(ROWS, num_slices=2), f(ROWS, num_slices=2)
    found = said(caplog)
    assert len(found) == (of_slices is not None)
    expected = f"function f: slicing changes the result of the update of w: it combines values of slices {of_slices}"
    assert all(text.startswith(expected) for _, text in found)


@pytest.mark.parametrize(
    "options", [dict(exact=True), dict(exact=False), {}], ids=["exact", "local steps", "rows of each rank"]
)
def test_nothing_is_said_of_what_is_right_or_meant(options, caplog):
    caplog.set_level(logging.INFO, "synkhronos")
    if options:
        w = L.shared(np.ones(4), "w")
        built([(w, w - 0.1 * T.sgn(sum_gradient(w)))], **options)
    else:
        rows = L.shared(ROWS, "rows")
        built([(rows, rows + 1)], inputs=(), sliceable_shareds=[rows])
    assert not said(caplog)


def test_of_each_kind_one_message(caplog):
    """Each kind of update causes one message, including integers, which no op combines; random states cause none."""
    caplog.set_level(logging.INFO, "synkhronos")
    w, v, u, rows = (L.shared(np.ones(4), name) for name in ("w", "v", "u", "rows"))
    n, positive = L.shared(np.int64(0), "n"), L.shared(np.int64(0), "positive")
    noise = L.streams(1)[0].normal((4,))
    new = w - 0.1 * T.sgn(mean_gradient(w)) * (1 + noise)
    means = [(u, mean_gradient(w))]
    sums = [(n, x.shape[0]), (positive, T.cast(T.gt(x, 0).sum(), "int64"))]
    built([(w, new), (v, T.sqr(mean_gradient(w))), (rows, x[:, 0]), *means, *sums])
    (first, warning), *more = said(caplog)
    assert (
        first == "WARNING" and "computes the update of w (and 2 more) from its own rows, and no collective" in warning
    )
    assert [level for level, _ in more] == ["INFO", "INFO"]
    assert "the update of u from its own rows; a collective with op 'avg'" in more[0][1]
    assert "the update of n (and 1 more) from its own rows; a collective with op 'sum'" in more[1][1]


def test_rows_that_ranks_keep(caplog):
    rows = L.shared(np.ones(4), "rows")
    built([(rows, x[:, 0])])
    ((_, text),) = said(caplog)
    assert "the update of rows from" in text and "it has a row for each row of the inputs" in text
