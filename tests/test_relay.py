"""A relay takes messages of the model's size, and needs no data to know it."""

import pytest

import epidemic as ep
from epidemic.deploy.addresses import Addresses, read_addresses
from epidemic.deploy.folders import make_cluster
from epidemic.deploy.relay import largest_message, message_bytes
from epidemic.record import HEADER_BYTES

HOSTS = ["10.0.0.1:1", "10.0.0.2:1"]


def test_a_message_is_a_header_and_the_numbers_of_the_model():
    what = ep.Experiment(nodes=2, topology=ep.ELLocal(1))
    numbers = ep.simulate(ep.Experiment(nodes=2, rounds=1, topology=ep.ELLocal(1), algorithm=ep.LocalSGD())).models[0]
    assert message_bytes(what) == HEADER_BYTES + 4 * sum(tensor.numel() for tensor in numbers.values())


def test_the_relays_folder_says_how_large_a_message_is(tmp_path):
    what = ep.Experiment(nodes=2, topology=ep.ELLocal(1))
    make_cluster(what, HOSTS, tmp_path / "c", relay="relay.example:7447")
    where = read_addresses(tmp_path / "c/relay/node.toml")
    assert where.largest == message_bytes(what)
    assert where.listen == "0.0.0.0:7447"
    assert largest_message(tmp_path, Addresses("x:1"), what) == message_bytes(what)  # a folder made before


def test_without_the_data_the_relay_says_what_to_write(tmp_path):
    what = ep.Experiment(
        nodes=2,
        topology=ep.ELLocal(1),
        data=ep.Arrays(path="nowhere"),
        model=ep.Logistic(),
        network=ep.Network(data="own"),
    )
    make_cluster(what, HOSTS, tmp_path / "c", relay="relay.example:7447")
    path = tmp_path / "c/relay/node.toml"
    where = read_addresses(path)
    assert where.largest is None
    assert "largest = BYTES" in path.read_text()
    with pytest.raises(ep.BadInput, match="largest = BYTES"):
        largest_message(tmp_path / "c/relay", where, what)
    path.write_text(path.read_text() + "largest = 5000\n")
    assert largest_message(tmp_path / "c/relay", read_addresses(path), what) == 5000
