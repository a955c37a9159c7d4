import subprocess
import sys
from pathlib import Path

import numpy as np
import table

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "collectives_table.py"


def test_docs_are_the_table():
    assert (ROOT / "docs" / "collectives_table.inc").read_text() == table.document(), (
        "run: python tools/collectives_table.py --write"
    )


def test_tool_prints_the_table():
    printed = subprocess.run([sys.executable, str(TOOL)], stdout=subprocess.PIPE, check=True, timeout=60)
    assert printed.stdout.decode() == table.document()


def test_table_is_what_numpy_defines():
    """All ops are defined, except averages of bool and integers; this is independent of `table.defined`."""
    assert {(op, dtype) for op, dtype in table.UNDEFINED} == {
        ("avg", dtype) for dtype in table.DTYPES if np.dtype(dtype).kind in "bui"
    }
    assert len(table.DEFINED) + len(table.UNDEFINED) == 5 * 14
