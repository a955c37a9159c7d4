"""Discovery of the processes on several hosts, with MPI."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from typing import Any, Optional, Sequence, Tuple

from ..errors import ArgumentError, StateError, SynkhronosError
from ..host.interfaces import interfaces
from ..processes.child_process import ChildProcess
from ..sync.rendezvous import Rendezvous
from . import environment
from .environment import ProcessPlace
from .mpi_thread import MpiThread

#: Process names of MPI launchers, which start the program on the hosts.
LAUNCHERS = ("prterun", "prted", "mpirun", "mpiexec", "orterun", "orted", "mpiexec.hydra", "hydra_pmi_proxy")

START_TIMEOUT_S = 120.0  # time limit for MPI to start; it waits for all hosts
LAUNCHER_TIMEOUT_S = 2.0  # time limit for the launcher to exit by itself after the program


class World:
    """The processes of a program, one per host: process 0 runs the program; ``process`` is this process's number.

    ``mpirun`` or Slurm has started them, and MPI is initialized on first use. Tests use derived classes without MPI.
    ``modules`` are imported before ranks are forked, in addition to `messages.modules_to_import`.
    """

    modules: Sequence[str] = ()

    def __init__(self, place: ProcessPlace) -> None:
        self.place, self.process = place, place.process
        self.n = place.n_processes or 0
        self._comm: Any = None
        self._wrong = ""  # the reason why MPI is unusable; the same on all hosts

    def send_address(self, meeting: Rendezvous) -> int:
        """Send the rendezvous address to all other hosts, and return their number; called on the first host."""
        self._begin().bcast(meeting, root=0)
        return self.n - 1  # n may be unknown before MPI is initialized

    def recv_address(self) -> Rendezvous:
        """Return the rendezvous address; called on the other hosts."""
        meeting: Rendezvous = self._begin().bcast(None, root=0)
        return meeting

    def refuse(self, reason: str) -> None:
        """Raise `SynkhronosError` on all hosts, for a reason on this host; called instead of the methods above."""
        self._begin(reason)

    def _begin(self, reason: str = "") -> Any:
        """Return the communicator of all hosts; raise `SynkhronosError` if mpi4py is missing or MPI is unusable.

        A ``reason`` that one host has, or finds, is raised on all hosts. Otherwise, the others would wait for it.
        """
        if self._comm is None and not self._wrong:
            try:
                os.environ.update(environment.settings(os.environ, interfaces()))
            except ArgumentError as error:
                reason = reason or str(error)
            host = socket.gethostname()
            if reason:  # now, because MPI may end this process if the hosts cannot connect
                print(f"synkhronos: host {host}: {reason}", file=sys.stderr, flush=True)
            try:
                import mpi4py

                mpi4py.rc.initialize = False
                from mpi4py import MPI
            except ImportError as error:
                raise SynkhronosError(
                    f"{self.place.started_by} has started this program on several hosts, which requires mpi4py "
                    f'({error}): pip install "mpi4py>=4.1"'
                ) from error
            watchdog = ChildProcess("the watchdog of MPI", self._watch)
            try:
                MPI.Init_thread(MPI.THREAD_MULTIPLE)
                comm = MPI.COMM_WORLD
                wrong = environment.wrong_world(self.place, comm.Get_size())
                try:
                    there = comm.allgather((comm.Split_type(MPI.COMM_TYPE_SHARED).Get_size(), host, reason))
                except MPI.Exception as error:
                    there = [(1, host, reason or f"MPI cannot connect the hosts: {error}; {self.remedy()}")]
            finally:
                watchdog.end()
            for local_size, host, reason in there:
                place = self.place._replace(local_size=local_size)
                wrong = wrong or (f"host {host}: {reason}" if reason else environment.refusal(place, os.environ, host))
            self._wrong, self._comm, self.n = wrong, comm, comm.Get_size()
        if self._wrong:
            raise SynkhronosError(self._wrong)
        return self._comm

    def _watch(self, starting: socket.socket, process: int) -> None:
        """Kill a process whose MPI does not start in time; it may wait in C, and hold the interpreter's lock."""
        starting.settimeout(START_TIMEOUT_S)
        try:
            starting.recv(1)  # until the process closes its end, or ends
        except socket.timeout:
            reason = f"MPI did not start within {START_TIMEOUT_S:g} s on all hosts: {self.remedy()}"
            print(f"synkhronos: host {socket.gethostname()}: {reason}", file=sys.stderr, flush=True)
            os.kill(process, signal.SIGKILL)

    def courier(self) -> Optional[MpiThread]:
        """Return the MPI thread for large arrays; None without MPI. All hosts call this after the rendezvous."""
        comm = self._begin()
        from mpi4py import MPI

        return MpiThread(comm.Dup(), comm.Get_attr(MPI.TAG_UB))

    def end(self, together: bool) -> None:
        """Leave the job, possibly ending this process. If all processes leave ``together``, finalize MPI."""
        if together and self._comm is not None:
            from mpi4py import MPI

            MPI.Finalize()
            # MPICH disconnects from its launcher in a C exit handler. Otherwise, the launcher kills running processes.
            ctypes.CDLL(None).exit(0)

    def abort(self) -> None:
        """Kill the reachable processes, unless they end by themselves; called if they cannot be asked to end."""
        if self._comm is not None:
            self._comm.Abort(1)

    def remedy(self) -> str:
        """Return what to try if MPI ends a process or waits forever in its initialization; "" without MPI."""
        chosen = [name for name in (environment.INTERFACE, environment.PORTS) if name in os.environ]
        checks = [f"check {name}={os.environ[name]} on all hosts; or " for name in chosen]
        return "".join(checks) + environment.remedy(self.place)

    def launcher(self) -> int:
        """Return the process id of the launcher that started this program and waits for all hosts; 0 if none."""
        pid = os.getppid()
        while pid > 1:
            name, parent = _name_and_parent(pid)
            if name in LAUNCHERS:
                return pid
            pid = parent
        return 0

    def end_launcher(self, pid: int) -> None:
        """Wait for the launcher to exit after the program; end it if it still waits for unreachable hosts."""
        if self.place.started_by != "PMI" and os.fork():
            return  # a thread of Open MPI ends this process when the launcher disconnects; the child lacks the thread
        until = time.monotonic() + LAUNCHER_TIMEOUT_S
        while _name_and_parent(pid)[0] in LAUNCHERS:
            if time.monotonic() < until:
                time.sleep(0.01)
            elif self.place.started_by == "PMI":
                self.abort()
            else:  # after other signals, Open MPI's launcher still waits for the lost hosts
                os.kill(pid, signal.SIGKILL)
                return


def _name_and_parent(pid: int) -> Tuple[str, int]:
    """Return the name of a process and its parent's id; ("", 0) if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            before, _, after = file.read().rpartition(")")
    except OSError:
        return "", 0
    return before.partition("(")[2], int(after.split()[1])


def world_of_process() -> Optional[World]:
    """Return the `World` of this program according to its environment; None if there is only one host."""
    place = environment.place(os.environ)
    return None if place is None else World(place)


def refuse_mpi() -> None:
    """Make ``MPI.Init()`` raise an error: the bridge has initialized MPI, and a second process would wait forever."""
    try:
        from mpi4py import MPI
    except ImportError:
        return  # the bridge reports it

    def refuse(*_: Any) -> None:
        raise StateError(
            "this program runs on several hosts, where synkhronos itself uses MPI and the program cannot: remove "
            "MPI.Init(), and exchange values between hosts with synkhronos.all_reduce and the other collectives"
        )

    MPI.Init = MPI.Init_thread = refuse
