#!/usr/bin/env bash
# Make Theano's GPU back-end run without a GPU: OpenCL on the CPU, and pygpu in a virtual environment.
#
#     tools/install_opencl.sh [ENVIRONMENT]        default: .venv of this clone, which `make install` makes
#
# For Debian 12 and its relatives, as root (or with sudo), with a network. Quick if all is there already.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
environment=${1:-.venv}
packages="python3-pygpu libgpuarray-dev pocl-opencl-icd libclblast-dev ocl-icd-opencl-dev"

fail() {
    echo "tools/install_opencl.sh: $*" >&2
    exit 1
}

python=$environment/bin/python
[ -x "$python" ] || fail "there is no $python: 'make install' makes .venv, or name another environment"

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
if [ -n "$missing" ]; then
    command -v apt-get >/dev/null || fail "apt-get was not found: install pygpu, PoCL and CLBlast as docs/installation.rst says"
    as_root=""
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || fail "the system's packages$missing are needed: run this as root"
        as_root="sudo -n"
    fi
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086  # the words of $missing and $as_root are meant
    { $as_root apt-get update && $as_root apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1 \
        || { tail -n 5 "$log" >&2; fail "apt-get could not install$missing (all of its output is in $log)"; }
    rm -f "$log"
fi

# Debian's pygpu is compiled for Debian's Python; only these packages of its folder may be seen, not its NumPy.
folder=/usr/lib/python3/dist-packages
version=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
ls "$folder"/pygpu/gpuarray.cpython-"$version"-*.so >/dev/null 2>&1 \
    || fail "Debian's pygpu is not compiled for the Python of $environment ($("$python" --version)): make the environment with" \
            "'make install PYTHON=/usr/bin/python3' of Debian 12, or compile pygpu as docs/installation.rst says"
site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
for package in pygpu mako markupsafe; do
    "$python" -c "import $package" 2>/dev/null \
        || ln -sfn "$folder/$package" "$site/$package" || fail "$site/$package could not be made"
done

"$python" - <<'PROGRAM' || fail "pygpu does not work: see above"
import pygpu

context = pygpu.init("opencl0:0")
print("pygpu %s: opencl0:0 is %s" % (pygpu.__version__, context.devname.strip("\0")))
PROGRAM
