"""A report has the numbers calculated by hand from a scripted session, on a clock that the test sets.

::

    ms         0         10     20        40  45               95  99 100       200          240
    rank 0     | prepare        | engine  |   | wait ........... |    | program | all_reduce  |
    rank 1     | wait ....   | slice | engine .............. | wait ............ | all_reduce  |

Modules: `calls`, `losses`, `page`, `profile`, `spans`, `timeline`.
"""

import errno
import html.parser
import json
import os

import pytest
from refusals import refuses
from scripted import SETTING, Command, Rank

from synkhronos.profile.losses import losses
from synkhronos.profile.profile import loaded, profile
from synkhronos.profile.report import Report
from synkhronos.profile.spans import recorded
from synkhronos.profile.timeline import timeline

MS = 0.001


def session():
    """Return the recording of a call of f (100 ms, with 10 and 30 rows) and an all_reduce (40 ms)."""
    master, other = Rank(0, 2), Rank(1, 2)
    f, g = [Command("function", "f", rows) for rows in (10, 30)], Command("collective", "all_reduce", -1, 800, 2)
    master.do(
        "Function.__call__",
        0,
        100,
        master.doing("Arguments.prepare", 0, 10),
        master.doing(
            "Session.run",
            10,
            99,
            master.doing("MasterEnd.send", 11, 12),
            master.executing(1, f[0], 15, 45, master.doing("Engine.call", 20, 40)),
            master.doing("MasterEnd.wait", 45, 95),
        ),
    )
    master.do(
        "Session.run",
        200,
        240,
        master.doing("MasterEnd.send", 201, 202),
        master.executing(
            2,
            g,
            205,
            235,
            master.doing("Barrier.wait", 206, 211),
            master.doing("Transaction.commit", 225, 233, master.doing("Barrier.wait", 226, 229)),
            moved=500,
        ),
    )
    other.do("RankEnd.wait", 0, 16)
    other.executing(1, f[1], 18, 94, other.doing("Prepared.slice", 20, 26), other.doing("Engine.call", 28, 90))()
    other.do("RankEnd.wait", 95, 204)
    other.executing(2, g, 205, 236, other.doing("Transaction.commit", 225, 230), moved=700)()
    other.do("RankEnd.wait", 236, 240)
    now = 1_000_000 * 240
    return recorded([master.content(), other.content()], 0, now)


@pytest.fixture(scope="module")
def found():
    return profile(session(), SETTING, 1e9)


def test_a_call_of_a_function(found):
    f = found["commands"][0]
    assert (f["kind"], f["name"], f["count"], f["recorded"], f["bytes"], f["arrays"]) == ("function", "f", 1, 1, 0, 0)
    (call,) = f["calls"]
    assert call["rows"] == [10, 30] and call["begin_s"] == 0 and call["master_s"] == pytest.approx(100 * MS)
    assert call["engine_s"] == pytest.approx([20 * MS, 62 * MS])
    assert call["copy_s"] == pytest.approx([10 * MS, 6 * MS])
    # The master waits for the answer; the other rank waits from its end until the master is done: from 95 to 99.
    assert call["wait_s"] == pytest.approx([50 * MS, 4 * MS])
    assert call["transport_s"] == call["commit_s"] == [0, 0]
    assert call["overhead_s"] == pytest.approx([20 * MS, 28 * MS])


def test_a_collective(found):
    (call,) = found["commands"][1]["calls"]
    assert found["commands"][1]["bytes"] == 800 and found["commands"][1]["arrays"] == 2
    assert call["rows"] is None and call["moved"] == 600 and call["begin_s"] == pytest.approx(200 * MS)
    # Of 30 ms on the master, 5 and 3 are waiting, and 8 - 3 are the commit. Of 31 on the other rank, 5 are the commit.
    assert call["wait_s"] == pytest.approx([8 * MS, 4 * MS])
    assert call["commit_s"] == pytest.approx([5 * MS, 5 * MS])
    assert call["transport_s"] == pytest.approx([17 * MS, 26 * MS])
    assert call["overhead_s"] == pytest.approx([10 * MS, 5 * MS])


def test_shares_of_the_session(found):
    assert found["wall_s"] == pytest.approx(240 * MS) and found["ranks"] == 2 and found["dropped"] == 0
    master, other = found["shares"]
    expected = {"computing": 20, "communicating": 22, "waiting": 58, "copying": 10, "overhead": 30, "idle": 100}
    assert master == {part: pytest.approx(ms * MS) for part, ms in expected.items()}
    # From 0 to 10, and from 99 to 200, there was no command. From 10 to 16, the command was being sent.
    expected = {"computing": 62, "communicating": 31, "waiting": 8, "copying": 6, "overhead": 22, "idle": 111}
    assert other == {part: pytest.approx(ms * MS) for part, ms in expected.items()}
    assert sum(master.values()) == pytest.approx(240 * MS) and sum(other.values()) == pytest.approx(240 * MS)


def test_the_losses_name_the_rank_and_the_reason(found):
    waiting = losses(found)[0]
    assert "The program makes no calls for 42 % of the time. Shares of the 0.140 s in calls:\n1. " in str(Report(found))
    assert waiting.seconds == pytest.approx(50 * MS)
    assert waiting.sentence == (
        "in function f, rank 0 spends 36 % of the time waiting for rank 1, whose share of rows is larger (30 compared to 10)."
    )


def test_the_text(found):
    lines = str(Report(found)).splitlines()
    cells = {line.split("  ")[0]: line.split() for line in lines}
    assert cells["computing"][1:] == ["0.020", "8.3", "%", "0.062", "25.8", "%", "0.041", "17.1", "%"]
    assert cells["f"][1:] == ["0.041", "0.000", "0.000", "0.027", "0.008", "0.024"]
    row = next(line.split() for line in lines if line.startswith("all_reduce") and "kB" in line)
    # 600 bytes in the 21.5 ms in which ranks communicated, on average.
    assert row == ["all_reduce", "1", "0.040", "0.040000", "-", "-", "800", "B", "27.9", "kB/s", "0", "%"]
    assert [line.split() for line in lines if line.startswith("rank 1 ")][-1] == [
        *("rank", "1", "0.062", "151", "%", "30", "0.008")
    ]


class Page(html.parser.HTMLParser):
    """A parser that collects the elements and checks their nesting."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.texts = [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in ("meta", "rect", "line", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag in ("rect", "line", "circle"):
            return
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page(found):
    shown = Page()
    shown.feed(Report(found).files()["report.html"])
    assert shown.open == [] and "in function f, rank 0 spends 36 % of the time waiting for rank 1" in " ".join(
        shown.texts
    )
    addresses = [value for _, attributes in shown.seen for key, value in attributes.items() if key in ("src", "href")]
    assert addresses == []  # the page needs no network
    bars = [attributes for tag, attributes in shown.seen if tag == "rect"]
    assert float(bars[0]["width"]) == pytest.approx(640 * 20 / 240, abs=0.1)  # rank 0's computing


def test_names_are_escaped(found):
    named = json.loads(json.dumps(found))
    named["commands"][0]["name"] = "<script>alert(1)</script>"
    assert "<script" not in Report(named)._repr_html_()


def test_the_timeline(found):
    written = json.loads(timeline(session(), found))
    events = written["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0, the master (cpu)", 1: "rank 1 (cpu)"}
    engine = [event for event in events if event["name"] == "Engine.call"]
    assert [(event["pid"], event["ts"], event["dur"]) for event in engine] == [(0, 20000, 20000), (1, 28000, 62000)]
    flows = [(event["ph"], event["pid"], event["id"], event["ts"]) for event in events if event["ph"] in "sf"]
    assert sorted(flows, key=lambda flow: flow[3]) == [
        ("s", 0, "1.1", 11000),
        ("f", 1, "1.1", 18000),
        ("s", 0, "2.1", 201000),
        ("f", 1, "2.1", 205000),
    ]


def test_a_rank_that_computes_longer_for_as_many_rows(found):
    slow = json.loads(json.dumps(found))
    slow["commands"][0]["totals"]["rows"] = [20, 20]
    assert "for rank 1, which takes longer to compute for the same number of rows (0.062 s compared to 0.02 s)." in str(
        Report(slow)
    )


def test_nothing_is_known_of_the_ranks_of_a_lost_host():
    ranks = [Rank(rank, 3) for rank in range(3)]
    f = Command("function", "f", 10)
    for rank, late in ((0, 10), (1, 40)):
        calls = ranks[rank].executing(1, f, 10, 60, ranks[rank].doing("Barrier.wait", 10 + late, 60))
        ranks[rank].do("Session.run" if rank == 0 else "RankEnd.wait", 0, 70, calls)
    setting = SETTING._replace(devices=["cpu"] * 3, hosts=[[0, 1], [2]], host_names=["here", "there"], cores=[2, 2])
    found = profile(recorded([rank.content() for rank in ranks], 0, 1_000_000 * 70), setting, 1e9)
    assert set(found["shares"][2].values()) == {0}
    text = str(Report(found))
    assert "no record of rank 2, on a lost host; missing times count as 0 s" in text
    assert "in function f, rank 0 spends 57 % of the time waiting for rank 1" in text and "for rank 2" not in text


def test_profiles_are_read_again_and_others_are_refused(found, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(Report(found).files()["profile.json"])
    assert loaded(str(path)) == json.loads(json.dumps(found))
    path.write_text(json.dumps({**found, "format": 2}))
    with refuses(ValueError, "profile", "format 1", f"{path}, of format 2"):
        loaded(str(path))
    path.write_text("")
    with refuses(ValueError, "profile", got="complete", hint="again"):
        loaded(str(path))
    with refuses(ValueError, "profile", got=os.strerror(errno.ENOENT)):
        loaded(str(tmp_path / "nothing.json"))
