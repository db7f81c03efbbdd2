"""Where every node draws its targets by itself, members that lie get no more than their share: simulated schedules and single decisions."""

from dataclasses import replace

import pytest

import coins
import simulated
from epidemic.protocol import events as e
from epidemic.protocol.commitment import LINK_BYTES, Commitments
from epidemic.protocol.events import SECOND
from epidemic.protocol.mailbox import Mailbox
from epidemic.protocol.rounds import NodeView, Rounds, Rules
from epidemic.protocol.rules import most_private

CHUNKS, EACH = 8, 60


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_laws_hold_on_every_schedule(chunk):
    for seed in range(chunk * EACH, (chunk + 1) * EACH):
        try:
            coins.run(seed)
        except Exception as problem:
            pytest.fail(f"{problem!r}; schedule {seed} of tests/coins.py")


class Trusting(Commitments):
    """Believes every link."""

    def problem(self, sender, round, link):
        return None if self._node in self._targets(sender, round, link[:LINK_BYTES].ljust(LINK_BYTES)) else "not-drawn"


class Open(Commitments):
    """Takes messages of whoever shows the right link, whether it has drawn this node or not."""

    def problem(self, sender, round, link):
        found = super().problem(sender, round, link)
        return None if found == "not-drawn" else found


class Insatiable(Mailbox):
    """Has room for everybody."""

    def full(self, round, sender):
        return False


def broken(coin=None, mailbox=None):
    class Broken(Rounds):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            if coin is not None and self.coin is not None:
                self.coin.__class__ = coin
            if mailbox is not None:
                self.mailbox.__class__ = mailbox

    return Broken


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        (broken(coin=Trusting), "a message counts of node"),
        (broken(coin=Open), "a message counts of node"),
        (broken(mailbox=Insatiable), "messages count in one round"),
    ],
    ids=["trusting", "open", "insatiable"],
)
def test_a_broken_protocol_is_found_out(protocol, words):
    def play():
        coins.flooded("private", "adaptive", s=1, liars=6, rounds=6, protocol=protocol)
        for seed in range(400):
            coins.run(seed, protocol)

    with pytest.raises(AssertionError, match=words):
        play()


@pytest.mark.parametrize("close", ["adaptive", "quorum"])
@pytest.mark.parametrize("s", [2, 5])
def test_members_that_flood_with_a_committed_coin_have_their_fair_share_and_hold_up_nobody(s, close):
    """2 of 16 send to everybody, 8 rounds ahead, ten times a second."""
    n, liars, rounds = 16, 2, 40
    calm, world = (coins.flooded("committed", close, n, s, k, rounds) for k in (0, liars))
    fair, honest = liars / (n - 1), n - liars
    total = sum(world.counted.values())
    # they are never late, and honest ones are now and then
    late = 1 - total / (s * honest * rounds)
    assert world.share < fair / (1 - max(0, late)) + 4 * (fair * (1 - fair) / total) ** 0.5
    trained = [world.trained[i] for i in range(honest)]
    assert sum(trained) > 0.95 * honest * rounds
    assert min(trained) > (0.9 if close == "adaptive" else 0.75) * rounds  # by quorum the slowest leave some out anyway
    per_round = sum(calm.counted.values()) / sum(calm.trained.values())
    assert total / sum(trained) > 0.85 * per_round
    assert sum(world.nodes[i].protocol is None for i in range(honest)) == honest


def test_members_that_flood_with_a_private_coin_are_bounded_by_how_many_count():
    """Every liar counts once a round at each node: nobody can tell who was drawn, nor that they are not really ahead."""
    n, s, liars, rounds = 16, 2, 2, 40
    world = coins.flooded("private", "adaptive", n, s, liars, rounds)
    honest = n - liars
    trained = [world.trained[i] for i in range(honest)]
    assert sum(world.counted[i] for i in range(honest, n)) <= liars * sum(trained)
    crowd = coins.flooded("private", "adaptive", n, 1, 10, rounds=10)
    assert sum(crowd.counted.values()) <= most_private(1) * sum(crowd.trained[i] for i in range(6))


# -- one node's decisions ---------------------------------------------------------------------------------------------


class Node:
    """Node 0 of 8 with a committed coin; every node draws node 0 in even rounds, and node 7 alone in odd ones."""

    def __init__(self, rounds=60, **rules):
        self.now, self.rounds, self.n = 0, rounds, 8
        own = coins.chain(0, rounds)
        coin = Commitments(own, coins.RUN, 0, rounds, lambda _, t, link: (7,) if t % 2 else (0, 7))
        rules["close"] = simulated.closing("adaptive", rules.pop("deadline", 30 * SECOND))
        rules = Rules(0, 8, rounds, founders=frozenset(range(1, 8)), blind=True, **rules)
        self.p = Rounds(
            rules, lambda t: NodeView((1, 2), None, coins.link(0, rounds, t)), lambda below: 0, "own", coin=coin
        )
        self(e.Started())
        for node_id in range(1, 8):
            self(e.Present(node_id, "a", True), self.handshake(node_id))

    def handshake(self, node_id, number=0, **more):
        commitment = coins.chain(node_id, self.rounds, number).commitment
        return e.Introduced(node_id, node_id, "a", more.pop("round", 0), 0, commitment=commitment, **more)

    def __call__(self, *happenings):
        self.acts = [action for event in happenings for action in self.p.step(event, self.now)]
        return self.acts

    def sends(self, sender, round, of=None, number=0):
        shown = coins.link(sender, self.rounds, round if of is None else of, number)
        return self(e.Arrived(sender, round, shown, (round, sender)))


def test_messages_of_rounds_to_come_wait_and_neither_they_nor_wrong_ones_move_a_node():
    node = Node(deadline=5 * SECOND)
    for liar in (6, 7):
        for round in range(9):
            node.sends(liar, round)
        for round in (20, 40, 58):
            node.sends(liar, round)
    assert (node.p.phase, node.p.round, node.p.mailbox.heard) == ("training", 0, 2)
    node(e.Trained(0))
    node.now += SECOND // 2  # in which it asks where the others are
    node(e.Timer("wait"))
    assert (node.p.phase, node.p.round) == ("waiting", 0)  # two of seven are no front
    assert node.p.mailbox.tally == {"counted": 2, "early": 8, "beyond": 6}
    assert node.p.count.refused == {"not-drawn": 8}
    assert node.p.count.jumped == 0


def test_wrong_links_and_other_commitments_are_refused_counted_and_said_once():
    node = Node()
    said = []
    for _ in range(3):
        said += node.sends(3, 0, of=2) + node.sends(3, 0, number=1) + node.sends(3, 1)
        said += node(node.handshake(3, number=1, round=59))
        said += node(replace(node.handshake(4, round=59), commitment=b""))
    assert node.p.count.refused == {"wrong-coin": 6, "not-drawn": 3, "other-commitment": 6}
    assert [action.text.split(" (")[0] for action in said if isinstance(action, e.Say)] == [
        "refused a message: it does not show the link of the hash chain that its sender committed to",
        "refused a message: its sender has not drawn this node in that round",
        "refused node 3: its hash chain differs from the first one; does it have its coin.secret?",
        "refused node 4: its hash chain differs from the first one; does it have its coin.secret?",
    ]
    node.sends(3, 0)
    assert node.p.mailbox.tally["counted"] == 1  # what it committed to at first still counts
    assert node.p.membership.front(node.now) == 0


def test_messages_of_the_next_round_from_half_as_many_as_a_node_hears_end_a_round():
    node = Node(deadline=5 * SECOND)
    node(e.Trained(0), e.Timer("wait"))
    node.now = SECOND // 100
    for sender in (1, 2, 3):
        node.sends(sender, 0)
    node.sends(1, 2)
    node.sends(2, 4)
    assert node.p.phase == "waiting"
    for sender in (4, 5):
        node.sends(sender, 0)
    assert node.p.phase == "waiting"
    # node 0 is in round 1 next; messages of round 2 tell that the others have gone on from there
    node.now = 5 * SECOND
    node(e.Timer("wait"))
    node(e.Mixed(0), e.Trained(1))
    assert (node.p.round, node.p.phase) == (1, "waiting")
    node.sends(2, 2)
    assert node.p.phase == "mixing"


def test_an_early_message_is_no_reason_to_ask_where_the_others_are():
    node = Node(deadline=5 * SECOND)
    node.sends(7, 4)
    assert not [action for action in node(e.Trained(0)) if isinstance(action, e.Greet)]
    assert node.p.phase == "waiting"


def test_no_hash_is_spent_on_a_round_that_is_over_for_long():
    node = Node(deadline=5 * SECOND)
    for round in range(10):
        node(e.Trained(round))
        node.now += 6 * SECOND
        node(e.Timer("wait"), e.Mixed(round))
    node.sends(3, 0, number=1)
    assert node.p.count.refused == {}
    node.sends(3, 10, number=1)
    assert node.p.count.refused == {"wrong-coin": 1}


def test_a_schedule_of_single_lies_is_the_one_that_everybody_plays():
    drawn = [coins.drawn(seed) for seed in range(400)]
    assert {coin for _, coin in drawn} == {"committed", "private"}
    for coin in coins.COINS:
        mine = [s for s, c in drawn if c == coin]
        assert {s.close for s in mine} == {"adaptive", "deadline", "quorum"}
        assert any(s.liar is not None for s in mine)
        assert any(s.honest_but_one for s in mine)
        assert any(s.crashes and s.liar is not None for s in mine)
    assert simulated.drawn(3) == simulated.drawn(3)
