"""Check everything that the library can use on this machine, and suggest remedies: ``python -m synkhronos doctor``.

Importing an engine or compiling could harm this process (Theano may open a GPU), so both run in a subprocess.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Callable, List, NamedTuple, Sequence, Tuple

from synkhronos import engines
from synkhronos.cluster.environment import for_ranks
from synkhronos.engines.requirements import LIBRARIES, Requirement
from synkhronos.host import gpus, machine
from synkhronos.host.units import readable_bytes
from synkhronos.kernels import copy as streaming
from synkhronos.mesh.devices import FORCED, MANY_DEVICES

OK = "ok"  # no problem
WARN = "warn"  # a problem that does not prevent the library from working
MISSING = "missing"  # a problem that must be solved first

# Time limit for a subprocess; Theano's first import is slow, because it compiles.
CHECK_TIMEOUT_S = 300
# Recommended size of /dev/shm, the fallback for memfd; containers have 64 MB by default.
ENOUGH_SHM_BYTES = 1 << 30
MOUNT = "mount -o remount,size=4g {}, or docker run --shm-size=4g ..."


class Finding(NamedTuple):
    """Result of one check: subject, status, description, and remedy ("" if none is needed or known)."""

    subject: str
    status: str
    text: str
    remedy: str = ""


ENGINES = {name: LIBRARIES[name] for name in engines.LIBRARIES}

#: Remedies by pattern in the last error line of an engine's test program; {} stands for the engine's name in capitals.
REMEDIES = (
    (
        r"compiledir|\[Errno (2|13|17|20|28|30)\]",
        "set {}_FLAGS=base_compiledir=FOLDER (default: below HOME); FOLDER must be persistent, writable and not full",
    ),
    (
        r"undefined symbol: \w*(dot|gem[mv]|axpy)|cannot find -l|lib\w*(blas|mkl)",
        "leave blas.ldflags empty in {}_FLAGS and its configuration file, to use NumPy's BLAS",
    ),
    (r"timed out", "retry while nothing else runs; if that does not help, delete the folders listed under Caches"),
)

#: Environment variables that change JAX's devices or their memory.
JAX_SETTINGS = (
    "JAX_PLATFORMS",
    "JAX_NUM_CPU_DEVICES",
    "JAX_ENABLE_X64",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)


def check_python() -> Finding:
    """Check whether any engine supports this version of Python."""
    found = f"{platform.python_version()} ({sys.executable})"
    here = [fit.title for fit in ENGINES.values() if fit.runs_here()]
    if here:
        return Finding("Python", OK, f"{found}, for {' or '.join(here)}")
    remedy = "install Python 3.8 to 3.11 for Theano, or 3.11 to 3.14 for PyTensor, e.g. "
    remedy += "apt-get install python3.13 python3.13-venv"
    return Finding("Python", MISSING, found + ", supported by neither Theano nor PyTensor", remedy)


def check_packages() -> Finding:
    """Import the packages that the library itself requires."""
    seen, missing = [], []
    for name in ("numpy", "posix_ipc", "threadpoolctl", "cloudpickle"):
        try:
            module = import_module(name)
            seen.append("{} {}".format(name, getattr(module, "__version__", getattr(module, "VERSION", ""))))
        except ImportError as error:
            missing.append(name)
            seen.append(f"{name}: {error}")
    if missing:
        return Finding("Packages", MISSING, ", ".join(seen), "pip install " + " ".join(missing))
    return Finding("Packages", OK, ", ".join(seen))


def check_compiler() -> Finding:
    """Look for g++ and Python's headers, which Theano and PyTensor's C linker need."""
    lacking, note = (MISSING, "") if installed("theano") else (WARN, "; PyTensor's default, Numba, needs none")
    compiler = shutil.which("g++")
    if not compiler:
        return Finding("C++ compiler", lacking, "no g++ on PATH" + note, "apt-get install g++")
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.exists():
        remedy = f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-dev"
        return Finding("C++ compiler", lacking, f"{compiler}, but there is no {header}{note}", remedy)
    status, text = try_command(compiler, "-dumpfullversion", "-dumpversion")
    if status:
        return Finding("C++ compiler", lacking, f"{compiler} fails: {text}{note}", "apt-get install --reinstall g++")
    return Finding("C++ compiler", OK, f"g++ {text} ({compiler})")


def check_engines() -> Finding:
    """Check which engines are installed and whether they support this Python and this NumPy."""
    here = {name: fit for name, fit in ENGINES.items() if installed(name)}
    if not here:
        commands = [fit.command for fit in ENGINES.values() if fit.runs_here()]
        return Finding("Engines", MISSING, "neither Theano nor PyTensor is installed", ", or ".join(commands))
    numpy = version_of("numpy")
    text = " and ".join(f"{fit.title} {version_of(name)}" for name, fit in here.items()) + f", NumPy {numpy}"
    unfit = [fit for fit in here.values() if not (fit.runs_here() and fit.takes(numpy))]
    if not unfit:
        return Finding("Engines", OK, text)
    needs = " and ".join(map(needs_of, unfit))
    names = [name for name, fit in ENGINES.items() if fit in unfit]
    if len(unfit) < len(here):
        remedy = "create one environment per engine, e.g. with make install ENGINE=" + names[0]
        return Finding("Engines", WARN, f"{text}; {needs}", remedy)
    suitable = [fit for fit in unfit if fit.runs_here()] or [fit for fit in ENGINES.values() if fit.runs_here()]
    return Finding("Engines", MISSING, f"{text}; {needs}", suitable[0].command if suitable else unfit[0].refusal())


def needs_of(fit: Requirement) -> str:
    """Return the versions of Python and NumPy that an engine needs, as text."""
    (_, first), (_, last) = fit.pythons
    numpy = "1.23 at most" if fit.numpys[0] < (2, 0) else "2 or later"
    return f"{fit.title} needs Python 3.{first} to 3.{last} and NumPy {numpy}"


def check_theano() -> Finding:
    """Import Theano and compile two small functions with it."""
    found = tried(
        Finding("Theano", MISSING, ""),
        "import theano, theano.tensor as T",
        "x = T.vector()",
        "assert theano.function([x], x.sum() * 2)([1, 2]) == 6, 'the sum is wrong'",
        "a = T.tensor3(); f = theano.function([a], T.batched_dot(a, a))",  # the C code of batched_dot needs a BLAS
        "assert (f([[[2]], [[3]]]) == [[[4]], [[9]]]).all(), 'a product of batches is wrong'",
        "kind = 'compiles C++' if theano.config.cxx else 'NO C++: very slow'",
        "print('Theano', theano.__version__ + ',', theano.config.device + ',', kind)",
        engine="theano",
    )
    is_slow = found.status == OK and "NO C++" in found.text
    return found._replace(status=WARN, remedy="apt-get install g++") if is_slow else found


def check_pytensor() -> Finding:
    """Import PyTensor and compile a small function with its default linker."""
    return tried(
        Finding("PyTensor", MISSING, ""),
        "import pytensor, pytensor.tensor as pt",
        "x = pt.vector()",
        "f = pytensor.function([x], x.sum() * 2)",
        "assert f([1, 2]) == 6, 'the sum is wrong'",
        "linker = type(f.maker.linker).__name__",
        "if linker == 'NumbaLinker':",
        "    import numba",
        "    linker += ' with Numba ' + numba.__version__",
        "print('PyTensor', pytensor.__version__ + ',', linker)",
        engine="pytensor",
    )


def check_caches() -> Finding:
    """Report the folders and sizes of the engines' compilation caches, and whether the folders are writable."""
    parts, remedy = [], ""
    for name in filter(installed, ENGINES):
        title = ENGINES[name].title
        status, text = try_python(f"import {name}", f"print({name}.config.base_compiledir)")
        if status:
            parts.append(f"{title}: {text}")
            remedy = remedy_for(name, text)
            continue
        folder = Path(text)
        trouble = why_not_writable(folder)
        if trouble:
            parts.append(f"{title} cannot write to {folder} ({trouble})")
            remedy = REMEDIES[0][1].format(name.upper())
            continue
        numba = bytes_below(folder / "numba")
        compiled = f"C {readable_bytes(bytes_below(folder) - numba)}"
        if name == "pytensor":
            compiled = f"Numba {readable_bytes(numba)}, {compiled}"
        parts.append(f"{title}: {compiled} in {folder}")
    return Finding("Caches", WARN if remedy else OK, "; ".join(parts) or "none", remedy)


def check_lasagne() -> Finding:
    """Check that Lasagne can be imported."""
    failed = Finding("Lasagne", WARN, "", 'pip install lasagne "setuptools<81"')
    return tried(failed, "import lasagne", "print('Lasagne', lasagne.__version__)", engine="theano")


def check_pymc() -> Finding:
    """Check the version of PyMC, and import nutpie, which ``pm.sample`` uses if it is installed."""
    text = f"PyMC {version_of('pymc')}"
    if tuple(map(int, version_of("pymc").split(".")[:2])) < (6, 3):
        text += ", but distributing models needs PyMC 6.3"
        return Finding("PyMC", WARN, text, 'pip install "pymc>=6.3,<7"')
    if not installed("nutpie"):
        return Finding("PyMC", WARN, f"{text}; without nutpie, pm.sample uses its own sampler", "pip install nutpie")
    failed = Finding("PyMC", WARN, "", 'pip install "nutpie>=0.16"')
    found = tried(failed, "import nutpie", "print(nutpie.__version__)", engine="pytensor")
    return found._replace(text=f"{text}{', nutpie' if found.status == OK else '; nutpie fails:'} {found.text}")


def check_jax() -> Finding:
    """List the devices that JAX offers to ``fork(devices="jax")``, in a subprocess that reserves no memory of GPUs."""
    settings = [f"{name}={os.environ[name]}" for name in JAX_SETTINGS if os.environ.get(name)]
    found = tried(
        Finding("JAX", WARN, "", 'pip install "jax[cuda13]", or "jax" without GPUs'),
        "import os",
        "os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'",
        "import jax",
        "there = jax.local_devices()",
        "kinds = ', '.join(sorted({one.device_kind for one in there}))",
        "bits = '64' if jax.config.jax_enable_x64 else '32 (fork changes them to 64)'",
        "print(f'JAX {jax.__version__}, devices: {len(there)} ({there[0].platform}: {kinds}), bits: {bits}')",
    )
    if found.status != OK:
        return found
    text = f"{found.text}, settings: {', '.join(settings) or 'none'}"
    if "(cpu: " not in text:
        return Finding("JAX", OK, text + "; by default, JAX reserves 75% of each GPU's memory")
    forced = FORCED.search(os.environ.get("XLA_FLAGS", ""))
    if forced is not None and int(forced.group(1)) >= MANY_DEVICES:
        return Finding("JAX", WARN, text, "unset XLA_FLAGS, or pass the number of ranks: fork(2, devices='jax')")
    if gpus.count_gpus():
        return Finding(
            "JAX", WARN, text + "; JAX does not use the GPUs", 'pip install "jax[cuda13]", see docs/gpus.rst'
        )
    return Finding("JAX", OK, text + "; JAX_NUM_CPU_DEVICES sets the number of CPU devices")


def check_blas() -> Finding:
    """Check which BLAS the engines call and whether its threads can be limited."""
    try:
        import_module("numpy")
        if installed("pytensor"):
            import_module("scipy.linalg")  # Numba's code calls SciPy's BLAS
        pools = import_module("threadpoolctl").threadpool_info()
    except ImportError as error:
        return Finding("BLAS", WARN, f"not found: {error}", "pip install numpy threadpoolctl")
    blas = [pool for pool in pools if pool["user_api"] == "blas"]
    if not blas:
        text = "the number of threads of NumPy's BLAS cannot be limited, so ranks may compete for cores"
        return Finding("BLAS", WARN, text, "pip install --force-reinstall numpy")
    parts = [f"{pool['internal_api']} {pool['version']}, threads: {pool['num_threads']}" for pool in blas]
    if installed("theano"):
        parts.append(
            'called by Theano through NumPy ("Using NumPy C-API based implementation for BLAS"), as fast as if linked'
        )
    if installed("pytensor"):
        parts.append("PyTensor calls SciPy's BLAS from Numba, otherwise NumPy's")
    return Finding("BLAS", OK, "; ".join(parts))


def check_kernels() -> Finding:
    """Check that the library's C kernels were built at installation."""
    if streaming.kernels is not None:
        return Finding("Kernels", OK, "built")
    remedy = "install g++ and Python's headers, then reinstall Synkhronos"
    return Finding("Kernels", WARN, "not built: large collectives take longer", remedy)


def check_cores() -> Finding:
    """Count the cores that this process may use, by affinity and by cgroup quota."""
    quota, budget = machine.cpu_quota(), machine.core_budget()
    text = f"{budget} usable: affinity {len(machine.usable_cores())} of {os.cpu_count() or 1}, quota "
    text += "none" if quota is None else f"{quota:.3g}"
    if budget == 1:
        remedy = "allow the process to use more cores: taskset -c 0-3 ..., docker run --cpus=4 ..."
        return Finding("Cores", WARN, text + "; CPU ranks would share this core", remedy)
    return Finding("Cores", OK, text)


def check_shared_memory(shm: str = "/dev/shm") -> Finding:
    """Try ``memfd_create``; if it fails, try POSIX shared memory, and check the free space in `shm`."""
    free = f"{readable_bytes(machine.available_memory())} of memory available"
    try:
        try_memfd()
        return Finding("Shared memory", OK, f"memfd with posix_fallocate works, {free}")
    except (AttributeError, OSError) as error:
        trouble = f"no memfd ({error})"
    try:
        try_posix_shared_memory()
        room = os.statvfs(shm)
    except (ImportError, OSError) as error:
        remedy = "use Linux 3.17 or later, or: pip install posix_ipc, and mount -t tmpfs tmpfs " + shm
        return Finding("Shared memory", MISSING, f"{trouble} and no POSIX shared memory ({error})", remedy)
    size = room.f_bavail * room.f_frsize
    text = f"{trouble}, POSIX shared memory with {readable_bytes(size)} free in {shm}, {free}"
    if size < ENOUGH_SHM_BYTES:
        return Finding("Shared memory", WARN, text, MOUNT.format(shm))
    return Finding("Shared memory", OK, text)


def check_gpus() -> Finding:
    """Count the GPUs that CUDA reports to this process."""
    count = gpus.count_gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    limited = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible}"
    if not count:
        advice = "; if the machine has a GPU: install NVIDIA's driver, or docker run --gpus all ..."
        return Finding("GPUs", WARN, "none" + limited + advice)
    return Finding("GPUs", OK, f"{count}{limited}")


def check_pygpu() -> Finding:
    """Import pygpu, which Theano uses for GPUs and OpenCL, without opening a device."""
    remedy = "needed only for GPUs: see docs/gpus.rst, or run tools/install_opencl.sh for OpenCL"
    return tried(Finding("pygpu", WARN, "", remedy), "import pygpu", "print('pygpu', pygpu.__version__)")


def check_cuda() -> Finding:
    """Load CUDA's libraries by the names that libgpuarray uses, and multiply two matrices on the first GPU."""
    if not gpus.count_gpus():
        return Finding("CUDA", WARN, "not checked, because there is no GPU")
    for library in ("libcuda.so", "libnvrtc.so", "libcublas.so"):
        try:
            ctypes.CDLL(library)
        except OSError as error:
            remedy = "docs/gpus.rst explains how to link libcuda.so (to libcuda.so.1), libnvrtc.so and libcublas.so"
            return Finding("CUDA", WARN, f"{library} does not load: {error}", remedy)
    return try_device("CUDA", "cuda0", "CUDA's libraries must match the driver: see docs/gpus.rst")


def check_opencl() -> Finding:
    """Multiply two matrices on the first OpenCL device, which may be the CPU."""
    return try_device("OpenCL", "opencl0:0", "needed only to try GPU code without a GPU: run tools/install_opencl.sh")


def try_device(subject: str, device: str, remedy: str) -> Finding:
    """Multiply two matrices on a device, in a subprocess."""
    return tried(
        Finding(subject, WARN, "", remedy),
        "import numpy, pygpu, pygpu.blas",
        f"context = pygpu.init({device!r})",
        "a = pygpu.array(numpy.ones((2, 2), 'float32'), context=context)",
        "assert (numpy.asarray(pygpu.blas.gemm(1.0, a, a, 0.0)) == 2).all(), 'the product of matrices is wrong'",
        f"print('{device}: %s' % context.devname.strip('\\0').strip())",
    )


def check_nccl() -> Finding:
    """Look for NCCL, which moves arrays between GPUs."""
    wheels = [
        path for folder in sys.path for path in glob.glob(os.path.join(folder, "nvidia", "nccl", "lib", "libnccl.so*"))
    ]
    for library in filter(None, ["libnccl.so", "libnccl.so.2", ctypes.util.find_library("nccl"), *wheels]):
        version = ctypes.c_int()
        try:
            ctypes.CDLL(library).ncclGetVersion(ctypes.byref(version))
        except (OSError, AttributeError):
            continue
        text = f"version {version.value} ({library})"
        if library == "libnccl.so":
            return Finding("NCCL", OK, text)
        remedy = "link it under that name in a folder on LD_LIBRARY_PATH: see docs/gpus.rst"
        return Finding("NCCL", WARN, text + ", but libgpuarray looks for libnccl.so", remedy)
    remedy = "needed only for GPUs: apt-get install libnccl2, or pip install nvidia-nccl-cu12"
    return Finding("NCCL", WARN, "not found", remedy)


def check_fork() -> Finding:
    """Report the ranks that ``synkhronos.fork()`` without arguments would start."""
    cores, n_gpus = machine.core_budget(), gpus.count_gpus()
    devices = f"{n_gpus} GPU{('' if n_gpus == 1 else 's')}"
    if n_gpus and check_cuda().status == OK:
        return Finding("fork()", OK, f"would use {devices}, one process each")
    text = f"would use {cores} CPU process{('' if cores == 1 else 'es, one per core')}"
    return Finding("fork()", OK, text + f"; the {devices} cannot be used yet; see above" * bool(n_gpus))


#: All checks, in order: the functions of this module that are called ``check_...``.
CHECKS: Tuple[Callable[[], Finding], ...] = tuple(
    function for name, function in globals().items() if name.startswith("check_")
)


#: Failures of these checks are not reported on a machine without a GPU.
ONLY_FOR_GPUS = (check_pygpu, check_cuda, check_opencl, check_nccl)

ONLY_WITH = {
    check_theano: "theano",
    check_lasagne: "theano",
    check_pytensor: "pytensor",
    check_pymc: "pymc",
    check_jax: "jax",
}


def main() -> int:
    """Run all checks and print their findings; return 1 if anything needed is missing, else 0."""
    findings: List[Finding] = []
    for check in CHECKS:
        if check in ONLY_WITH and not installed(ONLY_WITH[check]):
            continue
        finding = check()
        if finding.status == OK or check not in ONLY_FOR_GPUS or gpus.count_gpus():
            findings.append(finding)
            print(show(finding), flush=True)
    line, status = conclusion(findings)
    print(line)
    return status


def conclusion(findings: Sequence[Finding]) -> Tuple[str, int]:
    """Return the last line of the output and the exit status: 1 if anything needed is missing, else 0."""
    missing = [finding.subject for finding in findings if finding.status == MISSING]
    return ("Missing: " + ", ".join(missing), 1) if missing else ("All required components are present.", 0)


def show(finding: Finding) -> str:
    """Return a finding as a line of text, with its remedy on a second line.

    >>> print(show(Finding("NCCL", WARN, "not found", "apt-get install libnccl2")))
    warn     NCCL           not found
                            -> apt-get install libnccl2
    """
    line = f"{finding.status:<8} {finding.subject:<14} {finding.text}"
    return line + (f"\n{'':>24}-> {finding.remedy}" if finding.remedy else "")


def installed(package: str) -> bool:
    """Return whether a package is installed, without importing it."""
    return find_spec(package) is not None


def version_of(package: str) -> str:
    """Return the version of a package without importing it, or "0" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "0"


def remedy_for(name: str, text: str, otherwise: str = "") -> str:
    """Return the remedy for the error `text` of a program that uses engine `name`: by default, an install command."""
    for words, remedy in REMEDIES:
        if re.search(words, text):
            return remedy.format(name.upper())
    return otherwise or ENGINES[name].command


def why_not_writable(folder: Path) -> str:
    """Return the reason why a folder, created if missing, is not writable; "" if it is writable."""
    if not folder.is_absolute():
        return "a relative path, which depends on the working directory: set HOME"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=str(folder)):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def bytes_below(folder: Path) -> int:
    """Return the total size of all files below a folder."""
    found = 0
    for parent, _, files in os.walk(str(folder)):  # skips folders that other programs remove in the meantime
        for name in files:
            with suppress(OSError):  # removed by a program that is compiling
                found += os.stat(os.path.join(parent, name)).st_size
    return found


def try_memfd() -> None:
    """Allocate a page of anonymous memory (``memfd_create``), map it and write to it."""
    with open(os.memfd_create("synkhronos-doctor"), "r+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as pages:
            pages[0] = 1


def try_posix_shared_memory() -> None:
    """Create a page of POSIX shared memory and unlink its name."""
    posix_ipc = import_module("posix_ipc")
    memory = posix_ipc.SharedMemory(None, posix_ipc.O_CREX, size=mmap.PAGESIZE)
    memory.close_fd()
    memory.unlink()


def try_python(*lines: str) -> Tuple[int, str]:
    """Run Python code in a subprocess after ``import synkhronos``, which prepares Theano; see `try_command`."""
    return try_command(sys.executable, "-c", "\n".join(("import synkhronos",) + lines))


def tried(failed: Finding, *lines: str, engine: str = "") -> Finding:
    """Run Python code; return its last line as a finding, or `failed` with the error and `remedy_for` the `engine`."""
    status, text = try_python(*lines)
    if not status:
        return Finding(failed.subject, OK, text)
    return failed._replace(text=text, remedy=remedy_for(engine, text, failed.remedy) if engine else failed.remedy)


def try_command(*command: str) -> Tuple[int, str]:
    """Run a command; return its status (1 if it cannot run), and the last line of stdout, or of stderr if it failed."""
    above = str(Path(__file__).parents[2])
    environment = for_ranks(os.environ)  # Theano imports mpi4py, which would join mpirun's job
    environment["PYTHONPATH"] = os.pathsep.join([above] + [p for p in [environment.get("PYTHONPATH")] if p])
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=CHECK_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        return 1, str(error)
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    return done.returncode, lines[-1] if lines else f"exit status {done.returncode}"
