"""Notebook cells, and lines at a prompt: ranks can use definitions from there, and Ctrl-C ends only the cell."""

import os
import signal
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.slow

FIRST = """
import os, time
import numpy as np
import synkhronos as synk
from synkhronos.testing import numpy_engine as engine
master = os.getpid()
w = engine.shared(np.zeros(3), "w")
x = engine.variable("x", "float64", 1)
""".strip().split("\n")

#: Cells of one line, with their expected output.
CELLS = [
    ("synk.fork(3)", "3"),
    ("twice = lambda x: x * 2  # after the fork", ""),
    (
        'f = synk.function([x], (engine.mean(engine.apply(twice, x, dtype="float64", ndim=1)), "avg"), updates=[(w, w + 1)])',
        "",
    ),
    ("print(float(f(np.arange(5.0))))", "4.0"),
    ("slow = lambda x: (time.sleep(0 if os.getpid() == master else 1000), x)[1]", ""),
    ('g = synk.function([x], (engine.mean(engine.apply(slow, x, dtype="float64", ndim=1)), "avg"))', ""),
    ("synk.distribute()", ""),
]
SLOW = 'print("begun", flush=True); g(np.arange(5.0))'
#: Cells after the interrupt.
AFTER = [
    ("synk.is_forked() or synk.fork(3) and None", None),
    ("print(float(f(np.arange(5.0))))", "4.0"),
    ('synk.all_reduce(w, op="max")', ""),
    ("print(bool(synk.in_sync(w)))", "True"),
]


def test_prompt(script):
    """Sessions work in ``python -i``, after Ctrl-C in a call."""
    program = script(launch=[sys.executable, "-i", "-q", "-u"], env=dict(os.environ, PYTHONSTARTUP=""))

    def line(text, expected):
        program.process.stdin.write(text + "\nprint('end of line')\n")
        program.process.stdin.flush()
        said = []
        while True:
            word = program.read()
            assert word or program.process.poll() is None
            if word == "end of line":
                break
            said.append(word)
        if expected is not None:
            assert said == ([expected] if expected else []), (text, said)

    for text in FIRST:
        line(text, "")
    for text, expected in CELLS:
        line(text, expected)
    program.process.stdin.write(SLOW + "\n")
    program.process.stdin.flush()
    program.until("begun")
    time.sleep(0.2)  # the call is usually further along by then
    os.killpg(program.pid, signal.SIGINT)
    line("", "")
    for text, expected in AFTER:
        line(text, expected)
    status, _, err = program.finish()
    assert status == 0 and err.count("KeyboardInterrupt") == 1 and err.count("Traceback") == 1, err
    assert not program.wait_others()


@pytest.fixture
def nothing_more_stays(nothing_stays):
    """Open files are not checked, because Jupyter's client keeps some open in this process."""


@pytest.fixture
def kernel():
    """Return a Jupyter kernel, and functions that start and finish a cell."""
    manager_module = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    manager, client = manager_module.start_new_kernel(startup_timeout=60)

    def start(cell):
        return client.execute(cell)

    def finish(message, timeout=60):
        text, error = "", None
        while True:
            reply = client.get_iopub_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") != message:
                continue
            kind, content = reply["header"]["msg_type"], reply["content"]
            if kind == "stream":
                text += content["text"]
            elif kind == "execute_result":
                text += content["data"]["text/plain"]
            elif kind == "error":
                error = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return text.strip(), error

    yield manager, start, finish
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.thorough
def test_jupyter_kernel(kernel):
    """Sessions work in a Jupyter kernel, if installed."""
    manager, start, finish = kernel
    assert finish(start("\n".join(FIRST))) == ("", None)
    for text, expected in CELLS:
        assert finish(start(text)) == (expected, None), text
    pid = manager.provisioner.pid
    family = psutil.Process(pid).children(recursive=True)
    assert len(family) >= 3  # the keeper and two ranks
    message = start(SLOW)
    time.sleep(0.5)  # the call is usually further along by then
    manager.interrupt_kernel()
    assert finish(message) == ("begun", "KeyboardInterrupt")
    for text, expected in AFTER:
        said, error = finish(start(text))
        assert error is None and expected in (None, said), text
    # The ranks' output is displayed below the cell.
    assert (
        finish(
            start(
                "loud = lambda x: (os.getpid() == master or print('here'), x)[1]\n"
                'h = synk.function([x], (engine.mean(engine.apply(loud, x, dtype="float64", ndim=1)), "avg"))\n'
                "print(float(h(np.arange(6.0))))"
            )
        )[0].split("\n")[-1]
        == "2.5"
    )
    family = psutil.Process(pid).children(recursive=True)
    manager.shutdown_kernel(now=True)  # sends SIGKILL
    assert not psutil.wait_procs(family, timeout=60)[1]


@pytest.mark.thorough
def test_restarted_kernel(kernel):
    """A restart in the middle of a call ends the session's processes."""
    manager, start, finish = kernel
    assert finish(start("\n".join(FIRST))) == ("", None)
    for text, _ in CELLS:
        finish(start(text))
    family = psutil.Process(manager.provisioner.pid).children(recursive=True)
    start(SLOW)
    time.sleep(0.3)
    manager.restart_kernel(now=True)
    assert not psutil.wait_procs(family, timeout=60)[1]
