"""Largest losses of time in a profile, as sentences with causes; shares are relative to the time in calls."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

#: Losses below this share of the time in calls are not reported.
LEAST_SHARE = 0.005

_LARGER = 1.05


class Loss(NamedTuple):
    """Seconds lost by one rank or on average over the ranks, with a sentence about the loss."""

    seconds: float
    sentence: str


def losses(profile: Dict[str, Any], most: int = 3) -> List[Loss]:
    """Return at most `most` losses of a profile, the largest first."""
    wall, kinds = in_calls(profile), (_waiting, _communicating, _copying, _overhead)
    calls = [command for command in profile["commands"] if command["kind"] != "other"]
    others = [command for command in profile["commands"] if command["kind"] == "other"]
    found = [loss(command, wall, profile) for command in calls for loss in kinds]
    start, names = sum(one["totals"]["master_s"] for one in others), ", ".join(one["name"] for one in others)
    found.append(Loss(start, f"{_share(start, wall)} of the time is spent on starting and preparing: {names}."))
    worth = [one for one in found if one is not None and one.seconds > 0 and one.seconds >= LEAST_SHARE * wall]
    return sorted(worth, key=lambda loss: -loss.seconds)[:most]


def in_calls(profile: Dict[str, Any]) -> float:
    """Return the seconds that the program spent in calls."""
    return float(profile["wall_s"] - profile["shares"][profile["root"]]["idle"])


def idle_sentence(profile: Dict[str, Any]) -> str:
    """Return a sentence about the time outside calls, and a phrase that introduces the list of losses."""
    wall, idle, loading = profile["wall_s"], profile["wall_s"] - in_calls(profile), profile["loading_s"]
    sentence = f"The program makes no calls for {_share(idle, wall)} of the time"
    if loading > 0.1 * idle:
        sentence += f", and waits for its loader for {_share(loading, wall)} of the time"
    return f"{sentence}. Shares of the {in_calls(profile):.3f} s in calls:"


def known(profile: Dict[str, Any]) -> List[int]:
    """Return the ranks with records; ranks of a lost host have no records."""
    return [rank for rank, of_rank in enumerate(profile["shares"]) if any(of_rank.values())]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def rate(command: Dict[str, Any]) -> Optional[float]:
    """Return the bytes per second that a communicating rank moved on average; None if nothing was moved."""
    totals = command["totals"]
    seconds = mean(totals["transport_s"])
    return totals["moved"] / seconds if totals["moved"] and seconds else None


def _waiting(command: Dict[str, Any], wall: float, profile: Dict[str, Any]) -> Optional[Loss]:
    """Return the loss of the rank that waits longest, with its cause; None if fewer than two ranks have records."""
    totals = command["totals"]
    waits, ranks = totals["wait_s"], known(profile)
    if len(ranks) < 2:
        return None
    waiting, slowest = max(ranks, key=waits.__getitem__), min(ranks, key=waits.__getitem__)
    share, name = _share(waits[waiting], wall), _named(command)
    if waits[slowest] > 0.5 * waits[waiting]:
        sentence = f"in {name}, rank {waiting} spends {share} of the time waiting for ranks that are late by chance."
    else:
        cause = _cause(command, waiting, slowest, profile)
        sentence = f"in {name}, rank {waiting} spends {share} of the time waiting for rank {slowest}, {cause}."
    return Loss(waits[waiting], sentence)


def _cause(command: Dict[str, Any], waiting: int, slowest: int, profile: Dict[str, Any]) -> str:
    """Explain why the slowest rank of a command takes longer than a rank that waits for it."""
    totals, rows = command["totals"], command["totals"]["rows"]
    if command["kind"] == "collective":
        return "which starts the collective later"
    parts = ("engine_s", "copy_s", "transport_s", "overhead_s")
    part = max(parts, key=lambda part: totals[part][slowest] - totals[part][waiting])
    if part == "engine_s":
        if rows is not None and rows[slowest] > _LARGER * rows[waiting]:
            return f"whose share of rows is larger ({rows[slowest]:,} compared to {rows[waiting]:,})"
        took = f"({totals[part][slowest]:.3g} s compared to {totals[part][waiting]:.3g} s)"
        if len(set(profile["devices"])) > 1:
            return f"which takes longer to compute on {profile['devices'][slowest]} {took}"
        rank_host = [i for rank in (slowest, waiting) for i, ranks in enumerate(profile["hosts"]) if rank in ranks]
        if rank_host[0] == rank_host[1] and profile["cores"][rank_host[0]] < len(profile["hosts"][rank_host[0]]):
            return f"which takes longer to compute {took} because there are more ranks than cores"
        same = " for the same number of rows" if rows is not None else ""
        return f"which takes longer to compute{same} {took}"
    if part != "overhead_s":
        return f"which takes longer to {'copy rows' if part == 'copy_s' else 'communicate'}"
    return "which begins later" if slowest != profile["root"] else "which also does the work around the call"


def _communicating(command: Dict[str, Any], wall: float, profile: Dict[str, Any]) -> Loss:
    totals, name = command["totals"], _named(command)
    seconds = mean([a + b for a, b in zip(totals["transport_s"], totals["commit_s"])])
    sentence = f"communicating in {name} takes {_share(seconds, wall)} of the time"
    if command["bytes"]:
        sentence += f": {nbytes(command['bytes'])} per call (calls: {command['recorded']:,})"
        reached = rate(command)
        if reached is not None:
            sentence += f", at {nbytes(reached)}/s (this machine copies {nbytes(profile['rates']['copy'])}/s)"
    return Loss(seconds, sentence + ".")


def _copying(command: Dict[str, Any], wall: float, profile: Dict[str, Any]) -> Loss:
    copies, root, name = command["totals"]["copy_s"], profile["root"], _named(command)
    others = [seconds for rank, seconds in enumerate(copies) if rank != root]
    if others and copies[root] > 2 * mean(others):
        sentence = f"the master spends {_share(copies[root], wall)} of the time copying the arguments of {name} into "
        return Loss(copies[root], sentence + "shared memory; use synkhronos.data to keep arrays there between calls.")
    sentence = f"copying the rows of {name} takes {_share(mean(copies), wall)} of the time; "
    return Loss(mean(copies), sentence + "rows selected by a slice object need no copy.")


def _overhead(command: Dict[str, Any], wall: float, profile: Dict[str, Any]) -> Loss:
    seconds, n = command["totals"]["overhead_s"][profile["root"]], command["recorded"]
    sentence = f"the library's overhead for {_named(command)} takes {_share(seconds, wall)} of the time, "
    sentence += f"{1e6 * seconds / n:,.0f} microseconds per call"
    if command["kind"] == "function":
        sentence += "; larger batches, or Function.steps, reduce it"
    return Loss(seconds, sentence + ".")


def _named(command: Dict[str, Any]) -> str:
    kinds = {"function": "function ", "steps": "steps of function "}
    return kinds.get(command["kind"], "") + short(command["name"])


def short(name: str) -> str:
    """Shorten a command's name: remove the folders if the name is the file and line of an unnamed function.

    >>> short("/home/me/train.py:94"), short("train")
    ('train.py:94', 'train')
    """
    return name.rpartition("/")[2] if name.rpartition(":")[2].isdigit() else name


def titled(command: Dict[str, Any]) -> str:
    return f"{short(command['name'])}{'.steps' if command['kind'] == 'steps' else ''}"


def _share(seconds: float, wall: float) -> str:
    share = 100 * seconds / wall if wall else 0.0
    return f"{share:.0f} %" if share >= 9.5 else f"{share:.1f} %"


def nbytes(number: float) -> str:
    """Format a number of bytes with a decimal unit.

    >>> nbytes(12), nbytes(2540000), nbytes(8.3e9)
    ('12 B', '2.54 MB', '8.3 GB')
    """
    units: List[Tuple[float, str]] = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
    for size, unit in units:
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"
