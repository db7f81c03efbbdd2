"""How the nodes of a cluster are, as tables and lines: where they stand, and how many messages counted of those expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from epidemic.core.formatting import count
from epidemic.deploy.isolation import mostly_alone, often_alone
from epidemic.record import HeardCounts

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from epidemic.deploy.status import Status

HEADS = ("heard lately", "heard in all", "alone")
"""Columns: messages counted of those expected, in the last rounds and in all; rounds without any message."""
SHOWN = 16
"""So many nodes have a line of their own at the end."""
FEW = 0.75
"""A smaller share of the expected messages is highlighted."""


def status_line(statuses: list[Status]) -> str:
    """How the nodes of a cluster are, in one line."""
    from epidemic.cli.show import percent, size

    rounds = [s.round for s in statuses]
    trained = [s.trained for s in statuses if s.trained is not None]
    where = f"rounds {min(rounds)} to {max(rounds)} of {statuses[0].rounds}"
    if trained:
        left = max(s.left or 0.0 for s in statuses)
        where = f"{min(trained)} to {max(trained)} trainings, {left:.0f} s left"
    found = [s.accuracy for s in statuses if s.accuracy is not None]
    accuracy = f", accuracy {percent(sum(found) / len(found))}" if found else ""
    sent = size(sum(s.bytes for s in statuses) / len(statuses))
    heard = delivery_line(s.delivery for s in statuses)
    return (
        f"{where}{accuracy}, {count(len(statuses), 'node')}, {sent} sent per node,"
        f" messages late {sum(s.late for s in statuses)}, lost {sum(s.lost for s in statuses)}{', ' * bool(heard)}{heard}"
    )


def status_table(seen: dict[int, Status], running: set[int], title: str) -> Table:
    """One line per node that answers; its numbers and words are shown without markup."""
    from rich.text import Text

    from epidemic.cli.show import percent, plain_table, size

    free = any(s.trained is not None for s in seen.values())
    progress = "trained, left" if free else "round"
    expecting = () if free else HEADS
    heads = ("node", progress, "accuracy", "sent", "alive", *expecting, "late", "lost", "refused", "state")
    table = plain_table(title, *heads)
    table.columns[0].min_width = 4
    table.columns[-1].justify = "left"
    for node_id in sorted(seen):
        s = seen[node_id]
        state = Text(s.state) if node_id in running or s.state == "done" else Text("gone", "red")
        late, lost, refused = (f"[yellow]{v}[/yellow]" if v else "0" for v in (s.late, s.lost, s.refused))
        alive = (
            f"{s.alive}/{s.nodes}"
            if s.alive == s.nodes or s.state == "done"
            else f"[yellow]{s.alive}/{s.nodes}[/yellow]"
        )
        found = percent(s.accuracy) if s.accuracy is not None else "-" if s.loss is None else f"loss {s.loss:.4g}"
        where = f"{min(s.round, s.rounds)}/{s.rounds}"
        if s.trained is not None:
            where = f"{s.trained}, {0 if s.state == 'done' else s.left or 0:.0f} s"
        heard = delivery_cells(s.delivery) if expecting else []
        table.add_row(str(node_id), where, found, size(s.bytes), alive, *heard, late, lost, refused, state)
    return table


def delivery_cells(delivery: HeardCounts | None) -> list[Text]:
    """What the columns show of one node."""
    from rich.text import Text

    if delivery is None:
        return [Text("-")] * len(HEADS)
    lately, whole = (delivery.recent_heard, delivery.recent_expected), (delivery.heard, delivery.expected)
    cells = [Text(f"{heard}/{due}", "yellow" if heard < FEW * due else "") for heard, due in (lately, whole)]
    style = "red" if mostly_alone(delivery) else "yellow" if often_alone(delivery) else ""
    return [*cells, Text(f"{delivery.lonely}/{delivery.rounds}", style)]


def delivery_line(parts: Iterable[HeardCounts | None]) -> str:
    """Messages counted at several nodes, in a few words; empty if none are expected."""
    total = HeardCounts.total(part for part in parts if part is not None)
    if total is None or not total.rounds:
        return ""
    return (
        f"messages heard lately {total.recent_heard} of {total.recent_expected}, in all {total.heard} of {total.expected},"
        f" rounds alone {total.lonely} of {total.rounds}"
    )


def delivery_table(nodes: Mapping[int, HeardCounts]) -> Table:
    """A line for each node, or for the loneliest where there are many, and one for all of them."""
    from epidemic.cli.show import plain_table

    some = sorted(nodes, key=lambda n: (-nodes[n].lonely_share, nodes[n].heard - nodes[n].expected, n))[:SHOWN]
    which = "" if len(some) == len(nodes) else f", {SHOWN} of {len(nodes)} nodes"
    table = plain_table(f"messages heard of expected{which}", "node", *HEADS)
    for node in sorted(some):
        table.add_row(str(node), *delivery_cells(nodes[node]))
    table.add_row("all", *delivery_cells(HeardCounts.total(nodes.values())))
    return table
