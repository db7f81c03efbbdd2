"""One node's decisions, event by event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epidemic.protocol import events as e
from epidemic.protocol.events import SECOND
from epidemic.protocol.membership import MOST_MISSED
from epidemic.protocol.questions import SEND_AGAIN
from epidemic.protocol.rounds import BEHIND, LEAD, RECENT, NodeView, Rounds, Rules
from epidemic.protocol.search import DONORS, TAKEN
from simulated import closing, held

G = b"graph..."


class Node:
    """A protocol and what it wants done; time passes only when told to."""

    def __init__(self, nodes=4, rounds=50, targets=(1, 2), expected=(1, 2), done=0, kept=None, **rules):
        rules.setdefault("founders", frozenset(range(1, nodes)))
        more = {key: rules.pop(key) for key in ("late", "q") if key in rules}
        rules["close"] = closing(rules.pop("close", "adaptive"), rules.pop("deadline", 30 * SECOND), **more)
        expected = None if expected is None else frozenset(expected)
        view = NodeView(tuple(targets), expected, G)
        self.now = 0
        self.p = Rounds(Rules(0, nodes, rounds, **rules), lambda _: view, lambda below: 0, "own", done=done, kept=kept)
        self(e.Started())

    def __call__(self, *happenings, after=0):
        self.now += after
        self.acts = [action for event in happenings for action in self.p.step(event, self.now)]
        return self.acts

    def of(self, kind):
        return [action for action in self.acts if isinstance(action, kind)]

    def meets(self, *node_ids, token="a", **handshake):
        for node_id in node_ids:
            self(e.Present(node_id, token, True))
            self(e.Introduced(node_id, node_id, token, handshake.get("round", -1), handshake.get("start", 0)))
        return self

    def trains(self):
        self(e.Trained(self.p.round))
        return self

    def message(self, sender, round=None, graph=G):
        round = self.p.round if round is None else round
        return self(e.Arrived(sender, round, graph, (round, sender)))

    def passes(self, seconds):
        """Time passes, with all timers."""
        acts, end = [], self.now + int(seconds * SECOND)
        while self.now < end:
            for name in ("look", "wait", "linger", "greet"):
                acts += self(e.Timer(name))
            self.now += SECOND // 10
        self.acts = acts
        return self

    def round_with(self, *senders):
        """A round in which these are heard, to its end."""
        self.trains()
        for sender in senders:
            self.message(sender)
        self.passes(31 if self.p.phase == "waiting" else 0)
        return self(e.Mixed(self.p.round))


def mixed(acts):
    return [[sender for sender, _ in a.messages] for a in acts if isinstance(a, e.Mix)]


# -- looking ----------------------------------------------------------------------------------------------------------


def test_whom_a_node_waits_for_is_said_from_the_first_moment_and_then_now_and_then():
    node = Node(patience=60 * SECOND).passes(0.1)
    assert [said.text for said in node.of(e.Say)] == ["waiting for 3 of 3 others: nodes 1, 2, 3; nobody answers yet"]
    assert len(node.passes(4.5).of(e.Say)) == 0
    node.meets(2)
    assert [said.text for said in node.passes(1).of(e.Say)] == ["waiting for 2 of 3 others: nodes 1, 3"]
    assert node.meets(1, 3).of(e.Say) == [e.Say("4 of 4 nodes are there")]


# -- closing ----------------------------------------------------------------------------------------------------------


def test_with_a_deadline_a_round_closes_when_all_are_heard_or_time_is_up():
    node = Node(deadline=2 * SECOND).meets(1, 2, 3).trains()
    assert mixed(node.message(2)) == []
    assert mixed(node.message(1)) == [[1, 2]]
    node(e.Mixed(0))
    node.trains()
    node.message(2)
    assert mixed(node.passes(1.9).acts) == []
    assert mixed(node.passes(0.3).acts) == [[2]]
    assert node.p.count.lost == 1


def test_with_a_quorum_a_round_closes_when_a_share_of_those_expected_was_heard_or_time_is_up():
    node = Node(nodes=5, targets=(1,), expected=(1, 2, 3), close="quorum", q=0.5).meets(1, 2, 3, 4).trains()
    assert mixed(node.message(3)) == []
    assert mixed(node.message(1)) == [[1, 3]]  # half of three is two
    node = Node(nodes=5, targets=(1, 2, 3), expected=(1,), close="quorum", q=0.5).meets(1, 2, 3, 4).trains()
    assert mixed(node.message(1)) == [[1]]
    node = Node(nodes=5, expected=(1, 2, 3), close="quorum", q=0.5, deadline=2 * SECOND).meets(1, 2, 3, 4).trains()
    node.message(2)
    assert mixed(node.passes(1.9).acts) == []
    assert mixed(node.passes(0.3).acts) == [[2]]


def test_a_fixed_deadline_is_neither_shorter_nor_longer_whatever_rounds_take():
    node = Node(close="deadline", deadline=2 * SECOND).meets(1, 2, 3)
    for _ in range(20):  # the adaptive wait would be a quarter of a second by now
        node.trains().message(1)
        node.message(2)
        node(e.Mixed(node.p.round))
    node.trains().message(1)
    assert mixed(node.passes(1.9).acts) == []
    assert mixed(node.passes(0.3).acts) == [[1]]


@pytest.mark.parametrize("late", ["drop", "carry"])
def test_a_late_message_is_dropped_or_counts_in_the_next_round_with_its_age(late):
    node = (
        Node(nodes=5, expected=(1, 2, 3), close="quorum", q=0.5, deadline=9 * SECOND, late=late)
        .meets(1, 2, 3, 4)
        .trains()
    )
    node.message(1)
    assert mixed(node.message(2)) == [[1, 2]]
    node(e.Mixed(0))
    node.message(3, round=0)
    node.message(3, round=0)  # a second time
    assert node.p.mailbox.tally["late"] == 1
    node.trains().message(1)
    (mix,) = (act for act in node.message(2) if isinstance(act, e.Mix))
    if late == "drop":
        assert (mix.messages, mix.ages) == (((1, (1, 1)), (2, (1, 2))), ())
    else:
        assert (mix.messages, mix.ages) == (((1, (1, 1)), (2, (1, 2)), (3, (0, 3))), (0, 0, 1))
    assert node.p.count.heard == 4  # of rounds 0 and 1: a carried message is of neither
    node(e.Mixed(1))
    node.trains().message(1)
    (mix,) = (act for act in node.message(2) if isinstance(act, e.Mix))
    assert (mix.messages, mix.ages) == (((1, (2, 1)), (2, (2, 2))), ()), "a carried message counts once"


def test_a_carried_message_gives_way_to_a_fresh_one_of_its_sender():
    node = Node(nodes=5, expected=(1, 2, 3), close="quorum", q=0.5, late="carry").meets(1, 2, 3, 4).trains()
    node.message(1)
    node.message(2)
    node(e.Mixed(0))
    node.message(3, round=0)
    node.trains().message(3)
    (mix,) = (act for act in node.message(1) if isinstance(act, e.Mix))
    assert (mix.messages, mix.ages) == (((1, (1, 1)), (3, (1, 3))), ())


def test_with_a_barrier_a_round_closes_only_when_all_are_heard():
    node = Node(close="barrier", deadline=SECOND, patience=5 * SECOND).meets(1, 2, 3).trains()
    node.message(1)
    assert mixed(node.passes(30).acts) == []
    assert mixed(node.message(2)) == [[1, 2]]


def test_with_a_barrier_a_node_gives_up_when_one_it_needs_is_away_for_too_long():
    node = Node(close="barrier", patience=5 * SECOND).meets(1, 2, 3).trains()
    node.message(1)
    node(e.Present(2, "a", False))
    assert not node.passes(5).of(e.Fail)
    assert "node 2 has been away" in node.passes(1).of(e.Fail)[0].reason


def test_who_is_away_is_not_waited_for():
    node = Node().meets(1, 2, 3).trains()
    node.message(1)
    assert mixed(node(e.Present(2, "a", False))) == [[1]]


def test_whose_certificate_counts_no_more_is_not_waited_for():
    node = Node().meets(1, 2, 3).trains()
    node.message(1)
    assert mixed(node(e.Void(frozenset({2})))) == [[1]]


def test_with_a_cap_a_round_closes_when_so_many_were_promised_and_heard():
    node = Node(cap=1).meets(1, 2, 3).trains()
    assert [a.topic for a in node.acts if isinstance(a, e.Ask)] == ["offer", "offer"]
    words = [a.word for a in node(*(e.Asked("offer", by, 0, None) for by in (3, 1, 3)))]
    assert words == [e.ACCEPTED, e.BUSY, e.ACCEPTED]
    assert mixed(node.message(1)) == []
    assert mixed(node.message(3)) == [[3]]


def test_a_node_far_ahead_of_everybody_waits_for_as_long_as_it_may_whatever_one_of_them_says():
    node = Node(deadline=30 * SECOND).meets(1, 2, 3)
    for _ in range(LEAD):
        node.round_with(1, 2)
    node.p.membership._peers[1].round = node.p.membership._peers[2].round = 0  # others than these are meant
    node(e.Introduced(3, 3, "a", 49, 0))
    node.trains()
    assert node.p.adaptive_timeout.limit < 2 * SECOND
    assert mixed(node.passes(28).acts) == []
    assert mixed(node.passes(3).acts) == [[]]


def test_a_node_far_ahead_of_all_but_one_waits_for_the_others_although_it_is_not_alone():
    node = Node(deadline=30 * SECOND).meets(1, 2, 3)
    for _ in range(LEAD):
        node.round_with(1, 2)
    node.p.membership._peers[2].round = 0
    node.trains()
    assert node.p.adaptive_timeout.limit < 2 * SECOND
    node.message(1)
    assert mixed(node.passes(28).acts) == []
    assert mixed(node.passes(3).acts) == [[1]]


# -- staying together --------------------------------------------------------------------------------------------------


def warm(**settings):
    """A node that knows how long rounds take: much less than the deadline."""
    node = Node(**settings).meets(1, 2, 3)
    for _ in range(12):
        node.round_with(*(node.p.view(0).expected or (1, 2)))
    assert node.p.adaptive_timeout.limit < 2 * SECOND
    return node.trains()


def test_a_node_that_hears_nobody_waits_until_the_deadline_although_rounds_are_short():
    node = warm(deadline=30 * SECOND)
    assert mixed(node.passes(29).acts) == []
    assert mixed(node.message(2)) == [[2]]  # half of its in-neighbours are heard, and the usual time has passed
    node(e.Mixed(node.p.round))
    assert mixed(node.trains().passes(31).acts) == [[]]


def test_nobody_is_waited_for_until_the_deadline_where_a_third_was_heard():
    node = warm(deadline=30 * SECOND)
    node.message(2)
    assert mixed(node.passes(2).acts) == [[2]]


def test_with_many_in_neighbours_one_of_them_is_not_company_enough():
    node = Node(nodes=8, targets=(1, 2), expected=range(1, 8), founders=frozenset(), deadline=30 * SECOND)
    node.meets(*range(1, 8))
    for _ in range(LEAD):
        node.round_with(*range(1, 8))
    node.trains()
    node.message(1)
    node.message(2)
    assert mixed(node.passes(20).acts) == []
    assert mixed(node.message(3)) == [[1, 2, 3]]


def test_a_silent_peer_costs_one_deadline_and_then_a_tenth_of_the_time():
    node = warm(expected=(1,), deadline=30 * SECOND)
    for node_id in (2, 3):
        node(
            e.Introduced(node_id, node_id, "a", node.p.round, 0)
        )  # the others are there, and send nothing to this node
    started, waits = node.now, []
    while node.now - started < 600 * SECOND:
        before = node.now
        node.passes(40 if node.p.phase == "waiting" else 0)
        node(e.Mixed(node.p.round))
        for node_id in (2, 3):
            node(e.Introduced(node_id, node_id, "a", node.p.round, 0))
        waits.append((node.now - before) // SECOND)
        node.now += SECOND
        node.trains()
    assert waits[0] == 40
    assert waits.count(40) <= 2 + 600 // 300


def test_who_shows_new_rounds_is_waited_for_again():
    node = warm(expected=(1,), deadline=30 * SECOND)
    for _ in range(2):
        node.passes(31)
        node(e.Mixed(node.p.round))
        node.trains()
    assert node.p.membership.given_up(1, node.now)
    node.message(1, node.p.round - 3)  # late, and of no round that it was known to have reached
    assert node.p.membership.given_up(1, node.now)
    node(e.Introduced(1, 1, "a", node.p.round, 0))
    assert not node.p.membership.given_up(1, node.now)


def test_whose_messages_come_a_little_late_is_waited_for_again_but_not_as_long_as_others():
    node = Node(deadline=30 * SECOND).meets(1, 2, 3)
    for _ in range(LEAD):
        node.round_with(1, 2)
    for _ in range(MOST_MISSED):
        node.round_with(2)
    node.trains()
    assert mixed(node.message(2)) == [[2]]  # nobody waits for node 1 any more
    node(e.Mixed(node.p.round))
    node.message(1, node.p.round - 1)
    node.trains()
    assert mixed(node.message(2)) == []
    assert node.p._left_for_neighbours()[1] <= node.p.adaptive_timeout.limit // 2


def test_where_nobody_knows_whom_to_expect_a_node_without_messages_asks_whether_it_is_ahead():
    node = warm(expected=None, deadline=30 * SECOND, blind=True)
    node.p.membership._peers[1].round = node.p.membership._peers[2].round = 0
    asked = {greeting.node_id for greeting in node.passes(4).of(e.Greet)}
    assert asked == {1, 2, 3}
    assert (mixed(node.acts), node.p.phase) == ([], "waiting")
    for node_id in (1, 2, 3):
        node(e.Introduced(node_id, node_id, "a", node.p.round - 2, 0))
    assert mixed(node.passes(2).acts) == []
    for node_id in (1, 2):
        node(e.Introduced(node_id, node_id, "a", node.p.round, 0))
    assert mixed(node.passes(2).acts) == [[]]  # they are in this round, too, and drew others


def test_who_is_alone_does_not_wait_until_the_deadline_for_those_that_are_ahead():
    node = warm(deadline=30 * SECOND)
    for node_id in (1, 2):  # they have sent what they had for this round, or left it out
        node(e.Introduced(node_id, node_id, "a", node.p.round + 1, 0))
    assert mixed(node.passes(5).acts) == [[]]


def test_where_nobody_knows_whom_to_expect_a_round_is_over_when_half_of_the_senders_have_moved_on():
    node = warm(expected=None, targets=(1, 2), deadline=30 * SECOND, blind=True)
    assert mixed(node.message(3, node.p.round + 1)) == [[]]


def test_a_node_that_was_left_behind_asks_where_the_front_is_if_it_has_heard_of_it_from_few():
    node = Node(nodes=13, expected=(1, 2), founders=frozenset()).meets(*range(1, 13))
    node.message(1, 6)
    node.message(2, 6)
    node.trains()
    assert node.p.membership.witnesses(node.now) == 4
    asked = [greeting.node_id for greeting in node.of(e.Greet)]
    assert len(asked) == 8
    node.now += 1
    for node_id in asked[:-1]:
        node(e.Introduced(node_id, node_id, "a", 6, 0))
        assert node.p.phase == "locating"
    node(e.Introduced(asked[-1], asked[-1], "a", 7, 0))
    assert node.of(e.Send) == [e.Send(7, (1, 2))]


def test_what_rounds_brought_is_counted():
    node = Node(deadline=2 * SECOND).meets(1, 2, 3)
    node.round_with(1, 2)
    node.round_with(2)
    node.round_with()
    count = node.p.count
    assert (count.taken, count.expected, count.heard, count.lonely) == (3, 6, 3, 1)
    assert list(node.p.recent) == [(2, 2), (1, 2), (0, 2)]


def test_with_a_cap_no_more_messages_are_expected_than_it_lets_in():
    node = Node(cap=1, deadline=2 * SECOND).meets(1, 2, 3).trains()
    node(e.Asked("offer", 1, 0, None))
    assert mixed(node.message(1)) == [[1]]
    assert (node.p.count.expected, node.p.count.heard) == (1, 1)


def test_what_is_remembered_of_rounds_does_not_grow_with_them():
    node, sizes = Node(rounds=200).meets(1, 2, 3), []
    for _ in range(110):
        node.round_with(1, 2)
        sizes.append(held(node.p))
    assert sizes[80] == sizes[-1]
    assert len(node.p.recent) == RECENT


def test_messages_are_sent_only_to_those_who_are_there():
    node = Node().meets(1, 2, 3)
    node(e.Present(2, "a", False))
    assert node.trains().of(e.Send) == [e.Send(0, (1,))]


# -- asking -----------------------------------------------------------------------------------------------------------


def test_who_has_nothing_yet_is_asked_again_only_after_a_while():
    node = Node().meets(1, 2, 3).trains()
    node.message(1)
    assert len(node.passes(1.1).of(e.Ask)) == 1
    node(e.Answered("again", 2, 0, e.NOT_YET))
    assert node.passes(1.5).of(e.Ask) == []
    assert len(node.passes(1).of(e.Ask)) == 1


def test_an_answer_about_an_earlier_round_excuses_nobody_in_this_one():
    node = Node(deadline=2 * SECOND).meets(1, 2, 3).trains()
    node.message(1)
    assert node.passes(2.1).of(e.Ask) == [e.Ask("again", 2, 0, SECOND)]
    node(e.Mixed(0))
    node.trains()
    node.message(1)
    assert mixed(node(e.Answered("again", 2, 0, e.NOTHING))) == []
    assert node.p.mailbox.missing() == {2}


def test_who_is_late_is_asked_again_and_again_but_not_while_it_is_being_asked():
    node = Node().meets(1, 2, 3).trains()
    node.message(1)
    assert node.passes(0.9).of(e.Ask) == []
    assert node.passes(0.3).of(e.Ask) == [e.Ask("again", 2, 0, SECOND)]
    assert node.passes(3).of(e.Ask) == []
    node(e.Answered("again", 2, 0, None))
    assert node.passes(1.5).of(e.Ask) == [e.Ask("again", 2, 0, SECOND)]
    assert mixed(node(e.Answered("again", 2, 0, e.NOTHING))) == [[1]]


def test_answers_that_nobody_asked_for_change_nothing():
    node = Node(close="barrier").meets(1, 2, 3).trains()
    for topic in ("again", "model", "offer"):
        for word in (e.NOTHING, e.ACCEPTED, None, "a model"):
            assert node(e.Answered(topic, 2, 0, word)) == []
    assert node(e.Adopted()) == []


def test_a_message_is_sent_again_to_those_it_was_for_and_not_too_often():
    node = Node().meets(1, 2, 3).trains()
    ask = [e.Asked("again", by, 0, None) for by in (1, 3)]
    assert node(*ask) == [e.Answer(None, e.NOT_YET), e.Answer(None, e.NOT_YET)]
    assert node(ask[0], after=SEND_AGAIN) == [e.AnswerMessage(None, 0, 1)]
    assert node(ask[0], after=1) == [e.Answer(None, e.NOT_YET)]
    assert node(e.Asked("again", 1, 7, None)) == [e.Answer(None, e.NOT_YET)]
    node.message(1)
    node.message(2)
    node(e.Mixed(0))
    assert node(e.Asked("again", 3, 0, None)) == [e.Answer(None, e.NOTHING)]


def test_a_model_is_given_to_one_place_at_most_once_a_second_and_not_before_the_node_has_begun():
    node = Node()
    ask = e.Asked("model", 1, 0, None)
    assert node(ask) == [e.Answer(None, e.NOT_YET)]
    node.meets(1, 2, 3)
    assert node(ask, ask) == [e.Give(None, 1), e.Answer(None, e.NOT_YET)]
    assert node(ask, after=SECOND) == [e.Give(None, 1)]
    assert node(e.Asked("model", 2, 40, None)) == [e.Answer(None, e.NOT_YET)]


def test_another_node_is_tried_instead_of_one_that_has_enough_as_often_as_allowed():
    node = Node(nodes=6, targets=(1,), cap=1, retries=2, founders=frozenset(range(1, 6))).meets(1, 2, 3, 4, 5).trains()
    assert [a.to for a in node.of(e.Ask)] == [1]
    tried = [1]
    for _ in range(2):
        node(e.Answered("offer", tried[-1], 0, e.BUSY))
        tried += [a.to for a in node.of(e.Ask)]
    assert len(set(tried)) == 3
    assert node(e.Answered("offer", tried[-1], 0, e.BUSY)) == []
    node = Node(targets=(1,), cap=1).meets(1, 2, 3).trains()
    assert node(e.Answered("offer", 1, 0, e.ACCEPTED)) == [e.Send(0, (1,))]
    assert node(e.Answered("offer", 1, 0, e.ACCEPTED)) == []


# -- beginning, catching up -------------------------------------------------------------------------------------------


def test_a_node_begins_when_the_founders_are_there():
    node = Node().meets(1, 2)
    assert node.p.phase == "looking"
    assert node.meets(3).of(e.Train) == [e.Train(0, 2)]


def test_a_node_begins_without_founders_after_its_patience_and_fails_if_there_is_nobody():
    assert Node(patience=9 * SECOND).meets(1).passes(10).of(e.Train)
    assert "no other node was found within 9 s" in Node(patience=9 * SECOND).passes(10).of(e.Fail)[0].reason


def test_one_that_differs_does_not_end_a_node_whose_other_founders_may_still_come():
    node = Node(patience=60 * SECOND, founders=frozenset({1}))
    node(e.Present(1, "a", True), e.Introduced(1, 1, "a", 0, 0, ("lr",)))
    assert node.passes(30).of(e.Fail) == []
    assert node.meets(2).of(e.Train)


def test_one_that_stays_a_stranger_does_not_keep_a_node_from_going_on_with_the_others():
    node = Node(nodes=6, patience=60 * SECOND)
    node(e.Present(5, "silent", True))
    node.meets(1, 2, round=20)
    assert node.passes(6).of(e.Ask)[0].topic == "model"


def test_a_second_process_at_the_same_place_is_refused_after_a_while():
    node = Node(patience=60 * SECOND)
    node(e.Present(0, "twin", True))
    node.meets(1, 2, 3)
    assert node.passes(TAKEN / SECOND - 1).of(e.Fail) == []
    failed = node.passes(2).of(e.Fail)[0]
    assert "another process runs as node 0" in failed.reason
    assert failed.bad_input


def test_the_own_token_of_before_a_renewal_is_no_second_process():
    node = Node(patience=60 * SECOND)
    node(e.Present(0, "own", True), e.Renewed("newer"), e.Present(0, "newer", True))
    assert node.meets(1, 2, 3).of(e.Train)


def test_a_node_that_returns_takes_a_model_and_goes_on_where_the_others_are():
    node = Node().meets(1, 2, round=20)
    node.passes(2)
    assert node.of(e.Ask) == [e.Ask("model", 1, 20, 5 * SECOND)]
    node(e.Answered("model", 2, 20, "not asked"))
    assert node.acts == []
    node(e.Answered("model", 1, 20, None))
    assert node.of(e.Ask) == [e.Ask("model", 2, 20, 5 * SECOND)]
    assert node(e.Answered("model", 2, 20, ("a", "model"))) == [e.Adopt(("a", "model"))]
    node(e.Adopted())
    assert (node.of(e.Train), node.of(e.Greet), node.p.start) == ([e.Train(21, 2)], [e.Greet(None)], 21)
    assert node(e.Adopted()) == []


def test_only_a_few_are_asked_for_a_model_and_each_of_them_once():
    node = Node(nodes=14).meets(*range(1, 13), round=20)
    asked = [ask.to for ask in node.passes(2).of(e.Ask)]
    while node.p.phase == "adopting":
        node(e.Answered("model", asked[-1], 20, None))
        asked += [ask.to for ask in node.of(e.Ask)]
    assert len(asked) == len(set(asked)) == DONORS
    assert node.of(e.Train) == [e.Train(21, 2)]


def test_a_node_that_two_others_have_left_behind_goes_on_where_they_are():
    node = Node().meets(1, 2, 3)
    for node_id in (1, 2):
        node(e.Introduced(node_id, node_id, "a", BEHIND + 1, 0))
    node.trains()
    assert node.of(e.Send) == [e.Send(BEHIND + 1 + 1, (1, 2))]
    assert node.p.count.jumped == BEHIND + 1 + 1


def test_in_a_small_network_two_that_are_two_rounds_ahead_are_no_reason_to_leave_out_rounds():
    node = Node().meets(1, 2, 3)
    for node_id in (1, 2):  # a liar may be one of them
        node(e.Introduced(node_id, node_id, "a", BEHIND, 0))
    assert node.trains().of(e.Send) == [e.Send(0, (1, 2))]
    assert node.p.count.jumped == 0


def test_one_alone_moves_nobody():
    node = Node().meets(1, 2, 3)
    for round in (49, 50):
        node(e.Introduced(3, 3, "a", round, 0, (), True))
    node.message(3, 49)
    node.trains()
    assert {greeting.node_id for greeting in node.of(e.Greet)} == {1, 2, 3}  # it asks the others where they are ...
    node(e.Introduced(3, 3, "a", 50, 0), after=1)
    assert node.of(e.Send) == []
    node(e.Introduced(1, 1, "a", 0, 0))
    node(e.Introduced(2, 2, "a", 1, 0))
    assert node.of(e.Send) == [e.Send(0, (1, 2))]  # ... and goes by what they say
    assert node.p.phase == "waiting"


def test_a_node_that_comes_when_the_others_are_at_their_end_has_learnt_nothing_and_fails():
    node = Node(adopt=False).meets(1, 2, round=50)
    assert "learnt nothing" in node.passes(2).of(e.Fail)[0].reason


def test_a_slow_node_takes_part_in_the_last_round_at_least():
    node = Node(rounds=10).meets(1, 2, 3)
    for node_id in (1, 2):
        node(e.Introduced(node_id, node_id, "a", 10, 0, (), True))
    assert node.trains().of(e.Send) == [e.Send(9, (1, 2))]
    assert e.Conclude() in node.round_with(1, 2)
    assert node.p.count.taken == 1


def test_a_node_says_that_it_has_finished_when_everything_is_written_down():
    node = Node(rounds=1).meets(1, 2, 3)
    node.round_with(1, 2)
    assert node.p.handshake() == (1, 0, False, False)
    node(e.Concluded())
    assert node.p.handshake() == (1, 0, True, False)


def test_a_node_at_its_end_says_so_again_and_leaves_when_the_others_have_finished():
    node = Node(rounds=1).meets(1, 2, 3)
    assert e.Conclude() in node.round_with(1, 2)
    assert e.Greet(None) in node(e.Concluded())
    assert e.Greet(None) in node.passes(3).acts
    for node_id in (1, 2, 3):
        node(e.Introduced(node_id, node_id, "a", 1, 0, (), True))
    assert node.acts == [e.Leave()]
    assert node(e.Asked("again", 1, 0, None)) == [e.Answer(None, e.NOTHING)]


# -- a member that means harm -----------------------------------------------------------------------------------------


def test_a_message_said_again_and_again_neither_feeds_the_pace_nor_makes_up_for_those_that_do_not_come():
    node = Node().meets(1, 2, 3)
    node.round_with(1, 2)
    seen = len(node.p.adaptive_timeout._waits)
    for _ in range(MOST_MISSED + BEHIND):
        node.round_with(2)
        for round in range(node.p.round - BEHIND):
            for _ in range(5):
                node.message(1, round)
    node.trains()
    assert len(node.p.adaptive_timeout._waits) <= seen + 2 * (MOST_MISSED + BEHIND)
    assert mixed(node.message(2)) == [[2]]  # nobody waits for node 1 any more


def test_a_message_with_a_wrong_graph_is_refused_and_counted_whenever_its_round_is_near():
    node = Node().meets(1, 2, 3)
    node.round_with(1, 2)
    node.trains()
    for round in (0, 1, 2, 9):  # over, open, to come
        node.message(1, round, graph=b"another.")
    assert node.p.count.refused["wrong-graph"] == 4
    assert [said.text[:16] for said in node.acts if isinstance(said, e.Say)] == []  # said once, before
    assert node.p.mailbox.missing() == {1, 2}
    node.message(1)
    assert mixed(node.message(2)) == [[1, 2]]


def test_a_message_or_an_offer_of_a_round_that_does_not_exist_shows_nothing():
    node = Node(cap=1).meets(1, 2, 3)
    for round in (-1, 50, 10**18):
        node.message(3, round)
        node(e.Asked("offer", 3, round, None))
    assert node.p.count.refused["implausible"] == 3
    assert node.p.membership.furthest(node.now) == -1


def test_a_hello_that_is_refused_is_counted_and_said_once():
    node = Node().meets(1, 2, 3)
    said = [node(e.Introduced(3, 3, "a", round, 0)) for round in (51, 10**18)]
    assert said == [[e.Say("refused the handshake of node 3: implausible")], []]
    assert node.p.count.refused["implausible-handshake"] == 2


def test_one_that_says_to_be_far_ahead_makes_others_ask_less_and_less_often():
    node = Node(deadline=60 * SECOND).meets(1, 2, 3).trains()
    node(e.Introduced(3, 3, "a", 49, 0))
    assert 0 < len(node.passes(30).of(e.Greet)) <= 6 * 3
    assert node.p.phase == "waiting"


def test_late_messages_of_somebody_who_was_not_expected_do_not_feed_the_pace():
    node = Node().meets(1, 2, 3)
    node.round_with(1, 2)
    seen = len(node.p.adaptive_timeout._waits)
    node.message(3, 0)
    assert len(node.p.adaptive_timeout._waits) == seen
    assert node.p.mailbox.tally["unexpected"] == 1


def test_who_answers_and_stays_a_stranger_is_not_greeted_at_the_speed_of_its_answers():
    node, greeted = Node().meets(1, 2, 3), 0
    for i in range(10_000):  # ten seconds
        node(e.Present(3, f"t{i % 5}", i % 2 == 0), e.Introduced(3, 3, f"t{i % 5}", 0, 0), after=1000)
        greeted += len(node.of(e.Greet))
    assert greeted <= 200


def test_who_flickers_fills_no_log():
    node, said = Node().meets(1, 2, 3), 0
    for i in range(10_000):
        node(e.Present(3, "a", i % 2 == 1), after=1000)
        said += len(node.of(e.Say))
    assert said <= 20


NUMBERS = st.sampled_from([-(10**18), -1, 0, 1, 2, 3, 5, 8, 9, 10, 17, 49, 50, 51, 10**18]) | st.integers(-5, 60)
TOKENS = st.sampled_from(["a", "b", "own", ""]) | st.text(max_size=3)
ANSWERS = st.sampled_from([e.ACCEPTED, e.BUSY, e.NOTHING, e.NOT_YET, "sent", "?", None, ("a", "model")])
TOPICS = st.sampled_from(["again", "model", "offer", "?"])
BAD = st.one_of(
    st.builds(
        e.Introduced, st.just(3), NUMBERS, TOKENS, NUMBERS, NUMBERS, st.sampled_from([(), (), ("lr",)]),
        st.booleans(), st.booleans(),
    ),
    st.builds(e.Present, st.just(3), TOKENS, st.booleans()),
    st.builds(e.Arrived, st.just(3), NUMBERS, st.sampled_from([G, b"", b"another."]), st.none()),
    st.builds(e.Asked, TOPICS, st.just(3), NUMBERS, st.none()),
    st.builds(e.Answered, TOPICS, st.just(3), NUMBERS, ANSWERS),
)  # fmt: skip
GOOD = st.one_of(
    st.builds(
        e.Introduced, st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.just("a"), st.integers(-1, 50), st.just(0)
    ),
    st.builds(e.Present, st.sampled_from([1, 2]), st.just("a"), st.booleans()),
    st.builds(e.Arrived, st.sampled_from([1, 2]), st.integers(0, 49), st.just(G), st.none()),
    st.builds(e.Timer, st.sampled_from(["look", "wait", "linger", "greet"])),
    st.builds(e.Ungreeted, st.sampled_from([1, 2, 3])),
    st.builds(e.Void, st.frozensets(st.integers(0, 3))),
    st.builds(e.Renewed, st.sampled_from(["own", "newer"])),
)


@pytest.mark.parametrize(
    "rules", [{}, {"close": "quorum", "expected": None}, {"cap": 2, "retries": 3}, {"close": "barrier"}]
)
@given(st.lists(st.tuples(st.one_of(BAD, GOOD), st.sampled_from([0, 1000, SECOND])), max_size=150))
def test_nothing_that_a_member_says_makes_a_node_stumble_or_its_memory_grow(rules, happenings):
    node = Node(deadline=2 * SECOND, **rules)
    waiting = []
    for event, pause in happenings:
        waiting += node(event, after=pause)
        while waiting:
            done = waiting.pop()
            if isinstance(done, e.Train):
                waiting += node(e.Trained(done.round))
            elif isinstance(done, e.Mix):
                waiting += node(e.Mixed(done.round))
            elif isinstance(done, e.Adopt):
                waiting += node(e.Adopted())
            elif isinstance(done, e.Conclude):
                waiting += node(e.Concluded())
            elif isinstance(done, e.Ask):
                waiting += node(e.Answered(done.topic, done.to, done.round, None))
        assert held(node.p) <= 400


@pytest.mark.parametrize("rules", [{}, {"expected": None}, {"cap": 2}])
def test_a_flood_of_one_member_is_kept_within_bounds(rules):
    node = Node(rounds=10**9, **rules).meets(1, 2, 3)
    largest = 0
    for i in range(6000):
        number = i * 7919 % 10**6 if i % 2 else i % 40
        node(
            e.Arrived(3, number, G, None), e.Asked("offer", 3, number, None), e.Asked("model", 3, number, None),
            e.Asked("again", 3, number, None), e.Present(3, f"t{i}", True), e.Introduced(3, i % 4, f"t{i}", number, number),
            e.Answered("again", 3, number, e.NOTHING), after=100,
        )  # fmt: skip
        largest = max(largest, held(node.p)) if i % 50 == 0 else largest
    assert largest <= 400
