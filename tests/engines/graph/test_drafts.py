"""Drafts of exact functions: they have the function's inputs, outputs and errors, but a single operation as graph.

Modules: `engine`, `operations`, `synkhronos.engines.theano.operations`, `synkhronos.engines.pytensor.operations`.
"""

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T

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
