"""Ranks that are killed at every step of the protocol."""

from __future__ import annotations

import random
import signal
from collections import Counter
from typing import Any, Iterable, List

from everyday import Program, Wrong
from kill_steps import NAMES, Steps

from pieces.report import Row, check_nothing_left, clean, scaled
from synkhronos.errors import WorkerDied
from synkhronos.program.program import PROGRAM

KILLS, LEAST = 10000, 20

#: Time limit for the report of a death, in seconds.
TOLD = 1.0


class Victims:
    """Programs of 2, 3 and 4 ranks, the steps that their ranks take, and how often each has been hit."""

    def __init__(self, seed: int, request: Any = None, **options: Any) -> None:
        self.random = random.Random(seed)
        self.steps = Steps()
        self.steps.install(request)
        self.programs = {n: Program(n, **options) for n in (2, 3, 4)}
        self.taken = {}
        for n, program in self.programs.items():
            for _ in range(2):  # in the first run, memory is fresh
                self.steps.plan()
                if program.run() != (None, None, None):
                    raise Wrong(f"without sabotage, {n} ranks")
            for rank in range(1, n):
                self.taken[n, rank] = self.steps.names(rank)
        self.hit = Counter({name: 0 for names in self.taken.values() for name in names})

    def plan(self, action: int) -> None:
        """Choose the victim and its step: any step, or in every third run one that was hit least."""
        n = self.random.choice((2, 3, 4))
        rank = self.random.randrange(1, n)
        names = self.taken[n, rank]
        step = self.random.randrange(len(names))
        if self.random.random() < 0.33:
            rarest = min(set(names), key=lambda name: (self.hit[name], name))
            step = self.random.choice([i for i, name in enumerate(names) if name == rarest])
        self.n, self.rank = n, rank
        self.steps.plan(rank, step, action)

    def plan_moment(self) -> None:
        """Choose the victim and a moment between its start and its end."""
        self.n = self.random.choice((2, 3, 4))
        self.rank = self.random.randrange(1, self.n)
        self.steps.plan(self.rank, after=self.random.uniform(0.0002, 0.035))

    def run(self):
        """Run a program; return (operation, step, error, seconds until the error)."""
        program = self.programs[self.n]
        operation, error, moment = program.run()
        step, when = self.steps.happened
        self.killed = when
        if step is not None:
            self.hit[step] += 1
        self.steps.plan()
        try:
            return operation, step, error, None if error is None else moment - when
        finally:
            del error  # its traceback contains this frame, so there is a reference cycle

    def recover(self, died: bool = True) -> None:
        if died:
            check_nothing_left()
        self.programs[self.n].recover()
        check_nothing_left()


def check_death(error, rank: int, status: int, seconds: float) -> None:
    """Raise if a death was not reported as expected."""
    if not isinstance(error, WorkerDied) or (error.rank, error.exitcode) != (rank, status):
        raise Wrong(f"expected the death of rank {rank} ({status}), got {error!r}")
    if f"rank {rank} (pid {error.pid}) " not in str(error) or not error.memory:
        raise Wrong(str(error))
    if seconds > TOLD:
        raise Wrong(f"told after {seconds:.3f} s: {error}")


def kill(victims: Victims, count: int, least: int, progress, operations_hit: Iterable[str] = ()) -> List[Row]:
    """Kill until there were ``count`` kills, each step was hit ``least`` times, and each given operation once."""
    seconds, operations, pairs, silent, done, moments = [], Counter(), set(), 0, 0, 0
    while done < count or min(victims.hit.values()) < least or not set(operations_hit) <= set(operations):
        by_step = bool(done % 4)
        (victims.plan(signal.SIGKILL) if by_step else victims.plan_moment())
        rank = victims.rank
        operation, step, error, told = victims.run()
        if step is None:
            continue  # the command had ended before the step
        done += 1
        moments += not by_step
        operations[operation or "close"] += 1
        pairs.add((operation or "close", step))
        if error is None:  # in close(), which no longer needs the rank
            silent += 1
        else:
            check_death(error, rank, -signal.SIGKILL, told)
            seconds.append(told)
        del error  # its frames refer to the session
        victims.recover()
        progress("kill -9 of a rank", done, count)
    least_hit = min(victims.hit, key=lambda name: victims.hit[name])
    spread = ", ".join(f"{name} {count}" for name, count in sorted(operations.items(), key=lambda item: -item[1]))
    return [
        Row(
            "kill -9 of a rank (2, 3 and 4 ranks)",
            done,
            clean(
                [
                    (
                        f"{len(victims.hit)} protocol steps, each hit {victims.hit[least_hit]} times or more (least often: {least_hit}); {len(pairs)} pairs of operation and step; {moments} at a random moment; "
                        f"{silent} too late to affect close()"
                    ),
                    spread,
                ]
            ),
            seconds,
        )
    ]


def run(scale: float, progress: Any, seed: int = 1) -> List[Row]:
    """Run the piece."""
    victims = Victims(seed)
    absent = sorted(set(NAMES) - set(victims.hit))
    if absent:
        raise Wrong(f"steps that no rank takes: {absent}")
    rows = kill(victims, scaled(KILLS, scale), int(LEAST * scale), progress)
    PROGRAM.shut_down()
    return rows
