"""Announced modules are loaded between commands, in order and once; commands load those that fail."""

import pytest

from synkhronos import engines
from synkhronos.runtime.prefetch import Announcer, Preloader
from synkhronos.sync.control_block import ANNOUNCEMENT_BYTES, COMMAND_NUMBER, ControlBlock


class Loader:
    """Stand-in for an engine; files whose names begin with "bad" cannot be preloaded."""

    def __init__(self, name="loader", before=()):
        self.name, self.before, self.tell, self.preloaded = name, list(before), None, []

    def watch_modules(self, tell):
        self.tell = tell
        for file in self.before if tell else ():
            tell(file)

    def preload(self, file):
        self.preloaded.append(file)
        if file.startswith("bad"):
            raise ImportError(file)


@pytest.fixture
def block():
    block = ControlBlock(2)
    yield block
    block.close()


@pytest.fixture
def engine(monkeypatch):
    engine = Loader(before=["a b.so", "é.so"])
    monkeypatch.setattr(engines, "loaded", lambda: [Loader("other"), engine])
    return engine


def preloader(block, watch):
    """Return rank 1's preloader."""
    return Preloader(block, watch, lambda: block.words[COMMAND_NUMBER] > block.finished[1])


def test_in_order_and_once(block, engine):
    announcer, seen = Announcer(block), []
    preload = preloader(block, lambda: seen.append(len(engine.preloaded)))
    preload()
    assert engine.preloaded == [] and seen == [0]
    announcer.begin(engine)
    preload()
    announcer.begin(engine)
    engine.tell("c.so")
    preload()
    preload()
    assert engine.preloaded == ["a b.so", "é.so", "c.so"]
    assert set(seen) == {0, 1, 2, 3}  # between modules, it checks whether it must end


def test_a_command_comes_first(block, engine):
    Announcer(block).begin(engine)
    preload = preloader(block, lambda: None)
    block.words[COMMAND_NUMBER] = 1
    preload()
    assert engine.preloaded == []
    block.finished[1] = 1
    engine.preload = lambda file: (engine.preloaded.append(file), block.words.__setitem__(COMMAND_NUMBER, 2))
    preload()
    assert engine.preloaded == ["a b.so"]
    engine.tell("c.so")
    preload()
    assert engine.preloaded == ["a b.so"]
    for number in (2, 3):
        block.finished[1] = number
        preload()
    assert engine.preloaded == ["a b.so", "é.so", "c.so"]


def test_what_fails_is_not_told(block, engine):
    engine.before = ["bad.so", "good.so"]
    Announcer(block).begin(engine)
    preloader(block, lambda: None)()
    assert engine.preloaded == ["bad.so", "good.so"]


def test_what_does_not_fit_is_not_announced(block, engine):
    engine.before = ["x" * (ANNOUNCEMENT_BYTES // 2), "y" * (ANNOUNCEMENT_BYTES // 2), "z"]
    Announcer(block).begin(engine)
    preloader(block, lambda: None)()
    assert [file[0] for file in engine.preloaded] == ["x", "z"]


def test_it_ends_with_the_session_and_needs_other_ranks(block, engine):
    announcer = Announcer(block)
    announcer.begin(engine)
    announcer.end()
    assert engine.tell is None
    alone = ControlBlock(1)
    Announcer(alone).begin(engine)
    alone.close()
    assert engine.tell is None
