"""Errors of ranks: transmission to the master, and exceptions that the master raises."""

from __future__ import annotations

import pickle
import sys
import traceback
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from ..errors import RankFailure, RemoteTraceback, WorkerDied, WorkerError
from .command import Answer, Command
from .exit_status import describe_end

#: Maximum number of characters of a transmitted traceback, and of its summary; both usually fit into an answer slot.
MAX_TEXT_CHARS, MAX_SUMMARY_CHARS = 10000, 2000

#: The end of messages about a failure that ends the session.
NEW_SESSION = "the session is closed: call synkhronos.fork() to start a new one"


class Failure:
    """An exception of another rank, transmitted as text because not every exception can be pickled.

    ``text`` is the traceback, and ``summary`` the type and message. ``module`` is a module that could not be imported.
    """

    def __init__(self, error: BaseException) -> None:
        self.text = _text(error)
        self.summary = _summary(error)
        self.module = error.name if isinstance(error, ModuleNotFoundError) else None


def _text(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException as second:  # an exception whose __str__ raises
        text = (
            "".join(traceback.format_tb(error.__traceback__))
            + f"{type(error).__name__} (formatting its text raised {type(second).__name__})\n"
        )
    if len(text) > MAX_TEXT_CHARS:
        half = MAX_TEXT_CHARS // 2
        text = text[:half] + f"\n[... {len(text) - MAX_TEXT_CHARS} characters omitted ...]\n" + text[-half:]
    return text


def _summary(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__
    return text if len(text) <= MAX_SUMMARY_CHARS else text[:MAX_SUMMARY_CHARS] + " [...]"


def encode(answer: Answer) -> bytes:
    """Pickle an answer; if its result cannot be pickled, pickle the resulting error instead."""
    if answer.error is not None:
        answer = answer._replace(result=None, error=Failure(answer.error))
    try:
        return pickle.dumps(tuple(answer), pickle.HIGHEST_PROTOCOL)  # five times as fast as a named tuple
    except BaseException as error:
        return encode(Answer(answer.rank, error=error))


def worker_error(
    command: Command, failures: Mapping[int, Failure], updated: Sequence[str], host: Callable[[int], str]
) -> WorkerError:
    """Return the error for exceptions of ranks other than the master; its cause contains their tracebacks."""
    ranks = sorted(failures)
    where = {rank: f" on host {host(rank)}" if host(rank) else "" for rank in ranks}
    message = f"rank {ranks[0]}{where[ranks[0]]} raised {failures[ranks[0]].summary} in {command.title}"
    for rank in ranks[1:]:
        message += f"\nrank {rank}{where[rank]} raised {failures[rank].summary}"
    for module in sorted({failures[rank].module or "" for rank in ranks if where[rank]} & set(sys.modules)):
        file = getattr(sys.modules[module], "__file__", None)
        if file is not None:
            message += f"\nthis host loaded module {module} from {file}: install it on all hosts or share its directory"
    texts = {rank: failures[rank].text for rank in ranks}
    error = WorkerError(message, ranks[0], texts, updated)
    error.command = command.title
    error.__cause__ = RemoteTraceback("\n".join(f"Traceback of rank {rank}:\n{text}" for rank, text in texts.items()))
    return error


def worker_died(
    rank: int, pid: int, status: int, memory: int, when: str, fatal_error: str, updated: Sequence[str], where: str = ""
) -> WorkerDied:
    """Return the error for a rank whose process ended; its cause contains the rank's traceback, if any."""
    error = WorkerDied(
        f"rank {rank} (pid {pid}{where}) {describe_end(status, memory)} {when}; {NEW_SESSION}",
        rank,
        pid,
        status,
        memory,
        updated,
    )
    if fatal_error:
        error.__cause__ = RemoteTraceback(f"Traceback of rank {rank}:\n{fatal_error}")
    return error


def add_failures(error: BaseException, failures: Dict[int, Failure]) -> None:
    """Add the failures of other ranks to an error, except failures with the error's own type and message."""
    own = Failure(error).summary
    for rank, failure in failures.items():
        if failure.summary != own:
            add_note(error, f"rank {rank} also raised {failure.summary}")


def add_steps(
    error: BaseException, made: Sequence[int], undone: Sequence[int], root: int, step: Optional[int] = None
) -> None:
    """Add the step (by default the failed rank's current step) and each rank's count of completed steps to an error."""
    if step is None:
        step = made[error.rank if isinstance(error, RankFailure) else root]
    steps = [of_rank - back for of_rank, back in zip(made, undone)]
    sentence = f"in step {step} (steps completed, by rank: {', '.join(map(str, steps))})"
    try:
        error.step, error.steps = step, list(steps)  # type: ignore[attr-defined]
    except AttributeError:  # an exception without a __dict__
        pass
    if isinstance(error, RankFailure):
        error.args = (f"{error}\nThe error occurred {sentence}",)
    else:
        add_note(error, sentence)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, as ``error.add_note`` does in Python 3.11; older versions do not display notes."""
    notes: Any = getattr(error, "__notes__", None)
    try:
        error.__notes__ = (notes or []) + [note]
    except AttributeError:  # an exception without a __dict__
        pass
