"""A rank is killed in every phase of every rule: the master raises, and its values precede or follow an exchange."""

import numpy as np
import pytest
from everyday import same
from kill_steps import Steps
from pieces.report import check_nothing_left

import synkhronos as synk
from synkhronos.errors import WorkerDied
from synkhronos.extensions import rules
from synkhronos.program.program import PROGRAM
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow

N, VICTIM = 3, 1
SHAPES = [(3,), (2, 20_000), ()]

RULES = {
    "LocalSGD": lambda *given: rules.LocalSGD(*given, every=2),
    "LocalSGD in 16 bits": lambda *given: rules.LocalSGD(*given, every=2, exchange="bfloat16"),
    "EASGD": lambda *given: rules.EASGD(*given, every=2),
    "DiLoCo": lambda *given: rules.DiLoCo(*given, every=2),
    "DiLoCo later": lambda *given: rules.DiLoCo(*given, every=3, delay=2),
    "DiLoCo in fragments": lambda *given: rules.DiLoCo(*given, every=3, delay=1, fragments=3, exchange="float16"),
    "SlowMo": lambda *given: rules.SlowMo(*given, every=2),
    "ASGD": lambda *given: rules.ASGD(*given, every=2),
    "Gossip": lambda *given: rules.Gossip(*given, probability=0.9),
    "Swap": lambda *given: rules.Swap(*given, every=2),
    "DASO": lambda *given: rules.DASO(*given, groups=[[0, 1], [2]], warm_up=1, patience=0),
}


class Program:
    """A training of 7 steps, with different values on each rank, that records the master's values."""

    def __init__(self, name):
        self.name = name
        random = np.random.RandomState(0)
        self.begin = [random.randn(*shape) for shape in SHAPES]
        self.params = [engine.shared(value, f"w{i}") for i, value in enumerate(self.begin)]
        self.slope = engine.shared(np.ones(()), "slope")

    def operations(self):
        """Make the rule, then yield operations."""
        updates = [(w, w * self.slope) for w in self.params]
        function = synk.function([], updates=updates, exact=False)
        synk.distribute()
        for rank in range(N):
            synk.set_value(rank, self.slope, 0.9 - 0.2 * rank)
        self.rule = RULES[self.name](function, self.params)
        for t in range(7):
            yield function
            yield self.rule
            if t == 4 and self.name != "Swap":
                yield self.look
            if t % 3 == 2 and self.name == "DASO":
                yield lambda: self.rule.epoch(1.0)
        if self.name != "Swap":
            yield self.rule.finish

    def look(self):
        with self.rule.consensus():
            synk.get_value(VICTIM, self.params)

    def values(self):
        return [w.get_value() for w in self.params]

    def run(self):
        """Run it; return the error, and the master's values before each operation and at the end."""
        seen, self.after_commands = [], []
        for w, value in zip(self.params, self.begin):
            w.set_value(value)
        session = PROGRAM.open(N, 0, pin=False)
        run = session.run

        def note(*given):
            result = run(*given)
            if self.after_commands:
                self.after_commands[-1].append(self.values())
            return result

        session.run = note
        try:
            for operation in self.operations():
                seen.append(self.values())
                self.after_commands.append([])
                operation()
        except WorkerDied as error:
            return error, [*seen, self.values()]
        finally:
            del session.run  # it refers to the rule, which keeps the session alive during an exchange
            if PROGRAM.session.closed or not self.rule.n_steps:
                synk.close()
        seen.append(self.values())
        if self.name == "Swap":
            synk.close()
        return None, seen


@pytest.fixture
def steps(fresh_keeper, request):
    steps = Steps()
    steps.install(request)
    return steps


@pytest.mark.long(but="^EASGD-3$")
@pytest.mark.parametrize("n_kills", [3, 30])
@pytest.mark.parametrize("name", RULES)
def test_kill_in_every_phase(steps, name, n_kills):
    program = Program(name)
    for _ in range(2):
        steps.plan()
        error, seen = program.run()
        assert error is None
        synk.close()
    # A DASO step may have two exchanges, within groups and over all ranks; lent values must be restored.
    of_commands = [[*each, *seen[i : i + 2]] for i, each in enumerate(program.after_commands)]
    allowed = of_commands if name == "DASO" else [seen[i : i + 2] for i in range(len(seen) - 1)]
    allowed = [seen[i : i + 2] if same(seen[i], seen[i + 1]) else each for i, each in enumerate(allowed)]
    n_died, operations, count = 0, set(), steps.memory.counts[VICTIM]
    for at in np.linspace(count * 0.3, count * 0.92, n_kills).astype(int):
        steps.plan(VICTIM, int(at))
        error, found = program.run()
        steps.plan()
        synk.close()
        assert all(map(same, found[:-1], seen))
        if error is not None:
            assert error.rank == VICTIM and "SIGKILL" in str(error)
            operation = max(0, len(found) - 2)  # (before the first operation, nothing has begun)
            assert any(same(found[-1], values) for values in allowed[operation]), operation
            operations.add(operation)
            n_died += 1
        del error
        check_nothing_left()
    assert n_died >= n_kills * 0.6 and len(operations) >= min(6, n_kills / 3)
