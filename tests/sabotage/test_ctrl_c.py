"""Ctrl-C, and the death of the master, at any time."""

import os
import re
import signal
import textwrap
import time

import pytest

pytestmark = pytest.mark.slow


#: The program's operation when the signal arrives; it prints "now" just before.
SITUATIONS = {
    "idle": "synk.fork(3); say('now'); time.sleep(1000)",
    "call": """
        def slow(x):
            time.sleep(0.01)
            if os.getpid() != MASTER:
                time.sleep(1000)
            return x
        f = build(slow)
        synk.fork(3)
        synk.distribute()
        say('now')
        f(np.arange(6.0))""",
    "own part": """
        def slow(x):
            if os.getpid() == MASTER:
                time.sleep(1000)
            return x
        f = build(slow)
        synk.fork(3)
        synk.distribute()
        say('now')
        f(np.arange(6.0))""",
    "collective": """
        meet = Barrier.wait
        def late(self, *notice):
            if self.rank == 2 and flag[0]:
                time.sleep(1000)
            meet(self, *notice)
        Barrier.wait = late
        f = build()
        synk.fork(3)
        synk.distribute()
        flag[0] = 1
        say('now')
        synk.all_reduce(w)""",
    "many collectives": """
        f = build()
        synk.fork(3)
        synk.distribute()
        say('now')
        while True:
            synk.all_reduce(w)
            f(np.arange(6.0))""",
    "fork": """
        say('now')
        while True:
            synk.fork(3)
            synk.close()""",
    "distribute": """
        synk.fork(3)
        say('now')
        while True:
            f = build()
            synk.distribute()""",
    "close": """
        from synkhronos.processes import rank_main as process
        serve = process.serve
        process.serve = lambda *args: (serve(*args), flag[0] and time.sleep(1000))
        flag[0] = 1
        synk.fork(3)
        say('now')
        synk.close()""",
}

#: Code that repeats interrupts that Python discards.
NONE_IS_LOST = """
def swallowed(what):  # Python discards exceptions in callbacks of weak references
    if what.exc_type is KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0.002)  # repeat it later; in here, it would be discarded again
    else:
        sys.__unraisablehook__(what)
sys.unraisablehook = swallowed
signal.signal(signal.SIGALRM, signal.default_int_handler)
"""

#: Program that checks that the session is usable or closed, and then ends by itself without output.
PROGRAM = (
    NONE_IS_LOST
    + """
def ignore_interrupts():
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
try:
    try:
%s
    finally:
        ignore_interrupts()
except KeyboardInterrupt:
    pass
ignore_interrupts()
say("interrupted")
flag[0] = 0
for _ in range(2):
    if not synk.is_forked():
        synk.fork(3)
    works()
    synk.close()
say("works")
"""
)


def indented(code):
    lines = code.strip("\n").split("\n")
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join("        " + line[margin if line[:margin].isspace() or not margin else 0 :] for line in lines)


@pytest.mark.thorough(but="^(call|collective)-1-group")
@pytest.mark.parametrize("times, to", [(1, "group"), (1, "master"), (2, "group")])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_ctrl_c(situation, times, to, script):
    program = script(PROGRAM % indented(SITUATIONS[situation]))
    program.until("now")
    time.sleep(0.15)  # it is usually further along by then; here and below, the result must not depend on the time
    for i in range(times):
        time.sleep(0.03 * i)
        if to == "group":
            os.killpg(program.pid, signal.SIGINT)
        else:
            os.kill(program.pid, signal.SIGINT)
    program.until("interrupted")
    status, out, err = program.finish()
    assert (status, out, err) == (0, "works\n", "")
    assert not program.wait_others()


def test_the_harness_loses_no_output(script):
    """The harness, if it is late, does not lose a line that arrived with the one before it."""
    program = script("say('interrupted'); say('works')")
    program.process.wait(30)
    program.until("interrupted")
    assert program.finish() == (0, "works\n", "")


@pytest.mark.thorough("^collective")
@pytest.mark.parametrize("situation", ["idle", "call", "collective", "fork", "many collectives"])
def test_ctrl_c_that_nobody_catches(situation, script):
    program = script(NONE_IS_LOST + textwrap.dedent(indented(SITUATIONS[situation])))
    program.until("now")
    time.sleep(0.1)
    os.killpg(program.pid, signal.SIGINT)
    status, out, err = program.finish()
    assert status == -signal.SIGINT and err.rstrip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1  # no other process prints a traceback
    assert not program.wait_others()


@pytest.mark.thorough("-(9|Signals.SIGKILL)$")
@pytest.mark.parametrize(
    "situation, number",
    [(situation, signal.SIGKILL) for situation in SITUATIONS]
    + [("idle", signal.SIGTERM), ("call", signal.SIGTERM), ("call", signal.SIGSEGV)],
)
def test_master_is_killed(situation, number, script, find_leftovers, find_left_since):
    before = find_leftovers()
    program = script(textwrap.dedent(indented(SITUATIONS[situation])))
    program.until("now")
    time.sleep(0.1)
    os.kill(program.pid, number)
    program.process.wait()
    assert not program.wait_others()
    assert not find_left_since(before)
    assert program.finish()[2] == ""


def test_signal_handler_that_closes(script):
    program = script("""
        def slow(x):
            time.sleep(1000)
        f = build(slow)
        def leave(*args):
            synk.close()
            sys.exit(5)
        signal.signal(signal.SIGTERM, leave)
        synk.fork(3)
        synk.distribute()
        say("now")
        f(np.arange(6.0))""")
    program.until("now")
    time.sleep(0.1)
    os.kill(program.pid, signal.SIGTERM)
    assert program.finish() == (5, "", "")


@pytest.mark.thorough
def test_alarms_that_raise_at_any_moment(script):
    """Thirty exceptions from a signal handler cause no hang and no wrong answer."""
    program = script("""
        class Alarm(Exception):
            pass
        def ring(*args):
            raise Alarm
        signal.signal(signal.SIGALRM, ring)
        f = build(updates=False)
        rung = done = vain = 0  # vain: alarms since the last completed call; on a busy machine, they must become rarer
        random = np.random.RandomState(0)
        while rung < 30 or done < 30:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.03) * 2 ** (vain // 20))
                if not synk.is_forked():
                    synk.fork(2)
                for _ in range(5):
                    assert f(np.arange(5.0)) == 2.0
                    done, vain = done + 1, 0
                if random.rand() < 0.2:
                    synk.close()
                time.sleep(1000)
            except Alarm:
                rung, vain = rung + 1, vain + 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not synk.is_forked():
            synk.fork(2)
        works()
        say("works")""")
    status, output, errors = program.finish()
    # Python reports exceptions in finalizers, for example a Popen's, and continues.
    errors = re.sub(r"Exception ignored in: (?:(?!Exception ignored).)*?\nAlarm: \n", "", errors, flags=re.DOTALL)
    assert (status, output, errors) == (0, "works\n", "")
    assert not program.wait_others()
