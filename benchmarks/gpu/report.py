"""Write the report of `benchmarks/gpu/run.sh` from what its parts have left: Markdown, to standard output."""

import json
import sys
from pathlib import Path


def in_words(measured):
    """Return a measurement as text: ``{"seconds": 0.0021}`` is "2.100 ms"."""
    if measured is None:
        return "-"
    if "error" in measured:
        return "failed: " + measured["error"].replace("|", "/")
    return "-" if measured["seconds"] is None else "%.3f ms" % (1e3 * measured["seconds"])


def table(header, rows):
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header)] + rows
    return "\n".join("| %s |" % " | ".join(map(str, line)) for line in lines)


def report(folder):
    """Return the report as text."""
    parts = ["# On a GPU"]
    times = json.loads((folder / "times.json").read_text()) if (folder / "times.json").exists() else None
    if times:
        parts[0] += ": %s (%s), %s" % (times["driver"] or "unknown", times["device"], times["date"])
        parts.append("## Training step: MLP 784-800-800-10, batch of %d" % times["batch"])
        parts.append(table(["ranks on the device", "median"], [
            ["plain Theano" if n == "0" else n, in_words(value)] for n, value in times["steps"].items()]))
        parts.append("## all_reduce (sum, float32)")
        ways = sorted({key.split(" ", 1)[1] for key in times["reductions"]})
        parts.append(table(["bytes", "copy on the device"] + ["%s ranks, %s" % tuple(way.split()) for way in ways], [
            [nbytes, in_words(value)] + [in_words(times["reductions"].get(nbytes + " " + way)) for way in ways]
            for nbytes, value in times["copies"].items()]))
        for n, result in times["resnet"].items():
            parts.append("## ResNet-50, %s ranks (exit status %d)\n\n```\n%s\n```" % (
                n, result["status"], result["output"].strip()))
    for name in ("tests", "doctor"):
        log = folder / (name + ".log")
        if log.exists():
            parts.append("## %s\n\n```\n%s\n```" % (name.capitalize(), "\n".join(log.read_text().splitlines()[-30:])))
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(report(Path(sys.argv[1])))
