"""A rank's context: tables by number, and the states that features keep."""

from synkhronos.runtime.context import Kept, RankContext
from synkhronos.runtime.registry import Registry
from synkhronos.sync.barrier import Barrier
from synkhronos.sync.control_block import ControlBlock
from synkhronos.sync.semaphore import WaitPolicy
from synkhronos.transports.common import CommonMemory, CommonSlot


class Transport:
    prepare_thread = None

    def __init__(self):
        self.forgotten = []

    def forget(self, things):
        self.forgotten.append(things)


def make(rank=0, size=1, root=0):
    block = ControlBlock(size)
    block.close()
    barrier = Barrier(block, rank, root, lambda: None, WaitPolicy.of_threads())
    return RankContext(barrier, None, None, Transport(), Registry())


def test_forget():
    context = make()
    context.registry.functions[1], context.registry.shareds[2], context.registry.shareds[3] = "f", "w", "v"
    context.forget([("function", 1), ("shared", 2), ("shared", 77)])
    assert context.registry.functions == {} and context.registry.shareds == {3: "v"}
    assert context.transport.forgotten == [{("function", 1), ("shared", 2), ("shared", 77)}]


class OfFunctions(Kept):
    of = "function"

    def __init__(self):
        self.plans, self.sizes = {}, {}


class OfVariables(Kept):
    def __init__(self):
        self.errors = {}


def test_features_keep_their_own_state():
    context = make()
    plans, errors = context.kept(OfFunctions), context.kept(OfVariables)
    assert context.kept(OfFunctions) is plans and context.all_kept() == []
    plans.plans.update({(1, 0): "a", (1, 1): "b", (2, 0): "c"})
    plans.sizes[1] = 8
    errors.errors.update({1: "e", 2: "f"})
    assert context.all_kept() == [plans, errors]
    context.forget([("function", 1)])
    assert (plans.plans, plans.sizes, errors.errors) == ({(2, 0): "c"}, {}, {1: "e", 2: "f"})
    context.forget([("shared", 1), ("shared", 2)])
    assert (plans.plans, errors.errors, context.all_kept()) == ({(2, 0): "c"}, {}, [plans])


def test_at_most_12_attributes():
    """Features keep their state in subclasses of `Kept`, not in the context."""
    assert len(vars(make())) <= 12


def test_repr():
    assert repr(make(1, 3, 2)) == "RankContext(rank=1 of 3, root=2, Registry(functions=0, shareds=0))"


class Table(dict):
    """A dict that counts how often it is searched."""

    searches = 0

    def __iter__(self):
        self.searches += 1
        return super().__iter__()


def test_thousands_are_forgotten_in_one_pass():
    """A pass over all keys for each of n dropped variables would take time proportional to n * n."""
    context, table = make(), Table({i: str(i) for i in range(1000)})
    context.kept(OfVariables).errors = table
    context.forget([("shared", i) for i in range(999)])
    assert len(table) == 1 and table.searches == 1 and len(context.transport.forgotten) == 1


def test_transports_forget_thousands_in_one_pass():
    common = CommonMemory(is_open=True)
    common.slots = Table({("shared", i): CommonSlot() for i in range(1000)})
    common.forget({("shared", i) for i in range(999)})
    assert len(common.slots) == 1 and common.slots.searches == 1
