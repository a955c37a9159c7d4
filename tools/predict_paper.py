"""What the model says of the published measurements of others, from their figures of one GPU alone.

    python tools/predict_paper.py                 # seconds; writes its part of docs/performance.md
    python tools/predict_paper.py --no-write

They are the paper's Table 1 (ResNet-50 on a DGX-1 of 8 P100) and Theano-MPI's published seconds (8 K80 GPUs). Of the
links nothing was published, so their bandwidths are assumptions: those of data sheets, not fitted to the results.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.report import put  # noqa: E402
from synkhronos.prediction.links import Ring, SharedMemory  # noqa: E402
from synkhronos.prediction.model import Command, Layout, Model  # noqa: E402

BEGIN = "<!-- written by tools/predict_paper.py: begin -->\n"
GPUS = 8

#: One NVLink of a P100 in one direction; half of PCIe 3.0 x16, which the two GPUs of a K80 share; 10 us each.
NVLINK, PCIE = Ring(10e-6, 20e9), Ring(10e-6, 8e9)

#: The paper's Table 1: seconds of plain Theano with one GPU. Its text has the rows of a minibatch and its rate.
FUNCTION_S, SHUFFLE_S, ROWS, STEPS_PER_S = 382.5, 12.6, 64, 1.75
#: Its measured speedups with 64 rows for each GPU; that of two is said as "8 are more than 3.9 times as fast as 2".
MEASURED = {2: "at most 1.92", 4: "in a figure only", 8: "7.5"}

#: Millions of numbers that training changes.
RESNET50, ALEXNET, GOOGLENET, VGG16 = 25.6, 61.0, 13.4, 138.4

#: Theano-MPI: seconds for 5,120 images with one GPU, and with eight (training, communicating); rows of a GPU's batch.
IMAGES = 5120
THEANO_MPI = {
    "AlexNet": (ALEXNET, 128, 20.50, (2.63, 0.61)),
    "GoogLeNet": (GOOGLENET, 32, 63.89, (7.69, 0.80)),
    "VGG16": (VGG16, 32, 343.0, (43.3, 5.4)),
    "ResNet-50": (RESNET50, 64, 163.15, (20.12, 0.57)),
}


def model_of(seconds_per_row, millions, link):
    """Return the model of a program of which nothing is known but its seconds for a row and its parameters."""
    key = ("function", "train")
    command = Command(1.0, 1.0, (0.0, 0.0), (seconds_per_row, 0.0), (0.0, 0.0, 0.0), 4e6 * millions, 0.0, (1.0,))
    return Model({key: command}, key, ROWS, 0.0, SharedMemory(0.0, 0.0), link, Layout(1), (ROWS, ROWS), [])


def of_the_paper():
    """Return the lines about the paper's ResNet-50."""
    steps = (FUNCTION_S + SHUFFLE_S) * STEPS_PER_S
    model = model_of((FUNCTION_S + SHUFFLE_S) / steps / ROWS, RESNET50, NVLINK)
    lines = [
        "| GPUs | rows of a step | predicted, s | all-reduce of it, s | predicted speedup | measured |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for gpus in (2, 4, GPUS):
        parts = model.predict(Layout(gpus), gpus * ROWS)
        seconds = sum(parts.values()) * steps / gpus
        lines.append(
            f"| {gpus} | {gpus * ROWS} | {seconds:.1f} | {parts['communicating'] * steps / gpus:.2f} | "
            f"{(FUNCTION_S + SHUFFLE_S) / seconds:.2f} | {MEASURED[gpus]} |"
        )
    parts = model.predict(Layout(GPUS), ROWS)
    lines.append(
        f"| {GPUS} | {ROWS} | {sum(parts.values()) * steps:.1f} | {parts['communicating'] * steps:.2f} | "
        f"{model.speedup(Layout(GPUS), ROWS):.2f} | slightly more than 5 |"
    )
    return lines


def of_theano_mpi():
    """Return the lines about Theano-MPI."""
    lines = [
        "| network | one GPU, s | predicted for 8, s: training + communicating | measured | error of the sum | "
        "predicted speedup | measured |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, (millions, rows, alone, (training, communicating)) in THEANO_MPI.items():
        parts = model_of(alone / IMAGES, millions, PCIE).predict(Layout(GPUS), GPUS * rows)
        steps = IMAGES / rows / GPUS
        ours = [(sum(parts.values()) - parts["communicating"]) * steps, parts["communicating"] * steps]
        measured = training + communicating
        lines.append(
            f"| {name} | {alone:g} | {ours[0]:.2f} + {ours[1]:.2f} | {training:g} + {communicating:g} | "
            f"{100 * (sum(ours) / measured - 1):+.0f} % | {alone / sum(ours):.1f} | {alone / measured:.1f} |"
        )
    return lines


def document():
    """Return the text for the page."""
    return "\n".join(
        [
            f"The paper's ResNet-50, from one GPU's {FUNCTION_S:g} s of computing and {SHUFFLE_S:g} s of shuffling "
            f"alone; assumed are {STEPS_PER_S:g} steps per second, as its text has them without launch blocking, "
            f"{RESNET50:g} million parameters, and a ring over links of {NVLINK.bandwidth / 1e9:g} GB/s (one NVLink):",
            "",
            *of_the_paper(),
            "",
            f"Theano-MPI, seconds for {IMAGES:,} images; assumed are rings over links of {PCIE.bandwidth / 1e9:g} GB/s "
            "(half of PCIe 3.0 x16), and (only VGG16's rows are certain) "
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
    """Write, or print alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-write", action="store_true", help="leave docs/performance.md as it is")
    given = parser.parse_args(arguments)
    text = document()
    print(text)
    if not given.no_write:
        put(text, BEGIN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
