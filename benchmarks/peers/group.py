"""Groups of peer processes, controlled by this process."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from multiprocessing.connection import Listener
from pathlib import Path

from benchmarks.measure import WrongResult

ROOT = Path(__file__).resolve().parents[2]
PREFIX = Path(sys.prefix)

#: Launchers of MPI, with options; other kinds fork their own processes. (Both MPIs install an ``mpiexec``.)
LAUNCHERS = {
    "openmpi": ("prterun", ["--allow-run-as-root", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "-n"]),
    "mpich": ("mpiexec.hydra", ["-n"]),
}


class Unavailable(Exception):
    """Error for a peer that is not installed or does not start; the message contains the reason."""


class Group:
    """Processes of one kind that run operations together on request and return the times.

    Parameters
    ----------
    kind : str
        Name of a module in this folder, or ``openmpi`` or ``mpich``, which share a module.
    size : int
        Number of processes.
    """

    def __init__(self, kind, size):
        if kind in ("gloo", "ddp") and importlib.util.find_spec("torch") is None:
            raise Unavailable(f"{NAMES[kind]}: it is a part of torch, which is not installed")
        self.kind, self.size, self.connections = kind, size, []
        self._folder = tempfile.mkdtemp(prefix="peers-")
        address = os.path.join(self._folder, "socket")
        command = [sys.executable, "-m", "benchmarks.peers", kind, str(size), address]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        if kind in LAUNCHERS:
            launcher, options = LAUNCHERS[kind]
            path = shutil.which(launcher, path=str(PREFIX / "bin"))
            if path is None:
                shutil.rmtree(self._folder)
                raise Unavailable(f"{kind}: it is not installed (pip install mpi4py {kind})")
            command = [path] + options + [str(size)] + command
            environment["MPI4PY_MPIABI"] = kind
            environment["LD_LIBRARY_PATH"] = "{}:{}".format(PREFIX / "lib", PREFIX / "lib" / "openmpi")
        self._log = open(os.path.join(self._folder, "log"), "w+b")
        with Listener(address, "AF_UNIX", backlog=size) as listener:
            self._process = subprocess.Popen(
                command, env=environment, cwd=str(ROOT), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
            )
            listener._listener._socket.settimeout(60)
            try:
                by_rank = {}
                for _ in range(size):
                    connection = listener.accept()
                    by_rank[connection.recv()] = connection
            except (OSError, EOFError):
                words = self.last_line()
                self.close()
                raise Unavailable(f"{kind}: its processes do not start: {words}") from None
        self.connections = [by_rank[rank] for rank in range(size)]

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

    KINDS = ("barrier", "pipes", "openmpi", "mpich", "gloo", "ddp")

    def __init__(self, kinds=KINDS):
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
        """Return contenders of the available kinds, by their names in tables."""
        groups = {kind: self.get(kind, size) for kind in kinds}
        return {NAMES[kind]: group.contender(what, nbytes, pause) for kind, group in groups.items() if group}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for group in self._open.values():
            group.close()
        self._open.clear()


NAMES = {
    "barrier": "mp.Barrier pair",
    "pipes": "pipes",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "gloo": "Gloo",
    "ddp": "PyTorch DDP",
}
