"""Output of ranks reaches the master's streams, with the ranks' numbers."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from worlds import World

import synkhronos as synk
from synkhronos.processes.output import EMPTY_AFTER_BYTES, Streams
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def streams():
    made = Streams([1, 4])
    yield made
    made.close()


def test_whole_lines_with_the_rank(streams, capsys):
    out_1, err_1, out_4, err_4 = streams.fds()
    os.write(out_1, b"one\ntwo\nthr")
    os.write(err_4, "für alle\n".encode())
    streams.forward()
    assert capsys.readouterr() == ("[rank 1] one\n[rank 1] two\n", "[rank 4] für alle\n")
    os.write(out_1, b"ee\n\n")
    streams.forward()
    streams.forward()
    assert capsys.readouterr() == ("[rank 1] three\n[rank 1] \n", "")


def test_a_line_without_an_end_comes_at_the_end_of_the_command(capsys):
    streams = Streams([2])
    for end in (lambda: streams.forward(idle=True), streams.close):
        os.write(streams.fds()[0], b"last \xff words")
        streams.forward()
        assert capsys.readouterr().out == ""
        end()
        assert capsys.readouterr().out == "[rank 2] last \ufffd words\n"


def test_what_was_read_is_given_back(streams, capsys):
    fd = streams.fds()[0]
    for _ in range(3):
        os.write(fd, b"x" * EMPTY_AFTER_BYTES + b"\n")
        streams.forward()
        assert os.fstat(fd).st_size > EMPTY_AFTER_BYTES
        streams.forward(idle=True)
        assert len(capsys.readouterr().out) == len("[rank 1] \n") + EMPTY_AFTER_BYTES
        os.write(fd, b"more\n")
        streams.forward(idle=True)
        assert capsys.readouterr().out == "[rank 1] more\n"
        assert os.fstat(fd).st_size == 0


def test_a_closed_stream_of_the_master_does_no_harm(streams, monkeypatch):
    class Closed:
        def write(self, text):
            raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(sys, "stdout", Closed())
    os.write(streams.fds()[0], b"unheard\n")
    streams.forward()
    monkeypatch.setattr(sys, "stdout", None)
    os.write(streams.fds()[0], b"unheard\n")
    streams.forward()


def say(x):
    print(f"row {int(x[0])}")
    sys.stderr.write("to stderr\n")
    os.write(1, b"as from C\n")
    return x * 1


def test_prints_have_come_when_the_call_returns(capfd):
    synk.close()
    World("fork", 3, 1)
    x = engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.apply(say, x, dtype="float64", ndim=1), "gather"))
    try:
        capfd.readouterr()
        f([5.0, 6.0, 7.0])
        out, err = capfd.readouterr()
        lines = out.splitlines()
        assert [line for line in lines if line.startswith("[rank 0]")] == ["[rank 0] row 5", "[rank 0] as from C"]
        assert [line for line in lines if line.startswith("[rank 2]")] == ["[rank 2] row 7", "[rank 2] as from C"]
        assert "row 6" in lines  # the master's own output
        assert err.splitlines().count("[rank 0] to stderr") == 1
    finally:
        synk.close()


def test_warnings_and_logging_and_what_a_dying_rank_says(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import logging, os, sys, warnings
        logging.basicConfig(format="%(levelname)s %(message)s")
        import synkhronos as synk
        from synkhronos.testing import numpy_engine as engine
        synk.fork(2, pin=False)

        def speak(x):
            if x[0] == 1:
                warnings.warn("careful")
                logging.getLogger("a").warning("logged")
                print("no end", end="")
            if x[0] == 3:
                print("I go")
                sys.stdout.flush()
                os._exit(3)
            return x * 1

        x = engine.variable("x", "float64", 1)
        f = synk.function([x], (engine.apply(speak, x, dtype="float64", ndim=1), "gather"))
        f([0., 1.])
        try:
            f([2., 3.])
        except synk.WorkerDied as error:
            print(error.exitcode)
        """)
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[rank 1] no end", "[rank 1] I go", "3"]
    assert "UserWarning: careful" in done.stderr and "[rank 1] WARNING logged" in done.stderr
    assert all(line.startswith("[rank 1]") for line in done.stderr.splitlines())
