"""`epidemic theory`: what the mathematics predicts for a number of nodes and messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epidemic.cli.completion import topologies
from epidemic.cli.options import Json
from epidemic.cli.show import number, plain_table, print_json, show
from epidemic.core.errors import BadInput, require_int, require_real

if TYPE_CHECKING:
    from epidemic.core.graph import Graph
    from epidemic.theory.malicious import Kind


# -- `epidemic theory hostile`: how many malicious models a node receives, how many it must tolerate, and how many it must hear for that --


TITLES: dict[Kind, str] = {"el-oracle": "EL-Oracle", "el-local": "EL-Local", "pull": "pull"}
SHARES = {"half": 1 / 2, "third": 1 / 3, "fifth": 1 / 5}
AGGREGATING = (0.5, 0.9, 0.99)


def hostile_command(
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="Number of nodes.", show_default=False)],
    malicious: Annotated[int, typer.Option("--malicious", "-b", help="How many of them lie.", show_default=False)],
    s: Annotated[
        int | None,
        typer.Option("-s", help="Models sent, or asked for, per node and round.", show_default="ceil(log2 nodes)"),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of training, T.")] = 3000,
    risk: Annotated[
        float, typer.Option(help="Accepted probability that any honest node receives too many of them in any round.")
    ] = 0.01,
    f: Annotated[
        int | None,
        typer.Option(
            "-f", help="Malicious models that every node tolerates.", show_default="what the risk needs, at most s / 2"
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="el-oracle, el-local, pull, or a kind whose graph never changes, such as regular or torus.",
            show_default="the first three",
            autocompletion=topologies,
        ),
    ] = None,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture (.png, .pdf or .svg).", show_default=False)
    ] = None,
) -> None:
    """How many of the models that a node receives are malicious, and what that means for robust aggregation.

    A rule that tolerates f of more than 2 f models needs that no honest node receives more than f malicious ones. The law is exact: how likely that is
    in a round and in a run, the f that a risk needs, the smallest s that allows it, what an adversary gains who corrupts nodes after seeing all graphs,
    and what the lemmas of RPEL ask for instead.

    [bold]Examples[/bold]

      epidemic theory hostile -n 96 -b 5

      epidemic theory hostile -n 96 -b 5 -s 7 -f 2 --rounds 500

      epidemic theory hostile -n 1000 -b 100 --risk 0.001 --plot risk.png

      epidemic theory hostile -n 96 -b 5 -s 8 --topology regular --json
    """
    from epidemic.report.style import check_picture
    from epidemic.theory import check_size
    from epidemic.topology import ceil_log2

    require_int("nodes", nodes, 3)
    require_int("malicious", malicious, 1)
    if 2 * malicious >= nodes:
        raise BadInput(
            f"malicious = {malicious} must be less than half of nodes = {nodes}: no rule can tell a majority of liars from honest nodes"
        )
    given, s = s, ceil_log2(nodes) if s is None else s
    check_size(nodes, s)
    require_int("--rounds", rounds, 1)
    require_real("--risk", risk, above=0)
    if risk >= 1:
        raise BadInput(f"--risk = {risk:g} must be less than 1; 0.01 is usual")
    if f is not None:
        _check_by_hand(f, nodes, s, topology)
    if plot is not None:
        check_picture(plot)
    kinds = [kind for kind in TITLES if topology in (None, kind)]
    result: dict[str, Any] = {"nodes": nodes, "malicious": malicious, "rounds": rounds, "risk": risk}
    if kinds:
        result["s"] = s
        result["laws"] = {kind: _law(kind, nodes, malicious, s, rounds, risk, f) for kind in kinds}
        result["rpel"] = _rpel(nodes, malicious, rounds, risk)
    else:
        result["graph"] = _graph_that_stays(str(topology), nodes, malicious, given, rounds, risk, f)
    if as_json:
        print_json(result)
    elif kinds:
        _print_laws(result)
    else:
        _print_graph(result)
    if plot is not None:
        from epidemic.report.style import save
        from epidemic.report.topologies import risk_figure, several

        save(risk_figure(nodes, several(nodes, malicious), rounds, risk, malicious), plot)


def _check_by_hand(f: int, n: int, s: int, topology: str | None) -> None:
    """A rule needs more than 2 f models, so more than a node has would never aggregate."""
    require_int("f", f, 0)
    if topology in (None, "el-oracle", "pull") and 2 * f > s:
        raise BadInput(
            f"f = {f} must be at most s / 2 = {s // 2}: a rule needs more than 2 f models; use s = {2 * f}, or a smaller f"
        )
    if 2 * f > n - 1:
        raise BadInput(f"f = {f} must be at most (nodes - 1) / 2 = {(n - 1) // 2}: a rule needs more than 2 f models")


# -- what is worked out -----------------------------------------------------------------------------------------------


def _law(kind: Kind, n: int, b: int, s: int, rounds: int, risk: float, by_hand: int | None) -> dict[str, Any] | None:
    """All results for one way to draw graphs; None if there is no such graph."""
    from epidemic import theory

    if kind == "el-oracle" and n * s % 2:
        return None
    needed = theory.tolerate(n, b, s, rounds, risk, kind)
    f = min(needed, s // 2) if by_hand is None else by_hand
    law = theory.malicious_law(n, b, s, kind)
    found = {
        "malicious_mean": law.mean,
        "no_majority": theory.no_majority(n, b, s, kind),
        "f_needed": needed,
        "f_most": s // 2,
        "f": f,
        "p_bad": law.more_than(f),
        "expected_bad": theory.expected_bad(n, b, s, rounds, f, kind),
        "p_clean": theory.p_clean(n, b, s, rounds, f, kind),
        "adaptive_bad": theory.adaptive_bad(n, b, s, rounds, f, risk, kind),
    }
    if kind == "el-local":
        by_received = _by_received(n, b, s, rounds, risk)
        smallest = {f"{share:g}": theory.smallest_s_local(n, b, rounds, risk, share) for share in AGGREGATING}
        aggregating = theory.aggregating_local(n, b, s, rounds, risk)
        return {**found, "f_by_received": by_received, "aggregating": aggregating, "smallest_s": smallest}
    smallest_s = {name: theory.smallest_s(n, b, rounds, risk, kind, share) for name, share in SHARES.items()}
    return {
        **found,
        "smallest_s": {
            name: None if one is None else {"s": one, "f": theory.tolerate(n, b, one, rounds, risk, kind)}
            for name, one in smallest_s.items()
        },
    }


def _by_received(n: int, b: int, s: int, rounds: int, risk: float) -> list[int]:
    """f by models received, from 0 on, as far as nodes receive them or until it no longer grows."""
    from epidemic import theory

    found: list[int] = []
    for received in range(theory.indegree(n, s).percentile(0.999) + 1):
        found.append(theory.tolerate_among(n, b, received, rounds, risk))
        if found[-1] == b:
            break
    return found


def _rpel(n: int, b: int, rounds: int, risk: float) -> dict[str, Any]:
    from epidemic import theory

    proved = theory.rpel_smallest_s(n, b, rounds, risk)
    return {
        "lemma_4_1": theory.rpel_lemma_4_1(n, b, rounds, risk),
        "lemma_a4": theory.rpel_lemma_a4(n, b, rounds, risk),
        "lemma_5_2": None if proved is None else {"s": proved[0], "f": proved[1]},
    }


def _graph_that_stays(
    kind: str, n: int, b: int, s: int | None, rounds: int, risk: float, by_hand: int | None
) -> dict[str, Any]:
    """The same on the graph of seed 1, where the law is over the malicious nodes."""
    import numpy as np

    from epidemic import theory
    from epidemic.theory.hostile import resolve

    graph = _static_graph(kind, n, s)
    received, sent = graph.in_degree, graph.out_degree
    needed = np.array([theory.tolerate_among(n, b, int(a), 1, risk) for a in received])
    f = np.minimum(needed, received // 2) if by_hand is None else np.full(n, by_hand)
    bad = theory.expected_bad_nodes(n, b, received, f)
    refusal = None
    try:
        resolve(n, b, rounds, risk, "static", in_degrees=received)
    except BadInput as refused:
        refusal = str(refused)
    return {
        "kind": kind,
        "received": [int(received.min()), int(received.max())],
        "f_needed": [int(needed.min()), int(needed.max())],
        "aggregating": float(np.mean(received >= 2 * needed)),
        "f": [int(f.min()), int(f.max())],
        "expected_bad_nodes": bad,
        "expected_bad": bad * rounds,
        "adaptive_bad_nodes": theory.most_bad_nodes(n, b, sent, f),
        "smallest_s_el_oracle": theory.smallest_s(n, b, rounds, risk, "el-oracle"),
        "refused": refusal,
    }


def _static_graph(kind: str, n: int, s: int | None) -> Graph:
    from epidemic.cli.topology import _topology
    from epidemic.core.errors import suggestion
    from epidemic.core.rng import Streams
    from epidemic.topology import TOPOLOGIES

    never = [name for name, one in TOPOLOGIES.items() if one.static is True]
    if kind not in never:
        known = [*TITLES, *never]
        raise BadInput(f"--topology {kind!r} has no law here{suggestion(kind, known)}")
    return _topology(kind, n, s, None, [], []).graph(n, 0, Streams(1))


# -- what is printed --------------------------------------------------------------------------------------------------


def _print_laws(r: dict[str, Any]) -> None:
    from epidemic.theory.hostile import about

    laws = r["laws"]
    there = [law for law in laws.values() if law is not None]
    columns = [TITLES[kind] for kind in laws]
    table = plain_table(
        f"{r['nodes']:,} nodes, {r['malicious']:,} malicious, s = {r['s']}, {r['rounds']:,} rounds",
        "",
        *columns,
    )

    def row(what: str, name: str, shown: Any) -> None:
        table.add_row(what, *["-" if law is None else shown(law[name]) for law in laws.values()])

    row("malicious models received in a round, mean", "malicious_mean", lambda x: f"{x:.3g}")
    row("chance of no honest majority at a node", "no_majority", _chance)
    row(f"f needed at risk {r['risk']:g}", "f_needed", str)
    row(f"f that {r['s'] + 1} models allow", "f_most", str)
    row("f used below", "f", str)
    row("chance that a node-round is bad", "p_bad", _chance)
    row("expected bad node-rounds in the run", "expected_bad", about)
    row("chance of a run without any (EL: at least)", "p_clean", lambda x: f"{x:.4g}")
    row("at most, if liars are chosen on the graphs", "adaptive_bad", "{:,}".format)
    show(table, *_told(r, there))
    _print_smallest(r)


def _told(r: dict[str, Any], laws: list[dict[str, Any]]) -> list[str]:
    """The meaning of the table in sentences."""
    from epidemic.theory.hostile import about

    notes = ["[dim]A bad node-round: an honest node receives more than f malicious models in a round.[/dim]"]
    for kind, law in r["laws"].items():
        if law is None:
            notes.append(f"EL-Oracle does not exist here: nodes * s = {r['nodes'] * r['s']} is odd.")
        elif kind == "el-local":
            counts = " ".join(map(str, law["f_by_received"]))
            end = ", and no more" if law["f_by_received"][-1] == r["malicious"] else ", ..."
            notes.append(
                f"EL-Local with f by models received (0, 1, 2, ...: {counts}{end}): {law['aggregating']:.1%} of the node-rounds can aggregate."
            )
    regular = [law for kind, law in r["laws"].items() if kind != "el-local" and law is not None]
    if regular and regular[-1]["p_bad"] > 0 and regular[-1]["p_clean"] < 1 - r["risk"]:
        law = regular[-1]
        least = law["smallest_s"]["half"]
        notes.append(
            f"[bold]s = {r['s']} can meet more than {law['f']} malicious of {r['malicious']:,} in {r['nodes']:,} nodes: expect {about(law['expected_bad'])} bad"
            f" node-rounds in {r['rounds']:,} rounds; s = {least['s']} with f = {least['f']} none.[/bold]"
        )
    return notes


def _chance(p: float) -> str:
    return "0" if p == 0 else f"{p:.3g}"


def _print_smallest(r: dict[str, Any]) -> None:
    laws = {kind: law for kind, law in r["laws"].items() if law is not None}
    table = plain_table(f"Smallest s, and its f, at risk {r['risk']:g}", "", *[TITLES[kind] for kind in laws])

    def pair(found: dict[str, int] | None) -> str:
        return "none" if found is None else f"{found['s']:,} ({found['f']:,})"

    regular = [kind for kind in laws if kind != "el-local"]
    if regular:
        words = {
            "half": "f < (s + 1) / 2, which every rule needs",
            "third": "f < (s + 1) / 3",
            "fifth": "f < (s + 1) / 5",
        }
        for name, what in words.items():
            table.add_row(
                what, *[pair(law["smallest_s"][name]) if kind in regular else "" for kind, law in laws.items()]
            )
    if "el-local" in laws:
        for share in AGGREGATING:
            row = ["" if kind in regular else f"{law['smallest_s'][f'{share:g}']:,}" for kind, law in laws.items()]
            table.add_row(f"{share:.0%} of the node-rounds can aggregate", *row)
    if "pull" in laws:
        rpel = r["rpel"]
        more = " (more than all nodes)" if rpel["lemma_4_1"] > r["nodes"] - 1 else ""
        for what, found in (
            ("RPEL, Lemma A.4", f"{rpel['lemma_a4']:,}"),
            (f"RPEL, Lemma 4.1{more}", f"{rpel['lemma_4_1']:,}"),
            ("RPEL, Lemma 5.2 (proof of convergence)", pair(rpel["lemma_5_2"])),
        ):
            table.add_row(what, *[found if kind == "pull" else "" for kind in laws])
    show("", table)


def _print_graph(r: dict[str, Any]) -> None:
    from epidemic.theory.hostile import about

    g = r["graph"]

    def spread(pair: list[int]) -> str:
        return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} to {pair[1]}"

    table = plain_table(
        f"{g['kind']}, {r['nodes']:,} nodes, {r['malicious']:,} malicious, the same graph in all {r['rounds']:,} rounds",
        "",
        "",
    )
    table.add_row("models that a node receives in a round", spread(g["received"]))
    table.add_row(f"f that it needs at risk {r['risk']:g}, malicious nodes drawn at random", spread(g["f_needed"]))
    table.add_row("nodes that receive enough for it", f"{g['aggregating']:.1%}")
    table.add_row("f used below", spread(g["f"]))
    table.add_row("expected bad nodes, each of them in every round", about(g["expected_bad_nodes"]))
    table.add_row("expected bad node-rounds", about(g["expected_bad"]))
    table.add_row("most bad nodes in every round, malicious nodes chosen on the graph", f"{g['adaptive_bad_nodes']:,}")
    notes = ["[dim]A bad node receives more than f malicious models in a round, and here in every round.[/dim]"]
    if g["refused"] is None:
        notes.append(f"The graph keeps the promise at random; EL-Oracle does with s = {g['smallest_s_el_oracle']}.")
    else:
        notes.append(g["refused"].removeprefix("aggregation."))
    show(table, *notes)


Nodes = Annotated[int, typer.Option("--nodes", "-n", help="Number of nodes.", show_default=False)]

theory_app = typer.Typer(invoke_without_command=True)


def register(app: typer.Typer) -> None:
    """Add `epidemic theory` and its commands to the application."""
    theory_app.callback()(theory_command)
    theory_app.command("hostile")(hostile_command)
    app.add_typer(theory_app, name="theory")


def theory_command(
    context: typer.Context,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="Number of nodes (required).", show_default=False)
    ] = None,
    s: Annotated[
        int | None, typer.Option("-s", help="Models sent per node and round.", show_default="ceil(log2 nodes)")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of training, T.")] = 3000,
    smoothness: Annotated[float, typer.Option(help="Smoothness L of the local losses.")] = 1.0,
    initial_gap: Annotated[float, typer.Option(help="F(x0) - min F.")] = 1.0,
    noise: Annotated[float, typer.Option(help="Gradient noise, sigma squared.")] = 1.0,
    heterogeneity: Annotated[float, typer.Option(help="Heterogeneity of the data, H squared.")] = 1.0,
    loss: Annotated[float, typer.Option(help="Share of messages that are lost or arrive too late.")] = 0.0,
    participation: Annotated[float, typer.Option(help="Share of the nodes that take part in a round.")] = 1.0,
    mask: Annotated[float, typer.Option(help="Share of its coordinates that a message carries.")] = 1.0,
    memory: Annotated[
        float, typer.Option(help="How long noise is remembered, for the effective number of neighbours: g in [0, 1).")
    ] = 0.99,
    as_json: Json = False,
) -> None:
    """What the theory says about n nodes that send to s others.

    Contraction (how much one round of averaging shrinks disagreement), what stays of noise and of data that pull
    every node its own way, the drift of the mean, the load on a receiver, and the convergence theorem's step sizes,
    bounds and transient rounds.

    [bold]Examples[/bold]

      epidemic theory --nodes 96 -s 7

      epidemic theory --nodes 96 -s 7 --loss 0.1

      epidemic theory --nodes 96 -s 7 --participation 0.5 --mask 0.25

      epidemic theory --nodes 1000 -s 10 --rounds 5000 --heterogeneity 4 --json
    """
    from epidemic import theory
    from epidemic.core.errors import require_int
    from epidemic.topology import ceil_log2

    if context.invoked_subcommand is not None:
        return _refuse_options_before(context)
    if nodes is None:
        context.fail("Missing option '--nodes' / '-n'.")
    require_int("nodes", nodes, 2)
    s = ceil_log2(nodes) if s is None else s
    theory.check_size(nodes, s)
    problem = theory.Problem(smoothness, initial_gap, noise, heterogeneity)
    law = theory.indegree(nodes, s)
    oracle = nodes * s % 2 == 0  # otherwise there is no s-regular graph
    result: dict[str, Any] = {
        "nodes": nodes,
        "s": s,
        "rounds": rounds,
        "alpha": theory.alpha(nodes, s) if oracle else None,
        "beta": theory.beta(nodes, s),
        "loss": loss,
        "alpha_with_loss": theory.alpha_with_loss(nodes, s, loss) if oracle else None,
        "beta_with_loss": theory.beta_with_loss(nodes, s, loss),
        **_participation(nodes, s, participation),
        **_masks(nodes, s, mask, oracle=oracle),
        **_floors(nodes, s, memory, oracle=oracle),
        "mean_drift": theory.mean_drift(nodes, s),
        "mean_drift_paper": theory.beta(nodes, s) / nodes,
        "indegree_mean": float(s),
        "indegree_sd": law.sd,
        "indegree_p95": law.percentile(0.95),
        "indegree_p99": law.percentile(0.99),
        "indegree_p999": law.percentile(0.999),
        "p_empty_inbox": theory.p_empty_inbox(nodes, s),
        "lr_oracle": theory.lr_oracle(nodes, s, rounds, problem) if oracle else None,
        "lr_local": theory.lr_local(nodes, s, rounds, problem),
        "bound_oracle": theory.bound_oracle(nodes, s, rounds, problem) if oracle else None,
        "bound_local": theory.bound_local(nodes, s, rounds, problem),
        "transient_oracle": theory.transient_oracle(nodes, s, problem) if oracle else None,
        "transient_local": theory.transient_local(nodes, s, problem),
    }
    if as_json:
        return print_json(result)
    note = None if oracle else f"EL-Oracle does not exist here: nodes * s = {nodes * s} is odd."
    return _print_theory(result, note)


def _refuse_options_before(context: typer.Context) -> None:
    """Refuse options that stand before the name of a command: they are not its own."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            command = context.invoked_subcommand
            raise BadInput(
                f"{parameter.opts[0]} stands before {command!r}; put options behind it: epidemic theory {command} ..."
            )


def _participation(nodes: int, s: int, share: float) -> dict[str, Any]:
    """Factors where a share of the nodes takes part; None where too few are active for s, or no regular graph of them exists."""
    from epidemic import theory
    from epidemic.core.errors import require_real

    require_real("participation", share, 0, 1)
    m = round(share * nodes)
    return {
        "participation": share,
        "active": m,
        "alpha_aware": theory.alpha_aware(nodes, s, m) if m > s and m * s % 2 == 0 else None,
        "beta_aware": theory.beta_aware(nodes, s, m) if m > s else None,
        "alpha_blind": theory.alpha_blind(nodes, s, share) if nodes * s % 2 == 0 else None,
        "beta_blind": theory.beta_blind(nodes, s, share),
        "blind_lost": 1 - share,
    }


def _masks(nodes: int, s: int, share: float, *, oracle: bool) -> dict[str, Any]:
    """Factors where messages carry a share of the coordinates."""
    from epidemic import theory
    from epidemic.core.errors import require_real

    require_real("mask", share, 0, 1)
    return {
        "mask": share,
        "alpha_common_mask": theory.alpha_common_mask(nodes, s, share) if oracle else None,
        "beta_common_mask": theory.beta_common_mask(nodes, s, share),
        "alpha_masked": theory.alpha_masked(nodes, s, share) if oracle else None,
        "beta_masked": theory.beta_masked(nodes, s, share),
        "alpha_masked_own": theory.alpha_masked(nodes, s, share, "own") if oracle else None,
        "beta_masked_own": theory.beta_masked(nodes, s, share, "own"),
    }


def _floors(nodes: int, s: int, memory: float, *, oracle: bool) -> dict[str, Any]:
    """What stays of noise and bias, and the effective number of neighbours."""
    from epidemic import theory

    local, regular = theory.floors_local(nodes, s), theory.floors_oracle(nodes, s) if oracle else None
    return {
        "noise_floor_oracle": None if regular is None else regular.noise,
        "noise_floor_local": local.noise,
        "bias_floor_oracle": None if regular is None else regular.bias,
        "bias_floor_local": local.bias,
        "memory": memory,
        "neighbours_oracle": theory.neighbours_oracle(nodes, s, memory) if oracle else None,
        "neighbours_local": theory.neighbours_local(nodes, s, memory),
    }


def _print_theory(r: dict[str, Any], note: str | None) -> None:
    table = plain_table(
        f"{r['nodes']:,} nodes, each sends its model to {r['s']} others a round", "", "EL-Oracle", "EL-Local"
    )

    def row(what: str, oracle: float | None, local: float | None) -> None:
        table.add_row(what, number(oracle), number(local))

    row("contraction of disagreement (alpha, beta)", r["alpha"], r["beta"])
    if r["loss"]:
        row(f"the same where {r['loss']:.3g} of the messages are lost", r["alpha_with_loss"], r["beta_with_loss"])
    if r["participation"] < 1:
        row(f"the same among {r['active']:,} nodes a round, links among them", r["alpha_aware"], r["beta_aware"])
        row(f"the same, links among all: {r['blind_lost']:.3g} of messages lost", r["alpha_blind"], r["beta_blind"])
    if r["mask"] < 1:
        row(f"the same, messages with {r['mask']:.3g} of the model, by sender", r["alpha_masked"], r["beta_masked"])
        row("the same, filled up with the receiver's own", r["alpha_masked_own"], r["beta_masked_own"])
        row("the same, one mask for all", r["alpha_common_mask"], r["beta_common_mask"])
    row("what stays of noise (noise floor)", r["noise_floor_oracle"], r["noise_floor_local"])
    row("what stays of heterogeneity (bias floor)", r["bias_floor_oracle"], r["bias_floor_local"])
    row(f"effective neighbours, g = {r['memory']:g}", r["neighbours_oracle"], r["neighbours_local"])
    row("drift of the mean, exact", 0.0, r["mean_drift"])
    row("drift of the mean, the paper's bound", 0.0, r["mean_drift_paper"])
    row("models received: standard deviation", 0.0, r["indegree_sd"])
    row("models received: 99th percentile", r["s"], r["indegree_p99"])
    row("models received: 99.9th percentile", r["s"], r["indegree_p999"])
    row("probability of an empty inbox", 0.0, r["p_empty_inbox"])
    row(f"step size of the theorem (T = {r['rounds']:,})", r["lr_oracle"], r["lr_local"])
    row("bound on the mean squared gradient", r["bound_oracle"], r["bound_local"])
    row("transient rounds (order form)", r["transient_oracle"], r["transient_local"])
    show(table, *([note] if note else []))
