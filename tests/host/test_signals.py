"""Deferred signal handlers."""

import signal
import threading
import time

import pytest

from synkhronos.host.signals import DeferredSignals


class Rung(Exception):
    pass


@pytest.fixture
def alarm():
    """Install a SIGALRM handler that raises."""

    def ring(number, frame):
        raise Rung(number, frame)

    before = signal.signal(signal.SIGALRM, ring)
    yield ring
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def ring():
    signal.raise_signal(signal.SIGALRM)


def test_handlers_wait_and_are_called_once_each(alarm):
    calls = []
    signal.signal(signal.SIGALRM, lambda number, frame: calls.append((number, frame.f_code.co_name)))
    with DeferredSignals():
        ring()
        ring()
        assert not calls
    assert [number for number, _ in calls] == [signal.SIGALRM] * 2
    ring()
    assert len(calls) == 3


def test_exception_comes_at_the_end(alarm):
    steps = []
    with pytest.raises(Rung):
        with DeferredSignals():
            ring()
            steps.append("done")
    assert steps == ["done"] and signal.getsignal(signal.SIGALRM) is alarm


def test_ctrl_c():
    with pytest.raises(KeyboardInterrupt):
        with DeferredSignals():
            signal.raise_signal(signal.SIGINT)
            time.sleep(0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_own_exception_and_a_signal(alarm):
    with pytest.raises(Rung) as caught:
        with DeferredSignals():
            ring()
            raise KeyError
    assert isinstance(caught.value.__context__, KeyError)


def test_nested(alarm):
    steps = []
    with pytest.raises(Rung):
        with DeferredSignals():
            with DeferredSignals():
                ring()
                steps.append("inner")
            steps.append("outer")
    assert steps == ["inner", "outer"] and signal.getsignal(signal.SIGALRM) is alarm


def test_signals_without_a_handler_stay_as_they_are(alarm):
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    default = signal.getsignal(signal.SIGTERM)
    with DeferredSignals():
        ring()
        assert signal.getsignal(signal.SIGALRM) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == default


def test_in_another_thread_nothing_changes(alarm):
    handlers = []

    def work():
        with DeferredSignals():
            handlers.append(signal.getsignal(signal.SIGALRM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [alarm]
