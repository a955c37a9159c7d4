"""`python -m synkhronos predict`: its output, and the arguments that it refuses.

Modules: `synkhronos.contrib.prediction.drawing`, `synkhronos.contrib.prediction.text`.
"""

import importlib.util
import os
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

from synkhronos.cli import predict

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def synthetic():
    """Return the module tests/contrib/prediction/synthetic.py, which makes up profiles."""
    spec = importlib.util.spec_from_file_location(
        "synthetic", str(ROOT / "tests" / "contrib" / "prediction" / "synthetic.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def profiles(tmp_path):
    """Return the folders of profiles with one and with two ranks, on 4 cores."""
    made = synthetic()
    return [made.write(tmp_path / str(ranks), made.Program().profile(ranks, (256, 1024), steps=20)) for ranks in (1, 2)]


def lines_of(printed, ranks):
    """Return the cells of the table's line for this number of ranks."""
    (line,) = re.findall(rf"^ *{ranks}\*? +\d.*(?:{'|'.join(LIMITS)})$", printed, re.MULTILINE)
    return line.split()


LIMITS = ("computing", "memory", "cores", "waiting", "communicating", "commands", "program")


def test_table(profiles, capsys):
    assert predict.main([*profiles, "--ranks", "1,2,4,8"]) == 0
    printed = capsys.readouterr().out
    # 1024 rows: 1 + 20.48 and 0.5 ms of work, three commands of 20 us, 0.3 ms of the program.
    assert lines_of(printed, 1)[:6] == ["1", "1", "1024", "22.34", "1.00", "100"]
    # (1 + 10.24 + 0.5) ms 1.1 times as long, 0.8 of all_reduce, three commands of 40 us, 0.3.
    assert lines_of(printed, 2)[:4] == ["2", "1", "512", "14.13"]
    assert lines_of(printed, 4)[0] == "4*"
    assert "* = extrapolated: the profiles have at most 2 ranks and 1 host, with 128 to 1024 rows per rank" in printed
    assert lines_of(printed, 8)[-1] == "communicating"
    assert "   8  communicating: exchanges between ranks" in printed
    assert "every 16th step" in printed and "16 bits" not in printed
    assert "Fewest rows per rank with 90 %" in printed


def test_picture(profiles, capsys):
    assert predict.main([*profiles, "--ranks", "1,2,8"]) == 0
    picture = Path(profiles[0]) / "prediction.svg"
    assert f"{picture}: this prediction as a picture" in capsys.readouterr().out
    root = xml.etree.ElementTree.parse(str(picture)).getroot()
    namespace = {"svg": "http://www.w3.org/2000/svg"}
    assert len(root.findall("svg:circle", namespace)) == 3
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any(title.startswith("ranks: 8, ") and title.endswith("(extrapolated)") for title in titles)
    assert "ranks: 8, program: 0.3 ms" in titles


def test_one_number_of_ranks_alone(profiles, capsys):
    assert predict.main([*profiles, "--ranks", "1"]) == 0
    assert "Fewest rows" not in capsys.readouterr().out


def test_rows(profiles, capsys):
    predict.main([*profiles, "--ranks", "1,2", "--rows-per-rank", "512"])
    printed = capsys.readouterr().out
    # 12.1 ms with 512 rows on one rank, 14.13 ms with twice as many rows on two ranks.
    assert lines_of(printed, 1)[2:5] == ["512", "12.1", "1.00"]
    assert lines_of(printed, 2)[2:5] == ["512", "14.13", f"{2 * 12.1 / 14.134:.2f}"]
    predict.main([*profiles, "--ranks", "2", "--rows", "2000"])
    assert lines_of(capsys.readouterr().out, 2)[2] == "1000"


def test_hosts(profiles, capsys):
    """Two hosts of 4 cores: 4e6 bytes take 32 ms at 1 Gbit/s, plus 0.1 ms for each of 2 messages in 16 chunks."""
    arguments = [*profiles, "--ranks", "1,8", "--hosts", "2", "--link", "mpi:0.1ms,1Gbit"]
    assert predict.main(arguments) == 0
    printed = capsys.readouterr().out
    # 4 ranks of a host move 4 times 4e6 bytes at 1e-10 s each.
    assert lines_of(printed, 8)[1] == "2"
    assert float(lines_of(printed, 8)[-4]) == pytest.approx(32 + 3.2 + 1.6)
    assert "16 bits" in printed
    assert "(costs of sending data to other hosts are left out, because profiles of one host lack them)" in printed
    assert predict.main([*profiles, "--ranks", "1,8", "--hosts", "1,4", "--link", "mpi:0,1e30"]) == 0


def test_cores(profiles, capsys):
    predict.main([*profiles, "--ranks", "64", "--cores", "64"])
    cells = lines_of(capsys.readouterr().out, 64)
    assert cells[-6] == "0"  # the loss by sharing cores
    predict.main([*profiles, "--ranks", "4", "--cores", "1"])
    assert lines_of(capsys.readouterr().out, 4)[-1] == "cores"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--ranks", "1,two"], "--ranks: expected positive whole numbers, separated by commas, got 'two'"),
        (["--ranks", "0"], "--ranks: expected positive whole numbers, separated by commas, got '0'"),
        (["--hosts", "1,2"], "--hosts: expected one number, or as many as --ranks has (7), got 2 numbers"),
        (["--hosts", "2"], "--link: expected the link between the hosts, unless the program was profiled on several"),
        (["--hosts", "2", "--link", "shared-memory"], "got shared-memory for 2 hosts"),
        (["--link", "fibre"], "--link: expected shared-memory, nccl, nccl:LATENCY,BANDWIDTH or mpi:LATENCY,BANDWIDTH"),
        (["--link", "mpi"], "--link: expected mpi:LATENCY,BANDWIDTH, got 'mpi'; latency in s, ms or us"),
        (["--link", "mpi:fast,1e9"], "got 'mpi:fast,1e9'"),
        (["--link", "mpi:1us,0"], "got 'mpi:1us,0'"),
        (
            ["--link", "nccl"],
            "--link: expected latency and bandwidth for nccl, as no profile has them, got 'nccl'; add both",
        ),
        (["--rows", "-3"], "--rows: expected a number above 0, got '-3'"),
        (["--cores", "none"], "--cores: expected a number above 0, got 'none'"),
        (
            ["--rows", "8", "--rows-per-rank", "8"],
            "expected either --rows or --rows-per-rank, got both; leave one out",
        ),
    ],
)
def test_wrong_arguments(profiles, capsys, arguments, message):
    assert predict.main([*profiles, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err


def test_unknown_options(capsys):
    with pytest.raises(SystemExit) as ended:
        predict.main(["DIR", "--fast"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --fast; see python -m synkhronos predict --help" in capsys.readouterr().err


def test_wrong_profiles(profiles, tmp_path, capsys):
    assert predict.main([str(tmp_path)]) == 2
    assert "synkhronos predict: profile: expected a profile of format 1" in capsys.readouterr().err
    made = synthetic()
    short = made.write(tmp_path / "short", made.Program().profile(1, 10, steps=3))
    assert predict.main([short]) == 2
    assert "expected a program that calls a function at least 5 times" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(profiles, capsys):
    """The prediction is printed, although the picture cannot be written."""
    (Path(profiles[0]) / "prediction.svg").mkdir()
    assert predict.main(profiles) == 0
    assert "no picture: " in capsys.readouterr().out


def test_command_line(profiles):
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    command = [sys.executable, "-m", "synkhronos", "predict"]
    done = subprocess.run([*command, *profiles], env=environment, stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == 0 and b"A step is a call to train with 1024 rows, plus all_reduce, step." in done.stdout
    done = subprocess.run([*command, "nowhere"], env=environment, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 2 and b"nowhere" in done.stderr and b"Traceback" not in done.stderr
