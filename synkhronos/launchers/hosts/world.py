"""How the processes that were started on several hosts find each other: by MPI, or by what the environment says."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ...errors import SynkhronosError
from ...host.interfaces import interfaces
from ...sync.meeting import Meeting
from . import environment
from .courier import Courier
from .environment import Place

#: The environment variable that tells a process of tests where the hosts meet.
MEETING = "SYNK_MEETING"

#: Names of the processes of MPI that start those of a program on a host.
LAUNCHERS = ("prterun", "prted", "mpirun", "mpiexec", "orterun", "orted", "mpiexec.hydra", "hydra_pmi_proxy")

#: Seconds in which such a process must have ended after the program, if all hosts can be reached.
LAUNCHER_TIMEOUT_S = 2.0


class World(ABC):
    """The processes of a program, one on each host.

    Attributes
    ----------
    n : int
        How many hosts there are.
    process : int
        The number of this one; the first runs the program.
    modules : sequence of str
        What other hosts import before they fork ranks, besides what `spec.modules_to_import` says.
    """

    n: int
    process: int
    modules: Sequence[str] = ()

    @abstractmethod
    def tell(self, meeting: Meeting) -> int:
        """Tell all others where to meet, and return how many they are; on the first host."""

    @abstractmethod
    def hear(self) -> Meeting:
        """Return where to meet; on the others."""

    def courier(self) -> Optional[Courier]:
        """Return what carries large arrays between the hosts, None if nothing does; called by all, after they met."""
        return None

    @abstractmethod
    def end(self, together: bool) -> None:
        """Take leave of the others: the last thing that a process does, which may not come back from here.

        Parameters
        ----------
        together : bool
            Whether all others take leave, too: MPI would wait for those that are gone.
        """

    @abstractmethod
    def abort(self) -> None:
        """End all processes that can be reached, this one too; when the others cannot be told to end."""

    def launcher(self) -> int:
        """Return the process that has started this program and waits for all hosts, 0 if there is none."""
        return 0

    def end_launcher(self, pid: int) -> None:
        """End that process once the program has ended, if it waits for hosts that cannot be reached any more."""
        raise NotImplementedError("nothing has started these processes that waits for them")


class MpiWorld(World):
    """Processes that ``mpirun`` or Slurm has started; MPI is initialised when it is first needed.

    Parameters
    ----------
    place : Place
        This process's.
    """

    def __init__(self, place: Place) -> None:
        self.place, self.process = place, place.process
        self.n = place.n_processes or 0
        self._comm: Any = None
        self._wrong = ""  # why it cannot be used; the same on all hosts

    def tell(self, meeting: Meeting) -> int:
        self._begin().bcast(meeting, root=0)
        return self.n - 1  # which is not known before

    def hear(self) -> Meeting:
        meeting: Meeting = self._begin().bcast(None, root=0)
        return meeting

    def _begin(self) -> Any:
        """Return the communicator of all hosts.

        Raises
        ------
        SynkhronosError
            MPI's world is not the launcher's, or has several processes on a host.
        """
        if self._comm is None and not self._wrong:
            for name, value in environment.settings(os.environ, interfaces()).items():
                os.environ[name] = value
            try:
                import mpi4py

                mpi4py.rc.initialize = False
                from mpi4py import MPI
            except ImportError as error:
                raise SynkhronosError(
                    f"{self.place.started_by} has started this program on several hosts, for which mpi4py is needed "
                    f'({error}): pip install "mpi4py>=4.1"'
                ) from error
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
            comm = MPI.COMM_WORLD
            wrong = environment.wrong_world(self.place, comm.Get_size())
            there = comm.allgather((comm.Split_type(MPI.COMM_TYPE_SHARED).Get_size(), socket.gethostname()))
            for local_size, host in there:
                place = self.place._replace(local_size=local_size)
                wrong = wrong or environment.refusal(place, os.environ, host)
            self._wrong, self._comm, self.n = wrong, comm, comm.Get_size()
        if self._wrong:
            raise SynkhronosError(self._wrong)
        return self._comm

    def courier(self) -> Optional[Courier]:
        comm = self._begin()
        from mpi4py import MPI

        return Courier(comm.Dup(), comm.Get_attr(MPI.TAG_UB))

    def end(self, together: bool) -> None:
        if together and self._comm is not None:
            from mpi4py import MPI

            MPI.Finalize()
            # MPICH takes leave of its launcher in a handler of C's exit. To the launcher, a process that passes this by
            # has failed, and it kills those that have not ended yet.
            ctypes.CDLL(None).exit(0)

    def abort(self) -> None:
        if self._comm is not None:
            self._comm.Abort(1)

    def launcher(self) -> int:
        pid = os.getppid()
        while pid > 1:
            name, parent = _name_and_parent(pid)
            if name in LAUNCHERS:
                return pid
            pid = parent
        return 0

    def end_launcher(self, pid: int) -> None:
        until = time.monotonic() + LAUNCHER_TIMEOUT_S
        while _name_and_parent(pid)[0] in LAUNCHERS:
            if time.monotonic() < until:
                time.sleep(0.01)
            elif self.place.started_by == "PMI":
                self.abort()
            else:  # what Open MPI's does at any other signal waits for those hosts, too
                os.kill(pid, signal.SIGKILL)
                return


def _name_and_parent(pid: int) -> Tuple[str, int]:
    """Return the name of a process, and the id of its parent; ("", 0) if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            before, _, after = file.read().rpartition(")")
    except OSError:
        return "", 0
    return before.partition("(")[2], int(after.split()[1])


class StartedWorld(World):
    """Hosts that are processes of this machine, which the first one starts: for tests, without MPI.

    Parameters
    ----------
    names : sequence of str
        What the hosts are called.
    modules : sequence of str
        See `World`.
    """

    def __init__(self, names: Sequence[str], modules: Sequence[str] = ()) -> None:
        self.process, self.n, self.names, self.modules = 0, len(names), names, modules
        self.processes: List[Any] = []

    def tell(self, meeting: Meeting) -> int:
        for process in range(1, self.n):
            told = json.dumps([list(meeting.addresses), meeting.port, meeting.token.hex(), process, self.n])
            variables = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), SYNK_HOST_NAME=self.names[process])
            variables[MEETING] = told
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "synkhronos.program.hosts"],
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        return self.n - 1

    def hear(self) -> Meeting:
        raise NotImplementedError("the first host starts the others")

    def end(self, together: bool) -> None:
        for process in self.processes:
            process.wait()

    def abort(self) -> None:
        self.end(False)  # they end by themselves


class ToldWorld(World):
    """One of these processes."""

    def __init__(self, told: str) -> None:
        addresses, port, token, self.process, self.n = json.loads(told)
        self._meeting = Meeting(tuple(addresses), port, bytes.fromhex(token))

    def tell(self, meeting: Meeting) -> int:
        raise NotImplementedError("only the first host tells")

    def hear(self) -> Meeting:
        return self._meeting

    def end(self, together: bool) -> None:
        pass

    def abort(self) -> None:
        pass


def environment_of_ranks() -> Dict[str, str]:
    """Return the environment for ranks: without what would make them processes of MPI's job."""
    return {name: value for name, value in environment.for_ranks(os.environ).items() if name != MEETING}


def world_of_process() -> Optional[World]:
    """Return the hosts on which this program was started, by its environment; None if it is alone."""
    place = environment.place(os.environ)
    return None if place is None else MpiWorld(place)
