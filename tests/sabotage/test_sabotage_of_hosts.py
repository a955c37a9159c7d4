"""The checks in sabotage over hosts find faults; each fault is planted in all processes of a program."""

import pytest
from everyday import Wrong
from pieces import hosts
from pieces.hosts import HEALED, KEEPER, RANK, SERVER, STARTED, Case
from refusals import reports

pytestmark = pytest.mark.thorough


#: Code injected at the start of a Python process, the killed process, and the expected report.
FAULTS = {
    "a process stays": (
        "import subprocess, sys\n"
        "if sys.argv == ['-m']:  # of a serving process\n"
        "    subprocess.Popen(['sleep', '60'], start_new_session=True)\n",
        RANK,
        "sleep 60",
    ),
    "an error without its host": (
        "from synkhronos.cluster.launcher import HostsLauncher\nHostsLauncher.host = lambda self, rank: ''\n",
        RANK,
        "does not say what has happened",
    ),
    "a death that is told late": (
        "import time\n"
        "from synkhronos.cluster.stand_in import StandIn\n"
        "lose = StandIn.lose\n"
        "StandIn.lose = lambda self, *arguments: time.sleep(1.5) or lose(self, *arguments)\n",
        SERVER,
        "told after",
    ),
    "a host that is given up": (
        "import os, sys\n"
        "from synkhronos.cluster.bridge import Bridge\n"
        "hosts = Bridge.hosts\n"
        "def fewer(self):\n"
        "    killed = os.path.join(os.path.dirname(sys.argv[1]), 'killed')\n"
        "    return hosts(self)[: 1 if os.path.exists(killed) else 2]\n"
        "Bridge.hosts = fewer\n",
        KEEPER,
        "does not work on",
    ),
    "a wrong sum": (
        "from synkhronos.cluster.host_memory import HostMemory\n"
        "write = HostMemory.write\n"
        "def wrong(self, content, start):\n"
        "    content = bytearray(content)\n"
        "    content[-1] ^= 64\n"
        "    return write(self, memoryview(content), start)\n"
        "HostMemory.write = wrong\n",
        RANK,
        "expected",
    ),
    "a replaced rank with wrong values": (
        "from synkhronos.runtime.deposits import Deposits\n"
        "restored = Deposits.restored\n"
        "def wrong(self, *arguments):\n"
        "    value = restored(self, *arguments)\n"
        "    value += 1\n"
        "    return value\n"
        "Deposits.restored = wrong\n",
        HEALED,
        "expected",
    ),
    "a rank that is not replaced": (
        "from synkhronos.runtime.healing import Healing\nHealing.refusal = lambda *arguments: 'no'\n",
        HEALED,
        "not replaced",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, tmp_path, monkeypatch):
    plant, what, found = FAULTS[fault]
    monkeypatch.setattr(hosts, "GONE", 2.0)
    (tmp_path / "sitecustomize.py").write_text(plant)
    case = Case(STARTED, 2, 2, 2, what, 0.3, 0.5)
    with reports(Wrong, found):
        for _ in range(5):  # close() no longer needs any rank, so it may raise no error
            hosts.play(case, [str(tmp_path)])


@pytest.mark.parametrize("what", hosts.KILLS)
def test_a_kill(what):
    outcome = hosts.play(Case(STARTED, 2, 2, 2, what, 0.3, 0.5))
    assert outcome.told is None or outcome.told < hosts.TOLD_OF_KILLS


@pytest.mark.parametrize("launcher", [STARTED, *hosts.launchers()])
def test_ranks_that_are_replaced(launcher, monkeypatch):
    monkeypatch.setattr(hosts, "N_OF_HEALED", 8)
    assert hosts.play(Case(launcher, 2, 2, 16384, HEALED, 0.0, 0.5)).healed
