"""``python -m synkhronos predict DIR``: predict a profiled program's performance on more ranks."""

from __future__ import annotations

import argparse
import math
import re
import sys
from pathlib import Path
from typing import Dict, List, NoReturn, Optional, Sequence, Union

from ..contrib.prediction.drawing import drawing
from ..contrib.prediction.fitting import fit
from ..contrib.prediction.links import HostLinkModel, RingModel
from ..contrib.prediction.model import Model
from ..contrib.prediction.outlook import outlooks
from ..contrib.prediction.profiles import RankLayout, read
from ..contrib.prediction.text import report
from ..errors import ArgumentError, ArgumentValueError

RANKS = "1,2,4,8,16,64,1024"
LINKS = "shared-memory, nccl, nccl:LATENCY,BANDWIDTH or mpi:LATENCY,BANDWIDTH, e.g. mpi:50us,10Gbit"

SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
BYTES = {"": 1.0, "mb": 1e6, "gb": 1e9, "mbit": 1e6 / 8, "gbit": 1e9 / 8}


def main(arguments: Sequence[str]) -> int:
    """Print and draw a prediction; return the exit status: 2 if arguments or profiles are unusable, else 0."""
    given = parser().parse_args(arguments)
    try:
        model = fit([read(folder) for folder in given.profiles])
        cores = read(given.profiles[0]).layout.cores if given.cores is None else positive("--cores", given.cores)
        ranks = numbers("--ranks", given.ranks)
        layouts = layouts_of(ranks, numbers("--hosts", given.hosts), cores)
        model = with_link(model, given.link, layouts)
        if given.rows is not None and given.rows_per_rank is not None:
            raise ArgumentValueError("--rows-per-rank", "either --rows or --rows-per-rank", "both", "leave one out")
        rows = None if given.rows is None else positive("--rows", given.rows)
        of_rank = None if given.rows_per_rank is None else positive("--rows-per-rank", given.rows_per_rank)
        found = outlooks(model, layouts, rows, of_rank)
    except ArgumentError as error:
        print(f"synkhronos predict: {error}", file=sys.stderr)
        return 2
    first = Path(given.profiles[0])
    picture = (first if first.is_dir() else first.parent) / "prediction.svg"
    try:
        picture.write_text(drawing(found, f"Predicted: {model.main[1]}"))
        line = f"{picture}: this prediction as a picture"
    except OSError as error:
        line = f"no picture: {picture} cannot be written ({error.strerror})"
    print(f"{report(model, found)}\n{line}")
    return 0


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in the style of this library."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with status 2."""
        print(f"synkhronos predict: {message}; see python -m synkhronos predict --help", file=sys.stderr)
        sys.exit(2)


def parser() -> Parser:
    """Return the parser for the command line."""
    made = Parser(
        prog="python -m synkhronos predict",
        description="Predict the performance of a program on more ranks, from profiles with one and with two ranks. "
        "To improve the prediction, repeat both profiles with another number of rows.",
    )
    made.add_argument("profiles", nargs="+", metavar="DIR", help="folders with profiles")
    made.add_argument("--ranks", default=RANKS, help="numbers of ranks; default: %(default)s")
    made.add_argument("--hosts", default="1", help="number of hosts: one for all entries of --ranks, or one for each")
    made.add_argument("--cores", help="cores of each host; default: as in the first profile")
    made.add_argument("--rows", help="rows of a step, divided over all ranks; default: as profiled")
    made.add_argument("--rows-per-rank", help="rows per rank in a step, instead of --rows")
    made.add_argument("--link", help=f"{LINKS}; default: as profiled")
    return made


def numbers(option: str, text: str) -> List[int]:
    """Parse positive whole numbers separated by commas."""
    return [int(positive(option, each, whole=True)) for each in text.split(",")]


def positive(option: str, text: str, whole: bool = False) -> float:
    """Parse a positive number, which must be whole if `whole` is set; raise `ArgumentValueError` if it is not valid."""
    try:
        number = float(int(text)) if whole else float(text)
    except ValueError:
        number = 0.0
    if not number > 0 or math.isinf(number):
        expected = "positive whole numbers, separated by commas" if whole else "a number above 0"
        raise ArgumentValueError(option, expected, repr(text))
    return number


def layouts_of(ranks: Sequence[int], hosts: Sequence[int], cores: float) -> List[RankLayout]:
    """Return a layout for each number of ranks; if there are fewer ranks than hosts, each rank has a separate host."""
    if len(hosts) not in (1, len(ranks)):
        expected = f"one number, or as many as --ranks has ({len(ranks)})"
        raise ArgumentValueError("--hosts", expected, f"{len(hosts)} numbers")
    each = list(hosts) * (len(ranks) if len(hosts) == 1 else 1)
    return [RankLayout(n, min(n, n_hosts), cores) for n, n_hosts in zip(ranks, each)]


def with_link(model: Model, text: Optional[str], layouts: Sequence[RankLayout]) -> Model:
    """Return the model with the link from ``--link``; raise `ArgumentValueError` if several hosts are not linked."""
    hosts = max(layout.hosts for layout in layouts)
    if text is not None:
        model = model._replace(between=link_of(text, model))
    if hosts > 1 and model.between is None:
        expected = "the link between the hosts, unless the program was profiled on several hosts"
        hint = "measure it with python -m synkhronos doctor under mpirun, then pass e.g. --link mpi:50us,10Gbit"
        raise ArgumentValueError("--link", expected, f"{'none' if text is None else text} for {hosts} hosts", hint)
    if hosts > model.largest.hosts == 1:
        note = "costs of sending data to other hosts are left out, because profiles of one host lack them"
        model = model._replace(notes=[*model.notes, note])
    return model


def link_of(text: str, model: Model) -> Optional[Union[RingModel, HostLinkModel]]:
    """Parse a link; return None for shared memory."""
    kind, _, figures = text.partition(":")
    if text == "shared-memory":
        return None
    if kind not in ("nccl", "mpi"):
        raise ArgumentValueError("--link", LINKS, repr(text))
    if kind == "nccl" and not figures:
        if isinstance(model.between, RingModel):
            return model.between
        hint = "add both, e.g. nccl:10us,20GB"
        raise ArgumentValueError("--link", "latency and bandwidth for nccl, as no profile has them", repr(text), hint)
    latency, _, bandwidth = figures.partition(",")
    seconds, rate = quantity(latency, SECONDS), quantity(bandwidth, BYTES)
    if seconds is None or not rate:
        hint = "latency in s, ms or us (s without a unit), bandwidth in GB, MB, Gbit or Mbit (else bytes) per second"
        raise ArgumentValueError("--link", f"{kind}:LATENCY,BANDWIDTH", repr(text), hint)
    if kind == "nccl":
        return RingModel(seconds, rate)
    start = model.between.start if isinstance(model.between, HostLinkModel) else 0.0
    return HostLinkModel(start, seconds, 1 / rate)


def quantity(text: str, units: Dict[str, float]) -> Optional[float]:
    """Parse a number with a unit; return None if it is not valid.

    >>> quantity("2ms", SECONDS), quantity("1Gbit", BYTES), quantity("fast", BYTES)
    (0.002, 125000000.0, None)
    """
    found = re.fullmatch(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?) ?([a-z]*)", text.strip().lower())
    if not found or found.group(2) not in units:
        return None
    return float(found.group(1)) * units[found.group(2)]
