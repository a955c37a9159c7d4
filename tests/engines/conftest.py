"""The engines under test, each with the small vocabulary that the conformance tests use for their programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest
from peer import Master, Peer, prepare_theano

from synkhronos import engines


class NumpyLanguage:
    """Vocabulary for programs of the NumPy engine."""

    name = "numpy"
    #: Whether functions may return dicts, and inputs may have defaults.
    has_dicts = has_defaults = True
    engine = engines.get("numpy")
    kwargs: dict = {}

    def __init__(self) -> None:
        from synkhronos.testing import numpy_engine as module

        self.In, self.shared, self.dot, self.mean = module.In, module.shared, module.dot, module.mean
        self.variable = module.variable
        self._module = module

    def stream(self, seed: int) -> Any:
        """Return a random state and three numbers drawn from it."""
        state = self._module.random_stream(seed, "state")
        return state, self._module.uniform(state, (3,))

    def clone(self, shared: Any) -> Any:
        return shared.clone()

    def generic(self, name: str) -> Any:
        return self.variable(name, None)

    def unpicklable(self, x: Any, thing: Any) -> Any:
        from synkhronos.testing.numpy_engine import apply

        return apply(lambda value: value if thing else value, x)


class TheanoLanguage:
    """Vocabulary for Theano programs, run by its C loop but with Python operations: no compiler is called."""

    name = "theano"
    has_dicts = has_defaults = True

    def __init__(self) -> None:
        prepare_theano()
        theano = pytest.importorskip("theano")
        import theano.tensor as T

        self.theano = theano
        self.engine = engines.get("theano")
        linker = theano.gof.vm.VM_Linker(use_cloop=True, c_thunks=False)
        self.kwargs = {"mode": theano.Mode(linker=linker, optimizer="fast_run")}
        self.In, self.shared, self.dot, self.mean = theano.In, theano.shared, T.dot, T.mean

    def variable(self, name: str, dtype: str, ndim: int = 0, broadcastable: Any = None) -> Any:
        return self.theano.tensor.TensorType(dtype, broadcastable or (False,) * ndim)(name)

    def stream(self, seed: int) -> Any:
        from theano.tensor.shared_randomstreams import RandomStreams

        drawn = RandomStreams(seed).uniform((3,), dtype="float64")
        return drawn.rng, drawn

    def clone(self, shared: Any) -> Any:
        return self.theano.clone(shared, share_inputs=False)

    def generic(self, name: str) -> Any:
        return self.theano.gof.generic(name)

    def unpicklable(self, x: Any, thing: Any) -> Any:
        return self.theano.printing.Print("a", global_fn=lambda op, value: thing)(x)


class PyTensorLanguage:
    """Vocabulary for PyTensor programs, run by Python code: no compiler is called."""

    name = "pytensor"
    has_dicts = has_defaults = False

    def __init__(self) -> None:
        pytensor = pytest.importorskip("pytensor")
        import pytensor.tensor as pt

        self.pytensor = pytensor
        self.engine = engines.get("pytensor")
        self.kwargs = {"mode": pytensor.compile.mode.Mode(linker="py", optimizer="fast_run")}
        self.In, self.dot, self.mean = pytensor.In, pt.dot, pt.mean

    def shared(self, value: Any, name: Any = None, broadcastable: Any = None) -> Any:
        known = {} if broadcastable is None else {"shape": tuple(1 if one else None for one in broadcastable)}
        return self.pytensor.shared(value, name, **known)

    def variable(self, name: str, dtype: str, ndim: int = 0, broadcastable: Any = None) -> Any:
        shape = tuple(1 if one else None for one in broadcastable or (False,) * ndim)
        return self.pytensor.tensor.TensorType(dtype, shape=shape)(name)

    def stream(self, seed: int) -> Any:
        from pytensor.tensor.random import uniform

        state = self.pytensor.shared(np.random.default_rng(seed), "state")
        state.default_update, drawn = uniform(size=(3,), rng=state, return_next_rng=True)
        return state, drawn

    def clone(self, shared: Any) -> Any:
        return shared.clone()

    def generic(self, name: str) -> Any:
        from pytensor.link.c.type import generic

        return generic(name)

    def unpicklable(self, x: Any, thing: Any) -> Any:
        from pytensor.printing import Print

        return Print("a", global_fn=lambda op, value: thing)(x)


LANGUAGES = {"numpy": NumpyLanguage, "theano": TheanoLanguage, "pytensor": PyTensorLanguage}
ALL = [
    "numpy",
    pytest.param("theano", marks=pytest.mark.theano),
    pytest.param("pytensor", marks=pytest.mark.pytensor),
]


@pytest.fixture(scope="session")
def _languages():
    made: dict = {}

    def get(name):
        if name not in made:
            made[name] = LANGUAGES[name]()
        return made[name]

    return get


@pytest.fixture(params=ALL)
def language(request, _languages):
    """Return each engine's vocabulary for programs; its attribute `engine` is the engine."""
    return _languages(request.param)


@pytest.fixture(scope="module")
def _peers():
    peers: dict = {}

    def get(name):
        if name not in peers:
            peers[name] = Peer(name)
        return peers[name]

    get.made = peers
    yield get
    for peer in peers.values():
        peer.close()


@pytest.fixture(autouse=True)
def nothing_stays(_peers):
    """Check that every test leaves no new process, except the peers, which stay for the module."""
    before = set(psutil.Process().children(recursive=True))
    yield
    peers = {peer.process.pid for peer in _peers.made.values()}
    after = set(psutil.Process().children(recursive=True)) - before
    assert not [process for process in after if process.pid not in peers]


@pytest.fixture
def master(language, _peers):
    """Return a `Master`, which sends functions to a second process."""
    return Master(language.engine, _peers(language.name))


@pytest.fixture
def numpy_master(_languages, _peers):
    """Return a `Master` for the NumPy engine alone."""
    return Master(_languages("numpy").engine, _peers("numpy"))


@pytest.fixture
def theano_master(_languages, _peers):
    """Return a `Master` for Theano alone."""
    return Master(_languages("theano").engine, _peers("theano"))


@pytest.fixture
def pytensor_master(_languages, _peers):
    """Return a `Master` for PyTensor alone."""
    return Master(_languages("pytensor").engine, _peers("pytensor"))


@pytest.fixture
def matrix():
    """Return a matrix whose square differs from it."""
    return np.array([[1.0, 2.0], [0.5, -1.0]])
