"""Several hosts: at random moments, processes are killed, cables are cut, or hosts are switched off.

Each case is a separate program (`over_hosts`), on hosts that are processes of this machine, or on pretend hosts where
MPI starts it (tests/hosts). The harness checks the process tables of all hosts from outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import psutil
from everyday import Wrong

from pieces.report import Row, clean, scaled

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "tests" / "hosts"))

import mpi  # noqa: E402
from pretend import Cluster, lacking  # noqa: E402

#: Places of the hosts, and launchers of their processes.
STARTED, OPEN_MPI = "started", "openmpi"
MPICH, ULFM = "mpich -disable-auto-cleanup", "openmpi --with-ft ulfm"
LAUNCHERS = (MPICH, OPEN_MPI, ULFM)

#: Processes to kill. Those without "bridge" and "program" exist on every host, or on every other host.
RANK, RANK_HERE, SERVER, KEEPER, KEEPER_HERE, BRIDGE, PROGRAM = (
    "rank elsewhere",
    "rank here",
    "serving process",
    "keeper elsewhere",
    "keeper here",
    "bridge",
    "program",
)
KILLS = (RANK, RANK_HERE, SERVER, KEEPER, KEEPER_HERE, BRIDGE, PROGRAM)
CUT, OFF, HEALED = "cable cut", "host switched off", "ranks that are replaced"

#: Number of ranks, on any host, that are killed in a program that replaces them.
N_OF_HEALED = 20

#: Time limits in seconds: for the report; for the end of all processes, on reachable and on unreachable hosts.
TOLD = {CUT: 5.0, OFF: 5.0}
TOLD_OF_KILLS = 1.0
GONE = 10.0

#: Time limit in seconds for slow operations on a busy machine: to start, and to repeat everything.
PATIENCE = 90.0

#: Repetitions in the whole campaign, and simultaneous programs, which wait most of the time.
N_KILLS, N_CUTS, N_OFFS, N_HEALED = 500, 50, 50, 50
AT_A_TIME = 3


class Case(NamedTuple):
    """A failure, and its program."""

    launcher: str
    hosts: int
    per_host: int
    width: int
    what: str
    moment: float  # time of the failure, relative to the program's total time
    draw: float  # random number that selects a process or host


def lives_on(case: Case) -> bool:
    """Return whether the program survives the failure."""
    if case.what == PROGRAM:
        return False
    return case.launcher != OPEN_MPI or case.what not in (SERVER, BRIDGE)


class Stage:
    """Context manager for a program on hosts, observed from outside.

    Parameters
    ----------
    case : Case
    path : sequence of str
        Folders that are searched first for the program's modules.
    """

    def __init__(self, case: Case, path: Sequence[str] = ()) -> None:
        self.case = case
        self.folder = Path(tempfile.mkdtemp(prefix="sabotage-of-hosts-", dir="/tmp"))
        self.record, self.killed = self.folder / "record", self.folder / "killed"
        self.mark = f"SYNK_SABOTAGE={self.folder.name}"
        self.cluster: Optional[Cluster] = None
        self.said = open(self.folder / "said", "wb")
        words = [str(self.record), case.per_host, case.width, 2 * N_OF_HEALED if case.what == HEALED else 0]
        variables = dict([self.mark.split("=")])
        variables["PYTHONPATH"] = os.pathsep.join([*path, str(ROOT), str(ROOT / "tests")])
        streams = dict(stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.said)
        program = HERE / "over_hosts.py"
        if case.launcher == STARTED:
            command = [sys.executable, program, *words, case.hosts]
            self.process = subprocess.Popen(
                [str(word) for word in command], env={**os.environ, **variables}, start_new_session=True, **streams
            )
            return
        kind, *options = case.launcher.split()
        found = mpi.find(kind)
        assert found is not None
        self.cluster = Cluster(case.hosts, shared=[self.folder, found.prefix])
        self.process = found.start(
            ["-m", "synkhronos", program, *words], hosts=self.cluster, variables=variables, options=options, **streams
        )

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *exception: Any) -> None:
        for pid in self.marked():
            with contextlib.suppress(ProcessLookupError):  # it has already ended
                os.kill(pid, signal.SIGKILL)
        if self.cluster is not None:
            self.cluster.close()
        self.process.wait()
        self.said.close()
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()

    # -- messages ----------------------------------------------------------------------------------------------------

    def lines(self) -> Dict[str, Any]:
        """Return the program's last event of each kind so far."""
        try:
            text = self.record.read_text()
        except FileNotFoundError:
            return {}
        return {line["what"]: line for line in map(json.loads, text.splitlines()[: text.count("\n")])}

    def until(self, seconds: float, *what: str) -> Any:
        """Wait for one of these events; return the first, or None if the program has ended or is late."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ended = self.process.poll() is not None
            lines = self.lines()
            if "wrong" in lines:
                raise Wrong(lines["wrong"]["text"])
            for each in what:
                if each in lines:
                    return lines[each]
            if ended:
                return None
            time.sleep(0.01)
        return None

    # -- processes ---------------------------------------------------------------------------------------------------

    def marked(self) -> List[int]:
        """Return the program's processes on this machine, or none if it runs on pretend hosts."""
        if self.cluster is not None:
            return []
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes().split(b"\0") and state(path.parent) != "Z":
                    found.append(int(path.parent.name))
            except OSError:  # it has ended
                pass
        return found

    def left(self, hosts: Sequence[int]) -> List[str]:
        """Return the program's remaining processes and shared-memory names on hosts."""
        if self.cluster is None:
            left = [f"process {pid} ({name(pid)})" for pid in self.marked()]
            return left
        left = []
        for host in hosts:
            processes = [(each.pid, name(each.pid)) for each in self.cluster.processes(host)]
            left += [f"process {pid} ({words}) of h{host}" for pid, words in processes if "agent.py" not in words]
            if self.cluster.is_on(host):
                left += [f"/dev/shm/{each} of h{host}" for each in self.cluster.shared_memory(host) if "synk" in each]
        return left

    def all_left(self, hosts: Sequence[int], until: float) -> List[str]:
        """Return the leftovers on hosts at that time, or [] as soon as there are none."""
        while True:
            left = self.left(hosts)
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.02)

    def until_gone(self, host: int, until: float) -> List[str]:
        """Return a host's leftovers at that time, except for MPI's, or [] as soon as there are none."""
        while True:
            left = [each for each in self.left([host]) if "-m synkhronos" in each or "/dev/shm" in each]
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.02)

    def pid(self, host: int, inside: int) -> int:
        """Return the id on this machine of a process with this id inside its host."""
        if self.cluster is None:
            return inside
        for process in self.cluster.processes(host):
            (numbers,) = [
                line.split()
                for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
                if line.startswith("NSpid:")
            ]
            if int(numbers[-1]) == inside:
                return process.pid
        raise Wrong(f"h{host} has no process {inside}")


def state(folder: Path) -> str:
    """Return the state of a process: "Z" if it has ended."""
    return (folder / "stat").read_text().rpartition(")")[2].split()[0]


def name(pid: int) -> str:
    """Return a process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "?"


class Outcome(NamedTuple):
    """The outcome of a case."""

    told: Optional[float]  # seconds until the error, if the program received one
    operation: str  # operation that raised the error
    gone: float  # seconds from the end of the program to the end of all other processes
    healed: Sequence[float] = ()  # seconds that each replacement of a rank has taken


def play(case: Case, path: Sequence[str] = ()) -> Outcome:
    """Play a case; raise `Wrong` if a result is not as expected."""
    with Stage(case, path) as stage:
        try:
            return check(case, stage)
        except Wrong as error:
            stage.said.flush()
            said = (stage.folder / "said").read_bytes().decode(errors="replace")[-3000:]
            left = stage.left(range(case.hosts))
            raise Wrong(f"{case}: {error}\nIt said: {stage.lines()}\nIt printed: {said}\nThere are: {left}") from error


def check(case: Case, stage: Stage) -> Outcome:
    """Sabotage a running program, and check the consequences."""
    ready = stage.until(PATIENCE, "ready")
    if ready is None:
        raise Wrong("it does not begin")
    if case.what == HEALED:
        return check_healed(case, stage, ready)
    host = sabotaged_host(case)
    time.sleep(case.moment * ready["seconds"])
    begin = time.monotonic()
    if case.what == CUT:
        stage.cluster.cut(host)
    elif case.what == OFF:
        stage.cluster.off(host)
    else:
        begin = kill(case, stage, host, ready)
    stage.killed.touch()
    ends = ThreadPoolExecutor(1).submit(stage.until_gone, host, begin + GONE) if case.what == CUT else None
    reached = [each for each in range(case.hosts) if each != host or case.what not in (CUT, OFF)]
    told = None
    if lives_on(case):
        told = stage.until(PATIENCE, "told", "fewer", "works")
        if told is None:
            raise Wrong("it is told nothing")
        if told["what"] == "told":
            check_told(case, ready["names"][host], told, begin)
        works = stage.until(PATIENCE, "works")
        expected = hosts_left(case, host, ready["names"])
        if works is None or works["hosts"] != expected:
            raise Wrong(f"it does not work on {expected}: {works}")
        if stage.until(PATIENCE, "done") is None:
            raise Wrong("it does not end")
        done = time.monotonic()
    else:
        done = begin
    if ends is not None and ends.result():
        raise Wrong(f"left on the host that cannot be reached: {ends.result()}")
    try:
        status = stage.process.wait(max(0.1, done + GONE - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise Wrong("the launcher does not end") from None
    if lives_on(case) and status and not is_of_mpich(case, status):
        raise Wrong(f"exit status {status}")
    left = stage.all_left(reached, done + GONE)
    if left:
        raise Wrong(f"left behind: {left}")
    gone = time.monotonic() - done
    if told is None or told["what"] != "told":
        return Outcome(None, "nothing", gone)
    return Outcome(max(0.0, told["when"] - begin), told["operation"], gone)


def is_of_mpich(case: Case, status: int) -> bool:
    """Return whether a launcher's exit status only reports that a process of the job was killed, or crashed in MPICH.

    ``Isend`` of MPICH 5.0.2 crashes if the receiver has ended. After the bridge's death, this ends a process that would
    end anyway.
    """
    crashed = case.launcher == MPICH and case.what == BRIDGE and status == signal.SIGSEGV
    return case.what in (SERVER, CUT, OFF) or crashed


def check_healed(case: Case, stage: Stage, ready: Dict[str, Any]) -> Outcome:
    """Kill ranks one after another, on all hosts; the program raises no error."""
    draw = random.Random(case.draw)
    for _ in range(N_OF_HEALED):
        time.sleep(draw.uniform(0.0, 0.5) * ready["seconds"])
        host = draw.randrange(case.hosts)
        if {"told", "wrong"} & {*stage.lines()}:
            break
        if host or case.per_host > 1:
            try:
                kill(case._replace(what=RANK, draw=draw.random()), stage, host, ready)
            except (psutil.NoSuchProcess, Wrong):  # the program has ended
                break
    stage.killed.touch()
    works = stage.until(PATIENCE, "told", "works")
    if works is None or works["what"] == "told":
        raise Wrong("ranks were not replaced")
    if stage.until(PATIENCE, "done") is None:
        raise Wrong("it does not end")
    done = time.monotonic()
    status = stage.process.wait(GONE)
    left = stage.all_left(range(case.hosts), done + GONE)
    if status or left:
        raise Wrong(f"exit status {status}, left behind: {left}")
    return Outcome(None, "nothing", time.monotonic() - done, stage.lines()["healed"]["seconds"])


def sabotaged_host(case: Case) -> int:
    """Return the host of the failure."""
    if case.what in (RANK_HERE, KEEPER_HERE, BRIDGE, PROGRAM):
        return 0
    return 1 + int(case.draw * (case.hosts - 1))


def kill(case: Case, stage: Stage, host: int, ready: Dict[str, Any]) -> float:
    """Kill a process; return the time."""
    while True:
        victim = find_victim(case, stage, host, ready)
        begin = time.monotonic()
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            if case.what not in (RANK, RANK_HERE):  # otherwise, a rank whose session has already ended
                raise Wrong(f"h{host} has no process {victim}") from None
        else:
            return begin


def find_victim(case: Case, stage: Stage, host: int, ready: Dict[str, Any]) -> int:
    """Return the process to kill; if it is a rank, one that exists now."""
    if case.what in (RANK, RANK_HERE, KEEPER, KEEPER_HERE):
        victim = stage.pid(host, ready["keepers"][host])
        if case.what in (RANK, RANK_HERE):
            until = time.monotonic() + PATIENCE
            ranks: List[psutil.Process] = []
            while not ranks:
                ranks = psutil.Process(victim).children()
                if time.monotonic() > until:
                    raise Wrong(f"there are no ranks on h{host}")
            victim = ranks[int(case.draw * 1000) % len(ranks)].pid
        return victim
    return stage.pid(
        host, {SERVER: ready["speakers"][host], BRIDGE: ready["speakers"][0], PROGRAM: ready["program"]}[case.what]
    )


def hosts_left(case: Case, host: int, names: List[str]) -> List[Optional[str]]:
    """Return the names of the remaining hosts, or [None] for this host alone."""
    if case.what == BRIDGE:
        return [None]
    lost = case.what in (SERVER, CUT, OFF)
    left = [each for i, each in enumerate(names) if not (lost and i == host)]
    return left if len(left) > 1 else [None]


def check_told(case: Case, host: str, told: Dict[str, Any], begin: float) -> None:
    """Raise if an error does not have the expected text, or is late."""
    seconds = told["when"] - begin
    text, cause = told["text"], told["cause"]
    starting = told["operation"] in ("fork", "count")  # no rank exists yet
    if case.what in (KEEPER_HERE, BRIDGE):
        good = ("the keeper process" if case.what == KEEPER_HERE else "the bridge process") in text
    elif case.what in (RANK, RANK_HERE):
        good = f"on host {host}) was killed by SIGKILL" in text and told["type"] == "WorkerDied"
    elif case.what == KEEPER:
        good = f"on host {host}" in text and "keeper" in text + cause
    else:
        good = f"on host {host}) was lost with its host" in text and f"host {host} is lost" in cause
        good = good and told["type"] == "WorkerDied" or starting and f"host {host} is lost" in text
    if not good:
        raise Wrong(f"the error does not say what has happened: {told}")
    if seconds > TOLD.get(case.what, TOLD_OF_KILLS):
        raise Wrong(f"told after {seconds:.3f} s")


def cases(n: int, whats: Sequence[str], launchers: Sequence[str], seed: int) -> List[Case]:
    """Draw cases of all kinds, with all launchers."""
    draw = random.Random(seed)
    found = []
    for i in range(n):
        what = whats[i % len(whats)]
        per_host = 2 if what == RANK_HERE else draw.choice((1, 2))
        width = draw.choice((2, 2, 8192, 16384))  # values below 64 KiB take another route
        moment = draw.uniform(0.0, 1.5)
        launcher = launchers[i % len(launchers)]
        found.append(Case(launcher, draw.choice((2, 3)), per_host, width, what, moment, draw.random()))
    return found


def launchers() -> List[str]:
    """Return the launchers that can start programs on pretend hosts here."""
    if lacking():
        return []
    return [launcher for launcher in LAUNCHERS if mpi.find(launcher.split()[0]) is not None]


def rows(title: str, whats: Sequence[str], played: Sequence[Case], outcomes: Sequence[Outcome]) -> List[Row]:
    """Return a row for every launcher."""
    found = []
    for launcher in dict.fromkeys(case.launcher for case in played):
        of_it = [(case, outcome) for case, outcome in zip(played, outcomes) if case.launcher == launcher]
        told = [outcome.told for _, outcome in of_it if outcome.told is not None]
        kinds = Counter(case.what for case, _ in of_it)
        operations = Counter(outcome.operation for _, outcome in of_it)
        where = "processes of one machine" if launcher == STARTED else f"pretend hosts, {launcher}"
        n_on = sum(lives_on(case) for case, _ in of_it)
        healed = [seconds for _, outcome in of_it for seconds in outcome.healed]
        if HEALED in whats:
            words = clean([f"{len(of_it)} programs, with the values of the serial program"])
            found.append(Row(f"{title} ({where}); times until the command is repeated", len(healed), words, healed))
            continue
        words = [
            f"the program continued {n_on} times, with an error {len(told)} times",
            ", ".join(f"{what} {n}" for what, n in kinds.items()) if len(whats) > 1 else "",
            f"in {len(operations)} operations",
            f"all processes gone within {max(outcome.gone for _, outcome in of_it):.1f} s after its end",
        ]
        found.append(Row(f"{title} ({where})", len(of_it), clean(list(filter(None, words))), told))
    return found


def run(scale: float, progress: Any, seed: int = 1) -> List[Row]:
    """Run the piece."""
    by_mpi = launchers()
    mixed = [each for launcher in by_mpi for each in (STARTED, launcher)] or [STARTED]
    parts = [("kill -9 over several hosts", scaled(N_KILLS, scale), KILLS, mixed)]
    if by_mpi:
        parts.append(("a cable that is cut", scaled(N_CUTS, scale), [CUT], by_mpi))
        parts.append(("a host that is switched off", scaled(N_OFFS, scale), [OFF], by_mpi))
    parts.append(("kill -9 of ranks that are replaced, over several hosts", scaled(N_HEALED, scale), [HEALED], mixed))
    found = []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for k, (title, n, whats, of_part) in enumerate(parts):
            drawn, outcomes = cases(n, whats, of_part, seed + k), []
            for future in [pool.submit(play, case) for case in drawn]:
                try:
                    outcomes.append(future.result())
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
                progress(title, len(outcomes), n)
            found += rows(title, whats, drawn, outcomes)
    return found
