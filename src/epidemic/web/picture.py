"""A cluster's page: a picture of who is there and who hears whom, the last looks as stripes, and the table of `cluster status`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from epidemic.core.errors import plain
from epidemic.core.formatting import count, size
from epidemic.core.graph import Graph
from epidemic.deploy.isolation import mostly_alone, often_alone
from epidemic.record import HeardCounts
from epidemic.report.charts import LineStyle
from epidemic.web.clusters import ShownNode, WatchedCluster
from epidemic.web.pages import MOST_LINES, figures, notes
from epidemic.web.view import LivePage, badge, block, row, table, tiles
from epidemic.web.watch import WatchedRun

WIDTH, HEIGHT = 640, 500
RADIUS = 205
NAMED = 40
"""So many nodes have their numbers written beside them."""

WORDS = {
    "alive": "takes part",
    "late": "behind the others, or messages to it are late",
    "refused": "has just refused messages",
    "joining": "looks for its peers, or for their round",
    "finished": "has finished",
    "failed": "has given up",
    "stopped": "was stopped, and can be resumed",
    "gone": "no longer answers",
    "absent": "never seen",
}


def cluster_page(cluster: WatchedCluster) -> LivePage:
    """The current page of a cluster."""
    people, title = cluster.members, cluster.folders.title
    expecting = cluster.unit == "round"
    heard = ["heard lately", "heard in all", "alone"] if expecting else []
    heads = ["node", "state", cluster.unit, "accuracy", "sent", "alive", *heard, "late", "lost", "refused"]
    before, after = table(heads, "", "nodes")
    counts = Counter(m.state for m in people)
    asked = cluster.asker is not None
    lines = [line for line in (cluster.problem, "" if asked else NOT_ASKED) if line]
    pieces: list[tuple[str | None, str]] = [
        (None, f'<p class="crumbs"><a href="/">all</a> / {escape(title)}</p><h1>{escape(title)}</h1>'),
        block("tiles", _tiles(cluster, counts)),
        block("notes", notes(lines)),
        (None, '<section><h2>Nodes</h2><div class="grid2">'),
        block("picture", _picture(cluster), "figure"),
        block("history", _history(cluster), "figure"),
        (None, f"</div>{_legend()}</section><section>{before}"),
        *(block(f"n-{m.node_id}", row(_cells(m, expecting=expecting)), "tr") for m in people),
        (None, f"{after}</section>"),
        *_curves(cluster.folders.runs),
    ]
    return LivePage(f"{cluster.round} - {title} - epidemic", pieces)


NOT_ASKED = "There is no observer's certificate here, so nodes are not asked; this is what they have written down in these directories."


def _tiles(cluster: WatchedCluster, counts: Counter[str]) -> str:
    people = cluster.members
    rounds = [m.round for m in people if m.up or m.state == "finished"]
    total = max((m.rounds for m in people), default=0)
    spread = f"nodes are at {min(rounds)} to {max(rounds)}" if rounds and min(rounds) < max(rounds) else f"of {total}"
    found = [(cluster.unit, str(cluster.round if not rounds else max(cluster.round, min(rounds))), spread)]
    up = sum(m.up for m in people)
    found.append(("take part", str(up), f"of {len(people)}"))
    scores = [m.accuracy for m in people if m.accuracy is not None]
    if scores:
        found.append(("accuracy", f"{100 * sum(scores) / len(scores):.2f} %", f"{100 * min(scores):.1f} to {100 * max(scores):.1f}"))  # fmt: skip
    sent = [m.sent for m in people if m.sent is not None]
    if sent:
        found.append(("sent", size(sum(sent) / len(sent)), "per node"))
    sums = HeardCounts.total(m.delivery for m in people if m.delivery is not None)
    if sums is not None and sums.rounds:
        found.append(("heard lately", f"{sums.recent_heard} of {sums.recent_expected}", "expected messages"))
        found.append(("rounds alone", str(sums.lonely), f"of {sums.rounds}"))
    trouble = [f"{counts[s]} {s}" for s in ("late", "refused", "gone", "failed") if counts[s]]
    alone = sum(m.delivery is not None and often_alone(m.delivery) for m in people)
    trouble += [f"{alone} often alone"] if alone else []
    found.append(("trouble", ", ".join(trouble) or "none", ""))
    return tiles(found)


def _cells(m: ShownNode, *, expecting: bool) -> list[str]:
    score = f"{100 * m.accuracy:.2f} %" if m.accuracy is not None else "-" if m.loss is None else f"loss {m.loss:.4g}"
    s = m.status
    alive = "-" if s is None else f"{s.alive} / {s.nodes}"
    counts = ["-"] * 3 if s is None else [_count(v) for v in (s.late, s.lost, s.refused)]
    why = f'<small class="why">{escape(plain(m.why, 120))}</small>' if m.why else ""
    return [
        str(m.node_id),
        badge(m.state, m.why) + why,
        f"{m.round} / {m.rounds}" if m.rounds else "-",
        score,
        "-" if m.sent is None else size(m.sent),
        alive,
        *(_heard(m.delivery) if expecting else []),
        *counts,
    ]


def _heard(delivery: HeardCounts | None) -> list[str]:
    """Messages counted of those expected, in the last rounds and in all; rounds in which the node learnt alone."""
    if delivery is None:
        return ["-"] * 3
    d = delivery
    cells = [f"{heard} / {due}" for heard, due in ((d.recent_heard, d.recent_expected), (d.heard, d.expected))]
    alone = f"{d.lonely} / {d.rounds}"
    word = "most rounds" if mostly_alone(d) else "often" if often_alone(d) else ""
    return [*cells, f'<b class="some">{alone}</b><small class="why">{word}</small>' if word else alone]


def _count(value: int) -> str:
    return f'<b class="some">{value}</b>' if value else "0"


# -- the picture ------------------------------------------------------------------------------------------------------


def _picture(cluster: WatchedCluster) -> str:
    people = cluster.members
    graph = cluster.links()
    said = "; ".join(f"{n} {state}" for state, n in Counter(m.state for m in people).items())
    where = {m.node_id: _at(i, len(people)) for i, m in enumerate(people)}
    states = {m.node_id: m for m in people}
    r = 15 if len(people) <= 16 else 11 if len(people) <= 32 else 7 if len(people) <= 64 else 4
    parts = [_links(graph, where, states, r)] if graph is not None else []
    parts += [_node(m, where[m.node_id], r, named=len(people) <= NAMED) for m in people]
    when = f" in round {max(cluster.round, 0)}" if cluster.unit == "round" else ""
    caption = f"Links{when}" if graph is not None else "The nodes"
    what = f"{count(len(people), 'node')} on a circle: {said}."
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="net-t net-d"><title id="net-t">{escape(caption)}</title>'
        f'<desc id="net-d">{escape(what)}</desc>{_arrow()}{"".join(parts)}</svg><figcaption>{escape(caption)}</figcaption>'
    )


def _at(i: int, count: int) -> tuple[float, float]:
    angle = 2 * math.pi * i / max(count, 1) - math.pi / 2
    return WIDTH / 2 + RADIUS * math.cos(angle), HEIGHT / 2 + RADIUS * math.sin(angle)


def _arrow() -> str:
    return (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path class="tip" d="M0 0.8L8 4L0 7.2z"/></marker></defs>'
    )


def _links(graph: Graph, where: Mapping[int, tuple[float, float]], states: Mapping[int, ShownNode], r: float) -> str:
    """Curves from senders to receivers, bent towards the middle; dashed where one of the two is away."""
    found: dict[str, list[str]] = {"flow": [], "cut": []}
    for receiver in range(graph.n):
        for sender in graph.senders[graph.indptr[receiver] : graph.indptr[receiver + 1]].tolist():
            if sender not in where or receiver not in where:
                continue
            kind = "flow" if states[sender].up and states[receiver].up else "cut"
            found[kind].append(_curve(where[sender], where[receiver], r + 3))
    return "".join(f'<path class="{kind}" marker-end="url(#tip)" d="{d}"/>' for kind, ds in found.items() for d in ds)


def _curve(a: tuple[float, float], b: tuple[float, float], gap: float) -> str:
    middle = (a[0] + b[0] + WIDTH) / 4, (a[1] + b[1] + HEIGHT) / 4  # halfway to the centre
    middle = (a[0] + b[0]) / 4 + middle[0] / 2, (a[1] + b[1]) / 4 + middle[1] / 2
    start, end = _towards(a, middle, gap), _towards(b, middle, gap + 2)
    return f"M{start[0]:.1f} {start[1]:.1f}Q{middle[0]:.1f} {middle[1]:.1f} {end[0]:.1f} {end[1]:.1f}"


def _towards(a: tuple[float, float], b: tuple[float, float], by: float) -> tuple[float, float]:
    length = math.dist(a, b) or 1.0
    return a[0] + by * (b[0] - a[0]) / length, a[1] + by * (b[1] - a[1]) / length


def _node(m: ShownNode, at: tuple[float, float], r: float, *, named: bool) -> str:
    x, y = at
    said = f"node {m.node_id}: {m.state}{', ' + m.why if m.why else ''}, {m.unit} {m.round} of {m.rounds}"
    text = f'<text class="who" x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{m.node_id}</text>' if r > 9 else ""
    if named and r <= 9:
        out = _towards((WIDTH / 2, HEIGHT / 2), at, RADIUS + 18)
        text = f'<text x="{out[0]:.1f}" y="{out[1] + 4:.1f}" text-anchor="middle">{m.node_id}</text>'
    return f'<g class="node s-{m.state}"><title>{escape(said)}</title>{shape(m.state, x, y, r)}{text}</g>'


def shape(state: str, x: float, y: float, r: float) -> str:
    """The mark of a state: besides its colour, a late node is a diamond, a refusing one a square, an absent one an empty circle."""
    if state == "late":
        k = 1.25 * r
        return f'<path d="M{x:.1f} {y - k:.1f}L{x + k:.1f} {y:.1f}L{x:.1f} {y + k:.1f}L{x - k:.1f} {y:.1f}z"/>'
    if state == "refused":
        k = 0.92 * r
        return f'<rect x="{x - k:.1f}" y="{y - k:.1f}" width="{2 * k:.1f}" height="{2 * k:.1f}" rx="2"/>'
    if state == "failed":
        k = 1.2 * r
        return f'<path d="M{x - k:.1f} {y + 0.8 * k:.1f}L{x:.1f} {y - k:.1f}L{x + k:.1f} {y + 0.8 * k:.1f}z"/>'
    ring = f'<circle class="halo" cx="{x:.1f}" cy="{y:.1f}" r="{r + 3:.1f}"/>' if state == "finished" else ""
    return f'{ring}<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>'


def _legend() -> str:
    entries = "".join(
        f'<li><svg class="key" viewBox="0 0 20 20" aria-hidden="true"><g class="node s-{state}">{shape(state, 10, 10, 6)}</g></svg>'
        f"<b>{state}</b> {words}</li>"
        for state, words in WORDS.items()
    )
    return f'<ul class="legend keys">{entries}</ul>'


def _history(cluster: WatchedCluster) -> str:
    """A column for each look at which something had changed, a row for each node."""
    people, looks = cluster.members, list(cluster.history)
    left, top, bottom = 44, 12, 46
    tall = (HEIGHT - top - bottom) / max(len(people), 1)
    wide = (WIDTH - left - 22) / max(len(looks), 24)
    gap = 1.0 if tall > 5 else 0.0
    cells = "".join(
        f'<rect class="s-{seen[m.node_id]}" x="{left + i * wide:.1f}" y="{top + j * tall:.1f}" width="{max(wide - gap, 0.5):.1f}" height="{max(tall - gap, 0.5):.1f}"/>'
        for i, (_, seen) in enumerate(looks)
        for j, m in enumerate(people)
        if m.node_id in seen
    )
    every = max(1, math.ceil(len(people) / 16))
    rows = "".join(
        f'<text class="tick" x="{left - 6}" y="{top + (j + 0.5) * tall + 4:.1f}" text-anchor="end">{m.node_id}</text>'
        for j, m in enumerate(people)
        if j % every == 0
    )
    ticks = "".join(
        f'<text class="tick" x="{left + (i + 0.5) * wide:.1f}" y="{HEIGHT - bottom + 18}" text-anchor="middle">{round}</text>'
        for i, (round, _) in _some(looks)
    )
    labels = f'<text class="label" x="{(left + WIDTH - 22) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{cluster.unit}, at each look</text>'
    said = f"The states of {len(people)} nodes at the last {len(looks)} looks."
    by = f"{cluster.unit.capitalize()} by {cluster.unit}"
    return (
        f'<svg class="stripes" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="his-t his-d"><title id="his-t">{by}</title>'
        f'<desc id="his-d">{said}</desc>{cells}{rows}{ticks}{labels}</svg><figcaption>{by}, at the last looks</figcaption>'
    )


def _some(looks: Sequence[tuple[int, dict[int, str]]]) -> list[tuple[int, tuple[int, dict[int, str]]]]:
    step = max(1, math.ceil(len(looks) / 8))
    return list(enumerate(looks))[::step]


def _curves(runs: Mapping[int, WatchedRun]) -> list[tuple[str | None, str]]:
    """Curves from the files of the nodes here, a line for each."""
    begun = [(node_id, run) for node_id, run in sorted(runs.items()) if run.by_seed]
    if not begun:
        return []
    drawn = begun[:: math.ceil(len(begun) / MOST_LINES)]
    lines = [(f"node {node_id}", LineStyle(run.kind, i), run.by_seed) for i, (node_id, run) in enumerate(drawn)]
    return figures(lines, classes=all(run.classes for _, run in drawn))
