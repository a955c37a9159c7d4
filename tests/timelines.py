"""Checks of the timelines of profiles."""

import json


def read(folder):
    return json.loads((folder / "profile.json").read_text()), json.loads((folder / "timeline.json").read_text())


def lanes(timeline, profile):
    """Return the spans of each rank's first thread: begin, end, and the event."""
    found = [[] for _ in range(profile["ranks"])]
    for event in timeline["traceEvents"]:
        if event["ph"] == "X" and event["tid"] == 0:
            found[event["pid"]].append((event["ts"], event["ts"] + event["dur"], event))
    return found


def check_nested(lane):
    """Check that of any two overlapping spans, one contains the other."""
    around = []
    for begin, end, event in sorted(lane, key=lambda span: (span[0], -span[1])):
        while around and around[-1] <= begin + 1e-3:
            around.pop()
        assert not around or end <= around[-1] + 1e-3, event
        around.append(end)


def covered(lane):
    """Return the microseconds that spans cover, and the microseconds from the first span to the last."""
    first = last = min(begin for begin, _, _ in lane)
    total = 0.0
    for begin, end, _ in sorted(lane, key=lambda span: span[:2]):
        total += max(0.0, end - max(begin, last))
        last = max(last, end)
    return total, last - first
