"""What it takes to reach an accuracy: the first evaluation that has it, nothing in between, infinite if it never comes."""

import math

import pytest

from epidemic.report.statistics import (
    CostToTarget,
    Interval,
    along,
    cost,
    curve,
    mean_cost,
    node_seconds,
    nodes_until,
    places_of,
    seconds_in_all,
    until,
)
from timed import at
from written import a_record

COURSE = [(0, 0.0, 0.1), (4, 10.0, 0.4), (8, 20.0, 0.6), (12, 30.0, 0.55)]  # round, seconds, accuracy


def course(seed=1, faster=1.0, better=0.0):
    return [at(a_record(r, a + better, seed), s / faster) for r, s, a in COURSE]


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (0.1, CostToTarget(0, 0.0, 0.0, 0.0)),
        (0.4, CostToTarget(4, 4000.0, 10.0, 8.0)),
        (0.400001, CostToTarget(8, 8000.0, 20.0, 16.0)),  # no interpolation between 10 and 20 s
        (0.6, CostToTarget(8, 8000.0, 20.0, 16.0)),
        (0.61, CostToTarget(math.inf, math.inf, math.inf, math.inf)),
    ],
)
def test_time_rounds_steps_and_bytes_to_a_target_are_those_of_the_first_evaluation_that_has_it(target, found):
    assert cost(course(), target) == found
    assert cost(course(), target).reached == (target <= 0.6)


def test_without_a_clock_there_are_rounds_and_bytes_only():
    records = [a_record(r, a) for r, _, a in COURSE]
    assert cost(records, 0.5) == CostToTarget(8, 8000.0, None, None)
    assert cost(records, 0.9) == CostToTarget(math.inf, math.inf, None, None)
    assert mean_cost([records, records], 0.5) == (CostToTarget(8, 8000.0, None, None), [8, 8])
    assert node_seconds(records, 0.1) == []
    assert nodes_until([records], 0.1, 0.5) is None
    assert seconds_in_all([records]) is None


def test_of_several_seeds_their_mean_must_get_there_and_the_time_is_the_mean_of_theirs():
    slow, fast = course(1), course(2, faster=2.0, better=0.1)
    assert mean_cost([slow, fast], 0.45) == (CostToTarget(4, 4000.0, 7.5, 8.0), [4, 4])
    never, rounds = mean_cost([slow, fast], 0.66)
    assert never == CostToTarget(math.inf, math.inf, math.inf, math.inf)
    assert rounds == []


def test_nodes_one_by_one():
    """Ten nodes of which node i has the target from 10 (i + 1) seconds on, and the last one never."""
    records = [
        at(a_record(k, 0.5), 10.0 * k, nodes=10, accuracies=[0.9 if i < min(k, 9) else 0.2 for i in range(10)])
        for k in range(12)
    ]
    times = node_seconds(records, 0.9)
    assert times == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, math.inf]
    assert until(times, 0.1) == 10.0
    assert until(times, 0.11) == 20.0
    assert until(times, 0.9) == 90.0
    assert until(times, 0.91) == math.inf
    assert until([5.0], 0.1) == 5.0
    assert until([], 0.1) is None
    assert nodes_until([records, records], 0.9, 0.9) == Interval(90.0, 0.0, 2)
    assert nodes_until([records, records], 0.9, 1.0) is None


def test_a_node_that_falls_back_has_reached_it_all_the_same():
    records = [at(a_record(k, 0.5), float(k), accuracies=[[0.1, 0.8, 0.1][k]]) for k in range(3)]
    assert node_seconds(records, 0.8) == [1.0]


def test_seeds_that_are_evaluated_at_the_same_rounds_belong_together_by_rounds():
    found = curve([course(1), course(2, faster=2.0)], "accuracy")
    assert found.rounds == found.places == [0, 4, 8, 12]
    assert along(curve([course(1), course(2, faster=2.0)], "seconds"), found) == [0.0, 7.5, 15.0, 22.5]


def test_seeds_that_are_evaluated_at_the_same_times_belong_together_by_seconds():
    """Without rounds, trainings are counted: they differ between seeds, and may be the same at two evaluations."""
    one = [at(a_record(r, a), s) for r, s, a in [(0, 0.0, 0.1), (0, 5.0, 0.2), (3, 10.0, 0.4), (5, 15.0, 0.5)]]
    two = [at(a_record(r, a), s) for r, s, a in [(0, 0.0, 0.1), (1, 5.0, 0.4), (2, 10.0, 0.6), (5, 15.0, 0.7)]]
    found = curve([one, two], "accuracy")
    assert found.places == [0.0, 5.0, 10.0, 15.0]
    assert found.rounds == [0, 0.5, 2.5, 5]
    assert found.mean == pytest.approx([0.1, 0.3, 0.5, 0.6])
    assert mean_cost([one, two], 0.5) == (CostToTarget(2.5, 2500.0, 10.0, 5.0), [3, 2])


def test_a_seed_that_has_just_begun_does_not_change_what_belongs_together():
    begun = [at(a_record(0, 0.1, 3), 0.0)]
    seeds = [course(1), course(2, faster=2.0), begun]
    assert places_of(seeds) == [[0, 4, 8, 12], [0, 4, 8, 12], [0]]
    assert curve(seeds, "accuracy", partial=True).rounds == [0, 4, 8, 12]


def test_several_evaluations_in_one_round_are_told_apart():
    one = [at(a_record(r, a), s) for r, s, a in [(0, 0.0, 0.1), (4, 3.0, 0.2), (4, 5.0, 0.4), (4, 9.0, 0.5)]]
    two = [at(a_record(r, a), s) for r, s, a in [(0, 0.0, 0.1), (4, 4.0, 0.4), (4, 6.0, 0.6)]]
    found = curve([one, two], "accuracy")
    assert found.rounds == [0, 4, 4]
    assert found.mean == pytest.approx([0.1, 0.3, 0.5])
    assert along(curve([one, two], "seconds"), found) == [0.0, 3.5, 5.5]
