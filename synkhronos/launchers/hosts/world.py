"""How the processes that were started on several hosts find each other: by MPI, or by what the environment says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from typing import Any, Dict, List, Sequence

from .wire import Meeting

#: The environment variable that tells a process of tests where the hosts meet.
MEETING = "SYNK_MEETING"


class World(ABC):
    """The processes of a program, one on each host.

    Attributes
    ----------
    n : int
        How many hosts there are.
    process : int
        The number of this one; the first runs the program.
    """

    n: int
    process: int

    @abstractmethod
    def tell(self, meeting: Meeting) -> None:
        """Tell all others where to meet; on the first host."""

    @abstractmethod
    def hear(self) -> Meeting:
        """Return where to meet; on the others."""

    def end(self) -> None:
        """Take leave of the others; once, when nothing more is to be done."""


class MpiWorld(World):
    """Processes that ``mpirun`` or Slurm has started; MPI is initialised when it is first needed."""

    def __init__(self, process: int, n: int) -> None:
        self.process, self.n = process, n

    def tell(self, meeting: Meeting) -> None:
        self._comm().bcast(meeting, root=0)

    def hear(self) -> Meeting:
        meeting: Meeting = self._comm().bcast(None, root=0)
        return meeting

    def _comm(self) -> Any:
        from mpi4py import MPI

        return MPI.COMM_WORLD

    def end(self) -> None:
        from mpi4py import MPI

        MPI.Finalize()


class StartedWorld(World):
    """Hosts that are processes of this machine, which the first one starts: for tests, without MPI.

    Parameters
    ----------
    names : sequence of str
        What the hosts are called.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.process, self.n, self.names = 0, len(names), names
        self.processes: List[Any] = []

    def tell(self, meeting: Meeting) -> None:
        for process in range(1, self.n):
            told = json.dumps([list(meeting.addresses), meeting.port, meeting.token.hex(), process, self.n])
            environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), SYNK_HOST_NAME=self.names[process])
            environment[MEETING] = told
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "synkhronos.program.hosts"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def hear(self) -> Meeting:
        raise NotImplementedError("the first host starts the others")

    def end(self) -> None:
        for process in self.processes:
            process.wait()


class ToldWorld(World):
    """One of these processes."""

    def __init__(self, told: str) -> None:
        addresses, port, token, self.process, self.n = json.loads(told)
        self._meeting = Meeting(tuple(addresses), port, bytes.fromhex(token))

    def tell(self, meeting: Meeting) -> None:
        raise NotImplementedError("only the first host tells")

    def hear(self) -> Meeting:
        return self._meeting


def environment_of_ranks() -> Dict[str, str]:
    """Return the environment for ranks: without what would make them processes of MPI's job."""
    ours = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPI_LOCAL", "HYD", MEETING)
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
