"""Main loop of the serving process on every host but the first, until the program ends.

The process forks a keeper before it initializes MPI. The keeper forks each session's ranks; a `Deputy` serves them.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ..errors import SynkhronosError
from ..host import machine
from ..host.affinity import CoreClaims
from ..memory.memfd import nameless_file
from ..processes.keeper import Keeper
from ..processes.launcher import ProcessLauncher
from ..profile import ring
from ..runtime.launcher import Ranges, RankConfig
from ..sync.control_block import COMMAND_NUMBER, DECIDED, ControlBlock
from ..sync.rendezvous import Rendezvous
from . import wire
from .bulk_transfers import BulkTransfers
from .copying import LOOK_EVERY_S
from .deputy import Deputy
from .environment import for_ranks
from .facts import facts
from .host_memory import shadow
from .loop import EventLoop
from .messages import Bye, Handlers, Hello, Question, Reply
from .requests import Requests
from .spec import SessionSpec
from .world import World


class Server:
    """The serving process of this host; ``enter`` is called in the keeper's process."""

    def __init__(self, world: World, enter: Any) -> None:
        self.world, self._enter = world, enter
        self.keeper = Keeper(enter)  # before MPI is initialized
        self.line: Any = None  # connection to the first host
        self.deputy: Optional[Deputy] = None
        self.block: Optional[ControlBlock] = None
        self.launcher: Optional[ProcessLauncher] = None
        self.bulk: Optional[BulkTransfers] = None
        self.loop = EventLoop()
        self._claims = CoreClaims()
        self._together: Optional[bool] = None  # whether all hosts leave the job together; None until reported

    def serve(self) -> bool:
        """Serve until the program ends or the first host is lost; return whether all hosts leave the job together."""
        line = self.line = wire.join(self.world.recv_address())
        self.loop.watch(line, lambda: self._receive(line))
        line.send(Hello(self.world.process, facts(self.keeper.pid)))
        courier = self.world.courier()
        if courier is not None:
            self.bulk = BulkTransfers(courier)
        try:
            while self._together is None:
                self.loop.turn(LOOK_EVERY_S if self.deputy is None else self.deputy.keep_time())
        except (EOFError, OSError):  # the first host is lost
            pass
        finally:
            self.kill()
            self.keeper.end()
        together = bool(self._together)
        if together and self.bulk is not None:
            together = self.bulk.close()
        return together

    def _receive(self, line: wire.Line) -> None:
        for message in line.messages():
            if isinstance(message, Bye):
                self._together = message.together
            elif isinstance(message, Question):
                line.send(Reply(message.number, self.questions[message.kind](self, message.about)))
            elif self.deputy is not None:
                self.deputy.receive(message)

    def open(self, spec: SessionSpec) -> Any:
        """Start the ranks of a session on this host; return their process ids by rank, or an error message."""
        hosts, size = spec.hosts, spec.hosts.size
        self.kill()
        files: Dict[int, int] = {}
        try:
            block = self.block = ControlBlock(size, hosts=hosts, span_bytes=spec.span_bytes)
            for rank in range(size):
                if rank != spec.config.root:
                    files[rank] = nameless_file("pool") if rank in hosts.near else shadow(nameless_file("shadow"))
            for ident in spec.program_pools:
                files[ident] = shadow(nameless_file("shadow"))
            if not self.keeper.alive():
                self.keeper.end()
                self.keeper = Keeper(self._enter)
            self.keeper.load(spec.config.path, spec.modules)
            launcher = self.launcher = ProcessLauncher(self.keeper, spec.standby)
            launcher.start(self._configs(spec), block, files)
            if self.bulk is not None:
                self.bulk.reductions = spec.reductions
            lines = [self.line] * len(hosts.ranks)
            self.deputy = Deputy(Requests(hosts, block, files, lines, self.bulk), launcher)
            self.deputy.begin(self.loop)
            return {rank: launcher.pid(rank) for rank in hosts.near}
        except (SynkhronosError, OSError) as error:
            self.kill()
            return f"the ranks on host {hosts.names[hosts.own]} could not be started: {error}"
        finally:
            for fd in files.values():
                os.close(fd)

    def _configs(self, spec: SessionSpec) -> List[RankConfig]:
        config, near, budget = spec.config, spec.hosts.near, machine.core_budget()
        groups: List[List[int]] = [[]] * len(near)
        if spec.pin and len(near) <= budget:
            groups = self._claims.claim(len(near))
        of_all = config._replace(
            hosts=spec.hosts,
            threads=spec.threads or max(1, budget // len(near)),
            budget=budget,
            path=sys.path + [folder for folder in config.path if folder not in sys.path],
            directory=config.directory if os.path.isdir(config.directory) else machine.working_directory(),
            environment=for_ranks(os.environ),
        )
        configs = []
        for rank, group in zip(near, groups):
            profile = config.profile and os.path.abspath(f"synkhronos_rank_{rank}.prof")
            meeting = config.meeting if rank == near[0] else None
            configs.append(of_all._replace(rank=rank, cores=group, profile=profile, meeting=meeting))
        return configs

    def kill(self, about: None = None) -> Dict[int, bytes]:
        """End the session, if any; return the ring buffers with the recorded activity of this host's ranks."""
        rings: Dict[int, bytes] = {}
        deputy, self.deputy = self.deputy, None
        launcher, self.launcher = self.launcher, None
        block, self.block = self.block, None
        if deputy is not None:
            deputy.end()
        if launcher is not None:
            launcher.kill()
        self._claims.release()
        if deputy is not None and len(deputy.block.spans[0]):
            rings = {rank: ring.used(deputy.block.spans[rank]) for rank in deputy.hosts.near}
        if block is not None:
            block.close()
        return rings

    def end_ranks(self, about: Tuple[Sequence[int], float]) -> str:
        """End ranks, and wait until MPI no longer writes into this host's memory; return an error message, or "".

        ``about``: the ranks, and a time limit in seconds. Reports about ended ranks precede the answer.
        """
        (ranks, seconds), deputy, launcher = about, self.deputy, self.launcher
        if deputy is None or launcher is None:
            return "the session has ended"
        try:
            launcher.end(ranks)
        except SynkhronosError as error:
            return str(error)
        deputy.give_up()
        return "" if deputy.drain(seconds, self.loop.turn) else "MPI did not stop in time"

    def replace(self, about: Tuple[Mapping[int, Ranges], int, Optional[Rendezvous]]) -> Union[str, Dict[int, int]]:
        """Start processes in place of ended ranks; return their ids, or an error message: see `Bridge.replace`."""
        (taken, command, meeting), deputy, launcher = about, self.deputy, self.launcher
        if deputy is None or launcher is None:
            return "the session has ended"
        try:
            deputy.expect(taken, command)
            launcher.replace(taken, deputy.requests.pools, meeting)
            return {rank: launcher.pid(rank) for rank in taken}
        except (SynkhronosError, OSError) as error:
            return f"ranks on host {deputy.hosts.names[deputy.hosts.own]} could not be replaced: {error}"

    def inspect(self, about: Tuple[Sequence[int], float]) -> Dict[int, str]:
        """Return the activity of ranks, with their Python stacks; "" for a rank that waits for its leader.

        ``about``: the ranks and a time limit in seconds.
        """
        (ranks, seconds), deputy, launcher = about, self.deputy, self.launcher
        if deputy is None or launcher is None:
            return {}
        block, words = deputy.block, deputy.block.words
        waiting = [
            rank
            for rank in ranks
            if rank != deputy.hosts.near[0]  # the leader has forwarded its state, unless it is late
            and (block.arrived[rank] > words[DECIDED] or block.finished[rank] >= words[COMMAND_NUMBER])
        ]
        found = launcher.inspect([rank for rank in ranks if rank not in waiting], seconds)
        return {**found, **dict.fromkeys(waiting, "")}

    questions: Handlers = {each.__name__: each for each in (open, kill, inspect, end_ranks, replace)}
