"""A real Slurm on pretend hosts, for tests: ``slurmctld`` on the first host, and ``slurmd`` on every host.

Debian's packages suffice (`tools/install_slurm.sh`). The daemons need no accounts, no munge and no cgroups here.
"""

import linecache
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "salloc", "scancel", "scontrol", "sinfo", "squeue")
PMIX = f"/usr/lib/{os.uname().machine}-linux-gnu/pmix2/lib/libpmix.so"  # which Debian's plugin loads
UP_TIMEOUT_S, JOB_TIMEOUT_S = 30, 120

#: Run at the start of every Python of a job, with the shared folder: a crash leaves a file with its stack.
RECORD_CRASHES = """
import faulthandler, os, socket
faulthandler.enable(open(os.path.join({folder!r}, f"crash-{{socket.gethostname()}}-{{os.getpid()}}"), "w"), all_threads=False)
"""

CONFIG = """
ClusterName=pretend
SlurmctldHost=h0
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=h[0-{last}] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def lacking():
    """Return what is missing for Slurm on this machine, in one sentence, or "" if nothing is."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"Slurm's {', '.join(missing)} were not found: run tools/install_slurm.sh"
    if not os.path.exists(PMIX):
        return f"Slurm's library for --mpi=pmix was not found ({PMIX}): run tools/install_slurm.sh"
    return ""


class Slurm:
    """Slurm on a cluster of pretend hosts, which must share ``folder``.

    Attributes
    ----------
    hosts : Cluster
    variables : dict
        Environment variables of Slurm's commands.
    """

    def __init__(self, hosts, folder, variables):
        self.hosts, self.folder = hosts, folder
        self.variables = {**os.environ, **variables, "SLURM_CONF": f"{folder}/slurm.conf"}
        self.variables["OMPI_MCA_opal_signal"] = "62"  # not the signals of crashes: see `RECORD_CRASHES`
        os.makedirs(f"{folder}/state")
        with open(f"{folder}/sitecustomize.py", "w") as file:
            file.write(RECORD_CRASHES.format(folder=folder))
        with open(f"{folder}/slurm.conf", "w") as file:
            file.write(CONFIG.format(folder=folder, last=hosts.n - 1))
        daemons = [(0, ["slurmctld", "-D"]), *[(i, ["slurmd", "-D", "-N", f"h{i}"]) for i in range(hosts.n)]]
        for host, command in daemons:
            self.start(command, host, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + UP_TIMEOUT_S
        while True:
            status, said = self.run(["sinfo", "-h", "-o", "%D %t"])
            if (status, said.split()) == (0, [str(hosts.n), "idle"]):
                return
            if time.monotonic() > until:
                raise RuntimeError(f"Slurm does not come up: {said}")
            time.sleep(0.1)

    def start(self, command, host=0, **popen):
        """Start a command on a host, in the shared folder, with Slurm's environment."""
        return self.hosts.on(host, command, env=self.variables, cwd=self.folder, stdin=subprocess.DEVNULL, **popen)

    def run(self, command, timeout=60):
        """Run a command on the first host; return its exit status and what it printed.

        The command is repeated if MPI has crashed while it started.
        """
        status, said = self._run(command, timeout)
        return self._run(command, timeout) if status and self.mpi_has_crashed() else (status, said)

    def mpi_has_crashed(self):
        """Return whether any process has crashed in ``MPI_Init`` since the last call.

        Open MPI 5 did so in 3 of about 100 jobs on a busy machine, where a process received a message (in
        ``mca_pml_ob1_recv_frag_callback_match``) during its own initialization.
        """
        files = list(Path(self.folder).glob("crash-*"))
        stacks = [file.read_text() for file in files]
        for file in files:
            file.unlink()
        frames = [re.search(r'File "(.*)", line (\d+) in', stack) for stack in stacks]  # the innermost ones
        return any("MPI.Init_thread(" in linecache.getline(frame[1], int(frame[2])) for frame in frames if frame)

    def _run(self, command, timeout):
        process = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            raise AssertionError(f"{command} still runs after {timeout} s: {out.decode(errors='replace')}") from None
        return process.returncode, out.decode(errors="replace")

    def daemons(self, host):
        """Return the names of the daemons on a host, which are its only processes between jobs."""
        return sorted(["slurmctld", "slurmscriptd"] * (host == 0) + ["slurmd"])

    def left(self, host, seconds=15):
        """Return the names of a host's processes other than the daemons that still run after some seconds."""
        until = time.monotonic() + seconds
        while True:
            found = sorted(map(_name, self.hosts.processes(host)))
            if found == self.daemons(host) or time.monotonic() > until:
                return [name for name in found if name not in self.daemons(host)]
            time.sleep(0.05)

    def batch(self, options, command):
        """Run a batch job of one command to its end; return what it printed. (``sbatch --wait`` looks rarely.)"""
        for _ in range(2):
            status, said = self.run(["sbatch", "--parsable", "-o", "printed.txt", *options, "--wrap", command])
            assert status == 0, said
            until = time.monotonic() + JOB_TIMEOUT_S
            while self.run(["squeue", "-h", "-o", "%i"])[1].split():
                assert time.monotonic() < until, "the batch job does not end"
                time.sleep(0.2)
            if not self.mpi_has_crashed():
                break
        with open(f"{self.folder}/printed.txt") as file:
            return file.read()


def _name(process):
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return "an ended process"
