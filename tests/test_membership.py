"""The roster: who the others are, from what the network shows and they say; nobody is believed alone."""

import pytest

from epidemic.protocol.events import SECOND, Introduced
from epidemic.protocol.membership import MOST_MISSED, MOST_TOKENS, ON_THE_WAY, REGAINED, STILL_HEARD, Membership


def handshake(node_id, token="a", round=-1, start=0, **more):
    return Introduced(node_id, more.pop("carrier", node_id), token, round, start, **more)


def roster_with(*node_ids, nodes=5, rounds=100):
    """A roster of node 0 that knows these, before the first round."""
    membership = Membership(0, nodes, rounds)
    for node_id in node_ids:
        membership.shown(node_id, "a", True, 0)
        assert membership.introduced(handshake(node_id), -1, 0)
    return membership


def test_a_peer_is_alive_while_its_token_is_shown_and_it_was_introduced():
    membership = Membership(0, 4, 10)
    membership.shown(1, "a", True, 0)
    assert membership.strangers() == [1]
    assert membership.alive(0) == set()
    assert membership.introduced(handshake(1), -1, 0)
    assert membership.strangers() == []
    assert membership.alive(0) == {1}
    membership.shown(1, "b", True, 1)  # it was started again ...
    membership.shown(1, "a", False, 2)  # ... and the old start is noticed to be over
    assert membership.alive(2) == set()
    assert membership.strangers() == [1]
    assert membership.introduced(handshake(1, "b"), -1, 3)
    assert membership.alive(3) == {1}


def test_who_is_not_shown_is_alive_while_messages_go_on_coming():
    membership = roster_with(1)
    membership.shown(1, "a", False, 0)
    assert membership.alive(1) == set()
    membership.heard(1, 3, ON_THE_WAY)  # one that was on its way when its sender died
    assert membership.alive(ON_THE_WAY + 1) == set()
    membership.heard(1, 4, 2 * SECOND)
    assert membership.alive(2 * SECOND + STILL_HEARD) == {1}
    assert membership.alive(2 * SECOND + STILL_HEARD + 1) == set()


def test_an_old_hello_said_again_by_somebody_else_changes_nothing():
    membership = Membership(0, 4, 10)
    membership.shown(1, "now", True, 0)
    membership.introduced(handshake(1, "now"), -1, 0)
    assert not membership.introduced(handshake(1, "older"), -1, 1)
    assert not membership.introduced(handshake(1, "older", differs=("lr",)), -1, 1)
    assert not membership.introduced(handshake(2, "older", differs=("lr",)), -1, 1)
    assert membership.introduced(handshake(1, "now"), 5, 1)
    assert (membership.alive(1), membership.differing) == ({1}, {})
    assert membership.expected([1], 3, 1) == {1}


@pytest.mark.parametrize(
    "strange",
    [
        handshake(1, round=11),
        handshake(1, start=11),
        handshake(1, round=-2),
        handshake(1, start=-1),
        handshake(7),
        handshake(0),
        handshake(1, carrier=9),
    ],
)
def test_a_hello_with_impossible_numbers_is_not_believed(strange):
    membership = Membership(0, 4, 10)
    assert not membership.introduced(strange, -1, 0)
    assert membership.front(0) == -1


def test_who_does_something_else_is_kept_apart_until_it_starts_anew():
    membership = Membership(0, 4, 10)
    membership.shown(2, "a", True, 0)
    assert membership.introduced(handshake(2, differs=("lr = 0.1 here, 0.2 there",)), -1, 0)
    assert list(membership.differing) == [2]
    assert (membership.alive(0), membership.strangers()) == (set(), [])
    membership.shown(2, "b", True, 1)
    assert membership.strangers() == [2]
    membership.introduced(handshake(2, "b"), -1, 1)
    assert (membership.alive(1), membership.differing) == ({2}, {})


def test_nobody_hides_another_place_by_saying_that_it_is_carried_by_it():
    membership = Membership(0, 4, 10)
    membership.shown(1, "a", True, 0)
    assert membership.introduced(handshake(3, "a", carrier=1), -1, 0)
    assert membership.strangers() == [1]


def test_places_of_one_process_come_and_go_together():
    membership = Membership(0, 4, 10)
    membership.shown(1, "a", True, 0)
    membership.introduced(handshake(1), -1, 0)
    membership.introduced(handshake(2, carrier=1), -1, 0)
    assert (membership.alive(0), membership.carrier(2), membership.carrier(3)) == ({1, 2}, 1, 3)
    membership.introduced(handshake(2, carrier=1, gone=True), -1, 1)
    assert membership.alive(1) == {1}
    membership.shown(1, "a", False, 2)
    assert membership.alive(2) == set()


def test_whose_messages_are_waited_for():
    membership = Membership(0, 5, 100)
    for node_id in (1, 2, 3):
        membership.shown(node_id, "a", True, 0)
    membership.introduced(handshake(1), -1, 0)  # met before the beginning
    membership.introduced(handshake(2, round=7), -1, 0)  # had begun: its messages of rounds 7 and 8 may have left
    membership.introduced(handshake(3, start=5), 20, 0)  # came back, and has not said from when it takes part
    everyone = range(5)
    assert membership.expected(everyone, 8, 0) == {1}
    assert membership.expected(everyone, 9, 0) == {1, 2}
    assert membership.expected(everyone, 30, 0) == {1, 2}
    membership.introduced(handshake(3, start=24), 21, 0)
    assert membership.expected(everyone, 23, 0) == {1, 2}
    assert membership.expected(everyone, 24, 0) == {1, 2, 3}
    assert membership.expected([3], 24, 0) == {3}


def test_who_lets_others_wait_in_vain_is_not_waited_for_until_it_is_heard_even_if_it_starts_anew():
    membership = roster_with(1)
    for _ in range(MOST_MISSED):
        assert membership.expected([1], 3, 0) == {1}
        membership.missed([1])
    assert membership.expected([1], 3, 0) == set()
    membership.shown(1, "b", True, 0)
    membership.introduced(handshake(1, "b", round=0), 3, 0)
    assert (membership.alive(0), membership.expected([1], 3, 0)) == ({1}, set())
    membership.heard(1, 4, 0)
    assert membership.expected([1], 5, 0) == {1}


def test_who_was_given_up_is_worth_waiting_for_again_when_some_of_the_time_is_regained():
    membership = roster_with(1, 2)
    membership.missed([1], 30 * SECOND, 30 * SECOND)
    assert membership.given_up(1, 30 * SECOND + REGAINED - 1)
    assert membership.worth_waiting_for([1, 2], 0, 30 * SECOND) == {2}
    assert not membership.given_up(1, 30 * SECOND + REGAINED)
    assert not membership.given_up(2, 30 * SECOND)
    assert membership.given_up(4, 30 * SECOND)  # nobody knows it


def test_a_front_needs_two_witnesses_where_there_are_several_others():
    membership = roster_with(1, 2, 3)
    assert membership.front(0) == -1
    membership.reached(1, 50)
    assert (membership.front(0), membership.furthest(0)) == (-1, 50)
    membership.reached(2, 9)
    assert membership.front(0) == 9
    membership.reached(2, 4)  # nobody goes back
    assert membership.front(0) == 9
    membership.void([1])
    assert membership.front(0) == -1
    alone = roster_with(1, nodes=2)
    alone.reached(1, 7)
    assert alone.front(0) == 7


def test_nodes_of_one_process_are_one_witness_and_those_of_the_own_process_are_none():
    membership = Membership(0, 8, 100, token="mine")
    membership.shown(0, "mine", True, 0)
    membership.introduced(handshake(1, "mine", carrier=0), -1, 0)
    for carrier, node_ids in ((2, (2, 3, 4)), (5, (5, 6))):
        membership.shown(carrier, "a", True, 0)
        for node_id in node_ids:
            membership.introduced(handshake(node_id, carrier=carrier), -1, 0)
    assert membership.alive(0) == {1, 2, 3, 4, 5, 6}
    for node_id in (1, 2, 3, 4):
        membership.reached(node_id, 60)
    assert (membership.front(0), membership.carriers(0)) == (-1, {2: 60, 5: -1})
    membership.reached(5, 9)
    assert membership.front(0) == 9
    assert membership.witnesses(0) == 2


def test_the_node_that_carries_this_one_is_no_witness():
    membership = Membership(1, 6, 100, token="mine")
    membership.shown(0, "mine", True, 0)
    membership.shown(3, "a", True, 0)
    for node_id, token in ((0, "mine"), (2, "mine"), (3, "a")):
        membership.introduced(handshake(node_id, token, carrier=node_id - node_id % 3, round=60), -1, 0)
    assert membership.alive(0) == {0, 2, 3}
    assert (membership.carriers(0), membership.front(0), membership.began_without_us(0)) == ({3: 60}, -1, False)


def test_with_one_other_process_it_is_enough_of_a_witness():
    membership = Membership(0, 4, 100, token="mine")
    membership.introduced(handshake(1, "mine", carrier=0), -1, 0)
    membership.shown(2, "a", True, 0)
    for node_id in (2, 3):
        assert membership.witnesses(0) == 2  # as long as somebody is unknown who may have a process of its own
        membership.introduced(handshake(node_id, carrier=2), -1, 0)
    assert membership.witnesses(0) == 1
    membership.reached(2, 7)
    assert membership.front(0) == 7


def test_nobody_makes_a_carrier_seem_further_than_it_is():
    membership = roster_with(1, 2)
    for liar in (3, 4):
        membership.introduced(handshake(liar, carrier=liar - 2), -1, 0)
        membership.reached(liar, 50)
    assert membership.front(0) == -1


def test_node_ids_that_name_each_other_or_unknown_ones_as_their_carriers_are_no_witnesses():
    membership = Membership(0, 9, 100)
    for carrier in (1, 2, 3, 5):
        membership.shown(carrier, "a", True, 0)
    for node_id in (1, 2):
        membership.introduced(handshake(node_id), -1, 0)
    membership.introduced(handshake(3, round=50, carrier=4), -1, 0)  # one process with the node ids 3, 4, 6 and 7
    membership.introduced(handshake(4, round=50, carrier=3), -1, 0)
    membership.introduced(handshake(6, round=50, carrier=5), -1, 0)  # node 5 has not been introduced yet
    membership.introduced(handshake(7, round=50, carrier=3), -1, 0)
    membership.heard(3, 0, 2 * SECOND)  # its messages come
    assert membership.alive(2 * SECOND) == {1, 2, 3, 4, 6, 7}
    assert membership.carriers(2 * SECOND) == {1: -1, 2: -1}
    assert (membership.front(2 * SECOND), membership.began_without_us(2 * SECOND)) == (-1, False)


def test_a_node_id_that_is_heard_but_was_never_shown_as_its_own_carrier_is_no_witness():
    membership = Membership(0, 5, 100)
    membership.shown(1, "a", True, 0)
    membership.introduced(handshake(1, round=50), -1, 0)
    membership.introduced(
        handshake(2, round=50, carrier=2), -1, 0
    )  # in truth another node of the process with this token
    membership.heard(2, 0, 2 * SECOND)
    assert membership.alive(2 * SECOND) == {1, 2}
    assert (membership.carriers(2 * SECOND), membership.front(2 * SECOND)) == ({1: 50}, -1)
    membership.shown(2, "a", True, 2 * SECOND)  # it has a connection of its own ...
    assert membership.front(2 * SECOND) == 50
    membership.shown(2, "a", False, 2 * SECOND)  # ... which is shown no more, but its messages come
    membership.heard(2, 1, 4 * SECOND)
    assert membership.front(4 * SECOND) == 50


def test_a_process_whose_first_node_has_given_up_is_a_witness_by_its_other_nodes():
    membership = roster_with(1)
    for node_id, round in ((2, 9), (3, 5)):
        membership.introduced(handshake(node_id, carrier=1, round=round), -1, 0)
    membership.introduced(handshake(1, round=20, gone=True), -1, 0)
    assert (membership.alive(0), membership.carriers(0)) == ({2, 3}, {1: 5})
    membership.heard(2, 6, 2 * SECOND)
    membership.shown(1, "a", False, 0)
    assert (membership.alive(2 * SECOND), membership.carriers(2 * SECOND)) == ({2}, {})


@pytest.mark.parametrize(
    ("others", "wanted", "needed"), [(6, 0, 2), (7, 0, 3), (12, 0, 4), (12, 2, 2), (3, 9, 3), (1, 0, 1)]
)
def test_how_many_witnesses_are_needed(others, wanted, needed):
    membership = Membership(0, others + 1, 100, witnesses=wanted)
    for node_id in range(1, others + 1):
        membership.shown(node_id, "a", True, 0)
        membership.introduced(handshake(node_id), -1, 0)
    assert membership.witnesses(0) == needed


def test_two_carriers_move_a_front_of_more_witnesses_by_as_much_as_is_allowed():
    membership = roster_with(*range(1, 10), nodes=10)
    for node_id in range(1, 10):
        membership.reached(node_id, 5)
    for node_id in (1, 2):
        membership.reached(node_id, 50)
    assert [membership.front(0, ahead) for ahead in (0, 1, 2)] == [5, 6, 7]
    membership.reached(3, 6)
    assert membership.front(0, 1) == 7


def test_it_takes_two_who_began_to_have_begun_without_this_node():
    membership = Membership(0, 4, 100)
    for node_id in (1, 2):
        assert not membership.began_without_us(0)
        membership.shown(node_id, "a", True, 0)
        membership.introduced(handshake(node_id, round=5), -1, 0)
    assert membership.began_without_us(0)


def test_finished_is_remembered_until_a_new_start_that_is_shown():
    membership = roster_with(1)
    membership.introduced(handshake(1, round=100, finished=True), 5, 0)
    membership.introduced(handshake(1, round=3), 5, 0)  # an older one
    assert membership.finished == {1}
    membership.shown(1, "a", False, 1)
    membership.introduced(handshake(1, "of an earlier start"), 5, 2)
    assert membership.finished == {1}
    membership.shown(1, "b", True, 3)
    membership.introduced(handshake(1, "b"), 5, 3)
    assert membership.finished == set()


def test_how_long_somebody_is_away():
    membership = roster_with(1)
    assert membership.away(1, 9, 0) == 0
    assert membership.away(2, 9, 4) == 5  # never seen
    membership.shown(1, "a", False, 10)
    assert membership.away(1, 13, 0) == 3
    membership.heard(1, 0, 11)
    assert membership.away(1, 12, 0) == 2
    membership.heard(1, 0, 2 * SECOND)
    assert membership.away(1, 2 * SECOND + 1, 0) == 0
    assert membership.away(1, 2 * SECOND + STILL_HEARD + 2, 0) == STILL_HEARD + 2


def test_certificates_that_count_no_more():
    membership = roster_with(1, 2)
    membership.void({1})
    assert membership.alive(0) == {2}
    membership.void(())
    assert membership.alive(0) == {1, 2}


def test_another_process_at_the_own_place_is_noticed_and_the_own_former_token_is_none():
    membership = Membership(0, 4, 10)
    membership.shown(0, "own", True, 0)
    assert not membership.others_here("own")
    membership.withdrawn("own", 1)
    membership.shown(0, "new", True, 1)
    assert not membership.others_here("new")
    membership.shown(0, "other", True, 1)
    assert membership.others_here("new")
    assert membership.strangers() == []


def test_tokens_of_one_place_are_bounded():
    membership = Membership(0, 4, 10)
    for i in range(1000):
        membership.shown(1, f"t{i}", True, 0)
        membership.shown(99, f"t{i}", True, 0)
    assert {node_id: len(tokens) for node_id, tokens in membership._tokens.items()} == {1: MOST_TOKENS}
