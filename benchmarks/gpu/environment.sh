# Unpack the bundle of `benchmarks/gpu/pack.sh`, and set the environment variables that its Python needs.
#
#     source benchmarks/gpu/environment.sh       sets $python, and unpacks into $WORK (default: /tmp/synkhronos-gpu)
#
# CUDA's libraries come from the bundle (pack.sh --nvidia), from NVIDIA's wheels in the environment of `python3` (which
# PyTorch installs), or from /usr/local/cuda.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || return 1
work=${WORK:-/tmp/synkhronos-gpu}
mkdir -p "$work/libraries"

# Unpack Python 3.11, Theano and pygpu from the bundle.
if [ ! -e "$work/unpacked" ]; then
    tar -C "$work" -xJf benchmarks/gpu/bundle.tar.xz && touch "$work/unpacked" || {
        echo "benchmarks/gpu/bundle.tar.xz could not be unpacked: create it with benchmarks/gpu/pack.sh" >&2
        return 1
    }
fi
command -v g++ >/dev/null || { echo "g++, which Theano needs, was not found" >&2; return 1; }
system=$work/root/usr/lib/x86_64-linux-gnu
# CUDA's libraries, under the unversioned names that libgpuarray looks up.
folders="$work $(env -u PYTHONHOME -u PYTHONPATH python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
libraries=$work/libraries
for name in cuda nvrtc cublas nccl; do
    found=$(find $folders /usr/local/cuda/lib64 /usr/local/nvidia /usr/lib/x86_64-linux-gnu /usr/lib64 \
        -name "lib$name.so*" ! -path "*/stubs/*" ! -path "$work/libraries/*" 2>/dev/null | head -n 1)
    if [ -n "$found" ]; then
        ln -sf "$found" "$work/libraries/lib$name.so"
        libraries=$libraries:$(dirname "$found")
    else
        echo "lib$name.so was not found" >&2
    fi
done
export PYTHONHOME=$work/root/usr
export PYTHONPATH=$PWD:$work/site:$work/root/usr/lib/python3/dist-packages
export LD_LIBRARY_PATH=$libraries:$system:$work/root/usr/lib:$work/root/lib/x86_64-linux-gnu
export LIBRARY_PATH=$system:$work/root/usr/lib CPATH=$work/root/usr/include/python3.11:$work/root/usr/include
export THEANO_FLAGS=base_compiledir=$work/compiled,dnn.enabled=False,device=cpu,floatX=float32
export PYTHONNOUSERSITE=1 NCCL_MULTI_RANK_GPU_ENABLE=1
python=$work/root/usr/bin/python3.11
# Compile the kernels of large collectives, as an installation does.
"$python" setup.py -q build_ext --inplace >"$work/kernels.log" 2>&1 || echo "the kernels were not built: see $work/kernels.log" >&2
