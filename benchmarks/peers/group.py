"""Groups of peer processes, controlled by this process."""

import functools
import importlib.util
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Dict, NamedTuple, Tuple

from benchmarks.measure import WrongResult

ROOT = Path(__file__).resolve().parents[2]
PREFIX = Path(sys.prefix)

#: Launchers of MPI, with options; other programs fork their own processes. (Both MPIs install an ``mpiexec``.)
LAUNCHERS = {
    "openmpi": ("prterun", ["--allow-run-as-root", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "-n"]),
    "mpich": ("mpiexec.hydra", ["-n"]),
}
REDUCTIONS = ("all_reduce", "reduce", "broadcast")
RELEASE_GATHER = {
    f"MPIR_CVAR_{name}_POSIX_INTRA_ALGORITHM": "release_gather" for name in ("ALLREDUCE", "REDUCE", "BCAST")
}


class Kind(NamedTuple):
    """A peer with one of its settings."""

    name: str  # in tables
    program: str  # key of `peers.__main__.PROGRAMS`
    needs: Tuple[str, ...] = ()  # modules that must be installed
    settings: Dict[str, str] = {}  # environment variables
    component: str = ""  # component for collectives that Open MPI must have
    cases: Tuple[str, ...] = ()  # the only cases where the settings matter; empty for all
    largest: float = math.inf  # bytes of the largest suitable arrays


KINDS = {
    "barrier": Kind("mp.Barrier pair", "barrier"),
    "pipes": Kind("pipes", "pipes"),
    "openmpi": Kind("Open MPI", "openmpi"),
    "sm": Kind("Open MPI, sm", "openmpi", (), {"OMPI_MCA_coll_sm_priority": "40"}, "sm", REDUCTIONS, 1 << 20),
    "xhc": Kind("Open MPI, XHC", "openmpi", (), {"OMPI_MCA_coll_xhc_priority": "40"}, "xhc", REDUCTIONS),
    "acoll": Kind("Open MPI, acoll", "openmpi", (), {"OMPI_MCA_coll_acoll_priority": "40"}, "acoll"),
    "mpich": Kind("MPICH", "mpich"),
    "release_gather": Kind("MPICH, release_gather", "mpich", (), RELEASE_GATHER, "", REDUCTIONS),
    "gloo": Kind("Gloo", "gloo", ("torch",)),
    "deepspeed": Kind("DeepSpeed", "deepspeed", ("torch", "deepspeed", "ninja"), {}, "", ("all_reduce",)),
    "ddp": Kind("PyTorch DDP", "ddp", ("torch",)),
    "ddp-static": Kind("PyTorch DDP, static graph", "ddp", ("torch",), {"DDP_STATIC": "1"}),
}
#: Kinds with collectives, and kinds that train networks: the best setting of the best library is the best peer.
COLLECTIVES = ("openmpi", "sm", "xhc", "acoll", "mpich", "release_gather", "gloo", "deepspeed")
DDP = ("ddp", "ddp-static")
#: Maximum number of seconds until a peer has started; DeepSpeed's kernels are compiled at the first start.
START_S = 300


class Unavailable(Exception):
    """Error for a peer that is not installed or does not start; the message contains the reason."""


class Group:
    """Processes of one kind that run operations together on request and return the times.

    Parameters
    ----------
    kind : str
        Key of `KINDS`.
    size : int
        Number of processes.
    """

    def __init__(self, kind, size):
        name, program, needs, settings, component, *_ = KINDS[kind]
        for module in needs:
            if importlib.util.find_spec(module) is None:
                raise Unavailable(f"{name}: {module} is not installed")
        self.kind, self.size, self.connections = kind, size, []
        launcher, options = LAUNCHERS.get(program, (None, []))
        path = shutil.which(launcher, path=str(PREFIX / "bin")) if launcher else ""
        if path is None:
            raise Unavailable(f"{name}: it is not installed (pip install mpi4py {program})")
        if component and component not in components():
            raise Unavailable(f"{name}: this Open MPI has no component {component} for collectives")
        self._folder = tempfile.mkdtemp(prefix="peers-")
        address = os.path.join(self._folder, "socket")
        command = [sys.executable, "-m", "benchmarks.peers", program, str(size), address]
        modules = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = dict(os.environ, PYTHONPATH=modules, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", **settings)
        if launcher:
            command = [path] + options + [str(size)] + command
            environment["MPI4PY_MPIABI"] = program
            environment["LD_LIBRARY_PATH"] = "{}:{}".format(PREFIX / "lib", PREFIX / "lib" / "openmpi")
        self._log = open(os.path.join(self._folder, "log"), "w+b")
        by_rank = {}
        try:
            with Listener(address, "AF_UNIX", backlog=size) as listener:
                self._process = subprocess.Popen(
                    command,
                    env=environment,
                    cwd=str(ROOT),
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                )
                for _ in range(size):
                    connection = self._accept(listener)
                    by_rank[connection.recv()] = connection
        except (OSError, EOFError):
            words = self.last_line()
            self.close()
            raise Unavailable(f"{name}: its processes do not start: {words}") from None
        self.connections = [by_rank[rank] for rank in range(size)]

    def _accept(self, listener):
        """Return the next process's connection; raise OSError if it does not come or the processes have ended."""
        listener._listener._socket.settimeout(1)
        for _ in range(START_S):
            try:
                return listener.accept()
            except socket.timeout:
                if self._process.poll() is not None:
                    break
        raise OSError("no connection")

    def last_line(self):
        """Return the last line of the processes' output, usually the cause of their death."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip().split("\n")[-1]

    def close(self):
        """End the processes."""
        for connection in self.connections:
            try:
                connection.send(None)
            except OSError:
                pass
            connection.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def contender(self, what, nbytes=0, pause=0.0):
        """Return a contender that measures an operation of this group."""
        return Remote(self, what, nbytes, pause)


class Remote:
    """Contender that runs one operation of a group; see `measure.Local`."""

    def __init__(self, group, what, nbytes, pause):
        self.group, self.case = group, (what, nbytes, pause)

    def measure(self, repeats, warm=0):
        """Return rank 0's seconds for `repeats` operations, after `warm` uncounted operations."""
        for connection in self.group.connections:
            connection.send((self.case, repeats, warm))
        try:
            answers = [connection.recv() for connection in self.group.connections]
        except EOFError:
            raise WrongResult(f"{self.group.kind}, {self.case}: {self.group.last_line()}") from None
        for rank, (_, fault) in enumerate(answers):
            if fault:
                raise WrongResult(f"{self.group.kind}, rank {rank}, {self.case}: {fault}")
        return answers[0][0]


class Groups:
    """Peer groups of a run, started at their first use; a context manager that ends the groups on exit.

    Parameters
    ----------
    kinds : sequence of str
        Kinds that may be started; empty for a run without peers.
    """

    def __init__(self, kinds=tuple(KINDS)):
        self.kinds, self._open, self.missing = kinds, {}, {}

    def get(self, kind, size):
        """Return the group of a kind and size; None if the kind is not available or not selected."""
        if kind not in self.kinds or kind in self.missing:
            return None
        if (kind, size) not in self._open:
            try:
                self._open[kind, size] = Group(kind, size)
            except Unavailable as error:
                self.missing[kind] = str(error)
                return None
        return self._open[kind, size]

    def contenders(self, kinds, size, what, nbytes=0, pause=0.0):
        """Return contenders of the available kinds whose settings matter in this case, by their names in tables."""
        suitable = [kind for kind in kinds if what in (KINDS[kind].cases or (what,))]
        groups = {kind: self.get(kind, size) for kind in suitable if nbytes <= KINDS[kind].largest}
        return {KINDS[kind].name: group.contender(what, nbytes, pause) for kind, group in groups.items() if group}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for group in self._open.values():
            group.close()
        self._open.clear()


@functools.lru_cache(None)
def components():
    """Return the names of the installed Open MPI's components for collectives."""
    command = [str(PREFIX / "bin" / "ompi_info"), "--parsable"]
    lines = subprocess.run(command, stdout=subprocess.PIPE).stdout.decode().splitlines()
    return {words[2] for words in (line.split(":") for line in lines) if words[:2] == ["mca", "coll"]}
