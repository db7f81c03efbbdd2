"""Isolation: whether deployed nodes learnt alone in too many of their rounds, and how this is reported.

A round is lonely if no message counted in it although its graph gave the node at least one. With a deadline, single lonely rounds are normal; many of
them mean that the nodes did not learn together, whatever their accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from epidemic.record import HeardCounts, Summary

NAMED = 6
"""Most nodes named in one line."""


def delivery_in(folder: Path) -> HeardCounts | None:
    """How many messages counted at the node of this folder; None if it has not finished or has no rounds."""
    for path in (folder / "run").glob("seed-*/summary.json"):
        return msgspec.json.decode(path.read_bytes(), type=Summary).delivery
    return None


def deliveries_of(folders: Iterable[Path]) -> dict[int, HeardCounts]:
    """The same for all nodes that have finished and have rounds, by node id."""
    found = {}
    for folder in folders:
        for path in (folder / "run").glob("seed-*/nodes.json"):
            delivery = delivery_in(folder)
            if delivery is not None:
                found[int(msgspec.json.decode(path.read_bytes())[0]["node"])] = delivery
    return found


def often_alone(delivery: HeardCounts) -> bool:
    """Whether more than a tenth of the rounds were lonely, which is reported at the end."""
    return 10 * delivery.lonely > delivery.rounds


def mostly_alone(delivery: HeardCounts) -> bool:
    """Whether more than half of the rounds were lonely, which fails a cluster."""
    return 2 * delivery.lonely > delivery.rounds


def said_of_node(delivery: HeardCounts | None, deadline: float) -> str:
    """The final line of a node that learnt alone too often; empty if it did not."""
    if delivery is None or not often_alone(delivery):
        return ""
    return f"learnt alone in {_share(delivery)}, more than a tenth: {_advice(deadline)}"


def said_of_cluster(nodes: Mapping[int, HeardCounts], deadline: float) -> str:
    """The line about all nodes of a cluster; empty if neither one of them nor all together learnt alone too often."""
    total = HeardCounts.total(nodes.values())
    alone = sorted((n for n in nodes if often_alone(nodes[n])), key=lambda n: (-nodes[n].lonely_share, n))
    if total is None or not alone:
        return ""
    limit = "half" if mostly_alone(total) else "a tenth"
    who = "; ".join(f"node {n} in {_share(nodes[n])}" for n in alone[:NAMED])
    more = f"; and {len(alone) - NAMED} more" if len(alone) > NAMED else ""
    if often_alone(total):
        return f"the nodes learnt alone in {_share(total)}, more than {limit}: {who}{more}; {_advice(deadline)}"
    return f"{len(alone)} of {len(nodes)} nodes learnt alone in more than a tenth of their rounds: {who}{more}; {_advice(deadline)}"


def _share(delivery: HeardCounts) -> str:
    return f"{delivery.lonely} of {delivery.rounds} rounds ({100 * delivery.lonely_share:.0f} %)"


def _advice(deadline: float) -> str:
    return f"let nodes wait longer by network.close (now at most {deadline:g} s), or look at the network and at what else these machines do"
