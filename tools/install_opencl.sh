#!/usr/bin/env bash
# Make Theano's GPU backend run without a GPU: OpenCL on the CPU, and pygpu in a virtual environment.
#
#     tools/install_opencl.sh [ENVIRONMENT]        default: this clone's .venv, created by `make install`
#
# For Debian 12 and its derivatives, as root (or with sudo), with a network. Quick if everything is already installed.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
environment=${1:-.venv}
packages="python3-pygpu libgpuarray-dev pocl-opencl-icd libclblast-dev ocl-icd-opencl-dev"

fail() {
    echo "tools/install_opencl.sh: $*" >&2
    exit 1
}

python=$environment/bin/python
[ -x "$python" ] || fail "$python does not exist: create .venv with 'make install', or pass another environment"

# shellcheck disable=SC2086  # $packages must be split into words
tools/install_packages.sh $packages || fail "see docs/gpus.rst, which describes how to install pygpu, PoCL and CLBlast"

# Debian's pygpu is compiled for Debian's Python. Link only these packages from Debian's folder, not Debian's NumPy.
folder=/usr/lib/python3/dist-packages
version=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
ls "$folder"/pygpu/gpuarray.cpython-"$version"-*.so >/dev/null 2>&1 \
    || fail "Debian's pygpu is not compiled for the Python of $environment ($("$python" --version)): create the environment with" \
            "'make install PYTHON=/usr/bin/python3' on Debian 12, or compile pygpu as described in docs/gpus.rst"
site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
for package in pygpu mako markupsafe; do
    "$python" -c "import $package" 2>/dev/null \
        || ln -sfn "$folder/$package" "$site/$package" || fail "$site/$package could not be created"
done

"$python" - <<'PROGRAM' || fail "pygpu does not work: see above"
import pygpu

context = pygpu.init("opencl0:0")
print("pygpu %s: opencl0:0 is %s" % (pygpu.__version__, context.devname.strip("\0")))
PROGRAM
