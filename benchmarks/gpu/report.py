"""Print the report of `benchmarks/gpu/run.sh` as Markdown, from the results of its parts."""

import json
import sys
from pathlib import Path


def in_words(measured):
    """Format a measurement: ``{"seconds": 0.0021}`` becomes "2.100 ms"."""
    if measured is None:
        return "-"
    if "error" in measured:
        return "failed: " + measured["error"].replace("|", "/")
    return "-" if measured["seconds"] is None else f"{1e3 * measured['seconds']:.3f} ms"


def table(header, rows):
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header)] + rows
    return "\n".join("| {} |".format(" | ".join(map(str, line))) for line in lines)


def report(folder):
    """Return the report on a folder of results, as Markdown."""
    parts = ["# On a GPU"]
    times = json.loads((folder / "times.json").read_text()) if (folder / "times.json").exists() else None
    if times:
        parts[0] += ": {} ({}), {}".format(times["driver"] or "unknown", times["device"], times["date"])
        parts.append(f"## Training step: MLP 784-800-800-10, batch of {times['batch']}")
        parts.append(
            table(
                ["ranks on the device", "median"],
                [["plain Theano" if n == "0" else n, in_words(value)] for n, value in times["steps"].items()],
            )
        )
        parts.append("## all_reduce (sum, float32)")
        ways = sorted({key.split(" ", 1)[1] for key in times["reductions"]})
        parts.append(
            table(
                ["bytes", "copy on the device"] + ["ranks: {}, {}".format(*tuple(way.split())) for way in ways],
                [
                    [nbytes, in_words(value)] + [in_words(times["reductions"].get(nbytes + " " + way)) for way in ways]
                    for nbytes, value in times["copies"].items()
                ],
            )
        )
        for n, result in times["resnet"].items():
            parts.append(
                f"## ResNet-50, ranks: {n} (exit status {result['status']})\n\n```\n{result['output'].strip()}\n```"
            )
    for name in ("tests", "doctor"):
        log = folder / (name + ".log")
        if log.exists():
            parts.append(
                "## {}\n\n```\n{}\n```".format(name.capitalize(), "\n".join(log.read_text().splitlines()[-30:]))
            )
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(report(Path(sys.argv[1])))
