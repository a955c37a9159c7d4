"""Drafts of functions: they have the function's inputs, outputs and errors, but a single operation as graph.

Modules: `engine`, `operations`, `synkhronos.engines.theano.operations`, `synkhronos.engines.pytensor.operations`.
"""

import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T

import synkhronos as synk

pytestmark = getattr(pytest.mark, NAME)


def program():
    x, w, step = T.dmatrix("x"), L.shared(np.ones(3), "w"), L.shared(np.int64(0), "step")
    loss = T.sqr(x.dot(w) - 1).mean()
    loss.name = "loss"
    return x, loss, [(w, w - 0.1 * T.grad(loss, w)), (step, step + 1)]


def described(compiled):
    """Return everything that is read from a draft."""
    engine = L.engine
    outputs = [(one.label, one.type, one.key) for one in engine.outputs(compiled)]
    return [one.variable for one in engine.inputs(compiled)], set(engine.shareds(compiled)), outputs


@pytest.mark.parametrize(
    "form",
    [lambda loss: loss, lambda loss: [loss, loss * 2], lambda loss: [L.Out(loss, borrow=True)], lambda loss: None],
    ids=["one", "list", "Out", "none"],
)
def test_a_draft_describes_the_function_without_its_graph(form):
    x, loss, updates = program()
    draft, _ = L.engine.draft([x], form(loss), updates, None, name="f")
    assert [type(node.op) for node in draft.maker.fgraph.apply_nodes] == [L.engine.library.Draft]
    assert described(draft) == described(L.engine.compile([x], form(loss), updates, None, name="f"))
    assert draft.unpack_single == (form(loss) is loss)


def test_defaults_and_givens_are_those_of_the_function():
    x, loss, updates = program()
    offset, default = T.dscalar("offset"), L.shared(np.zeros(()), "default")
    value = 2.0 if IS_THEANO else None  # (PyTensor's inputs have no defaults)
    inputs = [x, L.In(offset, value=value)]
    for outputs, givens in (([loss + offset], None), ([loss + offset], [(loss, default + x.sum() + updates[0][0][0])])):
        draft, _ = L.engine.draft(inputs, outputs, updates, givens)
        assert described(draft) == described(L.engine.compile(inputs, outputs, updates, givens))
        assert [one.default for one in L.engine.inputs(draft)] == [None, value]


def test_errors_are_those_of_the_function():
    x, loss, updates = program()
    missing, unused = T.dvector("missing"), T.dvector("unused")
    for inputs, output in (([x], loss * missing), ([x, unused], loss), ([x, x], loss), ([x], "loss")):
        errors = []
        for compile in (L.engine.draft, L.engine.compile):
            with pytest.raises(Exception) as caught:
                compile(inputs, output, updates, None, mode=L.slow)
            errors.append((caught.type, str(caught.value).splitlines()[0]))
        assert errors[0] == errors[1]


# -- serial functions that are compiled when they are first needed ----------------------------------------------------


def late(x, *more, **kwargs):
    """Return a function of a mean over all ranks, whose serial function is compiled when it is first needed."""
    return synk.function([x, *more], [synk.ops.all_reduce(x.mean(), "avg")], **kwargs)


X = np.arange(6.0).reshape(3, 2)


@pytest.mark.theano
def test_a_later_change_of_an_input_does_not_reach_the_serial_function():
    x, s = T.dmatrix("x"), T.dscalar("s")
    given = L.In(s, value=2.0, name="s")
    f = synk.function([x], [synk.ops.all_reduce(x.mean(), "avg") * s], bcast_inputs=[given])
    given.value = 9.0
    assert f.as_theano(X) == [5.0]  # 2.5 * 2


def test_flags_at_the_definition_apply_to_the_serial_function():
    x, unused = T.dmatrix("x"), T.dvector("unused")
    change_flags = L.module.change_flags if IS_THEANO else L.module.config.change_flags
    with change_flags(on_unused_input="ignore", mode="FAST_COMPILE"):
        f = late(x, unused)
        expected = L.engine.compile([x], x.mean(), [], None).maker.mode
    assert f.as_theano(X, np.ones(2)) == [2.5]
    assert type(f.compiled.maker.mode.linker) is type(expected.linker)
    assert f.compiled.maker.mode.provided_optimizer == expected.provided_optimizer


def test_an_unused_input_is_reported_once():
    x, unused = T.dmatrix("x"), T.dvector("unused")
    for build in (late, lambda *inputs, **kwargs: synk.function(list(inputs), x.mean(), **kwargs)):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            f = build(x, unused, on_unused_input="warn")
            f.as_theano(X, np.ones(2))
        assert len([one for one in found if "unused" in str(one.message)]) == 1


def test_threads_that_need_the_serial_function_compile_it_once():
    x = T.dmatrix("x")
    f = late(x)
    compile_own, times = f._compile_own, []

    def slowly():
        times.append(1)
        time.sleep(0.1)
        return compile_own()

    f._compile_own = slowly
    with ThreadPoolExecutor(4) as threads:
        found = {id(each) for each in threads.map(lambda _: f.compiled, range(4))}
    assert len(times) == len(found) == 1


def test_an_operation_in_place_has_the_library_s_own_error():
    x = T.dmatrix("x")
    with pytest.raises(Exception) as caught:
        synk.function([x], T.inc_subtensor(x[0], 1.0, inplace=True).sum(), exact=True)
    with pytest.raises(Exception) as expected:
        L.engine.compile([x], T.inc_subtensor(x[0], 1.0, inplace=True).sum(), [], None)
    assert caught.type is expected.type and str(caught.value)[:40] == str(expected.value)[:40]
