"""Count the library's files, functions and calls that run on the master during a hot call, exact call and all_reduce.

A hot operation repeats an earlier operation, as in a training loop. A function that polls counts once, however often it
is called. Of 100 runs, the run with the fewest calls counts, because a long wait also calls functions that check other
ranks. ``python tools/hot_path.py --list`` prints the calls in order.
"""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import synkhronos as synk  # noqa: E402, prepares the import of Theano

PACKAGE = str(ROOT / "synkhronos") + os.sep

#: Functions that the master calls repeatedly while it waits for other ranks.
WAITING = {"acquire", "look", "_look", "check", "_watch_barrier", "_watch_answers", "forward", "has_answered", "is_due"}

REPEATS = 100


class Count(NamedTuple):
    """Calls that one operation makes into the library's code."""

    calls: List[Tuple[str, str]]  # (file, function), in order

    @property
    def files(self) -> int:
        """Return the number of different files."""
        return len({file for file, _ in self.calls})

    @property
    def functions(self) -> int:
        """Return the number of different functions."""
        return len(set(self.calls))


def count(operation: Callable[[], Any]) -> Count:
    """Record an operation's calls into the library's code; each function of `WAITING` counts once."""
    calls: List[Tuple[str, str]] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            call = (frame.f_code.co_filename[len(PACKAGE) :], frame.f_code.co_name)
            if call[1] not in WAITING or call not in calls:
                calls.append(call)

    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return Count(calls)


def least(operation: Callable[[], Any]) -> Count:
    """Return the count of the run with the fewest calls, after five warm-up runs."""
    for _ in range(5):
        operation()
    return min((count(operation) for _ in range(REPEATS)), key=lambda each: len(each.calls))


def measure() -> Dict[str, Count]:
    """Measure calls with arrays of indices, 20 steps in one command, and an all_reduce of one variable, on two ranks.

    The exact function is a training step of a dense network with one hidden layer.
    """
    import numpy as np
    import theano
    import theano.tensor as T

    synk.fork(2, use_gpu=False)
    try:
        x, w = T.fmatrix("x"), theano.shared(np.zeros(8, "float32"), "w")
        f = synk.function([x], x.mean(), updates=[(w, w + x.mean())], mode="FAST_COMPILE")
        random, y = np.random.RandomState(0), T.fvector("y")
        weights = [theano.shared(random.randn(*shape).astype("float32")) for shape in ((8, 16), (16,))]
        loss = T.sqr(T.dot(T.tanh(T.dot(x, weights[0])), weights[1]) - y).mean()
        updates = [(each, each - np.float32(0.001) * theano.grad(loss, each)) for each in weights]
        train = synk.function([x, y], loss, updates=updates, exact=True, mode="FAST_COMPILE")
        data = synk.data(random.randn(1000, 8).astype("float32"))
        labels = synk.data(random.randn(1000).astype("float32"))
        batches = [random.permutation(1000)[:100] for _ in range(20)]
        calls = iter(range(10**9))
        found = {"call": least(lambda: f(data, batch=batches[next(calls) % 5]))}
        found["exact"] = least(lambda: train(data, labels, batch=batches[next(calls) % 5]))
        found["steps"] = least(lambda: train.steps(data, labels, batches=batches))
        found["all_reduce"] = least(lambda: synk.all_reduce(w))
        return found
    finally:
        synk.close()


def main(arguments: Any = None) -> int:
    """Print the table; with ``--list``, also the calls."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="print every call, in order")
    options = parser.parse_args(arguments)
    print("operation     files  functions  calls")
    for name, found in measure().items():
        print(f"{name:12}{found.files:7}{found.functions:11}{len(found.calls):7}")
        if options.list:
            for file, function in found.calls:
                print(f"    {file}:{function}")
            for file, times in sorted(Counter(file for file, _ in found.calls).items()):
                print(f"    {times:3} {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
