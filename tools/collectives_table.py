"""Write the table of reduce operations and dtypes that the docs contain, from the table of the tests.

python tools/collectives_table.py            # prints it
python tools/collectives_table.py --write    # into docs/collectives_table.inc
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
    """Run the command line."""
    parser = argparse.ArgumentParser(description="The table of reduce operations and dtypes of the docs.")
    parser.add_argument("--write", action="store_true", help="write it into " + str(DOCUMENT.relative_to(ROOT)))
    if parser.parse_args().write:
        DOCUMENT.write_text(text())
    else:
        print(text(), end="")


if __name__ == "__main__":
    main()
