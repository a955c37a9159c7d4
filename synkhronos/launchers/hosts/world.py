"""How the processes that were started on several hosts find each other: by MPI, or by what the environment says."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from typing import Any, Dict, List, Optional, Sequence

from ...errors import SynkhronosError
from ...host.interfaces import interfaces
from . import environment
from .courier import Courier
from .environment import Place
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
    modules : sequence of str
        What other hosts import before they fork ranks, besides what `spec.modules_to_import` says.
    """

    n: int
    process: int
    modules: Sequence[str] = ()

    @abstractmethod
    def tell(self, meeting: Meeting) -> None:
        """Tell all others where to meet; on the first host."""

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

    def tell(self, meeting: Meeting) -> None:
        self._begin().bcast(meeting, root=0)

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
        if self._comm is None:
            for name, value in environment.settings(os.environ, interfaces()).items():
                os.environ[name] = value
            try:
                import mpi4py

                mpi4py.rc.initialize = False
                from mpi4py import MPI
            except ImportError as error:
                raise SynkhronosError(
                    f"{self.place.started_by} has started this program on several hosts, for which mpi4py is needed "
                    f"({error}): pip install 'synkhronos[hosts]'"
                ) from error
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
            comm = MPI.COMM_WORLD
            wrong = environment.wrong_world(self.place, comm.Get_size())
            local = self.place._replace(local_size=comm.Split_type(MPI.COMM_TYPE_SHARED).Get_size())
            wrong = wrong or environment.refusal(local, os.environ, socket.gethostname())
            if wrong:
                raise SynkhronosError(wrong)
            self._comm, self.n = comm, comm.Get_size()
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

    def tell(self, meeting: Meeting) -> None:
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

    def tell(self, meeting: Meeting) -> None:
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
