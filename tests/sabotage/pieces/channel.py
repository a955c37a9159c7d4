"""Commands that meet, exchange, allocate and fail on the ranks, and broken messages."""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import random
import signal
from collections import Counter
from typing import Any, Dict, List, Optional

import numpy as np
from everyday import Wrong

import synkhronos as synk
from pieces.report import Row, check_nothing_left, clean, scaled
from synkhronos.errors import WorkerError
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.channel import MasterEnd, RankEnd
from synkhronos.runtime.command import Command
from synkhronos.sync.control_block import ANSWER_BYTES, COMMAND_BYTES, NOTICE_BYTES

CASES = 10000

#: Time limit for a command in seconds; commands in a session before a new session starts.
HANG, SESSION = 20, 500

#: Limits on the sizes of messages; longer messages take another route.
BORDERS = (0, NOTICE_BYTES, ANSWER_BYTES, COMMAND_BYTES, 1 << 20)


class Play(Command):
    """Wait, exchange, allocate, fail and answer according to a script for all ranks."""

    title = "play"

    def __init__(self, script: List[Any], fails: Dict[int, int], answers: Dict[int, Any], filling: bytes) -> None:
        self.script, self.fails, self.answers, self.filling = script, fails, answers, filling

    def run(self, context: Any) -> Any:
        seen = []
        for i, (what, size) in enumerate(self.script):
            if self.fails.get(context.rank) == i:
                raise LookupError(f"sabotage at {i}")
            if what == "wait":
                context.barrier.wait()
            elif what == "exchange":
                seen.append([len(each) for each in context.transport.exchange(bytes(size + 100 * context.rank))])
            elif what == "place":
                (placed,) = context.transport.bind([("play", i)], [np.full(size, float(context.rank))])
                handles = context.transport.exchange(context.pool.handle(placed))
                seen.append([float(context.pools.attach(handle).sum()) for handle in handles])
                context.barrier.wait()  # so that no rank drops its arrays before
                context.transport.forget({("play",)})
        return seen, self.answers.get(context.rank), len(self.filling)


def truth(script: List[Any], n: int) -> List[Any]:
    """Return the values that every rank must see."""
    seen: List[Any] = []
    for what, size in script:
        if what == "exchange":
            seen.append([size + 100 * rank for rank in range(n)])
        elif what == "place":
            seen.append([float(size * rank) for rank in range(n)])
    return seen


def odd_size(draw: random.Random) -> int:
    return max(0, draw.choice(BORDERS) + draw.randrange(-300, 300))


def value(draw: random.Random, depth: int = 0) -> Any:
    """Return a random picklable value."""
    kind = draw.randrange(7 if depth < 3 else 5)
    if kind == 5:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 6:
        return {str(i): value(draw, depth + 1) for i in range(draw.randrange(4))}
    return (None, draw.random(), "x" * draw.randrange(2000), b"\0" * odd_size(draw), draw.getrandbits(200))[kind]


class Breaker:
    """Breaks messages on request: every command of this process, or the answers of one rank."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 16)
        self.words = (ctypes.c_long * 2).from_buffer(self._memory)  # the rank with corrupted answers, and the kind
        self.words[0] = -1
        self.command: Optional[random.Random] = None
        send, answer = MasterEnd.send, RankEnd.send

        def send_broken(end: MasterEnd, number: int, payload: bytes, watch: Any) -> None:
            send(end, number, payload if self.command is None else broken(self.command, payload), watch)

        def answer_broken(end: RankEnd, number: int, payload: bytes) -> None:
            if self.words[0] == end.rank:
                payload = broken(random.Random(self.words[1]), payload)
            answer(end, number, payload)

        MasterEnd.send, RankEnd.send = send_broken, answer_broken  # type: ignore[method-assign]


def broken(draw: random.Random, payload: bytes) -> bytes:
    """Return an invalid message: cut off, random bytes, or the pickle of another object."""
    while True:
        kind = draw.randrange(4)
        if kind == 0:
            result = payload[: draw.randrange(len(payload))]
        elif kind == 1:  # (no opcodes that call functions, unless improbably long random bytes contain one)
            result = bytes([0x80, 4]) + bytes(draw.randrange(0x20) for _ in range(draw.randrange(200)))
        elif kind == 2:
            result = pickle.dumps(value(draw))
        else:
            result = pickle.dumps(([], draw.choice([None, 1, "command", Play, [], object()])))
        try:
            loaded = pickle.loads(result)
        except Exception:
            return result
        if kind >= 2 and not (hasattr(loaded, "__len__") and len(loaded) == 4):  # (a valid answer)
            return result


def play(draw: random.Random, breaker: Breaker, n: int) -> str:
    """Run one command; return the kind of case."""
    session = PROGRAM.session
    script = [(draw.choice(("wait", "exchange", "place")), odd_size(draw)) for _ in range(draw.randrange(6))]
    ranks = list(range(n))
    kind = draw.choice(("right", "right", "fails", "command", "answer"))
    fails = (
        {rank: draw.randrange(len(script)) for rank in draw.sample(ranks, draw.randrange(1, n + 1))}
        if kind == "fails" and script
        else {}
    )
    command = Play(script, fails, {rank: value(draw) for rank in ranks}, bytes(odd_size(draw)))
    if kind == "command":
        breaker.command = draw
    if kind == "answer":
        breaker.words[1], breaker.words[0] = draw.getrandbits(30), draw.randrange(1, n)
    try:
        results: Any = session.run(command)
        error: Optional[BaseException] = None
    except (WorkerError, LookupError) as raised:
        results, error = None, raised
    finally:
        victim, breaker.command, breaker.words[0] = breaker.words[0], None, -1
    if session.closed:
        raise Wrong(f"{kind}: the session is closed: {error}")
    if kind == "right" or (kind == "fails" and not fails):
        expected = [(truth(script, n), command.answers[rank], len(command.filling)) for rank in ranks]
        if error is not None or results != expected:
            raise Wrong("{}: {!r}".format(kind, error or "other results"))
    elif kind == "fails":
        if not isinstance(error, LookupError if 0 in fails and not isinstance(error, WorkerError) else WorkerError):
            raise Wrong(f"fails on {sorted(fails)}: {error!r}")
    elif kind == "command":
        if not isinstance(error, WorkerError) or sorted(error.remote_tracebacks) != ranks[1:]:
            raise Wrong(f"a broken command: {error!r}, {results!r}")
    elif not isinstance(error, WorkerError) or sorted(error.remote_tracebacks) != [victim]:
        raise Wrong(f"a broken answer of rank {victim}: {error!r}, {results!r}")
    return kind


def hangs(*_: Any) -> None:
    raise Wrong("a command hangs")


def run(scale: float, progress: Any, seed: int = 1) -> List[Row]:
    """Run the piece."""
    breaker, kinds, cases = Breaker(), Counter(), scaled(CASES, scale)
    signal.signal(signal.SIGALRM, hangs)
    n = 0
    for i in range(cases):
        draw = random.Random(f"{seed} {i}")
        if i % SESSION == 0:
            synk.close()
            n = 2 + i // SESSION % 3
            PROGRAM.open(n, 0, pin=False)
            files = len(os.listdir("/proc/self/fd"))
        signal.alarm(HANG)
        try:
            kinds[play(draw, breaker, n)] += 1
        except BaseException as error:
            signal.alarm(0)
            raise Wrong(f"case {i}: {type(error).__name__}: {error}") from error
        signal.alarm(0)
        progress("channel", i + 1, cases)
    if len(os.listdir("/proc/self/fd")) > files + 4:
        raise Wrong("open files were left")
    synk.close()
    check_nothing_left()
    PROGRAM.shut_down()
    return [
        Row(
            "commands of all sizes that meet, exchange, allocate and fail, and broken messages (2 to 4 ranks)",
            cases,
            clean(
                [
                    ", ".join("{} {}".format(name, f"{number:,}") for name, number in kinds.most_common()),
                    "no session ended",
                ]
            ),
        )
    ]
