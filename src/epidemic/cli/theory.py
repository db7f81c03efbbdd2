"""`epidemic theory`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from epidemic.cli.show import number, plain_table, print_json, show

Nodes = Annotated[int, typer.Option("--nodes", "-n", help="Number of nodes.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command("theory")(theory_command)


def theory_command(
    nodes: Nodes,
    s: Annotated[
        int | None, typer.Option("-s", help="Models sent per node and round.", show_default="ceil(log2 nodes)")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of training, T.")] = 3000,
    smoothness: Annotated[float, typer.Option(help="Smoothness L of the local losses.")] = 1.0,
    initial_gap: Annotated[float, typer.Option(help="F(x0) - min F.")] = 1.0,
    noise: Annotated[float, typer.Option(help="Gradient noise, sigma squared.")] = 1.0,
    heterogeneity: Annotated[float, typer.Option(help="Heterogeneity of the data, H squared.")] = 1.0,
    as_json: Json = False,
) -> None:
    """What the theory says about n nodes that send to s others.

    Contraction (how much one round of averaging shrinks disagreement), the drift of the mean, the load on a
    receiver, and the convergence theorem's step sizes, bounds and transient rounds.

    [bold]Examples[/bold]

      epidemic theory --nodes 96 -s 7

      epidemic theory --nodes 1000 -s 10 --rounds 5000 --heterogeneity 4 --json
    """
    from epidemic import theory
    from epidemic.errors import require_int
    from epidemic.topology import ceil_log2

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
    _print_theory(result, note)


def _print_theory(r: dict[str, Any], note: str | None) -> None:
    table = plain_table(
        f"{r['nodes']:,} nodes, each sends its model to {r['s']} others a round", "", "EL-Oracle", "EL-Local"
    )

    def row(what: str, oracle: float | None, local: float | None) -> None:
        table.add_row(what, number(oracle), number(local))

    row("contraction of disagreement (alpha, beta)", r["alpha"], r["beta"])
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
