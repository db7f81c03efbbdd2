"""More rounds for a deployment: which numbers are refused, and what is said."""

from pathlib import Path

import msgspec
import pytest

import epidemic as ep
from epidemic.core.errors import BadInput
from epidemic.deploy.extending import check_rounds


def with_rounds(rounds, **network):
    return msgspec.structs.replace(
        ep.Experiment(rounds=rounds, topology=ep.ELLocal(s=2)), network=ep.Network(**network)
    )


def test_more_rounds_are_fine_and_fewer_are_not():
    check_rounds(Path("node-0"), with_rounds(20), with_rounds(30))
    with pytest.raises(BadInput, match=r"rounds = 10 is fewer than the 20 of node-0.experiment.toml"):
        check_rounds(Path("node-0"), with_rounds(20), with_rounds(10))


def test_targets_are_committed_to_for_a_number_of_rounds():
    few, more = with_rounds(20, coin="committed"), with_rounds(30, coin="committed")
    check_rounds(Path("node-0"), few, few)
    with pytest.raises(BadInput, match=r'rounds = 30: with network.coin = "committed" .* of 20 rounds; .*cluster next'):
        check_rounds(Path("node-0"), few, more)
