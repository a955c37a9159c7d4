"""Progress bars around batches are full when all steps have been made, not when all batches have been read."""

import numpy as np
import pytest
from library import L, T

import synkhronos as synk
from synkhronos.calls.on_step import StepProgress


class Bar:
    """Minimal replacement of tqdm's bar, which counts by itself if it is iterated over."""

    def __init__(self, iterable, total=None):
        self.iterable, self.n, self.is_closed, self.seen = iterable, 0, False, []

    def __iter__(self):
        for each in self.iterable:
            self.update(1)
            yield each

    def update(self, n):
        assert not self.is_closed
        self.n += n

    def close(self):
        self.is_closed = True


def test_what_is_no_bar_stays():
    progress = StepProgress()
    for batches in (None, [[0]], np.zeros((2, 2), int), iter([[0]])):
        assert progress.taken_off(batches) is batches
    assert not progress
    with progress:
        progress.add(3)


BATCHES = [[0, 1, 2], [3], [4, 5]]

#: Bars to inspect, and their records.
BARS, SEEN = [], []


@pytest.fixture(scope="module")
def function():
    """Return ``steps`` of a function that records, on the master, the bar's count whenever it is computed."""
    x = T.dvector("x")

    @L.as_op(itypes=[T.dvector], otypes=[T.dvector])
    def noted(x):
        if synk.rank() == 0:
            SEEN.extend(bar.n for bar in BARS)
        return x + 1

    f = synk.function([x], noted(x).sum(), mode=L.quick)
    return lambda **options: f.steps(np.arange(6.0), **options)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    "around",
    [list, np.array, iter, lambda batches: map(np.array, batches)],
    ids=["list", "array", "iterator", "generator"],
)
def test_bar_shows_steps(function, n, around):
    batches = [[0, 1], [2, 3], [4, 5]] if around is np.array else BATCHES
    with synk.fork(n, use_gpu=False):
        expected = function(batches=batches)
        bar = Bar(around(batches))
        BARS[:], SEEN[:] = [bar], []
        np.testing.assert_array_equal(function(batches=bar), expected)
        assert SEEN == [0, 1, 2] and bar.n == 3 and bar.is_closed
        BARS.clear()


def test_bar_beside_on_step_and_of_few_steps(function):
    with synk.fork(2, use_gpu=False):
        bar = Bar(BATCHES)
        function(batches=bar, n_steps=2)
        assert bar.n == 2 and bar.is_closed
        seen, bar = [], Bar(BATCHES)
        function(batches=bar, on_step=lambda i, output: seen.append(bar.n))
        assert bar.n == 3 and bar.is_closed and seen == [1, 2, 3]


def test_bar_is_closed_after_an_error(function):
    with synk.fork(2, use_gpu=False):
        bar = Bar(BATCHES)
        with pytest.raises(ZeroDivisionError):
            function(batches=bar, on_step=lambda i, output: 1 / (1 - i))
        assert bar.n == 2 and bar.is_closed


def test_tqdm(function, capsys):
    tqdm = pytest.importorskip("tqdm").tqdm
    with synk.fork(2, use_gpu=False):
        bar = tqdm(BATCHES)
        function(batches=bar)
    assert bar.n == 3 and "3/3" in capsys.readouterr().err


@pytest.mark.theano
def test_bar_of_a_rule():
    theano = pytest.importorskip("theano")
    from synkhronos.extensions import rules

    x, w = theano.tensor.dvector("x"), theano.shared(np.zeros(()), "w")
    train = synk.function([x], x.mean(), updates=[(w, w + x.mean())], mode=L.quick)
    with synk.fork(2, use_gpu=False):
        for rule, asynchronous in ((rules.LocalSGD, False), (rules.ASGD, True)):
            bar = Bar([[0, 1], [2, 3], [4, 5]])
            rule(train, [w], every=2).run(np.arange(6.0), batches=bar, asynchronous=asynchronous)
            assert bar.n == 3 and bar.is_closed
