"""Second process that acts as a rank: it stores replicas and functions, and executes requests."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Dict, List

ROOT = Path(__file__).resolve().parents[1]


def prepare_theano() -> None:
    """Make ``import theano`` work on Python 3.11."""
    try:
        from synkhronos.engines.theano import import_fixes
    except ImportError:  # a minimal replacement, if the package lacks it
        os.environ.setdefault("THEANO_FLAGS", "blas.ldflags=")
        import numpy.distutils.__config__ as numpy_config

        if not hasattr(numpy_config, "blas_opt_info"):
            setattr(numpy_config, "blas_opt_info", {})  # noqa: B010
        if sys.version_info >= (3, 11):
            sys.modules["theano.scan_module.scan_perform_ext"] = None  # type: ignore[assignment]
    else:
        import_fixes.prepare()


class Rank:
    """The second process's side; the first process calls its methods."""

    def __init__(self, engine: str) -> None:
        import synkhronos.testing.numpy_engine  # noqa: F401, registers itself
        from synkhronos import engines

        self.engine = engines.get(engine)
        self.replicas: Dict[int, Any] = {}
        self.functions: List[Any] = []

    def build(self, number: int, blueprint: Any, value: Any, storage_of: Any) -> None:
        master = None if storage_of is None else self.replicas[storage_of]
        self.replicas[number] = self.engine.build(blueprint, value, master)

    def load(self, data: bytes) -> List[int]:
        loaded = self.engine.loads(memoryview(data), self.replicas, None)
        self.functions += loaded
        return list(range(len(self.functions) - len(loaded), len(self.functions)))

    def call(self, function: int, args: Any, output_subset: Any = None) -> List[Any]:
        return self.engine.call(self.functions[function], args, output_subset)

    def shareds(self, function: int) -> List[int]:
        """Return the numbers of the replicas that the function uses; None for unknown variables."""
        numbers = {id(replica): number for number, replica in self.replicas.items()}
        return [numbers.get(id(shared)) for shared in self.engine.shareds(self.functions[function])]

    def name_of(self, function: int) -> str:
        return self.functions[function].name

    def get(self, number: int) -> Any:
        return self.engine.get(self.replicas[number])

    def put(self, number: int, value: Any) -> None:
        self.engine.put(self.replicas[number], value)

    def set_value(self, number: int, value: Any, borrow: bool) -> None:
        self.replicas[number].set_value(value, borrow=borrow)

    def set_same_value(self, numbers: List[int], value: Any) -> None:
        """Set all of these variables to the same array."""
        for number in numbers:
            self.replicas[number].set_value(value, borrow=True)

    def has_rng_tag(self, number: int) -> bool:
        return getattr(self.replicas[number].tag, "is_rng", False)

    def evaluate(self, function: str, *args: Any) -> Any:
        """Return the result of a function of this module."""
        return globals()[function](self, *args)


def trusts_input(rank: Rank, function: int) -> bool:
    """Return whether a function has trust_input set."""
    return rank.functions[function].trust_input


def mode_of(rank: Rank, function: int, setting: str) -> Any:
    """Return a setting of a function's mode."""
    return getattr(rank.functions[function].maker.mode, setting)


def call_plainly(rank: Rank, function: int, *args: Any) -> Any:
    """Call the function with its defaults, as a user does."""
    return rank.functions[function](*args)


def written_expressions(rank: Rank, function: int) -> Any:
    """Return the operations of a function's expressions, as they were before optimization."""
    maker = rank.functions[function].maker
    found = [given.update for given in maker.inputs] + [given.variable for given in maker.outputs]
    return [str(each.owner.op) for each in found if each is not None and each.owner is not None]


def types_of_outputs(rank: Rank, function: int) -> Any:
    """Return the types of a function's outputs, as text."""
    return [str(given.variable.type) for given in rank.functions[function].maker.outputs]


def stacks_of_nodes(rank: Rank, function: int) -> Any:
    """Return the number of nodes with a stack that created them, of different objects, and of different stacks."""
    nodes = rank.functions[function].maker.fgraph.apply_nodes
    found = [node.outputs[0].tag.trace for node in nodes if getattr(node.outputs[0].tag, "trace", None)]
    return len(found), len({id(each) for each in found}), len({repr(each) for each in found})


def features_of_graph(rank: Rank, function: int) -> Any:
    """Return the names of the features of a function's graph, and of its attributes that are features."""
    graph = rank.functions[function].maker.fgraph
    kinds = {type(each).__name__ for each in graph._features}
    return sorted(kinds | {type(each).__name__ for each in vars(graph).values() if "Feature" in type(each).__name__})


def has_history(rank: Rank, function: int) -> Any:
    """Return whether the nodes of a function record the rewrites that have added or removed them."""
    tags = [node.tag for node in rank.functions[function].maker.fgraph.apply_nodes]
    return any(hasattr(tag, "imported_by") or hasattr(tag, "removed_by") for tag in tags)


def operations(rank: Rank, function: int) -> Any:
    """Return the number of objects that are operations of a function's nodes, and the operations as text."""
    ops = [node.op for node in rank.functions[function].maker.fgraph.toposort()]
    return len({id(op) for op in ops}), [str(op) for op in ops]


class Peer:
    """The first process's side: ``peer.method(...)`` calls the method of a `Rank` in the second process."""

    def __init__(self, engine: str) -> None:
        environment = dict(os.environ, PYTHONPATH=str(ROOT))
        self.process = subprocess.Popen(
            [sys.executable, __file__, engine], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any) -> Any:
            pickle.dump((method, args), self.process.stdin, pickle.HIGHEST_PROTOCOL)
            self.process.stdin.flush()
            done, result = pickle.load(self.process.stdout)
            if not done:
                raise RuntimeError("in the second process:\n" + result)
            return result

        return call

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(20)


class Master:
    """Distributor of functions to a peer, like a session: one pickle per function, values outside the pickles."""

    def __init__(self, engine: Any, peer: Peer) -> None:
        self.engine = engine
        self.peer = peer
        self.variables: Dict[int, int] = {}
        self.numbers: Dict[Any, int] = {}
        self.shareds: List[Any] = []  # keeps the variables alive

    def add(self, shared: Any) -> int:
        """Send a variable that the peer lacks, and return its number."""
        if id(shared) not in self.variables:
            identity = self.engine.identity(shared)
            number = len(self.shareds)
            storage_of = self.numbers.get(identity)
            value = None if storage_of is not None else self.engine.get(shared)
            self.peer.build(number, self.engine.blueprint(shared), value, storage_of)
            self.shareds.append(shared)
            self.variables[id(shared)] = number
            self.numbers.setdefault(identity, number)
        return self.variables[id(shared)]

    def send(self, function: Any) -> int:
        """Send one function in its own pickle, and return its number in the peer."""
        for shared in self.engine.shareds(function):
            self.add(shared)
        return self.peer.load(self.engine.dumps([function], self.numbers, self.variables, {}))[0]

    def both(self, f: Any, args: List[Any], times: int = 3) -> int:
        """Compare calls in this process and in the peer; return the function's number in the peer."""
        number = self.send(f)
        self.compare(f, number, args, times)
        return number

    def compare(self, f: Any, number: int, args: List[Any], times: int = 1) -> None:
        """Compare calls of a function that has been sent, and its shared variables."""
        import numpy as np  # not in the peer, before Theano is prepared

        for _ in range(times):
            for here, there in zip(self.engine.call(f, args), self.peer.call(number, args)):
                np.testing.assert_array_equal(here, there)
        for shared in self.engine.shareds(f):
            here, there = self.engine.get(shared), self.peer.get(self.add(shared))
            if isinstance(here, np.ndarray):
                np.testing.assert_array_equal(here, there)


def serve() -> None:
    """Execute requests from standard input until it ends."""
    commands, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Theano prints to stdout
    if sys.argv[1] == "theano":
        prepare_theano()
    rank = Rank(sys.argv[1])
    while True:
        try:
            method, args = pickle.load(commands)
        except EOFError:
            return
        try:
            reply = (True, getattr(rank, method)(*args))
        except BaseException:
            reply = (False, traceback.format_exc())
        pickle.dump(reply, results, pickle.HIGHEST_PROTOCOL)
        results.flush()


if __name__ == "__main__":
    serve()
