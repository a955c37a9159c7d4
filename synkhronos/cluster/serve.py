"""Main loop of the serving process on every host but the first, until the program ends.

The process forks a keeper before it initializes MPI. The keeper forks each session's ranks; a `Deputy` serves them.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import Any, Dict, Optional, Sequence

from ..errors import SynkhronosError
from ..host import machine
from ..host.affinity import CoreClaims
from ..memory.memfd import nameless_file
from ..processes.keeper import Keeper
from ..processes.launcher import ProcessLauncher, configs_of_host
from ..sync.block_over_hosts import BlockOverHosts
from . import wire
from .bulk_transfers import FAREWELL_TIMEOUT_S, BulkTransfers
from .copying import LOOK_EVERY_S
from .deputy import Deputy
from .environment import for_ranks
from .facts import facts
from .host_memory import shadow
from .loop import EventLoop
from .messages import Bye, Handlers, Hello, Question, Reply, SessionSpec
from .requests import Requests
from .world import World


class Server:
    """The serving process of this host; ``enter`` is called in the keeper's process."""

    def __init__(self, world: World, enter: Any) -> None:
        self.world, self._enter = world, enter
        self.keeper = Keeper(enter)  # before MPI is initialized
        self.line: Any = None  # connection to the first host
        self.deputy: Optional[Deputy] = None
        self._started = ExitStack()  # ends what `open` has started
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
            together = self.bulk.courier.close(FAREWELL_TIMEOUT_S)
        return together

    def _receive(self, line: wire.Line) -> None:
        for message in line.messages():
            if isinstance(message, Bye):
                self._together = message.together
            elif isinstance(message, Question):
                line.send(Reply(message.number, self._answer(message.kind, message.about)))
            elif self.deputy is not None:
                self.deputy.receive(message)

    def _answer(self, kind: str, about: Sequence[Any]) -> Any:
        if kind in self.questions:
            return self.questions[kind](self, *about)
        deputy = self.deputy
        return "the session has ended" if deputy is None else deputy.questions[kind](deputy, *about)

    def open(self, spec: SessionSpec) -> Any:
        """Start the ranks of a session on this host; return their process ids by rank, or an error message."""
        hosts, size, config = spec.hosts, spec.hosts.size, spec.config
        self.kill()
        files: Dict[int, int] = {}
        try:
            block = BlockOverHosts(hosts, span_bytes=spec.span_bytes)
            self._started.callback(block.close)
            for rank in range(size):
                if rank != config.root:
                    files[rank] = nameless_file("pool") if rank in hosts.near else shadow(nameless_file("shadow"))
            for ident in spec.program_pools:
                files[ident] = shadow(nameless_file("shadow"))
            if not self.keeper.alive():
                self.keeper.end()
                self.keeper = Keeper(self._enter)
            self.keeper.load(config.path, spec.modules)
            own = config._replace(
                hosts=hosts,
                path=sys.path + [folder for folder in config.path if folder not in sys.path],
                directory=config.directory if os.path.isdir(config.directory) else machine.working_directory(),
                environment=for_ranks(os.environ),
                meeting=None,
            )
            launcher = ProcessLauncher(self.keeper, spec.standby)
            self._started.callback(self._claims.release)
            self._started.callback(launcher.kill)
            leader, *others = configs_of_host(own, hosts.near, self._claims, spec.pin, spec.threads)
            launcher.start([leader._replace(meeting=config.meeting), *others], block, files)
            if self.bulk is not None:
                self.bulk.reductions = spec.reductions
            lines = [self.line] * len(hosts.ranks)
            self.deputy = Deputy(Requests(hosts, block, files, lines, self.bulk), self.loop, launcher)
            self.deputy.begin()
            return {rank: launcher.pid(rank) for rank in hosts.near}
        except (SynkhronosError, OSError) as error:
            self.kill()
            return f"the ranks on host {hosts.names[hosts.own]} could not be started: {error}"
        finally:
            for fd in files.values():
                os.close(fd)

    def kill(self) -> Dict[int, bytes]:
        """End the session, if any; return the ring buffers with the recorded activity of this host's ranks."""
        deputy, self.deputy = self.deputy, None
        rings = {} if deputy is None else deputy.kill()
        self._started.close()
        return rings

    questions: Handlers = {each.__name__: each for each in (open, kill)}
