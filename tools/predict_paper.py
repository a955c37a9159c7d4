"""Predict published multi-GPU measurements from single-GPU figures.

    python tools/predict_paper.py                 # takes seconds; writes its section of docs/performance.md
    python tools/predict_paper.py --no-write

The measurements are Table 1 of the paper on Synkhronos (ResNet-50 on a DGX-1 with 8 P100 GPUs) and Theano-MPI's
published seconds (8 K80 GPUs). Nothing was published about the links, so their bandwidths are assumptions from data
sheets, not fits to the results.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.report import put  # noqa: E402
from synkhronos.contrib.prediction.links import RingModel, SharedMemory  # noqa: E402
from synkhronos.contrib.prediction.model import CommandCost, Model  # noqa: E402
from synkhronos.contrib.prediction.profiles import RankLayout  # noqa: E402

BEGIN = "<!-- written by tools/predict_paper.py: begin -->\n"
GPUS = 8

#: Links (latency 10 us): one direction of a P100's NVLink; half of PCIe 3.0 x16, which a K80's two GPUs share.
NVLINK, PCIE = RingModel(10e-6, 20e9), RingModel(10e-6, 8e9)

#: The paper's Table 1: seconds of plain Theano with one GPU; rows of a minibatch and steps per second, from its text.
FUNCTION_S, SHUFFLE_S, ROWS, STEPS_PER_S = 382.5, 12.6, 64, 1.75
#: The paper's speedups with 64 rows per GPU; about two GPUs, it says only that 8 GPUs are over 3.9 times as fast.
MEASURED = {2: "at most 1.92", 4: "in a figure only", 8: "7.5"}

#: Millions of trained parameters.
RESNET50, ALEXNET, GOOGLENET, VGG16 = 25.6, 61.0, 13.4, 138.4

#: Theano-MPI, by network: parameters; rows of a GPU's batch; seconds for 5,120 images on one GPU, and on eight
#: (training, communicating).
IMAGES = 5120
THEANO_MPI = {
    "AlexNet": (ALEXNET, 128, 20.50, (2.63, 0.61)),
    "GoogLeNet": (GOOGLENET, 32, 63.89, (7.69, 0.80)),
    "VGG16": (VGG16, 32, 343.0, (43.3, 5.4)),
    "ResNet-50": (RESNET50, 64, 163.15, (20.12, 0.57)),
}


def model_of(seconds_per_row, millions, link):
    """Return the model of a program from its seconds per row and its parameters in millions."""
    key = ("function", "train")
    command = CommandCost(1.0, 1.0, (0.0, 0.0), (seconds_per_row, 0.0), (0.0, 0.0, 0.0), 4e6 * millions, 0.0, (1.0,))
    return Model({key: command}, key, ROWS, 0.0, SharedMemory(0.0, 0.0), link, RankLayout(1), (ROWS, ROWS), [])


def of_the_paper():
    """Return a Markdown table of predictions and measurements for the paper's ResNet-50, as lines."""
    steps = (FUNCTION_S + SHUFFLE_S) * STEPS_PER_S
    model = model_of((FUNCTION_S + SHUFFLE_S) / steps / ROWS, RESNET50, NVLINK)
    lines = [
        "| GPUs | rows of a step | predicted, s | all-reduce, s | predicted speedup | measured |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for gpus in (2, 4, GPUS):
        parts = model.predict(RankLayout(gpus), gpus * ROWS)
        seconds = sum(parts.values()) * steps / gpus
        lines.append(
            f"| {gpus} | {gpus * ROWS} | {seconds:.1f} | {parts['communicating'] * steps / gpus:.2f} | "
            f"{(FUNCTION_S + SHUFFLE_S) / seconds:.2f} | {MEASURED[gpus]} |"
        )
    parts = model.predict(RankLayout(GPUS), ROWS)
    lines.append(
        f"| {GPUS} | {ROWS} | {sum(parts.values()) * steps:.1f} | {parts['communicating'] * steps:.2f} | "
        f"{model.speedup(RankLayout(GPUS), ROWS):.2f} | slightly more than 5 |"
    )
    return lines


def of_theano_mpi():
    """Return a Markdown table of predictions and measurements for Theano-MPI, as lines."""
    lines = [
        "| network | one GPU, s | predicted for 8, s: training + communicating | measured | error of the sum | "
        "predicted speedup | measured |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, (millions, rows, alone, (training, communicating)) in THEANO_MPI.items():
        parts = model_of(alone / IMAGES, millions, PCIE).predict(RankLayout(GPUS), GPUS * rows)
        steps = IMAGES / rows / GPUS
        ours = [(sum(parts.values()) - parts["communicating"]) * steps, parts["communicating"] * steps]
        measured = training + communicating
        lines.append(
            f"| {name} | {alone:g} | {ours[0]:.2f} + {ours[1]:.2f} | {training:g} + {communicating:g} | "
            f"{100 * (sum(ours) / measured - 1):+.0f} % | {alone / sum(ours):.1f} | {alone / measured:.1f} |"
        )
    return lines


def document():
    """Return the generated section of docs/performance.md."""
    return "\n".join(
        [
            f"The paper's ResNet-50, from one GPU's {FUNCTION_S:g} s of computing and {SHUFFLE_S:g} s of shuffling "
            f"alone. Assumptions: {STEPS_PER_S:g} steps per second (the paper's number without launch blocking), "
            f"{RESNET50:g} million parameters, and a ring over links of {NVLINK.bandwidth / 1e9:g} GB/s (one NVLink):",
            "",
            *of_the_paper(),
            "",
            f"Theano-MPI, seconds for {IMAGES:,} images. Assumptions: rings over links of "
            f"{PCIE.bandwidth / 1e9:g} GB/s (half of PCIe 3.0 x16), and (only VGG16's rows are certain) "
            + ", ".join(
                f"{millions:g} million parameters and {rows} rows for each GPU with {name}"
                for name, (millions, rows, _, _) in THEANO_MPI.items()
            )
            + ":",
            "",
            *of_theano_mpi(),
            "",
        ]
    )


def main(arguments=None):
    """Print the document, and write it unless ``--no-write`` is set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-write", action="store_true", help="do not write docs/performance.md")
    given = parser.parse_args(arguments)
    text = document()
    print(text)
    if not given.no_write:
        put(text, BEGIN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
