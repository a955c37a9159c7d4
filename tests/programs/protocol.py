"""Random programs are compared with serial programs step by step, and wrong ones are shortened."""

import copy
import random
import time
from collections import deque

import numpy as np
from recipes import RANDOM, SHARED
from steps import Draw
from truth import Expected, Model, NoAnswer, Refused
from worlds import MESH_SIZES, opened, over_hosts

from synkhronos.engines.graph import dividing
from synkhronos.program.program import PROGRAM
from synkhronos.transports import common, shared_memory

#: Minimum sizes of values in common memory, and what parts are multiples of; the last ones are the library's own.
OF_COMMON_MEMORY = ((1, 1), (40, 2), (common.COMMON_FROM_BYTES, common.ALIGNMENT))

#: Numbers of ranks; and the number of ranks on each of two hosts, by the number of all ranks.
SIZES = (1, 2, 2, 3, 3, 4)
COUNTS_OF = {2: (1, 1), 3: (1, 2), 4: (2, 2)}
SIZES_OF = {"hosts": tuple(COUNTS_OF), "mesh": MESH_SIZES}


def divide_small_values(launcher, n, root):
    """Let small values lie in common memory, and functions built from now on divide all updates that they can."""
    dividing.DIVIDED_FROM_BYTES = 1
    if launcher == "threads":  # (processes have the constants of the keeper)
        shared_memory.OWN_FROM_BYTES = 1
        common.COMMON_FROM_BYTES, common.ALIGNMENT = OF_COMMON_MEMORY[(n + root) % len(OF_COMMON_MEMORY)]


class Wrong(AssertionError):
    """A step behaves differently from the serial program: a value is wrong, or a refusal is missing."""


class Raised(Wrong):
    """A step has raised an unexpected exception, which is the ``__cause__``."""


class Program:
    """A session, and the steps that were taken in it.

    Parameters
    ----------
    library : Library
    launcher : {"threads", "fork", "hosts", "mesh"}
    n, root : int
    initial : dict
        The initial value of every shared variable.
    """

    def __init__(self, library, launcher, n, root, initial):
        self.library, self.launcher, self.n, self.root, self.initial = library, launcher, n, root, initial
        self.steps = []
        self._returned = deque(maxlen=8)  # results of the last steps
        PROGRAM.close()  # (synk.close() would raise an error if the program has not waited for a collective)
        library.started, library.saved, library.kept = [], [], {}
        divide_small_values(launcher, n, root)
        library.start(initial)
        if launcher == "hosts":
            self.session = over_hosts(COUNTS_OF[n], root)
        else:
            self.session = opened(launcher, n, root)
        library.distribute(self.session)
        # (XLA rounds a product and a sum together, and multiplies by a constant's reciprocal instead of dividing.)
        rounding = float(np.finfo(float).eps) if launcher == "mesh" else 0.0
        self.model = Model(n, root, initial, library.words.computes_all, rounding)
        states = library.values(self.session)
        self.model.values.update({name: states[name] for name in RANDOM})  # the ranks' own states, which they continue

    def __repr__(self):
        """Return a text with the ranks and the steps."""
        lines = [f"{self.n} ranks ({self.launcher}), root {self.root}, engine {self.library.engine}"]
        return "\n".join(lines + [f"{i + 1:>3}. {step!r}" for i, step in enumerate(self.steps)])

    def take(self, step):
        """Take a step, and compare results and all variables on all ranks; return whether the step had a meaning.

        Raises
        ------
        Wrong
        """
        refused = None
        try:
            with np.errstate(all="ignore"):
                results, after = step.truth(self.model)
        except NoAnswer:
            return False
        except Refused as reason:
            refused, results, after = reason, None, {}
        self.steps.append(step)
        try:
            actual = step.run(self.library)
        except Exception as error:
            if refused is None or not isinstance(error, ValueError):
                raise Raised(f"{self!r}\nraised {type(error).__name__}: {error}") from error
        else:
            if refused is not None:
                raise Wrong(f"{self!r}\nwas not refused: {refused}")
            self._compare("result", actual, results)
            self._returned.append((len(self.steps), actual, copy.deepcopy(actual)))
            self.model.note(after, step.is_by_master, step.is_common)
            for name in () if step.keeps_borrowed else after:
                self.library.kept.pop(name, None)  # the variable may have another array now
            self.model.kept = {name: array.shape for name, array in self.library.kept.items()}
        self._compare_values(after)
        for step, value, copied in self._returned:  # returned values belong to the program
            if not _same(value, copied):
                raise Wrong(f"{self!r}\nresult of step {step}: changed from {copied!r} to {value!r}")
        return True

    def _compare(self, what, actual, expected):
        if isinstance(expected, Expected):
            difference = expected.differs(actual)
        elif isinstance(expected, list) and len(expected) and not isinstance(expected[0], (int, tuple)):
            if not isinstance(actual, list) or len(actual) != len(expected):
                raise Wrong(f"{self!r}\n{what}: expected a list of {len(expected)}, got {actual!r}")
            for i, (one, other) in enumerate(zip(actual, expected)):
                self._compare(f"{what} {i}", one, other)
            return
        else:
            difference = None if actual == expected else f"expected {expected!r}, got {actual!r}"
        if difference is not None:
            raise Wrong(f"{self!r}\n{what}: {difference}")

    def _compare_values(self, after):
        """Compare all ranks' variables; the model continues from the actual values, which may differ by rounding."""
        actual = self.library.values(self.session)
        for name, of_ranks in self.model.values.items():
            for rank in range(self.n):
                expected = after[name][rank] if name in after else Expected(of_ranks[rank])
                self._compare(f"{name} on rank {rank}", actual[name][rank], expected)
        for name in after:
            for expected in {id(one): one for one in after[name]}.values():  # equal values have equal bits
                bits = {actual[name][rank].tobytes() for rank in range(self.n) if after[name][rank] is expected}
                self._compare(f"the bits of {name}", len(bits), 1)
        self.model.values = actual


def _same(value, other):
    if isinstance(value, list):
        return all(map(_same, value, other))
    return np.array_equal(value, other, equal_nan=np.asarray(value).dtype.kind == "f")


def random_program(choices, library, launcher, n_steps, sizes=None, on_step=lambda step: None):
    """Draw and run a program.

    Parameters
    ----------
    choices : random.Random or similar
    library : Library
    launcher : {"threads", "fork", "hosts", "mesh"}
    n_steps : int
    sizes : sequence of int, optional
        Numbers of ranks to draw from; by default all that the launcher supports.
    on_step : callable
        Called with every step that has been taken.

    Raises
    ------
    Wrong
    """
    draw = Draw(choices, library.functions)
    n = choices.choice(sizes or SIZES_OF.get(launcher, SIZES))
    root = choices.randrange(COUNTS_OF[n][0] if launcher == "hosts" else n)
    program = Program(library, launcher, n, root, draw.initial(SHARED))
    taken = 0
    while taken < n_steps:
        step = draw.step(program.model)
        try:
            meant = program.take(step)
        except Wrong as wrong:
            wrong.program = program
            raise
        if meant:
            taken += 1
            on_step(step)


def seeded_program(seed, library, launcher, n_steps, **options):
    """Draw and run a program from a seed, which is any argument of `random.seed`; shorten it if it is wrong.

    Hypothesis draws small choices much more often than others, so that it takes long to reach all functions. Tests
    therefore use it for few draws, and this function for many.

    Raises
    ------
    Wrong
        With the shortest program found, also in its attribute ``program``.
    """
    try:
        random_program(random.Random(seed), library, launcher, n_steps, **options)
    except Wrong as wrong:
        program, shown = shortest(wrong.program, wrong)
        shown.program = program
        raise shown from wrong


def replay(program, steps):
    """Run steps in a session like that of ``program``; return a wrong program and its error, or None."""
    again = Program(program.library, program.launcher, program.n, program.root, program.initial)
    try:
        for step in steps:
            again.take(step)
    except Wrong as wrong:
        return again, wrong
    return None


def shortest(program, wrong, seconds=60.0):
    """Leave out steps of a program as long as it stays wrong in the same way; return it and its error."""
    until = time.monotonic() + seconds
    size = max(1, len(program.steps) // 2)
    while size and time.monotonic() < until:
        begin = 0
        while begin < len(program.steps) and time.monotonic() < until:
            found = replay(program, program.steps[:begin] + program.steps[begin + size :])
            if found is None or type(found[1]) is not type(wrong):
                begin += size
            else:
                program, wrong = found
        size //= 2
    return program, wrong
