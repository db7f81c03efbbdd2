"""`epidemic topology`: what topologies look like, and how they compare."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epidemic.cli.completion import naming, services, topologies
from epidemic.cli.options import Json
from epidemic.cli.show import number, plain_table, print_json, show
from epidemic.cli.theory import Nodes
from epidemic.core.errors import BadInput, suggestion
from epidemic.core.formatting import count
from epidemic.core.progress import Waiting

if TYPE_CHECKING:
    from epidemic.measure import Impossible, TopologyReport
    from epidemic.topology import Topology


def register(app: typer.Typer) -> None:
    """Add the commands of `epidemic topology` to the application."""
    app.command("topology", cls=naming(topologies, services=services))(topology_command)


def topology_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="A kind of topology, or [bold]compare[/bold] for all of them.",
            show_default=False,
            autocompletion=topologies,
        ),
    ],
    nodes: Nodes,
    s: Annotated[
        int | None,
        typer.Option(
            "-s",
            help="Models per node and round, of kinds that have it.",
            show_default="ceil(log2 nodes)",
        ),
    ] = None,
    m: Annotated[
        int | None, typer.Option("-m", help="Offsets of an EquiTopo.", show_default="as many messages as s")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other field of the topology, e.g. --set eta=0.4.",
            show_default=False,
        ),
    ] = None,
    views: Annotated[
        list[str] | None,
        typer.Option(
            "--view",
            metavar="SERVICE",
            help="Targets of el-local come from the views of a peer sampling service: {services}, or a table such as"
            " '{kind=\"spray\", a=2}'. With compare it can be given several times.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 1,
    rounds: Annotated[int, typer.Option(help="Rounds of averaging to measure.")] = 50,
    model_bytes: Annotated[int, typer.Option(help="Size of a model; the default is GN-LeNet's.")] = 359_336,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture (.png, .pdf or .svg).", show_default=False)
    ] = None,
) -> None:
    r"""Look at a topology: degrees, cost, spectrum, and how fast models agree on it.

    Kinds: {kinds} (your own).

    [bold]Examples[/bold]

      epidemic topology el-local --nodes 96 -s 7 --plot el-local.png

      epidemic topology compare --nodes 96 -s 7 --plot compare.png

      epidemic topology el-local --nodes 96 -s 7 --view cyclon

      epidemic topology base --nodes 96 --set k=3

      epidemic topology every --nodes 96 --set period=5 \
          --set 'inner={kind="el-oracle", s=7}'

      epidemic topology python --nodes 96 --set factory=my_module:Star
    """
    from epidemic.core.errors import require_int
    from epidemic.core.rng import Streams
    from epidemic.measure import TopologyReport, compare, compare_views, measure, with_floors
    from epidemic.report.style import check_picture, save
    from epidemic.topology import ceil_log2

    require_int("nodes", nodes, 1)
    require_int("--rounds", rounds, 1)
    require_int("--seed", seed, 0)
    if plot is not None:
        check_picture(plot)
    if kind == "compare":
        if settings:
            raise BadInput("--set belongs to a single topology, not to compare; leave it out")
        s = max(ceil_log2(nodes), 1) if s is None else s
        with Waiting(f"topologies of {nodes:,} nodes") as waiting:
            how = {"seed": seed, "rounds": rounds, "model_bytes": model_bytes}
            reports = compare(nodes, s, m, waiting.tell, **how)
            reports += compare_views(nodes, s, list(map(_view, views or [])), waiting.tell, **how)
        found = [r for r in reports if isinstance(r, TopologyReport)]
        if as_json:
            print_json({"topologies": reports})
        else:
            _print_comparison(nodes, reports)
        if plot is not None:
            if not found:
                raise BadInput(f"no topology exists with nodes = {nodes}; nothing to draw")
            from epidemic.report.topologies import comparison_figure

            save(comparison_figure(found), plot)
        return
    topology = _topology(kind, nodes, s, m, settings or [], views or [])
    with Waiting(f"{kind} of {nodes:,} nodes") as waiting:
        report = measure(topology, nodes, seed, rounds, model_bytes, waiting.tell)
        report = with_floors(report, topology, seed, waiting.tell)
    if as_json:
        print_json(report)
    else:
        _print_topology(report)
    if plot is not None:
        from epidemic.report.topologies import topology_figure

        save(topology_figure(report, topology.graph(nodes, 0, Streams(seed))), plot)


def _view(text: str) -> dict[str, Any]:
    """The table of a service, from its kind or from the table as TOML has it."""
    from epidemic.core.config import parse_setting

    value = parse_setting(f"view={text}")[1]
    return value if isinstance(value, dict) else {"kind": value}


def _topology(kind: str, nodes: int, s: int | None, m: int | None, settings: list[str], views: list[str]) -> Topology:
    """The topology that the options describe; an option that it does not take is an error."""
    import msgspec

    from epidemic.core.config import parse_setting
    from epidemic.topology import TOPOLOGIES, ceil_log2, topology_from

    if kind not in TOPOLOGIES:
        raise BadInput(f"topology kind {kind!r} is not known{suggestion(kind, [*TOPOLOGIES, 'compare'])}")
    takes = {field.name: field for field in msgspec.structs.fields(TOPOLOGIES[kind])}
    table: dict[str, Any] = {"kind": kind}
    for name, value in (("s", s), ("m", m)):
        if value is not None and name not in takes:
            raise BadInput(f"{kind} takes no -{name}; leave it out")
        if value is not None:
            table[name] = value
    usual = TOPOLOGIES[kind].compared(max(ceil_log2(nodes), 1), None).get("", {})
    table = {**{name: value for name, value in usual.items() if takes[name].required}, **table}
    if views and "view" not in takes:
        raise BadInput(f"{kind} takes no --view; leave it out, or use el-local")
    if len(views) > 1:
        raise BadInput(f"--view is given {len(views)} times; {kind} takes one, and compare several")
    if views:
        table["view"] = _view(views[0])
    more = dict(parse_setting(text) for text in settings)
    if views and "view" in more:
        raise BadInput("--view and --set view=... say the same thing; leave one of them out")
    table.update(more)
    return topology_from(table)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _print_topology(r: TopologyReport) -> None:
    from epidemic.mixing import ITERATIVE_LIMIT

    table = plain_table(f"{r.kind}, {count(r.nodes, 'node')}, {count(r.rounds, 'round')} measured", "", "")
    spread = "{:,} / {:,.4g} / {:,}"
    table.add_row("models sent, min / mean / max", spread.format(r.out_degree_min, r.out_degree_mean, r.out_degree_max))
    table.add_row(
        "models received, min / mean / max", spread.format(r.in_degree_min, r.in_degree_mean, r.in_degree_max)
    )
    table.add_row("bytes per node and round", f"{r.bytes_per_node:,.0f}")
    table.add_row("connected (round 0)", "yes" if r.connected else "no")
    if r.sigma is None:
        table.add_row("sigma, gap, p (round 0)", f"not worked out beyond {ITERATIVE_LIMIT:,} nodes")
    else:
        table.add_row("sigma, gap, p (round 0)", f"{r.sigma:.7g}, {r.gap:.5g}, {r.p:.5g}")
    if r.expected_sigma2 is not None:
        table.add_row("expected squared factor, p", f"{r.expected_sigma2:.7g}, {r.expected_p:.5g}")
    table.add_row("contraction a round, measured", number(r.contraction_measured))
    table.add_row("contraction a round, predicted", number(r.contraction_predicted))
    noise, bias, worst = _floors(r)
    table.add_row("noise floor; bias floor, mean and worst", f"{noise}; {bias}, {worst}")
    show(table)


def _floors(r: TopologyReport) -> tuple[str, str, str]:
    """Noise floor, bias floor, and that of the worst direction."""
    if r.floors is None:
        return "-", "-", "-"
    about = "~" if r.floors.estimated else ""
    found = (r.floors.noise, r.floors.bias, r.floors.bias_worst)
    noise, bias, worst = (about + (f"{value:,.0f}" if 1000 <= value < math.inf else f"{value:.4g}") for value in found)
    return noise, bias, worst


def _print_comparison(nodes: int, reports: list[TopologyReport | Impossible]) -> None:
    from epidemic.measure import Impossible

    table = plain_table(
        f"Topologies of {nodes:,} nodes",
        "kind",
        "sent",
        "heard",
        "kB",
        "conn.",
        "p",
        "measured",
        "predicted",
    )
    notes = []
    for r in reports:
        if isinstance(r, Impossible):
            table.add_row(r.kind, *["-"] * 7)
            notes.append(f"[bold]{r.kind}[/bold] does not exist here: {r.reason}")
            continue
        received = f"{r.in_degree_min}-{r.in_degree_max}" if r.in_degree_min < r.in_degree_max else str(r.in_degree_max)
        p = r.p if r.expected_p is None else r.expected_p
        table.add_row(
            r.kind, f"{r.messages_per_node:.3g}", received, f"{r.bytes_per_node / 1000:,.0f}", "yes" if r.connected else "no",
            _short(p), _short(r.contraction_measured), _short(r.contraction_predicted),
        )  # fmt: skip
    legend = (
        "sent, heard, kB: models and kilobytes per node and round; p: 1 - sigma^2 of the matrix, in expectation where it is random; measured, predicted: factor on the disagreement"
        " a round; conn.: the graph of round 0 is connected."
    )
    show(table, f"[dim]{legend}[/dim]", *notes)
    _print_floors([r for r in reports if not isinstance(r, Impossible)])


def _print_floors(reports: list[TopologyReport]) -> None:
    """What stays of what every round brings in; nothing where no topology is small enough for it."""
    if all(r.floors is None for r in reports):
        return
    table = plain_table("What stays of noise and of bias", "kind", "sent", "F_N", "F_B", "F_B worst")
    for r in reports:
        table.add_row(r.kind, f"{r.messages_per_node:.3g}", *_floors(r))
    legend = (
        "In units of the disagreement that a round brings in: F_N of noise that is fresh in every round; F_B of a bias that stays (data that pull every node its own way), on"
        " average over its directions and in the worst one (~: estimated from drawn rounds)."
    )
    show(table, f"[dim]{legend}[/dim]")
