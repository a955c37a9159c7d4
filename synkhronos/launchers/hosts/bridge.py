"""The bridge: a process of the first host that speaks to the others.

It is forked from the program before anything else, lives as long as the program, and is the one process of this host in
which MPI is initialised: the program itself never is, so that what MPI does when another host dies does not end it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
from collections import deque
from functools import partial
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from ...errors import ArgumentError, SynkhronosError
from ...host.interfaces import interfaces
from ...sync.control_block import ControlBlock
from ...sync.meeting import CONNECT_TIMEOUT_S
from ..processes import fd_passing
from ..processes.rank_main import take_default_signals
from ..processes.servant import Servant
from . import wire
from .bulk import Bulk
from .environment import chosen_interfaces
from .facts import Facts, differences, facts
from .loop import Loop
from .spec import SessionSpec
from .stand_in import StandIn
from .world import World

#: Seconds in which the hosts must have met; MPI may take a while to begin.
MEET_TIMEOUT_S = CONNECT_TIMEOUT_S + 60.0

#: Seconds in which they must have forked the ranks of a session, or ended them.
OPEN_TIMEOUT_S, KILL_TIMEOUT_S = 150.0, 4.0

#: Seconds in which all must have taken leave of each other.
END_TIMEOUT_S = 10.0

#: Seconds between two looks at whether the program still runs.
PARENT_CHECK_S = 0.5

#: What the process says in the end if it is not to be waited for.
OUTLIVES = "outlives"

#: In the place of a question's number, that a host is lost: the answer to all.
LOST = 0


class Bridge(Servant):
    """The master's side.

    Parameters
    ----------
    world : World
        The hosts.

    Attributes
    ----------
    has_met : bool
        Whether the hosts have met.
    """

    def __init__(self, world: World) -> None:
        super().__init__("the bridge", lambda sock, master: _Bridge(sock, master, world).loop())
        self.world = world
        self.has_met = False

    def hosts(self) -> List[Facts]:
        """Return what the hosts say of themselves that are there, this one first.

        Raises
        ------
        SynkhronosError
            They have not met, or do not go together.
        """
        found: List[Facts] = self._checked(self.ask(("hosts",), (), MEET_TIMEOUT_S))
        self.has_met = True
        return found

    def open(self, spec: SessionSpec, block: ControlBlock, outputs: Sequence[int], pools: Dict[int, int]) -> Any:
        """Have the other hosts start the ranks of a session; return their process ids by rank."""
        fds = [block.fd, block.bridge.fileno(), block.lead.fileno(), *outputs, *pools.values()]
        seconds = OPEN_TIMEOUT_S + 2 * KILL_TIMEOUT_S + 2.0  # it ends another session before, and this one if it fails
        return self._checked(self.ask(("open", spec, len(outputs), list(pools)), fds, seconds))

    def kill(self) -> None:
        """Have the other hosts end their ranks, as far as they can be reached."""
        try:
            self.ask(("kill",), (), KILL_TIMEOUT_S + 2.0)
        except SynkhronosError:
            pass

    def inspect(self, ranks: Sequence[int], seconds: float) -> Dict[int, str]:
        """Return what ranks of other hosts are doing."""
        found: Dict[int, str] = self._checked(self.ask(("inspect", tuple(ranks), seconds), (), seconds + 2.0))
        return found

    def end(self) -> None:
        """Have the other hosts end, and then this process; it is killed if it does not.

        If hosts were lost it says that it outlives the program, which then does not wait for it.
        """
        until = time.monotonic() + END_TIMEOUT_S
        try:
            self._socket.settimeout(END_TIMEOUT_S)
            fd_passing.send(self._socket, ("end",))
            while not fd_passing.receive(self._socket)[0] == OUTLIVES:  # answers that nobody has waited for
                pass
            self._status = -1
        except (OSError, EOFError):  # it has ended
            pass
        while self.alive() and time.monotonic() < until:
            time.sleep(0.002)
        super().end()

    def _checked(self, answer: Any) -> Any:
        if isinstance(answer, str):
            raise SynkhronosError(answer)
        return answer


class _Bridge:
    """The process itself."""

    def __init__(self, sock: socket.socket, master: int, world: World) -> None:
        self.socket, self.master, self.world = sock, master, world
        self.facts = [facts()]
        self.lines: Dict[int, wire.Line] = {}  # by process, to the hosts that are there
        self.lost: Dict[int, str] = {}
        self.stand_in: Any = None
        self.bulk: Optional[Bulk] = None
        self.answers: Deque[Tuple[int, int, Any]] = deque()  # by process, and by the number of the question
        self._loop = Loop()
        self._asked = 0  # questions
        self._goes_on = True
        self._together = False  # whether all take leave, the program included
        self._there: List[int] = []  # the processes of the hosts of which the program knows, in their order
        self._processes: List[int] = []  # of the session's other hosts
        self._behind: Set[int] = set()  # those that have not begun the session, or are not in it
        self._cannot_meet = ""

    def loop(self) -> None:
        """Do what the program asks, until it ends."""
        launcher = self.world.launcher()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        take_default_signals()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._loop.watch(self.socket, self._serve)
        try:
            while self._goes_on and os.getppid() == self.master:
                self._turn(PARENT_CHECK_S)
        except (EOFError, ConnectionError):
            pass  # the program was killed
        try:
            self._meet()  # if it was not needed before: the others wait for it, and are told to end
        except SynkhronosError:
            self.world.abort()
        together = self._together and not self.lost
        if not together:
            self._outlive(launcher)
        for line in list(self.lines.values()):
            try:
                line.send("bye", together)
            except OSError:
                pass
        if together and self.bulk is not None:
            together = self.bulk.close()
            if not together:
                self._outlive(launcher)
        if launcher and not together:
            self.world.end_launcher(launcher)
        self.world.end(together)

    def _turn(self, seconds: float) -> None:
        """Do what comes next, or wait for so long."""
        if self.stand_in is not None:
            seconds = min(seconds, self.stand_in.keep_time())
        self._loop.turn(seconds)

    def _serve(self) -> None:
        """Do what the program asks."""
        message, fds = fd_passing.receive(self.socket)
        if message[0] == "end":
            self._goes_on, self._together = False, True
            return
        self._loop.forget(self.socket)  # it waits for the answer
        try:
            answer = getattr(self, message[0])(fds, *message[1:])
        except (SynkhronosError, ArgumentError, OSError) as error:
            answer = str(error)
        except Exception:
            answer = f"the bridge process failed:\n{traceback.format_exc()}"
        finally:
            for fd in fds:
                os.close(fd)
        self._loop.watch(self.socket, self._serve)
        fd_passing.send(self.socket, answer)

    def _outlive(self, launcher: int) -> None:
        """Wait for the end of the program: when processes leave MPI without farewell, the launcher may end all others.

        And have it not wait for this one, nor for who else holds its pipes.
        """
        if not launcher:
            return
        try:
            fd_passing.send(self.socket, OUTLIVES)
        except OSError:  # the program has ended
            pass
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        while os.getppid() == self.master:
            time.sleep(0.01)

    def _meet(self) -> None:
        """Meet the others, if that was not done before."""
        if self._cannot_meet:
            raise SynkhronosError(self._cannot_meet)
        if self.lines or self.lost:
            return
        lines: Dict[int, wire.Line] = {}
        told: Dict[int, Facts] = {}
        try:
            addresses = [str(each.ip) for each in chosen_interfaces(os.environ, interfaces())]
            for line in wire.host(addresses, self.world.tell):
                _, process, of_host = line.receive()
                lines[process], told[process] = line, of_host
            courier = self.world.courier()
        except Exception as error:  # the others have been told where to come, and are not told again
            self._cannot_meet = str(error)
            if not isinstance(error, (SynkhronosError, ArgumentError)):
                self._cannot_meet = f"the hosts could not meet: {type(error).__name__}: {error}"
            raise SynkhronosError(self._cannot_meet) from error
        self.lines = lines
        self.facts += [told[process] for process in sorted(told)]
        self.bulk = None if courier is None else Bulk(courier)
        self._there = sorted([0, *lines])
        for process, line in self.lines.items():
            self._loop.watch(line, partial(self._listen, process, line))

    def hosts(self, fds: Sequence[int]) -> Any:
        """Return the facts of the hosts that are there."""
        self._meet()
        # A courier that may still wait for a host which is gone carries nothing any more.
        carries = self.bulk is not None and not self.lost
        self._there = sorted([0, *self.lines])
        there = [self.facts[process]._replace(place=process if carries else None) for process in self._there]
        wrong = differences(there)
        return "the hosts do not go together: " + "; ".join(wrong) if wrong else there

    def open(self, fds: Sequence[int], spec: SessionSpec, n_outputs: int, idents: Sequence[int]) -> Any:
        """Start a session; return process ids by rank, or a sentence."""
        self._meet()
        self.kill(())
        hosts = spec.hosts
        self._processes = self._there[1 : len(hosts.ranks)]
        for process in self._processes:
            if process not in self.lines:
                return self.lost[process]
        of_block, *bells = fds[:3]
        fds = fds[3:]
        block = ControlBlock(hosts.size, os.dup(of_block), hosts, bells)
        outputs = [os.dup(fd) for fd in fds[:n_outputs]]
        lines = [self.lines[process] for process in self._processes]
        pools = dict(zip(idents, fds[n_outputs:]))
        self.stand_in = StandIn(hosts, block, pools, lines, outputs, self.bulk)
        reductions = 0 if self.bulk is None else self.bulk.reductions
        self._behind = set(self.lines)
        pids: Dict[int, int] = {}
        for answer in self._ask(
            "open", lambda own: spec._replace(hosts=hosts._replace(own=own), reductions=reductions), OPEN_TIMEOUT_S
        ):
            if isinstance(answer, str):
                self.kill(())
                return answer
            pids.update(answer)
        if len(pids) < len(hosts.far):
            self.kill(())
            return f"the other hosts did not start their ranks within {OPEN_TIMEOUT_S:g} s"
        self.stand_in.begin(self._loop)
        return pids

    def kill(self, fds: Sequence[int]) -> bool:
        """End the session, if there is one."""
        stand_in, self.stand_in = self.stand_in, None
        if stand_in is not None:
            stand_in.end()
            for rings in self._ask("kill", lambda own: None, KILL_TIMEOUT_S):
                if not isinstance(rings, str):  # the program reads them in the memory that it shares with this process
                    for rank, recorded in rings.items():
                        stand_in.block.spans[rank][: len(recorded)] = recorded
            stand_in.block.close()
            for each in stand_in.outputs.values():
                for fd in each:
                    os.close(fd)
        return True

    def inspect(self, fds: Sequence[int], ranks: Sequence[int], seconds: float) -> Dict[int, str]:
        """Return what ranks are doing."""
        found: Dict[int, str] = dict.fromkeys(ranks, "not known: its host does not answer")
        hosts = self.stand_in.hosts

        def about(own: int) -> Tuple[List[int], float]:
            return [rank for rank in ranks if hosts.of(rank) == own], seconds

        for answer in self._ask("inspect", about, seconds + 1.0):
            if not isinstance(answer, str):
                found.update(answer)
        return found

    def _ask(self, kind: str, about: Callable[[int], Any], seconds: float) -> Iterator[Any]:
        """Ask all hosts of the session, and iterate over their answers; that of one that is lost says so, in words.

        Parameters
        ----------
        kind : str
            What `Server` does.
        about : callable
            Given the number of a host, returns what the question is about.
        seconds : float
            How long the answers are waited for.
        """
        self._asked += 1
        number, missing = self._asked, set(self._processes)
        for own, process in enumerate(self._processes, 1):
            try:
                self.lines[process].send(kind, number, about(own))
            except (KeyError, OSError):  # it is lost
                pass
        until = time.monotonic() + seconds
        for process in self._processes:
            if process in self.lost:
                missing.discard(process)
                yield self.lost[process]
        while missing:
            while not self.answers:
                left = until - time.monotonic()
                if left <= 0:
                    return
                self._turn(left)
            process, of_number, answer = self.answers.popleft()
            if process in missing and of_number in (number, LOST):  # else it is late
                missing.discard(process)
                yield answer

    def _listen(self, process: int, line: wire.Line) -> None:
        """Do what the messages of a host say that have come."""
        reason = "it has closed the connection"
        try:
            for message in line.messages():
                if message[0] == "answer":
                    self.answers.append((process, *message[1:]))
                    if message[1] == self._asked:  # not one that is late: so it has begun the session, or ended it
                        self._behind.discard(process)
                elif self.stand_in is not None and process not in self._behind:
                    self.stand_in.receive(message)
            return
        except EOFError:
            pass
        except OSError as error:
            reason = str(error)
        self.lost[process] = f"host {self.facts[process].name} is lost: {reason}"
        self._loop.forget(line)
        self.lines.pop(process, None)
        line.close()
        if self.stand_in is not None and process in self._processes:
            self.stand_in.lose(self._processes.index(process) + 1, self.lost[process])
        self.answers.append((process, LOST, self.lost[process]))
