"""Opening the network: a node that is interrupted meanwhile leaves nothing open that would keep its process from ending."""

from typing import ClassVar

import pytest

from epidemic.deploy import node
from epidemic.deploy.opening import Unreachable
from epidemic.experiment import Experiment
from epidemic.runtime.interrupt import Stop


class Opened:
    """Stands for a transport: the interrupt comes while it is being opened."""

    made: ClassVar[list["Opened"]] = []

    def __init__(self):
        self.closed = 0
        Opened.made.append(self)

    def close(self):
        self.closed += 1


def opening(monkeypatch, while_opening):
    stop = Stop()

    class Interrupted(Opened):
        def __init__(self, *args, **settings):
            super().__init__()
            while_opening(stop)

    Opened.made = []
    monkeypatch.setattr(node, "Transport", Interrupted)
    return lambda: node._open_transport(
        None, None, Experiment(), 1, stop, insecure=True, here=1, knows_all=True, say=lambda _: None
    )


def test_what_was_opened_is_returned(monkeypatch):
    found = opening(monkeypatch, lambda stop: None)()
    assert found is Opened.made[0]
    assert not found.closed


def test_an_interrupt_during_the_opening_closes_what_was_opened(monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        opening(monkeypatch, lambda stop: stop.request())()
    assert [one.closed for one in Opened.made] == [1]


def test_an_interrupt_between_two_attempts_closes_nothing_and_ends_the_wait(monkeypatch):
    def unreachable(stop):
        raise Unreachable("nobody is there")

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(node.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opening(monkeypatch, unreachable)()
    assert [one.closed for one in Opened.made] == [0]
