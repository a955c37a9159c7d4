"""All kinds of interpreter exits: no leftovers, the right exit status, and no spurious output."""

import sys

import pytest

pytestmark = pytest.mark.slow

OPEN = """
f = build()
synk.fork(3)
assert f(np.arange(6.0)) == 2.5
"""

ROADS = {
    "end": ("", 0, ""),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "exit with text": ("sys.exit('bye')", 1, "bye"),
    "exception": ("raise ValueError('at top level')", 1, "ValueError: at top level"),
    "os._exit": ("os._exit(4)", 4, ""),
    "abort": ("os.abort()", -6, ""),
    "exception in a call": ("f(np.zeros((2, 2)))", 1, "reshape it"),
    "atexit": (
        """
import atexit
atexit.register(lambda: say(f(np.arange(6.0)), synk.size(), w.get_value()[0]))""",
        0,
        "",
    ),
    "atexit that closes": (
        """
import atexit
atexit.register(synk.close)""",
        0,
        "",
    ),
    "child of its own, atexit": (
        """
import atexit
atexit.register(lambda: say(os.getpid() == MASTER and f(np.arange(6.0)), synk.is_forked()))
if os.fork() == 0:
    sys.exit(0)
os.wait()""",
        0,
        "",
    ),
    "thread that goes on": (
        """
def work():
    while threading.main_thread().is_alive():
        time.sleep(0.001)
    say(f(np.arange(6.0)))
threading.Thread(target=work).start()""",
        0,
        "",
    ),
    "daemon thread in the middle": (
        """
begun = []
class Sleep(Command):
    title = "sleep"
    def run(self, context):
        begun.append(context.rank)
        time.sleep(1000)
threading.Thread(target=PROGRAM.session.run, args=(Sleep(),), daemon=True).start()
while not begun:
    time.sleep(0.001)""",
        0,
        "",
    ),
    "broken stdout": ("sys.stdout.close()", 0, ""),
    "dead rank": ("os.kill(PROGRAM.session.launcher.pid(1), 9)", 0, ""),
    "stopped rank": ("os.kill(PROGRAM.session.launcher.pid(1), signal.SIGSTOP)", 0, ""),
    "dead keeper": ("os.kill(PROGRAM.keeper_pid, 9)", 0, ""),
    "child of its own": (
        """
if os.fork() == 0:
    sys.exit(0)
os.wait()
say(f(np.arange(6.0)))""",
        0,
        "",
    ),
    "module reference": ("kept = [synk, f, PROGRAM.session, w]; kept.append(kept)", 0, ""),
    "garbage": (
        """
class Last:
    def __del__(self):
        synk.close()
last = Last()
last.self = last
synk.close  # loaded now, because nothing can be imported then""",
        0,
        "",
    ),
}
SAYS = {
    "child of its own, atexit": "False False\n2.5 True\n",
    "atexit": "2.5 3 2.0\n",
    "thread that goes on": "2.5\n",
    "child of its own": "2.5\n",
}


@pytest.mark.thorough("daemon|stopped")
@pytest.mark.parametrize("road", ROADS)
def test_ends(road, script):
    code, expected, text = ROADS[road]
    program = script(OPEN + code)
    status, out, err = program.finish()
    assert status == expected, err
    assert out == SAYS.get(road, "")
    assert err.rstrip().endswith(text) and err.count("Traceback") == (road.startswith("exception")), err
    if not text:
        assert err == ""
    assert not program.wait_others()


@pytest.mark.parametrize("how", ["file", "stdin", "module runner"])
def test_launched_otherwise(how, script, prelude, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(prelude + OPEN + "works()\nsay('works')\n")
    launch = {
        "file": [sys.executable, str(path)],
        "stdin": [sys.executable, "-"],
        "module runner": [sys.executable, "-m", "synkhronos", str(path)],
    }[how]
    program = script(launch=launch, stdin=path.read_text() if how == "stdin" else None)
    assert program.finish() == (0, "works\n", "")
    assert not program.wait_others()


def test_exit_handler_from_before_the_first_use(script, tmp_path):
    path = tmp_path / "program.py"
    path.write_text("""
import atexit
import synkhronos
atexit.register(lambda: print(synkhronos.is_forked(), synkhronos.size()))
synkhronos.fork(2)
""")
    assert script(launch=[sys.executable, str(path)]).finish() == (0, "True 2\n", "")


def test_output_is_written_once(script, tmp_path):
    """Only the program writes output that was buffered at the fork."""
    path = tmp_path / "log"
    program = script(f"""
        file = open({str(path)!r}, "w")
        file.write("in the file ")
        print("on stdout", end=" ")
        sys.stderr.write("on stderr ")
        synk.fork(3)
        synk.close()
        synk.fork(2)""")
    assert program.finish() == (0, "on stdout ", "on stderr ")
    assert path.read_text() == "in the file "


def test_nobody_waits_for_the_keeper_to_close_a_file(script):
    """Our processes do not keep a pipe open that was open at the fork."""
    program = script("""
        r, w_end = os.pipe()
        os.set_inheritable(w_end, True)
        for _ in range(300):
            os.dup(r)
        synk.fork(3)
        works()
        os.close(w_end)
        say(os.read(r, 1) == b"")""")
    assert program.finish() == (0, "True\n", "")


def test_signals_that_the_program_blocks(script):
    """The program's signal masks and handlers affect neither the ranks nor the session."""
    program = script("""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        synk.fork(3)
        works()
        class Look(Command):
            def run(self, context):
                import subprocess
                code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
                ignored = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout
                return signal.pthread_sigmask(signal.SIG_BLOCK, []), ignored
        import synkhronos.program.program
        synkhronos.program.program.Look = Look
        Look.__module__ = "synkhronos.program.program"
        synk.close()
        PROGRAM.shut_down()
        synk.fork(2)
        f = build()
        f(np.arange(4.0))
        mask, ignored = PROGRAM.session.run(Look())[1]
        assert mask == set() and ignored == b"False\\n", (mask, ignored)
        os.kill(PROGRAM.session.launcher.pid(1), 9)
        try:
            synk.all_reduce(w)
        except synk.WorkerDied:
            say("died")
        os.kill(PROGRAM.keeper_pid, 9)
        synk.close()
        synk.fork(2)
        works()
        say("works")""")
    status, out, err = program.finish()
    assert (status, out, err) == (0, "died\nworks\n", "")
