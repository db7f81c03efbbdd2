"""Greeting: who is not known is greeted, again and again, less and less often."""

from epidemic.protocol.greeting import FIRST, LONGEST, PATIENCE, Greeting


def test_a_stranger_is_greeted_once_and_again_only_after_a_while():
    greeting = Greeting()
    assert greeting.next_time() is None
    greeting.look_for([1, 2])
    assert greeting.due(100) == [1, 2]
    assert greeting.due(100) == []
    assert greeting.next_time() == 100 + PATIENCE
    assert greeting.due(100 + PATIENCE) == [1, 2]


def test_pauses_grow_to_the_longest_and_never_overflow():
    greeting, now, pauses = Greeting(), 0, []
    greeting.look_for([1])
    for _ in range(3000):  # 2**tries was too large for a float after 1,030 of them
        greeting.failed(1, now)
        pauses.append(greeting.next_time() - now)
        now = greeting.next_time()
        assert greeting.due(now) == [1]
    assert pauses[:3] == [2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST


def test_who_is_known_is_not_greeted_and_after_a_new_start_soon_is():
    greeting = Greeting()
    greeting.look_for([1])
    greeting.due(0)
    greeting.known(1, 10)
    greeting.look_for([])
    assert (greeting.due(10**9), greeting.next_time()) == ([], None)
    greeting.look_for([1])
    assert greeting.next_time() == 10 + FIRST


def test_who_comes_and_goes_is_not_greeted_faster_for_it():
    greeting, times = Greeting(), 0
    for now in range(0, PATIENCE, 1000):
        greeting.look_for([1])
        times += len(greeting.due(now))
        greeting.look_for([])
    assert times == 1


def test_only_strangers_are_tried_again():
    greeting = Greeting()
    greeting.failed(7, 0)
    assert greeting.next_time() is None
