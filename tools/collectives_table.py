"""Generate the docs' table of reduce operations and dtypes from the tests' table.

python tools/collectives_table.py            # prints the table
python tools/collectives_table.py --write    # writes docs/collectives_table.inc
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "collectives_table.inc"


def text() -> str:
    """Return the table as reStructuredText."""
    spec = importlib.util.spec_from_file_location(
        "collectives_table_of_tests", ROOT / "tests" / "collectives" / "table.py"
    )
    assert spec is not None and spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    return str(table.document())


def main() -> None:
    """Print the table, or write it into the docs with ``--write``."""
    parser = argparse.ArgumentParser(description="Generate the docs' table of reduce operations and dtypes.")
    parser.add_argument("--write", action="store_true", help="write the table into " + str(DOCUMENT.relative_to(ROOT)))
    if parser.parse_args().write:
        DOCUMENT.write_text(text())
    else:
        print(text(), end="")


if __name__ == "__main__":
    main()
