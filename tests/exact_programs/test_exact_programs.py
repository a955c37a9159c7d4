"""Programs of many kinds, with `synk.function(..., exact=True)` in place of the library's `function`.

Each is trained for some steps by the library alone and on ranks, from the same values with the same batches. Their rows
do not divide evenly, and an epoch's last batch is smaller. Random draws, such as dropout masks, are inputs.
"""

import logging

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T
from refusals import refuses, reports
from worlds import needs_lasagne

import synkhronos as synk
from synkhronos.engines.graph import lengths
from synkhronos.errors import ArgumentValueError

pytestmark = [
    getattr(pytest.mark, NAME),
    *([needs_lasagne] if IS_THEANO else []),
    pytest.mark.timeout(600),  # compilation takes minutes if Theano's cache is empty
    pytest.mark.filterwarnings("ignore:.*corr_gemm.c:pytest.PytestUnraisableExceptionWarning"),  # left open by Theano
]
if IS_THEANO:
    pytest.importorskip("lasagne")

import attention  # noqa: E402
import dense  # noqa: E402
import generative  # noqa: E402
import policies  # noqa: E402
import recurrent  # noqa: E402
from corpus import Program, batches  # noqa: E402
from trainers import lasagne  # noqa: E402

STEPS = 20
#: Accepted difference, relative to the change of a parameter.
TOLERANCE = 1e-5

PROGRAMS = [*dense.PROGRAMS, *recurrent.PROGRAMS, *generative.PROGRAMS, *attention.PROGRAMS, *policies.PROGRAMS]
if IS_THEANO:
    import convolutional

    PROGRAMS += convolutional.PROGRAMS
#: Unsupported programs by name, with the reason.
FAULTS: dict = {}
#: Programs that also run as processes, and with all optimizations and C code: one program of each kind suffices.
ON_PROCESSES = [
    *(dense.mlp, dense.multi_task, recurrent.scanned, generative.variational_autoencoder),
    policies.policy_gradient,
]


def parameters(programs):
    """Return programs as a test's parameters; those with a known fault must fail."""
    found = []
    for program in programs:
        reason = FAULTS.get(program.__name__)
        marks = [] if reason is None else pytest.mark.xfail(reason=reason, strict=True)
        found.append(pytest.param(program, id=program.__name__, marks=marks))
    return found


def built(program):
    """Return a program's functions: one, or several that are called one after another."""
    lasagne.random.set_rng(np.random.RandomState(0))
    found = program()
    return [found] if isinstance(found, Program) else list(found)


def variables_of(programs):
    """Return all updated variables, the trained ones first."""
    found = []
    for variable in [v for p in programs for v in p.params] + [v for p in programs for v in dict(p.updates)]:
        if variable not in found:
            found.append(variable)
    return found


def train(functions, programs):
    """Call one function after another, each for `STEPS` steps; return all outputs."""
    return [
        f(*batch) for f, program in zip(functions, programs) for batch in batches(program.data, STEPS, program.axis)
    ]


def distance(values, others):
    """Return the largest difference between two arrays."""
    return np.abs(np.asarray(values) - others).max()


def differences(program, mode, exact=True):
    """Train serially and on ranks from the same values; return the largest differences of outputs and of variables.

    Outputs are compared relative to their largest number, all ranks' variables relative to their change.
    """
    serial, ours = built(program), built(program)
    functions = []
    for p in ours:
        inputs = [synk.sharded(one, axis=p.axis) for one in p.inputs] if p.axis else p.inputs
        functions.append(synk.function(inputs, p.outputs, updates=p.updates, exact=exact, mode=mode))
    plain = []
    for p in serial:
        plain.append(L.function(p.inputs, p.outputs, updates=p.updates, mode=mode))
    variables, others = variables_of(serial), variables_of(ours)
    before = [variable.get_value() for variable in variables]
    for start, other in zip(before, others):
        np.testing.assert_array_equal(other.get_value(), start)
    got, want = train(functions, ours), train(plain, serial)
    assert all(min(f.last_rows) > 0 for f in functions)  # every rank had rows
    of_outputs = 0.0
    for one, other in zip([value for call in got for value in call], [value for call in want for value in call]):
        assert np.shape(one) == np.shape(other)
        of_outputs = max(of_outputs, distance(one, other) / max(np.abs(other).max(), 1e-3))
    of_variables = 0.0
    for variable, other, start in zip(variables, others, before):
        end = variable.get_value()
        way = distance(end, start)
        assert way > 0, f"{variable} was not updated"
        values = np.atleast_1d(synk.gather(other, nd_up=1))
        of_variables = max(of_variables, *(distance(value, end) / way for value in values))
    return of_outputs, of_variables


def mode_of(program):
    """Return the program's compilation mode, by default one that compiles quickly."""
    return getattr(program, "mode", L.quick)


def check(program, mode):
    of_outputs, of_variables = differences(program, mode)
    logging.getLogger(__name__).info("%s: %.1e %.1e", program.__name__, of_outputs, of_variables)
    assert of_outputs <= TOLERANCE and of_variables <= TOLERANCE


@pytest.mark.thorough(but="^(mlp|highway)$")
@pytest.mark.long(
    "text_convolution|resnet|lstm_text|lstm_sentiment|network_in_network|with_attention|lstm_tutorial|^cnn$"
    "|fully_convolutional|^gru$|tagging|translation|maxout|conditional_random_field|stacked_autoencoder"
)  # others are of the same kinds
@pytest.mark.parametrize("program", parameters(PROGRAMS))
def test_program(program, make_world, divided_updates):
    make_world("threads", 3, 1, engine=NAME)
    check(program, mode_of(program))


@pytest.mark.long
@pytest.mark.parametrize("program", parameters(ON_PROCESSES))
def test_program_on_processes(program, make_world):
    make_world("fork", 2, 0, engine=NAME)
    check(program, None)


@pytest.mark.thorough("variational|gru")
@pytest.mark.parametrize("program", [dense.highway, dense.mlp, generative.variational_autoencoder, recurrent.gru])
def test_programs_are_such_that_the_plain_replacement_is_wrong(program, make_world):
    make_world("threads", 3, 1, engine=NAME)
    assert differences(program, L.quick, exact=False)[1] > 100 * TOLERANCE


def compares_rows(x, w):
    """Return an update by a contrastive loss: for every row of the batch, all other rows are counterexamples."""
    alike = T.nnet.softmax(T.dot(T.dot(x, w), T.tanh(T.dot(x, w)).T))
    return w + T.grad(T.log(T.nlinalg.diag(alike)).mean(), w)


def ends_by_rows(x, w):
    """Return an update with a loop that ends when the sum of squares over all rows is small."""

    def step(h):
        return 0.5 * h, L.until(T.sqr(h).sum() < 0.5)

    return w - T.grad(T.sqr(L.scan(step, n_steps=6, outputs_info=T.dot(x, w))[0][-1]).mean(), w)


def repeats_in_another_order(x, w):
    """Return an update that multiplies rows by parameters repeated in an order that does not follow the rows."""
    return w - (T.dot(x, w).flatten() * T.repeat(w[0], x.shape[0])).sum()


@pytest.mark.parametrize(
    "new, why",
    [
        (compares_rows, "each row"),
        (ends_by_rows, ""),
        (repeats_in_another_order, ""),
    ],
)
def test_programs_that_need_all_rows_in_one_place_are_refused(make_world, new, why):
    make_world("threads", 2, 0, engine=NAME)
    x, w = T.dmatrix("x"), L.shared(np.ones((3, 2)), "w")
    with refuses(ArgumentValueError, argument="the update of w", got=why):
        synk.function([x], [], updates=[(w, new(x, w))], exact=True, mode=L.quick)


def test_the_size_of_a_row_is_checked_if_it_was_given_as_a_number(make_world):
    make_world("threads", 2, 0, engine=NAME)
    x, w = T.dmatrix("x"), L.shared(1.0, "w")
    chosen = x.flatten()[T.arange(x.shape[0]) * 6 + 1]
    step = synk.function([x], [], updates=[(w, w - (w * chosen).mean())], exact=True, mode=L.quick)
    X = np.random.RandomState(0).randn(7, 6)
    step(X)
    np.testing.assert_allclose(w.get_value(), 1 - X[:, 1].mean())
    with reports(Exception, lengths._NOT_EQUAL):
        step(np.hstack([X, X]))


def test_a_number_by_which_a_size_is_divided_is_checked(make_world):
    make_world("threads", 2, 0, engine=NAME)
    x, w = T.dmatrix("x"), L.shared(1.0, "w")
    chosen = (x * w).sum(axis=1) + T.zeros((x.size // 6,))
    step = synk.function([x], [], updates=[(w, w - chosen.mean())], exact=True, mode=L.quick)
    X = np.random.RandomState(0).randn(7, 6)
    step(X)
    np.testing.assert_allclose(w.get_value(), 1 - X.sum(axis=1).mean())
    with reports(Exception, lengths._NOT_EQUAL):
        step(X[:, :5])


def classes_of_merged_axes(axis):
    """Return inputs, losses of labels in forms that public programs have, updates, and the updated weight."""
    x, y, w = T.dtensor3("x"), T.imatrix("y"), L.shared(np.random.RandomState(1).randn(3, 4), "w")
    h = T.dot(x, w)
    p = T.nnet.softmax(h.reshape((h.shape[0] * h.shape[1], h.shape[2])))
    labels, n = y.flatten(), y.shape[0] * y.shape[1]
    found = [
        p[T.arange(labels.shape[0]), labels],
        p[T.arange(T.prod(y.shape)), labels],
        p.flatten()[T.arange(n) * 4 + labels],
        p.flatten()[labels + p.shape[1] * T.arange(y.size)],
        p.flatten()[T.arange(0, p.size, p.shape[1]) + labels],
    ]
    losses = [-T.log(one).reshape(y.shape) for one in found]
    loss = sum(one.sum(axis=1 - axis).mean() for one in losses)
    return [x, y], losses, [(w, w - 0.1 * T.grad(loss, w))], w


@pytest.mark.parametrize("axis", [1, 0], ids=["time first", "rows first"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_classes_of_time_and_rows_are_the_serial_programs(ranks, axis, make_world):
    make_world("threads", ranks, 0, engine=NAME)
    random = np.random.RandomState(2)
    data = [
        np.swapaxes(one, 0, 1 - axis) for one in (random.randn(5, 7, 3), random.randint(0, 4, (5, 7)).astype("int32"))
    ]
    inputs, losses, steps, w = classes_of_merged_axes(axis)
    ours = synk.function(
        [synk.sharded(one, axis=axis) for one in inputs], losses, updates=steps, exact=True, mode=L.quick
    )
    inputs, losses, steps, v = classes_of_merged_axes(axis)
    serial = L.function(inputs, losses, updates=steps, mode=L.quick)
    for _ in range(2):
        for one, other in zip(ours(*data), serial(*data)):
            np.testing.assert_allclose(one, other, rtol=1e-9)
    np.testing.assert_allclose(w.get_value(), v.get_value(), rtol=1e-9)
    assert synk.in_sync([w])


def test_what_a_mask_chooses_is_not_computed_in_slices(make_world):
    make_world("threads", 2, 0, engine=NAME)
    x, w = T.dmatrix("x"), L.shared(1.0, "w")
    step = synk.function([x], [], updates=[(w, w - x[T.gt(x, 0)].mean())], exact=True, mode=L.quick)
    X = np.random.RandomState(0).randn(7, 6)
    step(X)
    np.testing.assert_allclose(w.get_value(), 1 - X[X > 0].mean())
    with refuses(ValueError, "num_slices", got="2"):
        step(X, num_slices=2)
