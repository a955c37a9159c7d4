"""The bridge: a process on the first host that communicates with the other hosts.

The program forks the bridge before the library's other processes, and ends it last. Only the bridge initializes MPI on
this host. MPI's reaction to the loss of another host therefore cannot end the program.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

from ..errors import ArgumentError, SynkhronosError
from ..host.interfaces import interfaces
from ..processes import fd_passing
from ..processes.child_process import ChildProcess
from ..processes.keeper import FORK_TIMEOUT_S
from ..processes.rank_main import take_default_signals
from ..runtime.exit_status import WAITS
from ..runtime.launcher import Ranges
from ..sync.block_over_hosts import BlockOverHosts
from ..sync.control_block import ControlBlock
from ..sync.rendezvous import CONNECT_TIMEOUT_S, Rendezvous
from . import wire
from .bulk_transfers import FAREWELL_TIMEOUT_S, BulkTransfers
from .facts import HostFacts, differences, facts
from .loop import EventLoop
from .messages import Bye, Handlers, Question, Reply, SessionSpec
from .requests import Requests
from .stand_in import StandIn
from .world import World

MEET_TIMEOUT_S = CONNECT_TIMEOUT_S + 60.0  # time limit for connecting all hosts; MPI may start slowly
OPEN_TIMEOUT_S, KILL_TIMEOUT_S = 150.0, 4.0  # time limits for starting and for ending the ranks of a session
DRAIN_TIMEOUT_S = 1.0  # time limit for each host's MPI thread to end the session's operations before that
CLOSE_TIMEOUT_S = 3 * DRAIN_TIMEOUT_S + KILL_TIMEOUT_S  # time limit for both
REPLACE_TIMEOUT_S = FORK_TIMEOUT_S + 2.0  # time limit for replacing dead ranks
END_TIMEOUT_S = 10.0  # time limit for the other hosts' processes and the bridge to end
PARENT_CHECK_S = 0.5  # time between checks that the program is still running
OUTLIVES = "outlives"  # the bridge's last message, if the program must not wait for the bridge's end
LOST = 0  # question number of an answer that reports a lost host; such an answer is valid for any question


class Bridge(ChildProcess):
    """The master's handle on the bridge process; `has_met` is True once `hosts` has succeeded."""

    def __init__(self, world: World) -> None:
        super().__init__("the bridge", lambda sock, master: _Bridge(sock, master, world).loop())
        self.world = world
        self.has_met = False

    def hosts(self) -> List[HostFacts]:
        """Return the hosts' `HostFacts` in order; raise `SynkhronosError` if a host is missing or versions differ."""
        try:
            found = self._ask(MEET_TIMEOUT_S, "hosts")
        except SynkhronosError as error:
            if self.has_met or self.alive() or not self.world.remedy():
                raise
            hint = f"MPI may have ended it, with a message of its own: {self.world.remedy()}"
            raise SynkhronosError(f"{error}; {hint}") from error
        self.has_met = True
        return list(found.values())

    def open(
        self, spec: SessionSpec, block: ControlBlock, outputs: Sequence[int], pools: Dict[int, int]
    ) -> Dict[int, int]:
        """Start the ranks of a session on the other hosts; return their process ids by rank."""
        fds = [block.fd, *block.bells(), *outputs, *pools.values()]
        seconds = OPEN_TIMEOUT_S + 2 * CLOSE_TIMEOUT_S + 2.0  # the bridge may also end an earlier session, or this one
        return self._ask(seconds, "open", spec, len(outputs), list(pools), fds=fds)

    def end_ranks(self, ranks: Sequence[int]) -> None:
        """End ranks of other hosts; return once MPI no longer writes into the memory of any rank on any host."""
        self._ask(3 * KILL_TIMEOUT_S + 2.0, "end_ranks", ranks)

    def replace(
        self, taken: Mapping[int, Ranges], command: int, meeting: Optional[Rendezvous] = None
    ) -> Dict[int, int]:
        """Start new processes for ended ranks of other hosts; return their ids by rank: see `Launcher.replace`.

        They execute commands after number ``command``. Leaders connect to ``meeting``.
        """
        return self._ask(REPLACE_TIMEOUT_S + 2.0, "replace", taken, command, meeting)

    def kill(self) -> None:
        try:
            self._ask(CLOSE_TIMEOUT_S + 2.0, "kill")
        except SynkhronosError:
            pass

    def inspect(self, ranks: Sequence[int], seconds: float) -> Dict[int, str]:
        return self._ask(seconds + 2.0, "inspect", tuple(ranks), seconds)

    def end(self) -> None:
        """End the other hosts' processes, then the bridge; do not wait for a bridge that has to outlive the program."""
        until = time.monotonic() + END_TIMEOUT_S
        try:
            self._socket.settimeout(END_TIMEOUT_S)
            fd_passing.send(self._socket, ("end",))
            while not fd_passing.receive(self._socket)[0] == OUTLIVES:  # skips late answers
                pass
            self._status = -1
        except (OSError, EOFError):  # the bridge has ended
            pass
        while self.alive() and time.monotonic() < until:
            time.sleep(0.002)
        super().end()

    def _ask(self, seconds: float, kind: str, *about: Any, fds: Sequence[int] = ()) -> Dict[int, Any]:
        """Return the answer to a question; raise `SynkhronosError` if it is an error message."""
        answer: Union[str, Dict[int, Any]] = self.ask((kind, *about), fds, seconds)
        if isinstance(answer, str):
            raise SynkhronosError(answer)
        return answer


class _Bridge:
    """Main loop of the bridge process."""

    def __init__(self, sock: socket.socket, master: int, world: World) -> None:
        self.socket, self.master, self.world = sock, master, world
        self.facts = [facts()]
        self.lines: Dict[int, wire.Line] = {}  # connections to other hosts, by process
        self.lost: Dict[int, str] = {}
        self.stand_in: Any = None
        self.bulk: Optional[BulkTransfers] = None
        self.answers: Deque[Tuple[int, int, Any]] = deque()  # process, question number, answer
        self._loop = EventLoop()
        self._asked = 0  # the number of the last question
        self._goes_on = True
        self._together = False  # whether all processes, including the program, leave the job together
        self._there: List[int] = []  # sorted processes of the connected hosts, as reported to the program
        self._processes: List[int] = []  # processes of the session's other hosts
        self._behind: Set[int] = set()  # processes that have not begun the session, or are not in it
        self._cannot_meet = ""

    def loop(self) -> None:
        launcher = self.world.launcher()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        take_default_signals()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._loop.watch(self.socket, self._serve)
        with suppress(SynkhronosError, ArgumentError):  # `hosts` raises it again
            self._meet()  # now, because the other hosts wait for this host, and not forever
        try:
            while self._goes_on and os.getppid() == self.master:
                self._turn(PARENT_CHECK_S)
        except (EOFError, ConnectionError):
            pass  # the program was killed
        try:
            self._meet()  # even without a session, because other hosts wait for the rendezvous, then for "bye"
        except SynkhronosError:
            self.world.abort()
        together = self._together and self._is_whole()
        if not together:
            self._outlive(launcher)
        for line in list(self.lines.values()):
            with suppress(OSError):
                line.send(Bye(together))
        if together and self.bulk is not None:
            together = self.bulk.courier.close(FAREWELL_TIMEOUT_S)
            if not together:
                self._outlive(launcher)
        if launcher and not together:
            self.world.end_launcher(launcher)
        self.world.end(together)

    def _turn(self, seconds: float) -> None:
        """Process the next events; wait at most ``seconds``."""
        if self.stand_in is not None:
            seconds = min(seconds, self.stand_in.keep_time())
        self._loop.turn(seconds)

    def _serve(self) -> None:
        message, fds = fd_passing.receive(self.socket)
        if message[0] == "end":
            self._goes_on, self._together = False, True
            return
        self._loop.forget(self.socket)  # the program waits for the answer
        try:
            answer = self.questions[message[0]](self, fds, *message[1:])
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
        """If a launcher may kill all processes when one ends early, detach from it and wait for the program's end."""
        if not launcher:
            return
        with suppress(OSError):  # the program has ended
            fd_passing.send(self.socket, OUTLIVES)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        while os.getppid() == self.master:
            time.sleep(0.01)

    def _meet(self) -> None:
        if self._cannot_meet:
            raise SynkhronosError(self._cannot_meet)
        if self.lines or self.lost:
            return
        lines: Dict[int, wire.Line] = {}
        told: Dict[int, HostFacts] = {}
        try:
            try:
                listener = wire.listener_of(os.environ, interfaces())
            except (SynkhronosError, ArgumentError) as error:
                self.world.refuse(str(error))
                raise
            for line in wire.host(listener, self.world.send_address):
                process, of_host = line.receive()
                lines[process], told[process] = line, of_host
            courier = self.world.courier()
        except Exception as error:  # permanent, because other hosts receive the address only once
            self._cannot_meet = str(error)
            if not isinstance(error, (SynkhronosError, ArgumentError)):
                self._cannot_meet = f"the hosts could not connect: {type(error).__name__}: {error}"
            raise SynkhronosError(self._cannot_meet) from error
        self.lines = lines
        self.facts += [told[process] for process in sorted(told)]
        self.bulk = None if courier is None else BulkTransfers(courier)
        self._there = sorted([0, *lines])
        for process, line in self.lines.items():
            self._loop.watch(line, partial(self._listen, process, line))

    def hosts(self, fds: Sequence[int]) -> Union[str, Dict[int, HostFacts]]:
        self._meet()
        carries = self.bulk is not None and self._is_whole()
        self._there = sorted([0, *self.lines])
        there = {each: self.facts[each]._replace(place=each if carries else None) for each in self._there}
        wrong = differences(list(there.values()))
        return "the hosts are incompatible: " + "; ".join(wrong) if wrong else there

    def _is_whole(self) -> bool:
        """Return whether MPI can be used; after a loss, its operations may still wait for the lost host."""
        return not self.lost and (self.bulk is None or self.bulk.courier.error is None)

    def open(
        self, fds: Sequence[int], spec: SessionSpec, n_outputs: int, idents: Sequence[int]
    ) -> Union[str, Dict[int, int]]:
        """Start a session's ranks on the other hosts; return their process ids by rank, or an error message."""
        self._meet()
        self.kill(())
        hosts = spec.hosts
        self._processes = self._there[1 : len(hosts.ranks)]
        for process in self._processes:
            if process not in self.lines:
                return self.lost[process]
        of_block, *bells = fds[:3]
        fds = fds[3:]
        block = BlockOverHosts(hosts, os.dup(of_block), bells)
        outputs = [os.dup(fd) for fd in fds[:n_outputs]]
        lines = [None, *[self.lines[process] for process in self._processes]]
        pools = dict(zip(idents, fds[n_outputs:]))
        self.stand_in = StandIn(Requests(hosts, block, pools, lines, self.bulk), self._loop, outputs)
        reductions = 0 if self.bulk is None else self.bulk.reductions
        self._behind = set(self.lines)

        def of_host(own: int) -> Any:
            return (spec._replace(hosts=hosts._replace(own=own), reductions=reductions),)

        pids = self._started(hosts.far, "open", of_host, OPEN_TIMEOUT_S)
        if isinstance(pids, str):
            self.kill(())
        else:
            self.stand_in.begin()
        return pids

    def kill(self, fds: Sequence[int]) -> Dict[int, int]:
        if self.stand_in is not None:
            if self.stand_in.requests.bulk is not None and self._is_whole():  # hosts need each other to end operations
                self.end_ranks((), (), DRAIN_TIMEOUT_S)
            stand_in, self.stand_in = self.stand_in, None
            stand_in.end()
            for rings in self._ask("kill", lambda own: (), KILL_TIMEOUT_S):
                if not isinstance(rings, str):  # the program reads the rings in shared memory
                    for rank, recorded in rings.items():
                        stand_in.block.spans[rank][: len(recorded)] = recorded
            stand_in.block.close()
            for each in stand_in.outputs.values():
                for fd in each:
                    os.close(fd)
        return {}

    def end_ranks(
        self, fds: Sequence[int], ranks: Sequence[int], limit: float = KILL_TIMEOUT_S
    ) -> Union[str, Dict[int, int]]:
        stand_in = self.stand_in
        stand_in.give_up()  # first, because this also reports an abort to the other hosts
        answers = list(self._ask("end_ranks", lambda own: (self._of(own, ranks), limit), 2 * limit))
        wrong = "; ".join(filter(None, answers))
        # After the loss of a host, the session ends, and MPI may never stop.
        if not wrong and (len(answers) < len(self._processes) or not stand_in.drain(limit)):
            wrong = f"ranks did not end, or MPI did not stop, within {2 * limit:g} s on all hosts"
        return wrong or {}

    def replace(
        self, fds: Sequence[int], taken: Mapping[int, Ranges], command: int, meeting: Optional[Rendezvous]
    ) -> Union[str, Dict[int, int]]:
        def of_host(own: int) -> Any:
            return {rank: taken[rank] for rank in self._of(own, taken)}, command, meeting

        return self._started(taken, "replace", of_host, REPLACE_TIMEOUT_S)

    def inspect(self, fds: Sequence[int], ranks: Sequence[int], seconds: float) -> Dict[int, str]:
        waiting = self.stand_in.requests.waiting
        found = {rank: WAITS if rank in waiting else "unknown: its host does not answer" for rank in ranks}
        for answer in self._ask("inspect", lambda own: (self._of(own, ranks), seconds), seconds + 1.0):
            if not isinstance(answer, str):
                found.update(answer)
        return found

    #: Of the program.
    questions: Handlers = {each.__name__: each for each in (hosts, open, kill, inspect, end_ranks, replace)}

    def _of(self, own: int, ranks: Iterable[int]) -> List[int]:
        """Return the ``ranks`` of host ``own``."""
        return [rank for rank in ranks if rank in self.stand_in.hosts.ranks[own]]

    def _started(
        self, ranks: Iterable[int], kind: str, about: Callable[[int], Any], seconds: float
    ) -> Union[str, Dict[int, int]]:
        """Let the other hosts start processes, as in `_ask`; return their ids by rank, or the first error message."""
        pids: Dict[int, int] = {}
        for answer in self._ask(kind, about, seconds):
            if isinstance(answer, str):
                return answer
            pids.update(answer)
        late = [rank for rank in ranks if rank not in pids]
        return f"ranks that other hosts did not start within {seconds:g} s: {late}" if late else pids

    def _ask(self, kind: str, about: Callable[[int], Any], seconds: float) -> Iterator[Any]:
        """Ask every host of the session question ``kind`` with the arguments ``about(host)``, and yield the answers.

        A lost host's answer is an error message. Stop waiting for answers after ``seconds``.
        """
        self._asked += 1
        number, missing = self._asked, set(self._processes)
        for own, process in enumerate(self._processes, 1):
            with suppress(KeyError, OSError):  # the host is lost
                self.lines[process].send(Question(kind, number, about(own)))
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
            if process in missing and of_number in (number, LOST):  # otherwise the answer is late
                missing.discard(process)
                yield answer

    def _listen(self, process: int, line: wire.Line) -> None:
        reason = "it closed the connection"
        try:
            for message in line.messages():
                if isinstance(message, Reply):
                    self.answers.append((process, *message))
                    if message.number == self._asked:  # not late: the host has begun or ended the session
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
