#!/usr/bin/env bash
# Test and measure on a GPU, in one command and without a network.
#
#     benchmarks/gpu/run.sh [OUT]        writes OUT/report.md and the logs of its parts; default: gpu-report
#
# The script needs the driver, g++, the bundle of `benchmarks/gpu/pack.sh`, and CUDA's libraries: from the bundle
# (pack.sh --nvidia), from NVIDIA's wheels in the environment of `python3` (which PyTorch installs), or from
# /usr/local/cuda. It runs these parts: doctor, tests with one rank and with several ranks that share the GPU (with NCCL from
# 2.32 on), and times.
# DEVICE=opencl0:0 runs everything on a machine without a GPU. PARTS="tests times" runs only these parts.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
out=$(realpath -m "${1:-gpu-report}")
device=${DEVICE:-cuda0}
parts=${PARTS:-doctor tests times}
work=${WORK:-/tmp/synkhronos-gpu}
mkdir -p "$out" "$work/libraries"

# (a) Unpack Python 3.11, Theano and pygpu from the bundle.
if [ ! -e "$work/unpacked" ]; then
    tar -C "$work" -xJf benchmarks/gpu/bundle.tar.xz && touch "$work/unpacked" || {
        echo "benchmarks/gpu/bundle.tar.xz could not be unpacked: create it with benchmarks/gpu/pack.sh" >&2
        exit 1
    }
fi
command -v g++ >/dev/null || { echo "g++, which Theano needs, was not found" >&2; exit 1; }
system=$work/root/usr/lib/x86_64-linux-gnu
# CUDA's libraries, under the unversioned names that libgpuarray looks up.
folders="$work"
for python in python3 /opt/torch/.venv/bin/python3; do
    purelib=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null) && folders="$folders $purelib"
done
libraries=$work/libraries
for name in cuda nvrtc cublas nccl; do
    found=$(find $folders /usr/local/cuda/lib64 /usr/local/nvidia /usr/lib/x86_64-linux-gnu /usr/lib64 \
        -name "lib$name.so*" ! -path "*/stubs/*" ! -path "$libraries/*" 2>/dev/null | head -n 1)
    if [ -n "$found" ]; then
        ln -sf "$found" "$work/libraries/lib$name.so"
        libraries=$libraries:$(dirname "$found")
    else
        echo "lib$name.so was not found" >&2
    fi
done
export PYTHONHOME=$work/root/usr
export PYTHONPATH=$PWD:$work/site:$work/root/usr/lib/python3/dist-packages
export LD_LIBRARY_PATH=$libraries:$system:$work/root/lib/x86_64-linux-gnu
export LIBRARY_PATH=$system CPATH=$work/root/usr/include/python3.11:$work/root/usr/include
export THEANO_FLAGS=base_compiledir=$work/compiled,dnn.enabled=False,device=cpu,floatX=float32
export PYTHONNOUSERSITE=1 NCCL_MULTI_RANK_GPU_ENABLE=1 SYNK_TEST_DEVICE=$device
python=$work/root/usr/bin/python3.11
"$python" -c "import synkhronos, theano, pygpu" 2>"$out/setup.log" || { cat "$out/setup.log" >&2; exit 1; }

status=0
# Check the system.
case " $parts " in *" doctor "*)
    "$python" -m synkhronos doctor >"$out/doctor.log" 2>&1 || status=1
esac
# (b) Test the GPU code on the real device.
case " $parts " in *" tests "*)
    timeout "${LIMIT:-3000}" "$python" -m pytest -q -rs -p no:cacheprovider tests/gpu >"$out/tests.log" 2>&1 || status=1
    tail -n 3 "$out/tests.log"
esac
# (c) Measure the times.
case " $parts " in *" times "*)
    "$python" benchmarks/gpu/measure.py --device "$device" --out "$out/times.json" ${MEASURE-} >"$out/times.log" 2>&1 || status=1
    tail -n 3 "$out/times.log"
esac
# (d) Write the report.
"$python" benchmarks/gpu/report.py "$out" >"$out/report.md" && cat "$out/report.md"
exit $status
