"""The doctor's findings when components of the machine are missing."""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import put_numpy_of_theano

from synkhronos.cli import doctor
from synkhronos.host import gpus, machine
from synkhronos.kernels import copy as streaming

pytestmark = pytest.mark.slow

ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Return a `Fake`, whose methods simulate missing or additional components of the machine."""
    return Fake(monkeypatch, tmp_path)


class Fake:
    def __init__(self, monkeypatch, folder):
        self.monkeypatch, self.folder = monkeypatch, folder
        self.set = monkeypatch.setattr

    def nothing(self):
        pass

    def program(self, name, script):
        path = self.folder / name
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        self.monkeypatch.setenv("PATH", str(self.folder))

    def module(self, name, text):
        """Create a module that comes first on the path of processes that the doctor starts."""
        (self.folder / (name + ".py")).write_text(text)
        above = [str(self.folder), os.environ.get("PYTHONPATH", "")]
        self.monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, above)))
        # The doctor puts the library's folder first, so it must not contain a module of that name
        assert not (Path(ROOT) / (name + ".py")).exists()
        if name == "theano":
            put_numpy_of_theano(self.folder)

    def python(self, *version):
        self.set(sys, "version_info", version + ("final", 0))
        self.set(doctor.platform, "python_version", lambda: ".".join(map(str, version)))

    def python_3_9(self):
        self.python(3, 9, 18)

    def python_3_12(self):
        self.python(3, 12, 1)

    def python_3_15(self):
        self.python(3, 15, 0)

    def packages(self, **versions):
        """Make the doctor see only these packages as installed, where it looks without importing them."""
        self.set(doctor, "installed", lambda package: package in versions)
        self.set(doctor, "version_of", lambda package: versions[package])

    def theano_that_fits(self):
        self.python(3, 11, 7)
        self.packages(theano="1.0.5", numpy="1.23.5")

    def theano_with_new_numpy(self):
        self.python(3, 11, 7)
        self.packages(theano="1.0.5", numpy="1.24.0")

    def theano_on_3_12(self):
        self.python(3, 12, 1)
        self.packages(theano="1.0.5", numpy="1.23.5")

    def pytensor_that_fits(self):
        self.python(3, 13, 0)
        self.packages(pytensor="3.3.7", numpy="2.5.5")

    def pytensor_with_old_numpy(self):
        self.python(3, 11, 7)
        self.packages(pytensor="3.0.7", numpy="1.26.4")

    def both_with_new_numpy(self):
        self.python(3, 11, 7)
        self.packages(theano="1.0.5", pytensor="3.0.7", numpy="2.4.6")

    def both_with_old_numpy(self):
        self.python(3, 11, 7)
        self.packages(theano="1.0.5", pytensor="3.0.7", numpy="1.23.5")

    def no_engine_3_9(self):
        self.python(3, 9, 18)
        self.packages()

    def no_engine_3_11(self):
        self.python(3, 11, 7)
        self.packages()

    def no_engine_3_13(self):
        self.python(3, 13, 0)
        self.packages()

    def compiled(self, package, folder):
        self.packages(**{package: "1"})
        self.module(package, f"class config:\n    base_compiledir = {str(folder)!r}")

    def cache_of_theano(self):
        self.cache("theano")

    def cache(self, package):
        (self.folder / "cache" / "a").mkdir(parents=True)
        (self.folder / "cache" / "a" / "b.so").write_bytes(bytes(3 << 20))
        self.compiled(package, self.folder / "cache")

    def cache_of_pytensor(self):
        self.cache("pytensor")
        (self.folder / "cache" / "numba").mkdir()
        (self.folder / "cache" / "numba" / "c.nbc").write_bytes(bytes(5 << 20))

    def cache_that_is_not_there(self):
        self.compiled("pytensor", self.folder / "nowhere")

    def no_pytensor(self):
        self.module("pytensor", "raise ImportError('No module named pytensor')")

    def blas_of_theano(self):
        self.packages(theano="1.0.5")

    def blas_of_pytensor(self):
        self.packages(pytensor="3.3.7")
        self.monkeypatch.setitem(sys.modules, "scipy.linalg", sys)  # found, but not loaded

    def only_pytensor(self):
        self.packages(pytensor="3.3.7")
        self.empty_path()

    def no_cloudpickle(self):
        self.monkeypatch.setitem(sys.modules, "cloudpickle", None)

    def no_threadpoolctl(self):
        self.monkeypatch.setitem(sys.modules, "threadpoolctl", None)

    def empty_path(self):
        self.monkeypatch.setenv("PATH", str(self.folder))

    def no_compiler(self):
        self.packages(theano="1.0.5")
        self.empty_path()

    def broken_compiler(self):
        self.packages(theano="1.0.5")
        self.program("g++", "echo cannot execute cc1plus >&2; exit 1")

    def good_compiler(self):
        self.program("g++", "echo 12.2.0")

    def no_headers(self):
        self.packages(theano="1.0.5")
        self.good_compiler()
        self.set(doctor.sysconfig, "get_paths", lambda: {"include": str(self.folder)})

    def no_theano(self):
        self.module("theano", "raise ImportError('No module named theano')")

    def theano_that_hangs(self):
        self.module("theano", "import time; time.sleep(60)")
        self.set(doctor, "CHECK_TIMEOUT_S", 1)

    def theano_that_crashes(self):
        self.module("theano", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")

    UNWRITABLE = "raise ValueError(\"Unable to create the compiledir directory '/root/.theano/compiledir_x'\")"

    def theano_of_another_user(self):
        self.module("theano", self.UNWRITABLE)

    def theano_without_its_blas(self):
        self.module("theano", "raise ImportError('/x/m0.so: undefined symbol: dgemm_')")

    def pytensor_of_another_user(self):
        self.module("pytensor", "raise PermissionError(13, 'Permission denied', '/root/.pytensor')")

    def pytensor_without_room(self):
        self.module("pytensor", "raise OSError(28, 'No space left on device', '/root/.pytensor')")

    def lasagne_of_another_user(self):
        self.module("lasagne", self.UNWRITABLE)

    def cache_of_another_user(self):
        self.packages(theano="1")
        self.theano_of_another_user()

    def cache_of_no_theano(self):
        self.packages(theano="1")
        self.no_theano()

    def cache_that_cannot_be(self):
        self.compiled("pytensor", "/dev/null/x")

    def cache_without_home(self):
        self.compiled("pytensor", ".pytensor")

    def pymc_with_nutpie(self):
        self.packages(pymc="6.4.0", nutpie="0.16.11")
        self.module("nutpie", "__version__ = '0.16.11'")

    def pymc_with_broken_nutpie(self):
        self.packages(pymc="6.4.0", nutpie="0.16.11")
        self.module("nutpie", "raise ImportError('no such symbol')")

    def pymc_without_nutpie(self):
        self.packages(pymc="6.4.0")

    def old_pymc(self):
        self.packages(pymc="5.1.0")

    def jax(self, kind, platform, n, n_gpus=0, **settings):
        self.set(gpus, "count_gpus", lambda: n_gpus)
        for name in doctor.JAX_SETTINGS:
            self.monkeypatch.delenv(name, raising=False)
        for name, value in settings.items():
            self.monkeypatch.setenv(name, value)
        lines = [
            "import os",
            "assert os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] == 'false'",
            "class Device:",
            f"    device_kind, platform = {kind!r}, {platform!r}",
            "class config:",
            "    jax_enable_x64 = False",
            "__version__ = '0.12.0'",
            f"def local_devices(): return [Device] * {n}",
        ]
        self.module("jax", "\n".join(lines))

    def jax_on_cpus(self):
        self.jax("cpu", "cpu", 4, JAX_NUM_CPU_DEVICES="4")

    def jax_on_gpus(self):
        self.jax("NVIDIA H100", "gpu", 2, 2, XLA_PYTHON_CLIENT_PREALLOCATE="true", XLA_CLIENT_MEM_FRACTION=".5")

    def jax_without_cuda(self):
        self.jax("cpu", "cpu", 1, 2)

    def jax_with_100_devices(self):
        self.jax("cpu", "cpu", 100, XLA_FLAGS="--xla_force_host_platform_device_count=100")

    def broken_jax(self):
        self.module("jax", "raise ImportError('no jaxlib')")

    def no_lasagne(self):
        self.module("lasagne", "raise ImportError('No module named pkg_resources')")

    def a_lasagne(self):
        self.module("lasagne", "__version__ = '0.2'")

    def numpy_without_blas(self):
        self.set(sys.modules["threadpoolctl"], "threadpool_info", lambda: [{"user_api": "openmp"}])

    def one_core(self):
        self.set(os, "sched_getaffinity", lambda pid: {3})

    def quota_of_two(self):
        self.set(os, "sched_getaffinity", lambda pid: set(range(8)))
        self.set(machine, "cpu_quota", lambda root="/": 2.5)

    def eight_cores(self):
        self.set(os, "sched_getaffinity", lambda pid: set(range(8)))
        self.set(machine, "cpu_quota", lambda root="/": None)

    def no_memfd(self, size=4 << 30):
        self.monkeypatch.delattr(os, "memfd_create")
        room = os.statvfs_result((4096, 4096, size // 4096, size // 4096, size // 4096, 0, 0, 0, 0, 255))
        self.set(os, "statvfs", lambda path: room)

    def memfd_refused(self):
        self.no_memfd()
        self.set(os, "memfd_create", self.refuse, raising=False)

    def refuse(self, *arguments):
        raise OSError(errno.EPERM, "Operation not permitted")

    def docker_without_memfd(self):
        self.no_memfd(64 << 20)

    def no_shared_memory(self):
        self.no_memfd()
        self.monkeypatch.setitem(sys.modules, "posix_ipc", None)

    def kernels_built(self):
        self.set(streaming, "kernels", object())

    def no_kernels(self):
        self.set(streaming, "kernels", None)

    def no_gpus(self):
        self.set(gpus, "count_gpus", lambda: 0)
        self.eight_cores()

    def gpus_hidden(self):
        self.no_gpus()
        self.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def two_gpus(self):
        self.set(gpus, "count_gpus", lambda: 2)
        self.monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def one_core_no_gpu(self):
        self.no_gpus()
        self.one_core()

    def a_pygpu(self):
        self.module("pygpu", "__version__ = '0.7.6'")

    def no_pygpu(self):
        self.module("pygpu", "raise ImportError('no libgpuarray')")

    def no_nccl(self):
        self.set(ctypes, "CDLL", self.refuse)

    def a_nccl(self):
        class Library:
            @staticmethod
            def ncclGetVersion(version):
                version._obj.value = 22105

        self.set(ctypes, "CDLL", lambda name: Library)


OK, WARN, MISSING = doctor.OK, doctor.WARN, doctor.MISSING
THIS = "{}.{}".format(*sys.version_info)
THEANO, PYTENSOR = 'pip install "theano==1.0.5" "numpy<1.24"', 'pip install "pytensor>=3.0,<4"'


@pytest.mark.parametrize(
    "check, situation, status, text, remedy",
    [
        ("python", "nothing", OK, THIS, ""),
        ("python", "python_3_9", OK, "3.9.18 ({}), for Theano", ""),
        ("python", "python_3_12", OK, "3.12.1 ({}), for PyTensor", ""),
        ("python", "python_3_15", MISSING, "3.15.0", "apt-get install python3.13"),
        ("packages", "nothing", OK, "cloudpickle", ""),
        ("packages", "no_cloudpickle", MISSING, "cloudpickle", "pip install cloudpickle"),
        ("compiler", "good_compiler", OK, "g++ 12.2.0", ""),
        (
            "compiler",
            "only_pytensor",
            WARN,
            "no g++ on PATH; PyTensor's default, Numba, needs none",
            "apt-get install g++",
        ),
        ("compiler", "no_compiler", MISSING, "no g++", "apt-get install g++"),
        ("compiler", "broken_compiler", MISSING, "cannot execute cc1plus", "apt-get install --reinstall g++"),
        ("compiler", "no_headers", MISSING, "Python.h", f"apt-get install python{THIS}-dev"),
        ("engines", "theano_that_fits", OK, "Theano 1.0.5, NumPy 1.23.5", ""),
        ("engines", "pytensor_that_fits", OK, "PyTensor 3.3.7, NumPy 2.5.5", ""),
        (
            "engines",
            "theano_with_new_numpy",
            MISSING,
            "Theano needs Python 3.8 to 3.11 and NumPy 1.23 at most",
            THEANO,
        ),
        ("engines", "theano_on_3_12", MISSING, "Theano needs Python 3.8 to 3.11", PYTENSOR),
        ("engines", "pytensor_with_old_numpy", MISSING, "PyTensor needs Python 3.11 to 3.14 and NumPy 2", PYTENSOR),
        ("engines", "both_with_new_numpy", WARN, "Theano needs Python", "make install ENGINE=theano"),
        ("engines", "both_with_old_numpy", WARN, "PyTensor needs Python", "make install ENGINE=pytensor"),
        ("engines", "no_engine_3_9", MISSING, "neither", 'pip install "theano==1.0.5" "numpy<1.22"'),
        (
            "engines",
            "no_engine_3_11",
            MISSING,
            "neither",
            f'{THEANO} "scipy<1.11" "setuptools<81", or {PYTENSOR}',
        ),
        ("engines", "no_engine_3_13", MISSING, "neither", PYTENSOR),
        ("theano", "no_theano", MISSING, "No module named theano", 'pip install "theano==1.0.5"'),
        ("theano", "theano_that_hangs", MISSING, "timed out", "while nothing else runs"),
        ("theano", "theano_that_crashes", MISSING, "exit status -11", 'pip install "theano==1.0.5"'),
        ("theano", "theano_of_another_user", MISSING, "'/root/.theano/compiledir_x'", "THEANO_FLAGS=base_compiledir="),
        (
            "theano",
            "theano_without_its_blas",
            MISSING,
            "undefined symbol: dgemm_",
            "leave blas.ldflags empty in THEANO",
        ),
        ("pytensor", "no_pytensor", MISSING, "No module named pytensor", PYTENSOR),
        ("pytensor", "pytensor_of_another_user", MISSING, "[Errno 13]", "PYTENSOR_FLAGS=base_compiledir="),
        ("pytensor", "pytensor_without_room", MISSING, "[Errno 28]", "PYTENSOR_FLAGS=base_compiledir="),
        ("caches", "no_engine_3_13", OK, "none", ""),
        ("caches", "cache_of_theano", OK, "Theano: C 3.0 MiB (3145728 bytes) in ", ""),
        ("caches", "cache_of_pytensor", OK, "Numba 5.0 MiB (5242880 bytes), C 3.0 MiB (3145728 bytes) in ", ""),
        ("caches", "cache_that_is_not_there", OK, "PyTensor: Numba 0 bytes, C 0 bytes in ", ""),
        ("caches", "cache_that_cannot_be", WARN, "cannot write to /dev/null/x (Not a directory)", "base_compiledir="),
        ("caches", "cache_without_home", WARN, "PyTensor cannot write to .pytensor (a relative path", "below HOME"),
        (
            "caches",
            "cache_of_another_user",
            WARN,
            "Theano: ValueError: Unable to create",
            "THEANO_FLAGS=base_compiledir=",
        ),
        ("caches", "cache_of_no_theano", WARN, "Theano: ImportError: No module", 'pip install "theano==1.0.5"'),
        ("lasagne", "no_lasagne", WARN, "pkg_resources", 'pip install lasagne "setuptools<81"'),
        ("lasagne", "lasagne_of_another_user", WARN, "compiledir_x", "THEANO_FLAGS=base_compiledir="),
        ("lasagne", "a_lasagne", OK, "Lasagne 0.2", ""),
        ("pymc", "pymc_with_nutpie", OK, "PyMC 6.4.0, nutpie 0.16.11", ""),
        ("pymc", "pymc_without_nutpie", WARN, "PyMC 6.4.0; without nutpie, pm.sample", "pip install nutpie"),
        (
            "pymc",
            "pymc_with_broken_nutpie",
            WARN,
            "nutpie fails: ImportError: no such symbol",
            'install "nutpie>=0.16"',
        ),
        ("pymc", "old_pymc", WARN, "PyMC 5.1.0, but distributing models needs PyMC 6.3", 'pip install "pymc>=6.3,<7"'),
        ("jax", "jax_on_cpus", OK, "JAX 0.12.0, devices: 4 (cpu: cpu), bits: 32 (fork", ""),
        ("jax", "jax_on_cpus", OK, "settings: JAX_NUM_CPU_DEVICES=4", ""),
        ("jax", "jax_on_gpus", OK, "devices: 2 (gpu: NVIDIA H100)", ""),
        ("jax", "jax_on_gpus", OK, "XLA_PYTHON_CLIENT_PREALLOCATE=true, XLA_CLIENT_MEM_FRACTION=.5; by default", ""),
        ("jax", "jax_without_cuda", WARN, "settings: none; JAX does not use the GPUs", 'pip install "jax[cuda13]"'),
        ("jax", "jax_with_100_devices", WARN, "device_count=100", "unset XLA_FLAGS"),
        ("jax", "broken_jax", WARN, "no jaxlib", "jax[cuda13]"),
        ("blas", "nothing", OK, "threads", ""),
        ("blas", "blas_of_theano", OK, "Using NumPy C-API based implementation for BLAS", ""),
        ("blas", "blas_of_pytensor", OK, "PyTensor calls SciPy's BLAS from Numba", ""),
        ("blas", "no_threadpoolctl", WARN, "threadpoolctl", "pip install numpy threadpoolctl"),
        ("blas", "numpy_without_blas", WARN, "cannot be limited", "pip install"),
        ("kernels", "kernels_built", OK, "built", ""),
        ("kernels", "no_kernels", WARN, "not built", "g++"),
        ("cores", "eight_cores", OK, "8 usable: affinity 8 of", ""),
        ("cores", "quota_of_two", OK, f"2 usable: affinity 8 of {os.cpu_count()}, quota 2.5", ""),
        ("cores", "one_core", WARN, "1 usable", "taskset"),
        ("shared_memory", "nothing", OK, "memfd", ""),
        ("shared_memory", "no_memfd", OK, "4.0 GiB (4294967296 bytes) free in /dev/shm", ""),
        ("shared_memory", "memfd_refused", OK, "Operation not permitted", ""),
        (
            "shared_memory",
            "docker_without_memfd",
            WARN,
            "64.0 MiB (67108864 bytes) free in /dev/shm",
            "docker run --shm-size",
        ),
        ("shared_memory", "no_shared_memory", MISSING, "no memfd", "pip install posix_ipc"),
        ("gpus", "no_gpus", WARN, "none; if the machine has a GPU: install NVIDIA's driver", ""),
        ("gpus", "gpus_hidden", WARN, "none with CUDA_VISIBLE_DEVICES=; if the machine", ""),
        ("gpus", "two_gpus", OK, "2", ""),
        ("pygpu", "a_pygpu", OK, "pygpu 0.7.6", ""),
        ("pygpu", "no_pygpu", WARN, "no libgpuarray", "tools/install_opencl.sh"),
        ("cuda", "no_gpus", WARN, "there is no GPU", ""),
        ("cuda", "two_gpus", WARN, "libcuda.so does not load", "docs/gpus.rst"),
        ("opencl", "no_pygpu", WARN, "no libgpuarray", "tools/install_opencl.sh"),
        ("nccl", "a_nccl", OK, "version 22105", ""),
        ("nccl", "no_nccl", WARN, "not found", "apt-get install libnccl2"),
        ("fork", "two_gpus", OK, "the 2 GPUs cannot be used yet", ""),
        ("fork", "no_gpus", OK, "8 CPU processes", ""),
        ("fork", "one_core_no_gpu", OK, "1 CPU process", ""),
    ],
)
def test_check(fake, check, situation, status, text, remedy):
    getattr(fake, situation)()
    finding = getattr(doctor, "check_" + check)()
    assert finding.status == status, finding
    assert text.format(sys.executable) in finding.text
    assert remedy in finding.remedy and bool(remedy) == bool(finding.remedy)
    assert "\n" not in finding.text + finding.remedy


def test_subprocesses_import_modules_of_python(tmp_path, monkeypatch):
    """The library's folder contains modules named ``profile`` and ``trace``."""
    monkeypatch.chdir(tmp_path)
    status, text = doctor.try_python("import profile, trace", "print(profile.__file__, trace.__file__)")
    assert status == 0 and ROOT not in text.replace(sys.prefix, "")


def test_every_check_is_in_the_list():
    checks = [value for name, value in vars(doctor).items() if name.startswith("check_")]
    assert list(doctor.CHECKS) == checks


@pytest.mark.parametrize("package", ["theano", "pytensor"])
def test_checks_of_an_engine_that_is_not_installed_are_left_out(monkeypatch, capsys, package):
    of = {name: lambda name=name: doctor.Finding(name, OK, "seen") for name in ("theano", "pytensor")}
    monkeypatch.setattr(doctor, "CHECKS", [of["theano"], of["pytensor"]])
    monkeypatch.setattr(doctor, "ONLY_WITH", {check: name for name, check in of.items()})
    monkeypatch.setattr(doctor, "installed", lambda name: name == package)
    assert doctor.main() == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["ok", package, "seen"]
    assert set(doctor.ONLY_WITH.values()) == set(of)


def test_installed_packages_are_found():
    assert doctor.installed("numpy") and not doctor.installed("no_such_package")
    assert (
        doctor.version_of("numpy") == sys.modules["numpy"].__version__ and doctor.version_of("no-such-package") == "0"
    )


@pytest.mark.parametrize(
    "statuses, code, last",
    [
        ([OK, WARN], 0, "All required components are present."),
        ([OK, MISSING, WARN, MISSING], 1, "Missing: thing 1, thing 3"),
    ],
)
def test_main(monkeypatch, capsys, statuses, code, last):
    findings = [
        doctor.Finding(f"thing {i}", status, "seen", "" if status == OK else "do it")
        for i, status in enumerate(statuses)
    ]
    monkeypatch.setattr(doctor, "CHECKS", [lambda finding=finding: finding for finding in findings])
    assert doctor.main() == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "thing", "0", "seen"]
    assert lines[2 if statuses[1] != OK else 1].split() == ["->", "do", "it"]
    assert lines[-1] == last


@pytest.mark.parametrize("n_gpus, status", [(0, WARN), (0, OK), (2, WARN), (2, OK)])
def test_without_a_gpu_all_that_is_missing_for_gpus_is_one_line(monkeypatch, capsys, n_gpus, status):
    monkeypatch.setattr(gpus, "count_gpus", lambda: n_gpus)
    only = [doctor.check_pygpu, doctor.check_cuda, doctor.check_opencl, doctor.check_nccl]
    assert [check in doctor.ONLY_FOR_GPUS for check in doctor.CHECKS] == [check in only for check in doctor.CHECKS]
    found = doctor.Finding("pygpu", status, "seen", "" if status == OK else "do it")
    checks = [doctor.check_gpus, lambda: found, lambda: found._replace(subject="Lasagne")]
    monkeypatch.setattr(doctor, "CHECKS", checks)
    monkeypatch.setattr(doctor, "ONLY_FOR_GPUS", checks[1:2])
    assert doctor.main() == 0
    subjects = [line.split()[1] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    shown = n_gpus or status == OK
    assert subjects == ["GPUs"] + ["pygpu"] * bool(shown) + ["Lasagne", "required"]


def lines_of_command():
    """Return the words of each line that the command prints; all required components must be present."""
    environment = dict(os.environ, PYTHONPATH=ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "synkhronos", "doctor"], env=environment, stdout=subprocess.PIPE, universal_newlines=True
    )
    assert done.returncode == 0 and done.stdout.endswith("All required components are present.\n"), done.stdout
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.thorough
@pytest.mark.theano
def test_command_line_with_theano():
    pytest.importorskip("theano")
    lines = [line[:3] for line in lines_of_command()]
    assert ["ok", "Engines", "Theano"] in lines and ["ok", "Theano", "Theano"] in lines


@pytest.mark.thorough
@pytest.mark.pytensor
@pytest.mark.timeout(300)  # with an empty cache, Numba compiles
def test_command_line_with_pytensor():
    pytest.importorskip("pytensor")
    lines = [line[:3] for line in lines_of_command()]
    assert ["ok", "Engines", "PyTensor"] in lines and ["ok", "PyTensor", "PyTensor"] in lines
    assert ["ok", "Caches", "PyTensor:"] in lines and "Lasagne" not in [line[1] for line in lines]


@pytest.mark.theano
def test_theano_without_a_compiler(fake):
    pytest.importorskip("theano")
    fake.empty_path()
    finding = doctor.check_theano()
    assert finding.status == WARN and finding.remedy == "apt-get install g++", finding


def test_folders_that_are_removed_meanwhile_count_for_nothing(tmp_path, monkeypatch):
    """A folder that is removed between listing and entering, as by a program that compiles, is not counted."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(100))
    scandir, entered = os.scandir, []

    def removing(path):
        if str(path) != str(tmp_path):
            entered.append(path)
            if len(entered) == 1:
                shutil.rmtree(str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removing)
    assert doctor.bytes_below(tmp_path) == 100
