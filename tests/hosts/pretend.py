"""Pretend hosts on one machine: each has its own network, host name, processes, ``/dev/shm`` and ``/tmp``.

::

    +-- h0 ---------+   +-- h1 ---------+   +-- h2 ---------+
    | 10.77.0.1     |   | 10.77.0.2     |   | 10.77.0.3     |   namespaces of the kernel: network, host name,
    |     eth0      |   |     eth0      |   |     eth0      |   shared memory, mounts, processes
    +------|--------+   +------|--------+   +------|--------+
          sw0                 sw1                 sw2           cables: pairs of virtual interfaces, limited by `tc`
    +------|-------------------|-------------------|--------+
    |                        switch                         |   a bridge
    +-------------------------------------------------------+

They share the file system except for ``/dev/shm`` and ``/tmp``, like hosts of a cluster. Their processes end with the
cluster, and the cluster ends with the process that made it, even if that is killed. `switch.py` is the other side.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

#: Token bucket of `tc`: with less than 64 KiB, which the kernel sends in one piece, the rate would not be reached.
BURST, LONGEST_IN_QUEUE = "96k", "30ms"
#: States of a bridge port. If it is disabled, frames vanish, but the interfaces stay up.
DISABLED, FORWARDING = "0", "3"
#: Time limits in seconds for starting and ending the cluster.
UP_TIMEOUT_S, DOWN_TIMEOUT_S = 30, 10

#: Commands to try before the first test: one interface of each required kind, and a limit.
_ATTEMPT = (
    "ip link add switch type bridge && ip link add port type veth peer name eth0 && "
    f"tc qdisc add dev port root tbf rate 1gbit burst {BURST} latency {LONGEST_IN_QUEUE}"
)


class Traffic(NamedTuple):
    """Numbers of bytes that a host has sent and received over its cable."""

    sent: int
    received: int


@functools.lru_cache(maxsize=None)
def lacking():
    """Return what is missing for pretend hosts on this machine, in one sentence, or "" if they can be made."""
    if not sys.platform.startswith("linux"):
        return f"pretend hosts need Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "pretend hosts need root, who alone may make network namespaces"
    needed = {
        "ip": "iproute2",
        "tc": "iproute2",
        "bridge": "iproute2",
        "nsenter": "util-linux",
        "unshare": "util-linux",
    }
    missing = [command for command in needed if shutil.which(command) is None]
    if missing:
        packages = " ".join(sorted({needed[command] for command in missing}))
        return f"pretend hosts need the commands {', '.join(missing)}: apt-get install {packages}"
    flags = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork"]
    done = subprocess.run(
        ["unshare", *flags, "sh", "-c", _ATTEMPT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        said = " ".join(done.stdout.decode(errors="replace").split()) or f"exit status {done.returncode}"
        return f"pretend hosts need namespaces, bridges, veth pairs and tc's tbf, which this kernel or container refuses: {said}"
    return ""


class Command(subprocess.Popen):
    """A command on a pretend host, as a child of `nsenter`; signals go to the command itself."""

    def send_signal(self, number):
        """Send a signal to the command, or to `nsenter` if that has not started the command yet."""
        try:
            inside = psutil.Process(self.pid).children()
            for process in inside:
                process.send_signal(number)
            if inside:
                return
        except psutil.NoSuchProcess:
            pass
        super().send_signal(number)

    def terminate(self):
        """Ask the command to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self):
        """Kill the command."""
        self.send_signal(signal.SIGKILL)


class Cluster:
    """A cluster of pretend hosts, called h0, h1 and so on; a context manager.

    Parameters
    ----------
    n : int
        Number of hosts.
    rate : str
        Rate of every cable in either direction, as `tc` writes it ("1gbit", "100mbit"), or "unlimited".
    shared : sequence of path
        Folders below ``/tmp`` that all hosts see, besides this repository's and the interpreter's.

    Attributes
    ----------
    n : int
        How many hosts there are.
    names : list of str
        The hosts' names, which resolve on all of them.
    agent : str
        A program that mpirun on a host uses in place of ``ssh``, to start processes on other hosts.

    Examples
    --------
    >>> with Cluster(2) as hosts:
    ...     hosts.run(1, ["hostname"])
    'h1\\n'
    """

    def __init__(self, n, rate="unlimited", shared=()):
        self.n, self.names = n, [f"h{i}" for i in range(n)]
        self._commands = []
        self._folder = tempfile.mkdtemp(prefix=f"pretend-hosts-{os.getpid()}-", dir="/tmp")
        self.agent = os.path.join(self._folder, "agent")
        known = [ROOT, sys.prefix, sys.base_prefix, self._folder, *shared]
        config = {
            "n": n,
            "folder": self._folder,
            "shared": sorted({os.path.realpath(str(folder)) for folder in known}, key=len),
            "parent": os.getpid(),
        }
        with open(self.agent, "w") as script:
            script.write(f'#!/bin/sh\nexec {sys.executable} -S -E {HERE / "agent.py"} {self._folder}/socket "$@"\n')
        os.chmod(self.agent, 0o755)
        with tempfile.TemporaryFile() as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-S", "-E", str(HERE / "switch.py"), json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to the tests, which then shut down the cluster
            )
            try:
                inside = self._supervisor.stdout.readline()
                if not inside:
                    self._supervisor.wait(UP_TIMEOUT_S)
                    log.seek(0)
                    raise RuntimeError(f"the pretend hosts do not come up: {log.read().decode(errors='replace')}")
                self._switch, self._pids = self._outside(json.loads(inside))
                self.rate(rate)
            except BaseException:
                self.close()
                raise

    def _outside(self, inside):
        """Return the process ids of the switch and of the hosts' first processes in this process's namespace.

        Parameters
        ----------
        inside : list of int
            The ids of the hosts' first processes in the switch's namespace.
        """
        (switch,) = psutil.Process(self._supervisor.pid).children()
        seen = {}
        for child in switch.children():
            lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
            (numbers,) = [line.split()[1:] for line in lines if line.startswith("NSpid:")]
            seen[int(numbers[-2])] = child.pid
        return switch.pid, [seen[pid] for pid in inside]

    # -- commands ------------------------------------------------------------------------------------------------------

    def on(self, host, command, **popen):
        """Start a command on a host.

        Parameters
        ----------
        host : int
            The number of the host.
        command : sequence of str
            The program and its arguments.
        **popen
            Arguments of `subprocess.Popen`; ``cwd`` is a folder of the host, by default ``/``.

        Returns
        -------
        Command
            The running command. Its methods send signals to the command itself.
        """
        if not self.is_on(host):
            raise RuntimeError(f"h{host} is switched off")
        environment = dict(popen.pop("env", None) or os.environ)
        environment.pop("TMPDIR", None)  # the host may lack this folder
        enter = self._enter(self._pids[host], "--net", "--uts", "--ipc", "--mount", "--pid")
        folder = str(popen.pop("cwd", None) or "/")
        process = Command([*enter, "env", "-C", folder, *map(str, command)], env=environment, **popen)
        self._commands.append(process)
        return process

    def run(self, host, command, timeout=60, **popen):
        """Run a command on a host and return what it printed; raise `AssertionError` if it fails."""
        process = self.on(
            host, command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **popen
        )
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        assert process.returncode == 0, (
            f"h{host}: exit status {process.returncode}: {(out + err).decode(errors='replace')}"
        )
        return out.decode(errors="replace")

    @staticmethod
    def _enter(pid, *namespaces):
        """Return the beginning of a command that runs in namespaces of a process."""
        return ["nsenter", "-t", str(pid), *namespaces, "--"]

    def _on_switch(self, *command):
        """Run a command in the network of the switch and return what it printed."""
        return subprocess.check_output([*self._enter(self._switch, "--net"), *command])

    # -- cables --------------------------------------------------------------------------------------------------------

    def address(self, host):
        """Return the address of a host."""
        return f"10.77.0.{host + 1}"

    def cut(self, host):
        """Cut a host's cable: packets are lost, and neither side is notified."""
        self._on_switch("bridge", "link", "set", "dev", f"sw{host}", "state", DISABLED)

    def mend(self, host):
        """Mend a host's cable."""
        self._on_switch("bridge", "link", "set", "dev", f"sw{host}", "state", FORWARDING)

    def rate(self, rate):
        """Limit all cables, in both directions, to a rate in the notation of `tc`; "unlimited" removes the limit."""
        for host in range(self.n):
            if self.is_on(host):
                for pid, device in ((self._switch, f"sw{host}"), (self._pids[host], "eth0")):
                    enter = self._enter(pid, "--net")
                    if rate == "unlimited":
                        subprocess.call(
                            [*enter, "tc", "qdisc", "del", "dev", device, "root"], stderr=subprocess.DEVNULL
                        )
                        continue
                    limit = ["rate", rate, "burst", BURST, "latency", LONGEST_IN_QUEUE]
                    subprocess.check_call([*enter, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *limit])

    def bytes(self, host):
        """Return the total `Traffic` of a host's cable since it was made, headers included."""
        (link,) = json.loads(self._on_switch("ip", "-s", "-j", "link", "show", f"sw{host}"))
        return Traffic(link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"])

    # -- start and end -------------------------------------------------------------------------------------------------

    def is_on(self, host):
        """Return whether a host is switched on."""
        return is_alive(self._pids[host])

    def off(self, host):
        """Switch a host's power off: all of its processes are killed, and their last packets are lost.

        The cable is cut first, because the kernel would announce to peers that killed processes closed their sockets.
        """
        self.cut(host)
        os.kill(self._pids[host], signal.SIGKILL)
        until = time.monotonic() + DOWN_TIMEOUT_S
        while self.is_on(host):
            assert time.monotonic() < until, f"h{host} does not go off"
            time.sleep(0.01)

    def processes(self, host):
        """Return the processes of a host, except its first one, as `psutil.Process` with ids of this machine."""
        first = self._pids[host]
        try:
            namespace = os.stat(f"/proc/{first}/ns/pid").st_ino
        except OSError:
            return []
        found = []
        for pid in psutil.pids():
            try:
                if pid != first and os.stat(f"/proc/{pid}/ns/pid").st_ino == namespace and is_alive(pid):
                    found.append(psutil.Process(pid))
            except (OSError, psutil.NoSuchProcess):
                pass
        return found

    def shared_memory(self, host):
        """Return the names of files in a host's ``/dev/shm``."""
        return os.listdir(f"/proc/{self._pids[host]}/root/dev/shm")

    def left(self, host, seconds=10):
        """Return a host's processes that still run after some seconds: mpirun ends before the processes it started."""
        until = time.monotonic() + seconds
        while True:
            found = self.processes(host)
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.02)

    def close(self):
        """Shut down all hosts with all their processes, and close the pipes of commands. May be called repeatedly."""
        self._supervisor.stdin.close()
        self._supervisor.stdout.close()
        try:
            self._supervisor.wait(DOWN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()  # the kernel then kills all others
            self._supervisor.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        for process in self._commands:
            process.wait(DOWN_TIMEOUT_S)
            for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
                with contextlib.suppress(BrokenPipeError):  # for unwritten data
                    stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def is_alive(pid):
    """Return whether a process exists and has not ended."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
