"""Rules on Theano's and on PyTensor's functions, which other tests of rules do not use.

The reference makes local steps by the library's functions, one rank after another, and exchanges in NumPy.
"""

import gc

import numpy as np
import pytest
from library import NAME, L, T
from serial import Serial
from words import shards
from worlds import Tables

import synkhronos as synk
from synkhronos.extensions import checkpoint, rules
from synkhronos.program.program import PROGRAM

pytestmark = getattr(pytest.mark, NAME)

RANDOM = np.random.RandomState(0)
A, B = RANDOM.randn(40, 5), RANDOM.randn(40)
RATE, MOMENTUM = 0.1, 0.7


@pytest.fixture(params=[("threads", 3, 1), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param, engine=NAME)


@pytest.fixture(autouse=True)
def compiled_quickly():
    with L.compiled_quickly():
        yield


class Model:
    """A network whose parameters are a matrix, a vector and a scalar."""

    def __init__(self, dtype="float64"):
        random = np.random.RandomState(1)
        values = [random.randn(5, 3), random.randn(3), np.asarray(0.5)]
        self.params = [L.shared(np.asarray(value, dtype), name) for value, name in zip(values, "wvc")]
        self.state = [L.zeros_like(param) for param in self.params]
        self.x, self.y = L.variable(dtype, 2, "x"), L.variable(dtype, 1, "y")
        w, v, c = self.params
        loss = T.mean(T.sqr(T.dot(T.tanh(T.dot(self.x, w)), v) + c - self.y))
        self.updates, self.loss = [], loss
        for param, m, g in zip(self.params, self.state, T.grad(loss, self.params)):
            new = np.asarray(MOMENTUM, dtype) * m - np.asarray(RATE, dtype) * g
            self.updates += [(m, new), (param, param + new)]

    def arguments(self):
        return dict(inputs=[self.x, self.y], outputs=self.loss, updates=self.updates)


class Plain(Serial):
    """The simulation with steps by a plain function of the library; its values are those of all variables."""

    def __init__(self, n, dtype):
        self.model, self.dtype = Model(dtype), dtype
        self.variables = [*self.model.params, *self.model.state]
        self.function = L.function(**self.model.arguments())
        begin = self.flat(self.model.params)
        super().__init__(n, A, B, begin, RATE)

    def flat(self, variables):
        return np.concatenate([np.asarray(each.get_value(), np.float64).ravel() for each in variables])

    def put(self, variables, flat):
        for each in variables:
            value = each.get_value()
            part, flat = flat[: value.size], flat[value.size :]
            each.set_value(np.asarray(part.reshape(value.shape), self.dtype))

    def step(self, rows_of_ranks):
        for rank, rows in enumerate(rows_of_ranks):
            if len(rows):
                self.put(self.model.params, self.x[rank])
                self.put(self.model.state, self.m[rank])
                self.function(self.A[rows].astype(self.dtype), self.b[rows].astype(self.dtype))
                self.x[rank], self.m[rank] = self.flat(self.model.params), self.flat(self.model.state)
                self.rows[rank] += len(rows)


#: By name: a rule with an exchange every third step, and this exchange in the simulation.
RULES = {
    "LocalSGD": (lambda f, *own: rules.LocalSGD(f, *own, every=3), lambda serial, rule: serial.local_sgd()),
    "EASGD": (lambda f, *own: rules.EASGD(f, *own, every=3), lambda serial, rule: serial.easgd(0.9 / serial.n)),
    "DiLoCo": (lambda f, *own: rules.DiLoCo(f, *own, every=3), lambda serial, rule: serial.outer(0.7, 0.9, True)),
    "SlowMo": (lambda f, *own: rules.SlowMo(f, *own, every=3), lambda serial, rule: serial.outer(1.0, 0.5, False)),
    "ASGD": (lambda f, *own: rules.ASGD(f, *own, every=3), lambda serial, rule: serial.asgd(1 / serial.n)),
    "Gossip": (
        lambda f, *own: rules.Gossip(f, *own, every=3, probability=0.8),
        lambda serial, rule: serial.gossip(rule.sent, serial.alphas),
    ),
    "Swap": (
        lambda f, *own: rules.Swap(f, *own, every=3),
        lambda serial, rule: serial.swap(rule.pairs),
    ),
}

BATCHES = [RANDOM.permutation(40)[:size] for size in (7, 8, 1, 12, 9, 7, 5)]


def flat_of_ranks(world, variables):
    of_variables = [[np.ravel(value) for value in world.values(each)] for each in variables]
    return [np.concatenate(of_rank) for of_rank in zip(*of_variables)]


@pytest.mark.thorough(but="fork-2-EASGD|3-DiLoCo|3-(LocalSGD|EASGD|Gossip)-float64")
@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-10), ("float32", 3e-4)])
@pytest.mark.parametrize("name", RULES)
def test_every_step_is_that_of_the_simulation(world, name, dtype, rtol):
    model, serial = Model(dtype), Plain(world.n, dtype)
    serial.alphas = [1 / world.n] * world.n
    function = synk.function(**model.arguments(), exact=False)
    make, exchange = RULES[name]
    rule = make(function, model.params, model.state)
    for t, batch in enumerate(BATCHES, 1):
        function(A[batch].astype(dtype), B[batch].astype(dtype))
        rule()
        serial.step(shards(batch, world.n, world.root))
        if t % 3 == 0:
            exchange(serial, rule)
        np.testing.assert_allclose(flat_of_ranks(world, model.params), serial.x, rtol=rtol, atol=rtol / 10)
    assert all(value.dtype == dtype for param in model.params for value in world.values(param))
    if name != "Swap":
        with rule.consensus():
            found = flat_of_ranks(world, model.params)
            assert all(value.tobytes() == found[0].tobytes() for value in found)
        np.testing.assert_allclose(flat_of_ranks(world, model.params), serial.x, rtol=rtol, atol=rtol / 10)


@pytest.mark.thorough(but="threads-3-float64|fork.*'delay': 1")
@pytest.mark.parametrize("options", [dict(delay=1), dict(delay=2, merge="pull", mix=0.5)], ids=str)
@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-10), ("float32", 3e-4)])
def test_means_that_come_later(world, options, dtype, rtol):
    model, serial = Model(dtype), Plain(world.n, dtype)
    function = synk.function(**model.arguments(), exact=False)
    rule, begun = rules.DiLoCo(function, model.params, every=3, **options), None
    merged = (0.7, 0.9, True, options.get("mix", 1.0), options.get("merge", "delta"))
    for t, batch in enumerate(BATCHES, 1):
        function(A[batch].astype(dtype), B[batch].astype(dtype))
        rule()
        serial.step(shards(batch, world.n, world.root))
        if begun is not None and t == begun + options["delay"]:
            serial.arrive(*merged)
        if t % 3 == 0:
            serial.begin()
            begun = t
        np.testing.assert_allclose(flat_of_ranks(world, model.params), serial.x, rtol=rtol, atol=rtol / 10)
    rule.finish()


@pytest.mark.parametrize(
    "make",
    [
        lambda *given: rules.DiLoCo(*given, every=2, delay=1, fragments=2, exchange="bfloat16"),
        lambda *given: rules.LocalSGD(*given, every=2, exchange="float16"),
        lambda *given: rules.DASO(*given, groups=[[0, 2], [1]], warm_up=0),
    ],
    ids=["DiLoCo", "LocalSGD", "DASO"],
)
def test_a_run_goes_on_from_its_checkpoint(make_world, tmp_path, make):
    """A run resumes bit for bit from a checkpoint, in float32, with the library's functions."""
    path, results = str(tmp_path / "model.npz"), []
    for again in (False, True):
        world = make_world("threads", 3, engine=NAME)
        model = Model("float32")
        function = synk.function(**model.arguments(), exact=False)
        rule = make(function, model.params, model.state)
        variables = [*model.params, *model.state]
        if again:
            checkpoint.load(path, variables, rule)
        for t, batch in enumerate(BATCHES[3:] if again else BATCHES, 1):
            function(A[batch].astype("float32"), B[batch].astype("float32"))
            rule()
            if t == 3 and not again:
                checkpoint.save(path, variables, rule)
        results.append([value.tobytes() for each in variables for value in world.values(each)])
        rule.finish()
    assert results[0] == results[1]


@pytest.mark.thorough(but="EASGD|DASO")
@pytest.mark.parametrize(
    "kind, most",
    [
        (rules.LocalSGD, 0),
        (rules.Gossip, 0),
        (rules.Swap, 0),
        (rules.EASGD, 2),
        (rules.ASGD, 2),
        (rules.DiLoCo, 2),
        (rules.DASO, 3),
    ],
)
def test_rules_compile_few_functions_and_free_them(make_world, kind, most):
    """Rules compile equally many functions for any number of variables; ranks free those that are dropped."""
    world = make_world("threads", 2, engine=NAME)
    model = Model()
    function = synk.function(**model.arguments(), exact=False)
    batch = BATCHES[0]
    function(A[batch], B[batch])

    def n_functions():
        gc.collect()
        return len(PROGRAM.functions)

    def tables():
        function(A[batch], B[batch])  # also lists what the ranks must drop
        return [held[:2] for held in world.session.run(Tables())]

    functions, held = n_functions(), tables()
    for _ in range(2):
        rule = kind(function, model.params, model.state)
        assert n_functions() - functions == most
        for _ in range(3):
            function(A[batch], B[batch])
            rule()
        if kind is not rules.Swap:
            rule.finish()
            assert n_functions() - functions <= most + 1  # (DASO has one merge function per delay)
        del rule
        assert n_functions() == functions and tables() == held
