"""Sessions on one host and on several run the same code: few places ask how many hosts there are.

A session always has a `Hosts`, which answers for one host as for several, and objects with the same interface are
chosen in few places. This test counts the questions, and every file that asks needs a reason.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "synkhronos"

#: Files and folders for several hosts alone, and those that describe sessions on several hosts.
APART = (
    *("cluster/", "sync/host_relay.py", "sync/barrier_over_hosts.py", "transports/over_hosts.py"),
    *("cli/", "contrib/prediction/", "profile/report.py"),
)

#: The number of questions in a file, and their reason.
ASKING = {
    "sync/hosts.py": (1, "names the link"),
    "sync/block_over_hosts.py": (1, "chooses the control block"),
    "runtime/context.py": (2, "chooses barrier and transport, and the relay of a leading rank"),
    "runtime/session.py": (1, "encloses data in commands, which would cost a call on one host"),
    "transports/strategy.py": (2, "chooses the algorithm"),
    "memory/attach.py": (1, "knows where memory is"),
    "calls/plan.py": (1, "fetches arguments that are elsewhere"),
    "program/program.py": (6, "starts the ranks, and asks the bridge which hosts exist"),
    "program/hosts.py": (3, "starts the program"),
    "program/devices.py": (4, "chooses devices of all hosts, and sets NCCL's network"),
    "program/profiled.py": (2, "compares clocks, and collects records"),
    "mesh/devices.py": (1, "refuses several hosts"),
    "contrib/asynchronous.py": (1, "refuses several hosts"),
    "extensions/pymc/written_draws.py": (1, "writes files of one host"),
}

#: Names of objects that one host lacks, or whose number or content shows whether there are several hosts.
NAMES = {"hosts", "over_hosts", "far", "links", "leading", "leader", "relay", "fetcher", "world"}
NAMES |= {f"_{name}" for name in NAMES} | {"_bridge"}
DIRECT = {"are_several", "spans_hosts", "_spans_hosts"}


def name_of(node):
    """Return the last name of an expression like ``self._hosts`` or ``len(synk.hosts())``."""
    if isinstance(node, ast.Call):
        is_wrapped = isinstance(node.func, ast.Name) and node.func.id in ("len", "bool", "any", "isinstance")
        node = node.args[0] if is_wrapped and node.args else node.func
        return name_of(node)
    return getattr(node, "attr", getattr(node, "id", ""))


def conditions_in(node):
    """Yield the expressions whose truth a node uses."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
        yield node.test
    elif isinstance(node, ast.comprehension):
        yield from node.ifs
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Compare) and any(
        isinstance(each, ast.Constant) for each in [node.left, *node.comparators]
    ):
        yield from (node.left, *node.comparators)


def questions_in(text):
    """Return the numbers of the lines that ask whether there are several hosts."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and name_of(node) in DIRECT and isinstance(node.ctx, ast.Load):
            found.add(node.lineno)
        found.update(each.lineno for each in conditions_in(node) if name_of(each) in NAMES)
    return sorted(found)


def test_few_places_ask_for_the_number_of_hosts():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        lines = () if name.startswith(APART) else questions_in(path.read_text())
        if lines:
            found[name] = lines
    assert {name: len(lines) for name, lines in found.items()} == {name: n for name, (n, _) in ASKING.items()}, found


@pytest.mark.parametrize(
    "text",
    [
        "near = () if hosts is None else hosts.near",
        "if self._hosts is not None: pass",
        "if len(session.hosts.ranks) > 1 and len(hosts) == 1: pass",
        "if not self.far: pass",
        "x = [each for each in ranks if pools.spans_hosts]",
        "f(hosts.are_several)",
        "assert isinstance(context.leading, RootRelay)",
        "while links or other: pass",
        "received = 0 if self._fetcher is None else self._fetcher.received",
        "if context.leading is not None and words[3]: pass",
    ],
)
def test_what_is_a_question(text):
    assert questions_in(text) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "for rank in hosts.far: wake(rank)",
        "if rank in hosts.near: pass",
        "if pools.is_far(handle): pass",
        "leading.forward(watch)",
        "led = hosts.led_by(rank) or (rank,)",
        "if host.name == '': pass",
    ],
)
def test_what_is_no_question(text):
    assert questions_in(text) == []
