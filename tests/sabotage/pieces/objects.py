"""Objects that raise, exit or crash in pickling, in the call, in the result, or when they are freed."""

from __future__ import annotations

import faulthandler
import itertools
import os
import signal
import sys
import time
from typing import Any, List, Optional, Tuple, Type

from everyday import Program, Wrong

from pieces.report import Row, check_nothing_left, clean, scaled
from synkhronos.errors import WorkerDied, WorkerError
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command

ROUNDS, N = 20, 3

WHERE = ("pickling", "unpickling", "the call", "pickling the result", "unpickling the result", "garbage collection")
HOW = ("raise", "sys.exit", "os._exit", "SIGSEGV")
WHO = ("one rank", "all ranks")


def act(how: str) -> None:
    """Raise, exit or crash."""
    if how == "raise":
        raise OSError("sabotage")
    if how == "sys.exit":
        raise SystemExit("sabotage")
    if how == "os._exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGSEGV)


class Thing:
    """An object that acts at one place, on these ranks."""

    def __init__(self, where: str, how: str, ranks: List[int]) -> None:
        self.where, self.how, self.ranks = where, how, ranks

    def here(self, where: str) -> None:
        if self.where == where and rank_here() in self.ranks:
            act(self.how)

    def __reduce__(self) -> Any:
        self.here("pickling")
        self.here("pickling the result")
        return restored, (self.where, self.how, self.ranks)

    def __del__(self) -> None:
        if PROGRAM.inside_rank:
            self.here("garbage collection")


def restored(where: str, how: str, ranks: List[int]) -> Thing:
    """Return the thing that was pickled."""
    thing = Thing(where, how, ranks)
    thing.here("unpickling")
    thing.here("unpickling the result")
    return thing


_rank: Optional[int] = None


def rank_here() -> int:
    """Return this process's rank, which the first command sets."""
    return 0 if _rank is None else _rank


class Begin(Command):
    """Set the ranks' numbers, and hide reports of deliberate failures."""

    def run(self, context: Any) -> None:
        global _rank
        _rank = context.rank
        if PROGRAM.inside_rank:
            faulthandler.disable()
            sys.unraisablehook = lambda what: None


class Carry(Command):
    """Send a thing to the ranks, use it, and return one."""

    title = "carry"

    def __init__(self, thing: Thing, back: bool) -> None:
        self.thing, self.back = thing, back

    def run(self, context: Any) -> Any:
        context.barrier.wait()
        self.thing.here("the call")
        context.barrier.wait()
        return Thing(self.thing.where, self.thing.how, self.thing.ranks) if self.back else None


def expected(where: str, how: str, ranks: List[int]) -> Tuple[Type[BaseException], ...]:
    """Return the types of error that the master may raise, if any."""
    quiet = how in ("raise", "sys.exit")
    own = (OSError,) if how == "raise" else (SystemExit,)
    if where == "garbage collection":
        return () if quiet else (WorkerDied,)
    if 0 in ranks and quiet and where != "unpickling the result":
        return own
    if where == "unpickling the result" and quiet:
        return (WorkerError,) if how == "raise" else (SystemExit,)
    return (WorkerError,) if quiet else (WorkerDied,)


def play(program: Program, where: str, how: str, who: str) -> Optional[float]:
    """Cause one failure; return the seconds until the exception, or None."""
    deadly = how in ("os._exit", "SIGSEGV")
    others = list(range(1, N))
    if where in ("pickling", "unpickling the result"):
        ranks = [0]  # these failures occur only on the master
    else:
        ranks = [1] if who == "one rank" else others if deadly or where != "the call" else [0, *others]
    program.open()
    session = PROGRAM.session
    session.run(Begin())
    error: Optional[BaseException] = None
    began = time.monotonic()
    try:
        session.run(Carry(Thing(where, how, ranks), "result" in where))
        session.run(Begin())  # garbage is collected after the answer
    except BaseException as raised:
        error = raised
    took = time.monotonic() - began
    allowed = expected(where, how, ranks)
    if not isinstance(error, allowed) if allowed else error is not None:
        raise Wrong(f"{where}, {how}, {who}: got {error!r}, expected {allowed}")
    if isinstance(error, WorkerError) and "sabotage" not in str(error):
        raise Wrong(f"{where}, {how}, {who}: {error}")
    # (If several ranks fail at the same time, the first may release another rank before its failure.)
    if (
        isinstance(error, WorkerError)
        and where != "unpickling the result"
        and not set(error.remote_tracebacks) <= set(ranks)
    ):
        raise Wrong(f"{where}, {how}, {who}: told of ranks {sorted(error.remote_tracebacks)}")
    if isinstance(error, WorkerDied) and (error.rank not in ranks or error.exitcode not in (3, -signal.SIGSEGV)):
        raise Wrong(f"{where}, {how}, {who}: {error}")
    if (PROGRAM.session.closed is not None) != deadly:
        raise Wrong(f"{where}, {how}, {who}: the session is {PROGRAM.session}")
    told = None if error is None else took
    del error, session
    if deadly:
        check_nothing_left()
    program.recover()
    return told


def run(scale: float, progress: Any) -> List[Row]:
    """Run the piece."""
    program = Program(N)
    program.run()
    rounds = scaled(ROUNDS, scale)
    cases = [
        (where, how, who)
        for where, how, who in itertools.product(WHERE, HOW, WHO)
        # Failures on the master alone can only be exceptions; otherwise, the master would die.
        if where not in ("pickling", "unpickling the result") or (how in HOW[:2] and who == WHO[0])
    ]
    seconds = []
    for i in range(rounds):
        for j, case in enumerate(cases):
            told = play(program, *case)
            if told is not None:
                seconds.append(told)
            progress("objects", i * len(cases) + j + 1, rounds * len(cases))
    check_nothing_left()
    PROGRAM.shut_down()
    return [
        Row(
            "objects that raise, exit or crash",
            rounds * len(cases),
            clean([f"{len(cases)} ways: {', '.join(WHERE)}"]),
            seconds,
        )
    ]
