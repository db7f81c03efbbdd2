"""Nodes that know a part of the others keep the laws of the round protocol, and those of views: simulated schedules."""

from dataclasses import replace

import pytest

import flooding
import partial
from epidemic.peer_sampling import Cyclon, Jelasity, Spray
from epidemic.peer_sampling.cyclon import CyclonSampler
from epidemic.peer_sampling.spray import SpraySampler
from epidemic.protocol import events as e
from epidemic.protocol import partial_view as k
from epidemic.protocol.events import SECOND, AnswerEntries, Disconnect, Seek
from epidemic.protocol.rounds import PartialKnowledge, Rounds, Rules

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


class Gullible(k.PartialView):
    """Answers every exchange, however often somebody begins one, with nothing left out."""

    def approached(self, event):
        self._node.act(AnswerEntries(event.reply, event.by, ()))
        self.sampler.entries = [*self.sampler.entries, *event.entries]


class Clinging(k.PartialView):
    """Never ends a connection."""

    def _let_go(self):
        acts = self._node._acts
        super()._let_go()
        acts[:] = [act for act in acts if not isinstance(act, Disconnect)]


class Passive(k.PartialView):
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
            assert isinstance(view, PartialKnowledge)
            self.known = broken(self, view.sampler, view.s, view.cycles, self.known.sample)
            self.view = self.known

    def play():
        for seed in range(60):
            partial.run(seed, Broken)

    with pytest.raises(AssertionError):
        play()


@pytest.mark.parametrize("chunk", range(3))
def test_a_flood_of_exchanges_isolates_nobody(chunk):
    """With up to a tenth of liars, who work together, every honest node knows an honest one after the last exchange."""
    for seed in range(7 * chunk, 7 * chunk + 7):
        try:
            flooding.run(seed)
        except Exception as problem:
            pytest.fail(f"{problem!r}; schedule {seed} of tests/flooding.py")


class Copying(SpraySampler):
    """Takes every entry that comes, also copies of those that it has."""

    def _add(self, partner, got, sent, extra=0):
        self.entries += [(node_id, 0) for node_id, _ in got[: self.most] if node_id != self.node_id]


class Forgetful(k.PartialView):
    """Has no way back: takes nobody of its sample into its view."""

    def _mix(self):
        pass


class Loose(CyclonSampler):
    """Lets exchanges replace anchors."""

    anchors = property(lambda self: [], lambda self, anchors: None)


def broken_views(known=k.PartialView, sampler=None):
    class Broken(Rounds):
        def __init__(self, rules, view, *args, **more):
            super().__init__(rules, view, *args, **more)
            if sampler is not None:
                view.sampler.__class__ = sampler
            self.known = self.view = known(self, view.sampler, view.s, view.cycles, self.known.sample)

    return Broken


FOUR = (2, 11, 23, 30)
"""Liars of 40 nodes: as many as a view of four has entries, so that they could fill it."""


@pytest.mark.parametrize(
    "service", [Cyclon(size=4, shuffle=2), Jelasity(size=4), Spray()], ids=["cyclon", "jelasity", "spray"]
)
def test_nobody_stays_isolated_where_liars_could_fill_a_view(service):
    flooding.play(flooding.schedule(1, 40), service, FOUR, "old")


@pytest.mark.parametrize(
    ("protocol", "service", "words"),
    [
        (broken_views(sampler=Copying), Spray(a=2), "entries of one peer"),
        (broken_views(Forgetful), Cyclon(size=4, shuffle=2), "knows liars only"),
        (broken_views(sampler=Loose), Cyclon(size=4, shuffle=2), "knows liars only"),
    ],
    ids=["copies", "no-sample", "no-anchors"],
)
def test_views_that_a_flood_takes_over_are_found_out(protocol, service, words):
    with pytest.raises(AssertionError, match=words):
        flooding.play(flooding.schedule(1, 40), service, FOUR, "old", protocol)


def test_a_network_that_was_cut_for_long_grows_together_again():
    """Forty seconds are enough for both halves to forget each other; those of the beginning are looked for all the same."""
    schedule = replace(
        partial.drawn(0)[0], n=10, rounds=450, s=2, close="adaptive", cap=None, deadline=2 * SECOND, patience=20 * SECOND,
        compute=[40_000] * 10, delay=(1_000, 2_000), loss=0.0, doubling=0.0, late={}, liar=None, amnesia=0.0,
        faults=[(5 * SECOND, "split", frozenset(range(5)), 40 * SECOND)],
    )  # fmt: skip
    world, across = partial.World(schedule, Cyclon(size=4, shuffle=2)), {}

    def count(when):
        views = [(node.node_id, node.protocol.known.sampler.node_ids) for node in world.nodes if node.running]
        across[when] = sum((i < 5) != (j < 5) for i, node_ids in views for j in node_ids)

    for when in (4, 44, 115):
        world.at(when * SECOND, count, when)
    world.play()
    assert across[4] > 0
    assert across[44] == 0
    assert across[115] > 5


def test_who_returns_to_a_view_has_time_to_be_reached():
    """It was known before, and gone since: what counts is since when it is in the view again."""
    node = Rounds(
        Rules(0, 6, 5, blind=True, partial=True), PartialKnowledge(Cyclon(size=3, shuffle=2).sampler(6, 0, lambda _: 0), 2), lambda _: 0, "me"
    )  # fmt: skip
    node.step(e.Started(), 0)
    node.step(e.Present(4, "four", True), SECOND)
    node.step(e.Introduced(4, 4, "four", -1, 0), SECOND)
    node.step(e.Present(4, "four", False), 2 * SECOND)
    node.known.sampler.entries = []
    node.now = 100 * SECOND
    node.known._linked, node.known._leaving, node.known._partner = {}, {}, None
    node.known.sampler.meet(4)
    node.known._connect()
    for now, there in ((101, True), (109, True), (111, False)):
        node.now = now * SECOND
        node.known._let_go()
        assert (4 in node.known.sampler.node_ids) == there


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
            node.protocol.known.sampler.entries = []
            node.protocol.known._sought = world.now - 60 * partial.simulated.SECOND
            lost.append(world.now)

    world.at(partial.simulated.SECOND, forget)
    world.play()
    world.check()
    assert lost
    assert all(node.outcome == "left" for node in world.nodes)
