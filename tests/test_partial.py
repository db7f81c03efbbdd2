"""Nodes that know a part of the others keep the laws of the round protocol, and those of views: simulated schedules."""

import pytest

import partial
from epidemic.protocol import known as k
from epidemic.protocol.events import AnswerEntries, Disconnect, Seek
from epidemic.protocol.rounds import Acquaintance, Rounds

CHUNKS, EACH = 8, 50


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_laws_hold_on_every_schedule(chunk):
    exchanges = 0
    for seed in range(chunk * EACH, (chunk + 1) * EACH):
        try:
            exchanges += partial.run(seed).exchanges
        except Exception as problem:
            pytest.fail(f"{problem!r}; schedule {seed} of tests/partial.py")
    assert exchanges > 5 * EACH


class Gullible(k.Known):
    """Answers every exchange, however often somebody begins one, with nothing left out."""

    def approached(self, event):
        self._node.act(AnswerEntries(event.reply, event.by, ()))
        self.side.entries = [*self.side.entries, *event.entries]


class Clinging(k.Known):
    """Never ends a connection."""

    def _let_go(self):
        acts = self._node._acts
        super()._let_go()
        acts[:] = [act for act in acts if not isinstance(act, Disconnect)]


class Passive(k.Known):
    """Looks for nobody at the start."""

    def started(self):
        super().started()
        acts = self._node._acts
        acts[:] = [act for act in acts if not isinstance(act, Seek)]


@pytest.mark.parametrize("broken", [Gullible, Clinging, Passive])
def test_a_broken_protocol_is_found_out(broken):
    class Broken(Rounds):
        def __init__(self, rules, view, *args, **more):
            super().__init__(rules, view, *args, **more)
            assert isinstance(view, Acquaintance)
            self.known = broken(self, view.side, view.s, view.cycles)
            self.view = self.known

    def play():
        for seed in range(60):
            partial.run(seed, Broken)

    with pytest.raises(AssertionError):
        play()


def test_who_knows_nobody_any_more_looks_for_those_of_the_beginning():
    """A node whose acquaintances all died finds others again when those of node.toml are there."""
    schedule, service = next(
        (schedule, service)
        for schedule, service in map(partial.drawn, range(500))
        if schedule.calm and schedule.n >= 6 and schedule.rounds == 8
    )
    world = partial.World(schedule, service)
    lost = []

    def forget():
        node = world.nodes[0]
        if node.running:
            node.protocol.known.side.entries = []
            node.protocol.known._sought = world.now - 60 * partial.simulated.SECOND
            lost.append(world.now)

    world.at(partial.simulated.SECOND, forget)
    world.play()
    world.check()
    assert lost
    assert all(node.outcome == "left" for node in world.nodes)
