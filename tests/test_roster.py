"""The roster: who the others are, from what the network shows and they say; nobody is believed alone."""

import pytest

from epidemic.protocol.events import SECOND, Introduced
from epidemic.protocol.roster import MOST_MISSED, MOST_TOKENS, ON_THE_WAY, REGAINED, STILL_HEARD, Roster


def hello(place, token="a", round=-1, start=0, **more):
    return Introduced(place, more.pop("carrier", place), token, round, start, **more)


def roster_with(*places, nodes=5, rounds=100):
    """A roster of node 0 that knows these, before the first round."""
    roster = Roster(0, nodes, rounds)
    for place in places:
        roster.shown(place, "a", True, 0)
        assert roster.introduced(hello(place), -1, 0)
    return roster


def test_a_peer_is_alive_while_its_token_is_shown_and_it_was_introduced():
    roster = Roster(0, 4, 10)
    roster.shown(1, "a", True, 0)
    assert roster.strangers() == [1]
    assert roster.alive(0) == set()
    assert roster.introduced(hello(1), -1, 0)
    assert roster.strangers() == []
    assert roster.alive(0) == {1}
    roster.shown(1, "b", True, 1)  # it was started again ...
    roster.shown(1, "a", False, 2)  # ... and the old start is noticed to be over
    assert roster.alive(2) == set()
    assert roster.strangers() == [1]
    assert roster.introduced(hello(1, "b"), -1, 3)
    assert roster.alive(3) == {1}


def test_who_is_not_shown_is_alive_while_letters_go_on_coming():
    roster = roster_with(1)
    roster.shown(1, "a", False, 0)
    assert roster.alive(1) == set()
    roster.heard(1, 3, ON_THE_WAY)  # one that was on its way when its sender died
    assert roster.alive(ON_THE_WAY + 1) == set()
    roster.heard(1, 4, 2 * SECOND)
    assert roster.alive(2 * SECOND + STILL_HEARD) == {1}
    assert roster.alive(2 * SECOND + STILL_HEARD + 1) == set()


def test_an_old_hello_said_again_by_somebody_else_changes_nothing():
    roster = Roster(0, 4, 10)
    roster.shown(1, "now", True, 0)
    roster.introduced(hello(1, "now"), -1, 0)
    assert not roster.introduced(hello(1, "older"), -1, 1)
    assert not roster.introduced(hello(1, "older", differs=("lr",)), -1, 1)
    assert not roster.introduced(hello(2, "older", differs=("lr",)), -1, 1)
    assert roster.introduced(hello(1, "now"), 5, 1)
    assert (roster.alive(1), roster.differing) == ({1}, {})
    assert roster.expected([1], 3, 1) == {1}


@pytest.mark.parametrize(
    "strange",
    [
        hello(1, round=11),
        hello(1, start=11),
        hello(1, round=-2),
        hello(1, start=-1),
        hello(7),
        hello(0),
        hello(1, carrier=9),
    ],
)
def test_a_hello_with_impossible_numbers_is_not_believed(strange):
    roster = Roster(0, 4, 10)
    assert not roster.introduced(strange, -1, 0)
    assert roster.front(0) == -1


def test_who_does_something_else_is_kept_apart_until_it_starts_anew():
    roster = Roster(0, 4, 10)
    roster.shown(2, "a", True, 0)
    assert roster.introduced(hello(2, differs=("lr = 0.1 here, 0.2 there",)), -1, 0)
    assert list(roster.differing) == [2]
    assert (roster.alive(0), roster.strangers()) == (set(), [])
    roster.shown(2, "b", True, 1)
    assert roster.strangers() == [2]
    roster.introduced(hello(2, "b"), -1, 1)
    assert (roster.alive(1), roster.differing) == ({2}, {})


def test_nobody_hides_another_place_by_saying_that_it_is_carried_by_it():
    roster = Roster(0, 4, 10)
    roster.shown(1, "a", True, 0)
    assert roster.introduced(hello(3, "a", carrier=1), -1, 0)
    assert roster.strangers() == [1]


def test_places_of_one_process_come_and_go_together():
    roster = Roster(0, 4, 10)
    roster.shown(1, "a", True, 0)
    roster.introduced(hello(1), -1, 0)
    roster.introduced(hello(2, carrier=1), -1, 0)
    assert (roster.alive(0), roster.carrier(2), roster.carrier(3)) == ({1, 2}, 1, 3)
    roster.introduced(hello(2, carrier=1, gone=True), -1, 1)
    assert roster.alive(1) == {1}
    roster.shown(1, "a", False, 2)
    assert roster.alive(2) == set()


def test_whose_letters_are_waited_for():
    roster = Roster(0, 5, 100)
    for place in (1, 2, 3):
        roster.shown(place, "a", True, 0)
    roster.introduced(hello(1), -1, 0)  # met before the beginning
    roster.introduced(hello(2, round=7), -1, 0)  # had begun: its letters of rounds 7 and 8 may have left
    roster.introduced(hello(3, start=5), 20, 0)  # came back, and has not said from when it takes part
    everyone = range(5)
    assert roster.expected(everyone, 8, 0) == {1}
    assert roster.expected(everyone, 9, 0) == {1, 2}
    assert roster.expected(everyone, 30, 0) == {1, 2}
    roster.introduced(hello(3, start=24), 21, 0)
    assert roster.expected(everyone, 23, 0) == {1, 2}
    assert roster.expected(everyone, 24, 0) == {1, 2, 3}
    assert roster.expected([3], 24, 0) == {3}


def test_who_lets_others_wait_in_vain_is_not_waited_for_until_it_is_heard_even_if_it_starts_anew():
    roster = roster_with(1)
    for _ in range(MOST_MISSED):
        assert roster.expected([1], 3, 0) == {1}
        roster.missed([1])
    assert roster.expected([1], 3, 0) == set()
    roster.shown(1, "b", True, 0)
    roster.introduced(hello(1, "b", round=0), 3, 0)
    assert (roster.alive(0), roster.expected([1], 3, 0)) == ({1}, set())
    roster.heard(1, 4, 0)
    assert roster.expected([1], 5, 0) == {1}


def test_who_was_given_up_is_worth_waiting_for_again_when_some_of_the_time_is_regained():
    roster = roster_with(1, 2)
    roster.missed([1], 30 * SECOND, 30 * SECOND)
    assert roster.given_up(1, 30 * SECOND + REGAINED - 1)
    assert roster.worth_waiting_for([1, 2], 0, 30 * SECOND) == {2}
    assert not roster.given_up(1, 30 * SECOND + REGAINED)
    assert not roster.given_up(2, 30 * SECOND)
    assert roster.given_up(4, 30 * SECOND)  # nobody knows it


def test_a_front_needs_two_witnesses_where_there_are_several_others():
    roster = roster_with(1, 2, 3)
    assert roster.front(0) == -1
    roster.reached(1, 50)
    assert (roster.front(0), roster.furthest(0)) == (-1, 50)
    roster.reached(2, 9)
    assert roster.front(0) == 9
    roster.reached(2, 4)  # nobody goes back
    assert roster.front(0) == 9
    roster.void([1])
    assert roster.front(0) == -1
    alone = roster_with(1, nodes=2)
    alone.reached(1, 7)
    assert alone.front(0) == 7


def test_nodes_of_one_process_are_one_witness_and_those_of_the_own_process_are_none():
    roster = Roster(0, 8, 100, token="mine")
    roster.shown(0, "mine", True, 0)
    roster.introduced(hello(1, "mine", carrier=0), -1, 0)
    for carrier, places in ((2, (2, 3, 4)), (5, (5, 6))):
        roster.shown(carrier, "a", True, 0)
        for place in places:
            roster.introduced(hello(place, carrier=carrier), -1, 0)
    assert roster.alive(0) == {1, 2, 3, 4, 5, 6}
    for place in (1, 2, 3, 4):
        roster.reached(place, 60)
    assert (roster.front(0), roster.carriers(0)) == (-1, {2: 60, 5: -1})
    roster.reached(5, 9)
    assert roster.front(0) == 9
    assert roster.witnesses(0) == 2


def test_the_node_that_carries_this_one_is_no_witness():
    roster = Roster(1, 6, 100, token="mine")
    roster.shown(0, "mine", True, 0)
    roster.shown(3, "a", True, 0)
    for place, token in ((0, "mine"), (2, "mine"), (3, "a")):
        roster.introduced(hello(place, token, carrier=place - place % 3, round=60), -1, 0)
    assert roster.alive(0) == {0, 2, 3}
    assert (roster.carriers(0), roster.front(0), roster.began_without_us(0)) == ({3: 60}, -1, False)


def test_with_one_other_process_it_is_enough_of_a_witness():
    roster = Roster(0, 4, 100, token="mine")
    roster.introduced(hello(1, "mine", carrier=0), -1, 0)
    roster.shown(2, "a", True, 0)
    for place in (2, 3):
        assert roster.witnesses(0) == 2  # as long as somebody is unknown who may have a process of its own
        roster.introduced(hello(place, carrier=2), -1, 0)
    assert roster.witnesses(0) == 1
    roster.reached(2, 7)
    assert roster.front(0) == 7


def test_nobody_makes_a_carrier_seem_further_than_it_is():
    roster = roster_with(1, 2)
    for liar in (3, 4):
        roster.introduced(hello(liar, carrier=liar - 2), -1, 0)
        roster.reached(liar, 50)
    assert roster.front(0) == -1


def test_node_ids_that_name_each_other_or_unknown_ones_as_their_carriers_are_no_witnesses():
    roster = Roster(0, 9, 100)
    for carrier in (1, 2, 3, 5):
        roster.shown(carrier, "a", True, 0)
    for place in (1, 2):
        roster.introduced(hello(place), -1, 0)
    roster.introduced(hello(3, round=50, carrier=4), -1, 0)  # one process with the node ids 3, 4, 6 and 7
    roster.introduced(hello(4, round=50, carrier=3), -1, 0)
    roster.introduced(hello(6, round=50, carrier=5), -1, 0)  # node 5 has not been introduced yet
    roster.introduced(hello(7, round=50, carrier=3), -1, 0)
    roster.heard(3, 0, 2 * SECOND)  # its messages come
    assert roster.alive(2 * SECOND) == {1, 2, 3, 4, 6, 7}
    assert roster.carriers(2 * SECOND) == {1: -1, 2: -1}
    assert (roster.front(2 * SECOND), roster.began_without_us(2 * SECOND)) == (-1, False)


def test_a_node_id_that_is_heard_but_was_never_shown_as_its_own_carrier_is_no_witness():
    roster = Roster(0, 5, 100)
    roster.shown(1, "a", True, 0)
    roster.introduced(hello(1, round=50), -1, 0)
    roster.introduced(hello(2, round=50, carrier=2), -1, 0)  # in truth another node of the process with this token
    roster.heard(2, 0, 2 * SECOND)
    assert roster.alive(2 * SECOND) == {1, 2}
    assert (roster.carriers(2 * SECOND), roster.front(2 * SECOND)) == ({1: 50}, -1)
    roster.shown(2, "a", True, 2 * SECOND)  # it has a connection of its own ...
    assert roster.front(2 * SECOND) == 50
    roster.shown(2, "a", False, 2 * SECOND)  # ... which is shown no more, but its messages come
    roster.heard(2, 1, 4 * SECOND)
    assert roster.front(4 * SECOND) == 50


def test_a_process_whose_first_node_has_given_up_is_a_witness_by_its_other_nodes():
    roster = roster_with(1)
    for place, round in ((2, 9), (3, 5)):
        roster.introduced(hello(place, carrier=1, round=round), -1, 0)
    roster.introduced(hello(1, round=20, gone=True), -1, 0)
    assert (roster.alive(0), roster.carriers(0)) == ({2, 3}, {1: 5})
    roster.heard(2, 6, 2 * SECOND)
    roster.shown(1, "a", False, 0)
    assert (roster.alive(2 * SECOND), roster.carriers(2 * SECOND)) == ({2}, {})


@pytest.mark.parametrize(
    ("others", "wanted", "needed"), [(6, 0, 2), (7, 0, 3), (12, 0, 4), (12, 2, 2), (3, 9, 3), (1, 0, 1)]
)
def test_how_many_witnesses_are_needed(others, wanted, needed):
    roster = Roster(0, others + 1, 100, witnesses=wanted)
    for place in range(1, others + 1):
        roster.shown(place, "a", True, 0)
        roster.introduced(hello(place), -1, 0)
    assert roster.witnesses(0) == needed


def test_two_carriers_move_a_front_of_more_witnesses_by_as_much_as_is_allowed():
    roster = roster_with(*range(1, 10), nodes=10)
    for place in range(1, 10):
        roster.reached(place, 5)
    for place in (1, 2):
        roster.reached(place, 50)
    assert [roster.front(0, ahead) for ahead in (0, 1, 2)] == [5, 6, 7]
    roster.reached(3, 6)
    assert roster.front(0, 1) == 7


def test_it_takes_two_who_began_to_have_begun_without_this_node():
    roster = Roster(0, 4, 100)
    for place in (1, 2):
        assert not roster.began_without_us(0)
        roster.shown(place, "a", True, 0)
        roster.introduced(hello(place, round=5), -1, 0)
    assert roster.began_without_us(0)


def test_finished_is_remembered_until_a_new_start_that_is_shown():
    roster = roster_with(1)
    roster.introduced(hello(1, round=100, finished=True), 5, 0)
    roster.introduced(hello(1, round=3), 5, 0)  # an older one
    assert roster.finished == {1}
    roster.shown(1, "a", False, 1)
    roster.introduced(hello(1, "of an earlier start"), 5, 2)
    assert roster.finished == {1}
    roster.shown(1, "b", True, 3)
    roster.introduced(hello(1, "b"), 5, 3)
    assert roster.finished == set()


def test_how_long_somebody_is_away():
    roster = roster_with(1)
    assert roster.away(1, 9, 0) == 0
    assert roster.away(2, 9, 4) == 5  # never seen
    roster.shown(1, "a", False, 10)
    assert roster.away(1, 13, 0) == 3
    roster.heard(1, 0, 11)
    assert roster.away(1, 12, 0) == 2
    roster.heard(1, 0, 2 * SECOND)
    assert roster.away(1, 2 * SECOND + 1, 0) == 0
    assert roster.away(1, 2 * SECOND + STILL_HEARD + 2, 0) == STILL_HEARD + 2


def test_certificates_that_count_no_more():
    roster = roster_with(1, 2)
    roster.void({1})
    assert roster.alive(0) == {2}
    roster.void(())
    assert roster.alive(0) == {1, 2}


def test_another_process_at_the_own_place_is_noticed_and_the_own_former_token_is_none():
    roster = Roster(0, 4, 10)
    roster.shown(0, "own", True, 0)
    assert not roster.others_here("own")
    roster.withdrawn("own", 1)
    roster.shown(0, "new", True, 1)
    assert not roster.others_here("new")
    roster.shown(0, "other", True, 1)
    assert roster.others_here("new")
    assert roster.strangers() == []


def test_tokens_of_one_place_are_bounded():
    roster = Roster(0, 4, 10)
    for i in range(1000):
        roster.shown(1, f"t{i}", True, 0)
        roster.shown(99, f"t{i}", True, 0)
    assert {place: len(tokens) for place, tokens in roster._tokens.items()} == {1: MOST_TOKENS}
