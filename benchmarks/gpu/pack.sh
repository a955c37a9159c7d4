#!/usr/bin/env bash
# Pack everything that `benchmarks/gpu/run.sh` needs on a machine with a GPU but no network into one file.
#
#     benchmarks/gpu/pack.sh [--nvidia]           writes benchmarks/gpu/bundle.tar.xz (about 45 MB)
#
# Run it on Debian 12, after `make install-test PYTHON=/usr/bin/python3.11` and `tools/install_opencl.sh`. It packs the
# environment .venv, and Debian's Python 3.11, libgpuarray and pygpu. For machines without CUDA's libraries, --nvidia adds
# these libraries from NVIDIA's wheels (gigabytes): NVRTC 13.0 for driver 580, cuBLAS 13 and NCCL 2.32.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
.venv/bin/python -c "import pytest, pygpu"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/debs" "$work/root" "$work/site"

(cd "$work/debs" && apt-get download python3.11 python3.11-minimal libpython3.11 libpython3.11-minimal \
    libpython3.11-stdlib libpython3.11-dev python3.11-dev libgpuarray3 libgpuarray-dev python3-pygpu libexpat1 libffi8 libssl3 zlib1g \
    libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 python3-distutils python3-lib2to3 2>&1 | grep -v "^W:" >&2)
for package in "$work"/debs/*.deb; do
    dpkg -x "$package" "$work/root"
done
rm -rf "$work/debs" "$work"/root/usr/share "$work"/root/usr/lib/python3.11/config-*/*.a "$work"/root/usr/lib/x86_64-linux-gnu/*.a "$work"/root/usr/lib/*.a "$work"/root/usr/lib/python3.11/test

# Leave out packages that are used only for checks, notebooks, plots or documentation.
left_out="ruff* *mypy* pyright* jedi* parso* debugpy* IPython* ipykernel* jupyter* prompt_toolkit* tornado* *zmq*
    ast_serialize* librt* tzdata* kiwisolver* *sphinx* matplotlib* pandas* sklearn* scikit_learn* *fonttools* fontTools
    babel mpi4py* pip* PIL pillow* docutils* tests __pycache__"
set -f # (the patterns are tar's)
# shellcheck disable=SC2086  # $left_out must be split into words
tar -C "$site" -c --dereference $(printf -- '--exclude=%s ' $left_out) . | tar -C "$work/site" -x
set +f
# Include the tests of NumPy and Theano, because the packages import some modules of these tests.
for package in numpy theano; do
    cp -rL "$site/$package" "$work/site/"
done
find "$work" -name __pycache__ -prune -exec rm -r {} +

if [ "${1-}" = --nvidia ]; then
    .venv/bin/python -m pip install -q --no-deps --target "$work/nvidia" \
        "nvidia-cuda-nvrtc>=13.0,<13.1" "nvidia-cublas>=13,<14" "nvidia-nccl-cu13>=2.32"
fi
XZ_OPT="-T0 -6" tar -C "$work" -cJf benchmarks/gpu/bundle.tar.xz .
ls -l benchmarks/gpu/bundle.tar.xz
