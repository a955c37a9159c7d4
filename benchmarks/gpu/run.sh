#!/usr/bin/env bash
# Test and measure on a GPU, in one command and without a network.
#
#     benchmarks/gpu/run.sh [OUT]        writes OUT/report.md and the logs of its parts; default: gpu-report
#
# The script needs the driver, g++, the bundle of `benchmarks/gpu/pack.sh`, and CUDA's libraries (environment.sh says where
# it finds them). It runs these parts: doctor, tests with one rank and with several ranks that share the GPU (with NCCL
# from 2.32 on), and times.
# DEVICE=opencl0:0 runs everything on a machine without a GPU. PARTS="tests times" runs only these parts.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
out=$(realpath -m "${1:-gpu-report}")
device=${DEVICE:-cuda0}
parts=${PARTS:-doctor tests times}
mkdir -p "$out"

. "$PWD/benchmarks/gpu/environment.sh" || exit 1
export SYNK_TEST_DEVICE=$device
"$python" -c "import synkhronos, theano, pygpu" 2>"$out/setup.log" || { cat "$out/setup.log" >&2; exit 1; }

status=0
# Check the system.
case " $parts " in *" doctor "*)
    "$python" -m synkhronos doctor >"$out/doctor.log" 2>&1 || status=1
esac
# (a) Test the GPU code on the real device.
case " $parts " in *" tests "*)
    timeout "${LIMIT:-3000}" "$python" -m pytest -q -rs -p no:cacheprovider tests/gpu >"$out/tests.log" 2>&1 || status=1
    tail -n 3 "$out/tests.log"
esac
# (b) Measure the times.
case " $parts " in *" times "*)
    "$python" benchmarks/gpu/measure.py --device "$device" --out "$out/times.json" ${MEASURE-} >"$out/times.log" 2>&1 || status=1
    tail -n 3 "$out/times.log"
esac
# (c) Write the report.
"$python" benchmarks/gpu/report.py "$out" >"$out/report.md" && cat "$out/report.md"
exit $status
