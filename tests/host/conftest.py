"""A machine simulated by files."""

import pytest


@pytest.fixture
def fake(tmp_path):
    """Return a function that writes files below a root and returns the root."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(text))
        return str(tmp_path)

    return write
