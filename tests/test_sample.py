"""A min-wise sample: every peer ever seen has the same chance of a slot, however often somebody tells of it."""

from collections import Counter
from random import Random

from epidemic.protocol.sample import MOST_FAILURES, SLOTS, PeerSample


def sample_of(seed, node=0, saved=()):
    return PeerSample(node, Random(seed).randrange, saved)


def test_a_flood_changes_nothing():
    """What a sample holds follows from the set of peers that it saw, not from their order or number."""
    calm, flooded = sample_of(1), sample_of(1)
    calm.see(range(1, 30))
    for _ in range(50):
        flooded.see([7] * 100)
    flooded.see(reversed(range(1, 30)))
    for _ in range(50):
        flooded.see([7] * 100)
    assert calm.saved == flooded.saved


def test_every_peer_has_the_same_chance():
    """Peer 1 is told of by a flood, from the start on; it has a slot in ten like each of the other nine."""
    held = Counter()
    for seed in range(150):
        sample = sample_of(seed)
        for peer in range(2, 11):
            sample.see([1, 1, peer])
        held.update(peer for _, peer, _ in sample.saved)
    mean = 150 * SLOTS / 10
    assert all(abs(held[peer] - mean) < 5 * mean**0.5 for peer in range(1, 11)), held


def test_a_node_is_never_in_its_own_sample():
    sample = sample_of(2, node=5)
    sample.see(range(8))
    assert 5 not in sample.peers
    one, *others = sorted(sample.peers)
    assert sample.pick(others) == one
    assert sample.pick(range(8)) is None


def test_who_does_not_answer_for_long_is_replaced_and_does_not_come_back_at_once():
    sample = sample_of(3)
    sample.see(range(1, 6))
    dead = sample.pick()
    for _ in range(MOST_FAILURES - 1):
        sample.failed(dead)
    assert dead in sample.peers
    sample.answered(dead)  # once is enough
    for _ in range(MOST_FAILURES):
        assert dead in sample.peers
        sample.failed(dead)
    assert dead not in sample.peers
    assert len(sample.saved) == SLOTS  # its slots are filled again
    before = sum(peer == dead for _, peer, _ in sample.saved)
    sample.see([dead])
    assert before <= sum(peer == dead for _, peer, _ in sample.saved) <= SLOTS // 2


def test_a_sample_survives_a_restart():
    sample = sample_of(4)
    sample.see(range(1, 40))
    sample.failed(sample.saved[0][1])
    again = sample_of(5, saved=sample.saved)
    assert again.saved == sample.saved
    again.see(range(1, 40))
    assert again.saved == sample.saved


def test_slots_whose_peers_count_no_more_are_filled_anew():
    sample = sample_of(6)
    sample.see(range(1, 10))
    again = sample_of(7, saved=sample.saved[: SLOTS // 2])
    assert again.saved[: SLOTS // 2] == sample.saved[: SLOTS // 2]
    assert len(again.saved) == SLOTS
