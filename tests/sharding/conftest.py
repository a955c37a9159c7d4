"""The rules of Theano's operations are looked at where Theano is installed."""

import importlib.util
from pathlib import Path

collect_ignore = []
if importlib.util.find_spec("theano") is None:
    for path in Path(__file__).parent.glob("test_*.py"):
        if "import theano" in path.read_text() or "from synkhronos.engines.theano" in path.read_text():
            collect_ignore.append(path.name)
