"""`epidemic theory`: what the mathematics predicts for a number of nodes and messages."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from epidemic.cli.show import number, plain_table, print_json, show
from epidemic.core.errors import BadInput

Nodes = Annotated[int, typer.Option("--nodes", "-n", help="Number of nodes.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


theory_app = typer.Typer(invoke_without_command=True)


def register(app: typer.Typer) -> None:
    """Add `epidemic theory` and its commands to the application."""
    from epidemic.cli.hostile import hostile_command

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
