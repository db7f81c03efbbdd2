"""Random tiny experiments, as the tables of a file: all kinds and settings, drawn from a seed.

Most settings are drawn rarely, so that about half of the experiments make sense, and each combination of two settings is met sooner or later.

What is asked of each of them (`judged`):
  it runs to its end, or is refused with BadInput, in one line, before the first round;
  in one of three, a run that is interrupted and resumed gives the same, and so does one that is made longer, unless that is refused in one line;
  a setting that is not the default changes what comes out, is refused, or is in `QUIET` with the reason why it may have no effect.

    python tests/drawn.py --count 2000        # more of them, from a seed of one's own: --first 10000
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from blake3 import blake3

from epidemic.adversary import ADVERSARIES
from epidemic.algorithms import cautions
from epidemic.callbacks import Callback
from epidemic.core.errors import BadInput, Diverged, Interrupted
from epidemic.deploy.agreement import check_deployable
from epidemic.experiment.files import experiment_from
from epidemic.simulator.sharing import check_sharing
from epidemic.simulator.simulation import simulate
from epidemic.topology import topology_cautions

Table = dict[str, Any]


# -- drawing ----------------------------------------------------------------------------------------------------------


def drawn(seed: int) -> Table:
    """The experiment of this seed."""
    r = random.Random(seed)
    n = r.choice([3, 4, 4, 5, 6, 8, 8])
    table: Table = {
        "nodes": n,
        "rounds": 2,
        "seeds": [r.randrange(4)],
        "topology": _topology(r, n),
        "algorithm": _algorithm(r),
        "data": _data(r, n),
        "model": _pick(r, {"kind": "logistic"}, {"kind": "mlp", "hidden": [3]}, rarely=0.3),
        "partition": _partition(r, n),
        "runtime": {"threads": 1},
        "eval": {"every": 1, "samples": 8},
    }
    if table["data"].get("problem") == "quadratic" and r.random() < 0.9:
        table["model"] = {"kind": "point"}
    free = table["algorithm"]["kind"] in FREE
    if r.random() < (0.9 if free else 0.25):
        table["clock"] = _clock(r, n, free)
    if r.random() < 0.15:
        table["mixing"] = r.choice(["uniform", "samples", "metropolis-hastings", "native"])
    if r.random() < 0.15:
        table["aggregation"] = r.choice(
            [
                {"kind": "mean"},
                {"kind": "median"},
                {"kind": "trimmed-mean", **_some(r, 0.5, f=lambda: r.choice([0, 2]), few=lambda: "less")},
                {"kind": r.choice(ROBUST), **_some(r, 0.5, f=lambda: r.choice([0, 2]), before=lambda: "nnm")},
                {"kind": r.choice(AROUND), **_some(r, 0.5, f=lambda: r.choice([0, 2]), few=lambda: "less")},
                {"kind": "clipped", **_some(r, 0.7, tau=lambda: r.choice(["adaptive", 0.1]))},
            ]
        )
    if r.random() < 0.2:
        table["compression"] = _codec(r)
    if r.random() < 0.2:
        table["faults"] = _faults(r, n)
    if r.random() < 0.15:
        table["participation"] = _participation(r, n)
    if r.random() < 0.1:
        table["loss"] = r.choice(["cross-entropy", "squared-error"])
    if r.random() < 0.1:
        table["metrics"] = r.choice([["macro-f1"], ["balanced-accuracy"], ["auc"], ["mean-absolute-error"]])
    if r.random() < 0.1:
        table["runtime"]["strategy"] = r.choice(["stacked", "per-node"])
    if r.random() < 0.1:
        table["eval"]["per_node"] = True
    if r.random() < 0.3:
        table["network"] = _network(r)
    if r.random() < 0.12:
        table["adversary"] = _adversary(r, n)
    return table


ROBUST = ("meamed", "krum", "multi-krum")
AROUND = ("nearest", "gts", "ios")
FREE = ("async-el", "gossip-learning", "ad-psgd", "divshare")


def _pick(r: random.Random, usual: Any, *others: Any, rarely: float = 0.5) -> Any:
    return r.choice(others) if r.random() < rarely else usual


def _some(r: random.Random, chance: float, **settings: Callable[[], Any]) -> Table:
    """Each of these settings with this chance."""
    return {name: make() for name, make in settings.items() if r.random() < chance}


def _topology(r: random.Random, n: int, depth: int = 0) -> Table:
    s = r.randint(1, n - 1)
    plain: list[Callable[[], Table]] = [
        lambda: {"kind": "el-local", "s": s},
        lambda: {"kind": "el-local", "s": s},
        lambda: {"kind": "el-local", "s": s, "view": _view(r, n, s)},
        lambda: {"kind": "el-oracle", "s": s, **_some(r, 0.3, base=lambda: "fresh")},
        lambda: {"kind": "regular", "s": s},
        lambda: {"kind": "unlucky", "s": 2},
        lambda: {"kind": "ring"},
        lambda: {"kind": "ring"},
        lambda: {"kind": "torus"},
        lambda: {"kind": "complete", **_some(r, 0.4, cost=lambda: "all-reduce")},
        lambda: {"kind": "none"},
        lambda: {"kind": "erdos-renyi", **_some(r, 0.5, c=lambda: 0.6)},
        lambda: {"kind": "exponential"},
        lambda: {"kind": "one-peer-exponential"},
        lambda: {"kind": "d-equistatic", "m": r.randint(1, n - 1), **_some(r, 0.2, strict=lambda: True)},
        lambda: {"kind": "u-equistatic", "m": r.randint(1, n // 2)},
        lambda: {"kind": "od-equidyn", **_some(r, 0.4, eta=lambda: 0.3, m=lambda: 2)},
        lambda: {"kind": "ou-equidyn", **_some(r, 0.4, eta=lambda: 0.3, m=lambda: 2)},
        lambda: {"kind": "hypercube"},
        lambda: {"kind": "base", **_some(r, 0.4, k=lambda: 2, relabel=lambda: "never", start=lambda: 1)},
        lambda: {"kind": "geometric", **_some(r, 0.5, radius=lambda: 0.9, torus=lambda: True)},
        lambda: {"kind": "peer-swap", "s": s, **_some(r, 0.4, swaps=lambda: 3)},
        lambda: {"kind": "pull", "s": s},
    ]
    if depth < 2 and r.random() < 0.2:
        return _wrapped(r, n, depth)
    return r.choice(plain)()


def _wrapped(r: random.Random, n: int, depth: int) -> Table:
    inner = _topology(r, n, depth + 1)
    return r.choice(
        [
            {"kind": "every", "inner": inner, "period": r.choice([1, 2, 3])},
            {
                "kind": "periodic",
                "inner": inner,
                "period": r.choice([1, 2]),
                **_some(r, 0.3, cost=lambda: "all-reduce"),
            },
            {"kind": "fragments", "inner": inner, "k": r.choice([1, 2, 3])},
            {"kind": "matcha", "inner": inner, **_some(r, 0.3, budget=lambda: 0.8, probabilities=lambda: "uniform")},
        ]
    )


def _view(r: random.Random, n: int, s: int) -> Table:
    size = r.randint(min(s, n - 1), n)
    kind = r.choice(["cyclon", "jelasity", "spray"])
    if kind == "spray":
        return {"kind": kind, **_some(r, 0.5, a=lambda: 2, b=lambda: 2, cycles=lambda: 2)}
    own = _some(r, 0.3, shuffle=lambda: 2) if kind == "cyclon" else {}
    if kind == "jelasity":
        own = _some(r, 0.3, discard=lambda: "healer", select=lambda: "rand", propagation=lambda: "push")
    return {"kind": kind, "size": size, **own, **_some(r, 0.2, bootstrap=lambda: "ring", cycles=lambda: 2)}


def _algorithm(r: random.Random) -> Table:
    kind = _pick(
        r,
        "local-sgd",
        *("push-sum", "qg-momentum", "exact-diffusion", "gradient-tracking", "push-pull", "choco", *FREE),
        rarely=0.5,
    )
    table: Table = {"kind": kind, "lr": 0.05, "batch_size": 2}
    table |= _some(
        r,
        0.12,
        local_steps=lambda: 2,
        momentum=lambda: 0.9,
        weight_decay=lambda: 0.1,
        sampling=lambda: "epoch",
        clip=lambda: 0.01,
        optimizer=lambda: r.choice(["adam", "adamw", {"kind": "adam", "betas": [0.5, 0.9]}]),
        schedule=lambda: r.choice(
            [
                {"kind": "cosine", "rounds": 2},
                {"kind": "step", "rounds": 1, "by": 0.5},
                {"kind": "cosine", "rounds": 2, "warmup": 1},
            ]
        ),
    )
    if "momentum" in table:
        table |= _some(r, 0.3, nesterov=lambda: True)
    own: dict[str, dict[str, Callable[[], Any]]] = {
        "qg-momentum": {"b": lambda: 0.5, "mu": lambda: 0.5},
        "choco": {"compressor": lambda: _codec(r), "eta": lambda: 0.5},
        "ad-psgd": {"patience": lambda: 1.0},
        "async-el": {
            "order": lambda: "mix-first",
            "wait": lambda: True,
            "patience": lambda: 1.0,
            "queue": lambda: "keep",
        },
        "divshare": {"fragments": lambda: r.choice([1, 2]), "order": lambda: "mix-first"},
        "gossip-learning": {
            "period": lambda: 0.1,
            "merge": lambda: "average",
            "on_busy": lambda: r.choice(["replace", "drop"]),
            "capacity": lambda: 2,
            "jitter": lambda: 0.1,
            "variant": lambda: r.choice(["rw", "um"]),
            "start_trained": lambda: True,
            "parts": lambda: 2,
            "tokens": lambda: r.choice([{"strategy": "simple", "C": 2}, {"strategy": "randomised", "A": 1, "C": 3}]),
        },
    }
    return table | _some(r, 0.3, **own.get(kind, {}))


def _data(r: random.Random, n: int) -> Table:
    if r.random() < 0.2:
        return {"kind": "synthetic", "problem": "quadratic", "features": 3, "groups": n, "samples": 8 * n}
    return {"kind": "synthetic", "features": 3, "classes": 3, "samples": 60}


def _adversary(r: random.Random, n: int) -> Table:
    kind = r.choice(sorted(set(ADVERSARIES) - {"python"}))
    own: dict[str, dict[str, Callable[[], Any]]] = {
        "foe": {"factor": lambda: r.choice([1.5, "worst"])},
        "alie": {"factor": lambda: r.choice([-1.5, "worst", "formula"])},
        "reflect": {"factor": lambda: 1.0},
        "dissensus": {"factor": lambda: 1.5},
        "spectral": {"factor": lambda: 5.0},
        "mimic": {"whom": lambda: "outlier", "warmup": lambda: 1},
        "gaussian": {"sigma": lambda: 0.1},
        "label-flip": {"where": lambda: "rows"},
        "backdoor": {"share": lambda: 0.3},
        "huge": {"magnitude": lambda: 3.0},
    }
    knows = ("sign-flip", "scaled-flip", "foe", "alie", "reflect", "min-max")
    return {
        "kind": kind,
        "nodes": r.choice([1, 1, 2, [r.randrange(n)]]),
        **_some(r, 0.4, **own.get(kind, {})),
        **(_some(r, 0.4, knows=lambda: r.choice(["all", "messages"])) if kind in knows else {}),
        **_some(r, 0.15, start=lambda: 1, data=lambda: "all"),
    }


def _partition(r: random.Random, n: int) -> Table:
    return _pick(
        r,
        {"kind": "iid"},
        {"kind": "dirichlet", "alpha": 1.0, "min_samples": 1},
        {"kind": "dirichlet-hsu", "alpha": 1.0},
        {"kind": "shards", "shards": 2},
        {"kind": "natural"},
        {"kind": "explicit", "sizes": [r.randint(1, 6) for _ in range(n)]},
        {"kind": "explicit", "weights": [float(r.randint(1, 6)) for _ in range(n)]},
        rarely=0.4,
    )


def _codec(r: random.Random) -> Table:
    kind = r.choice(["none", "float16", "bfloat16", "int8", "top-k", "random-k"])
    if kind in ("top-k", "random-k"):
        return {"kind": kind, "share": r.choice([0.3, 0.6, 1.0]), **_some(r, 0.4, fill=lambda: "own")}
    return {"kind": kind}


def _faults(r: random.Random, n: int) -> Table:
    node = r.randrange(n)
    return _some(
        r,
        0.3,
        loss=lambda: 0.5,
        crashes=lambda: [{"node": node, "at": r.choice([0, 1]), **_some(r, 0.5, returns=lambda: 2)}],
        random_crashes=lambda: {"probability": 0.4, "rounds_down": 1},
        on_return=lambda: "keep",
        blocked=lambda: [[node, (node + 1) % n]],
        partitions=lambda: [{"groups": [[node]], "start": r.choice([0, 1])}],
        cap=lambda: r.randint(0, n),
        max_retries=lambda: r.choice([0, 2, "unlimited"]),
    )


def _participation(r: random.Random, n: int) -> Table:
    m = r.randint(1, n)
    return r.choice(
        [
            {"kind": "everybody"},
            {"kind": "uniform", "m": m, **_some(r, 0.4, links=lambda: "blind")},
            {"kind": "bernoulli", "p": r.choice([0.5, 0.8]), **_some(r, 0.4, links=lambda: "blind")},
            {"kind": "teleportation", "m": m},
        ]
    )


def _clock(r: random.Random, n: int, free: bool) -> Table:
    table: Table = _some(
        r,
        0.3,
        compute=lambda: r.choice(
            [
                {"kind": "constant", "seconds": 0.2},
                {"kind": "per-node", "median": 0.1, "sigma": 0.5},
                {"kind": "per-step", "median": 0.1, "sigma": 0.5},
                {"kind": "slowed", "inner": {"kind": "constant", "seconds": 0.1}, "fraction": 0.5, "factor": 3.0},
            ]
        ),
        links=lambda: (
            _some(
                r,
                0.5,
                uplink=lambda: 0.01,
                latency=lambda: r.choice([0.05, {"kind": "lognormal", "median": 0.05, "sigma": 0.5}]),
                order=lambda: "ascending",
            )
            | r.choice([{}, {"model": "duplex", "downlink": 0.01}, {"model": "fair"}])
        ),
    )
    if r.random() < 0.2:
        table["churn"] = r.choice(
            [
                {"kind": "exponential", "mean_on": 0.5, "mean_off": 0.2},
                {"kind": "lognormal", "median_on": 0.5, "median_off": 0.2, "sigma": 0.5},
                {"kind": "constant-count", "online": r.randint(1, n), "median": 0.5, "sigma": 0.5},
                {"kind": "diurnal", "period": 1.0},
            ]
        ) | _some(r, 0.3, training=lambda: r.choice(["abort", "finish"]), transfers=lambda: "finish")
    if r.random() < (0.05 if free else 0.5):
        table["close"] = _close(r)
    if free and r.random() < 0.3:
        table["stop"] = 0.6
    elif r.random() < 0.1:
        table |= r.choice([{"stop": 0.3}, {"megabytes": 0.0005}])
    if r.random() < 0.1:
        table["evaluate"] = 0.1
    if r.random() < 0.05:
        table |= {"devices": "stragglers-60"} | _some(r, 0.3, reuse=lambda: True)
    if r.random() < 0.25:
        table["protocol"] = "deployed"
        if r.random() < 0.5:
            table["close"] = {"kind": "adaptive", **_some(r, 0.5, deadline=lambda: 1.0)}
    return table


def _close(r: random.Random) -> Table:
    def late() -> Table:
        carried = r.choice([{}, {}, {"late": "carry"}, {"late": "carry", "weight": "age"}])
        return {**carried, **_some(r, 0.3, catch_up=lambda: True)}

    return r.choice(
        [
            {"kind": "global"},
            {"kind": "barrier"},
            {"kind": "quorum", "q": r.choice([0.5, 1.0]), **late(), **_some(r, 0.5, deadline=lambda: 0.2)},
            {"kind": "deadline", "seconds": r.choice([0.02, 0.2]), **late()},
            {"kind": "schedule", "seconds": r.choice([0.15, 0.3]), **late()},
        ]
    )


def _network(r: random.Random) -> Table:
    return _some(
        r,
        0.3,
        coin=lambda: r.choice(["committed", "private"]),
        close=lambda: r.choice(
            [
                {"kind": "quorum", "q": 0.5, "deadline": 3.0},
                {"kind": "barrier"},
                {"kind": "deadline", "seconds": 1.0},
                {"deadline": 3.0},
            ]
        ),
        patience=lambda: 5.0,
        largest=lambda: 100.0,
        most_samples=lambda: 50,
        witnesses=lambda: 1,
    ) | _some(r, 0.03, data=lambda: "own")


# -- judging ----------------------------------------------------------------------------------------------------------


class Broken(Exception):
    """An experiment that neither runs nor is refused as it should be."""


class _Begun(Callback):
    """Whether anything of a run has happened yet."""

    def __init__(self) -> None:
        self.begun = False

    def planned(self, plan: Any, index: Any) -> None:
        self.begun = True

    def passed(self, seconds: float, events: int) -> None:
        self.begun = self.begun or events > 0

    def recorded(self, record: Any) -> None:
        self.begun = self.begun or record.round > 0


def outcome(table: Mapping[str, Any]) -> tuple[str, str]:
    """What comes of an experiment: ("refused", the line), ("ran", a digest of all that it gave) or ("diverged", the line)."""
    watch = _Begun()
    try:
        experiment = experiment_from(table)
        again = experiment_from(experiment.table())
        if again.table() != experiment.table():
            raise Broken(f"a file of it would say something else: {again.table()} is not {experiment.table()}")
        _checked(lambda: check_deployable(experiment))
        _checked(lambda: check_sharing(experiment, 2))
        run = simulate(experiment, callbacks=[watch])
    except BadInput as problem:
        if watch.begun:
            raise Broken(f"refused in mid-run: {problem}") from problem
        _one_line(problem)
        return "refused", str(problem)
    except Diverged as problem:
        return "diverged", str(problem)
    except Broken:
        raise
    except Exception as problem:
        raise Broken(f"{type(problem).__name__}: {problem}") from problem
    return "ran", _digest(run)


class _Interrupts(Callback):
    """Ctrl-C after the first round, or the first training of every node."""

    def __init__(self) -> None:
        self.done = False

    def advanced(self, rounds_done: int, x: Any) -> None:
        if not self.done:
            self.done = True
            raise KeyboardInterrupt


def resumed(table: Mapping[str, Any]) -> str:
    """A digest of what comes of an experiment that is interrupted once and resumed."""
    with tempfile.TemporaryDirectory() as out:
        try:
            run = simulate(table, out, callbacks=[_Interrupts()])
        except Interrupted as problem:
            _one_line(problem)
            run = simulate(table, out, resume=True)
        return _digest(run)


def longer(table: Mapping[str, Any]) -> str | None:
    """The same of one that is begun with a round less; None where that, or going on, is refused."""
    with tempfile.TemporaryDirectory() as out:
        try:
            simulate({**table, "rounds": table["rounds"] - 1}, out)
            run = simulate(table, out, resume=True)
        except BadInput as problem:
            _one_line(problem)
            return None
        return _digest(run)


def _goes_on(table: Table, digest: str) -> None:
    """Raise Broken unless a stopped or longer run gives the same as one that ran at once."""
    for name, how in (("resumed", resumed), ("made longer", longer)):
        try:
            found = how(table)
        except Exception as problem:
            raise Broken(f"{name}: {type(problem).__name__}: {problem}") from problem
        if found is None and "clock" not in table and "faults" not in table:
            raise Broken("it cannot be made longer")
        if found is not None and found != digest:
            raise Broken(f"{name}, it gives something else")


def _checked(check: Callable[[], None]) -> None:
    """The checks of other hosts pass, or refuse in one line."""
    try:
        check()
    except BadInput as problem:
        _one_line(problem)


def _one_line(problem: Exception) -> None:
    if "\n" in str(problem) or not 10 <= len(str(problem)) <= 400:
        raise Broken(f"refused, but not in one line of at most 400 messages: {problem}")


def _digest(run: Any) -> str:
    """Of everything that the run gave."""
    parts = []
    for seed in run.seeds:
        parts.append(msgspec.json.encode([seed.records, seed.summary]))
        parts.append(seed.models.rows.numpy().tobytes())
    return blake3(b"".join(parts)).hexdigest()


# -- settings that are said and do nothing ------------------------------------------------------------------------------


def _always(table: Table) -> bool:
    return True


QUIET: list[tuple[str, Callable[[Table], Any], str]] = [
    ("runtime", _always, "how it is computed, not what"),
    ("network", _always, "deployed nodes alone ask it"),
    ("mixing", lambda t: t["mixing"] != "samples", "where all nodes hear equally many, the rules agree"),
    ("mixing", lambda t: t["partition"]["kind"] == "iid", "where all have equally many samples, the rules agree"),
    ("loss", _always, "it may be the one that belongs to the data"),
    ("partition.min_samples", _always, "shares that are large enough stay as they are"),
    ("eval.samples", _always, "there may be fewer test samples than that"),
    ("eval.every", lambda t: t.get("clock", {}).get("evaluate"), "clock.evaluate says when"),
    ("clock.evaluate", _always, "it may be the time that a round takes"),
    ("faults.on_return", lambda t: not {"crashes", "random_crashes"} & set(t["faults"]), "deployed nodes ask it, too"),
    ("faults.crashes", lambda t: t["faults"]["crashes"][0]["at"] > 0, "nobody may hear the node in its last rounds"),
    ("faults.partitions", lambda t: "crashes" in t["faults"], "whoever is cut off may have crashed"),
    (
        "topology.base",
        lambda t: t["topology"].get("s") == t["nodes"] - 1,
        "where all send to all, one graph is like another",
    ),
    ("topology.k", lambda t: t["topology"]["kind"] == "base", "among few nodes some k give the same graphs"),
    ("aggregation.few", _always, "there may always be inputs enough"),
    ("aggregation.before", _always, "mixing may leave nothing out"),
    ("aggregation.tau", _always, "models may be so few that nodes keep their own"),
    ("aggregation.f", _always, "with so few inputs nothing may be left"),
    ("adversary", _always, "malicious nodes may be heard by nobody, and there may be too few honest ones to differ"),
    ("topology.strict", _always, "it refuses what it does not like"),
    ("topology.inner", _always, "the wrapper may leave nothing of it: period = 1"),
    ("topology.swaps", _always, "in a complete graph all places are alike"),
    ("topology.view", _always, "a view of everybody is as knowing everybody"),
    ("participation.links", _always, "everybody may take part"),
    *(
        (f"clock.{name}", _always, "it may be over before that, or nobody may be away")
        for name in ("stop", "megabytes", "churn")
    ),
    ("clock.close", _always, "nobody may be late"),
    ("clock.protocol", _always, "where nothing goes wrong both protocols close the same rounds"),
    ("clock.links", _always, "nobody may send to several, or wait for the other end"),
    ("clock.reuse", _always, "there may be devices enough"),
    *(
        (f"algorithm.{name}", _always, "it may never come to that")
        for name in ("patience", "queue", "on_busy", "capacity", "order", "wait", "merge", "tokens", "start_trained")
    ),
]
"""Settings that may have no effect: where they are, when, and why that is all right."""

RARELY = [where for where, when, _ in QUIET if when is _always and where not in ("runtime", "network")]
"""Those of them that must have had an effect at least once in many experiments."""


def leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """All settings of a table, but the kinds and what says how large everything is."""
    found: list[tuple[str, ...]] = []
    for key, value in table.items():
        here = (*path, key)
        if isinstance(value, Mapping):
            found += leaves(value, here)
        elif key != "kind" and here not in SIZES:
            found.append(here)
    return found


SIZES = {(name,) for name in ("nodes", "rounds", "seeds")} | {
    ("data", name) for name in ("features", "classes", "samples", "groups", "problem")
}


def without(table: Mapping[str, Any], path: tuple[str, ...]) -> Table:
    """The table without one of its settings; one that must be said has another value instead."""
    head, *rest = path
    if rest:
        return {**table, head: without(table[head], tuple(rest))}
    left = {key: value for key, value in table.items() if key != head}
    if head in OTHERWISE:
        left[head] = OTHERWISE[head](table[head])
    return left


OTHERWISE: dict[str, Callable[[Any], Any]] = {
    "s": lambda s: s + 1 if s < 2 else s - 1,
    "m": lambda m: m + 1 if m < 2 else m - 1,
    "p": lambda p: 1 - p / 2,
    "period": lambda period: period + 1,
    "k": lambda k: k + 1,
    "share": lambda share: share / 2,
    "seconds": lambda seconds: 2 * seconds,
    "q": lambda q: 1.5 - q,
    "sizes": lambda sizes: [size + 1 for size in sizes],
    "weights": lambda weights: [1.0 + i for i in range(len(weights))],
}


def silent(table: Table, digest: str, path: tuple[str, ...]) -> bool:
    """Whether the experiment of this digest is the same without a setting: also with more rounds, and other seeds."""
    other = without(table, path)
    if other == table:
        return False
    try:
        if experiment_from(other).table() == experiment_from(table).table():  # it said the default
            return False
    except BadInput:
        return False
    if outcome(other) != ("ran", digest):
        return False
    longer = {"rounds": 8, "seeds": [5]}
    if "clock" in table:
        clock = {key: value for key, value in table["clock"].items() if key not in ("stop", "megabytes")}
        longer["clock"] = clock
        if path[0] == "clock":
            return True
    if outcome({**table, **longer}) != outcome({**other, **longer}):
        return False
    experiment = experiment_from(table)
    said = cautions(experiment.algorithm, experiment.topology) + topology_cautions(
        experiment.topology, experiment.nodes
    )
    return not any(f"{'.'.join(path)} = " in line for line in said)


GOES_ON = 3
"""One in so many is also interrupted, resumed and made longer."""


def judged(seed: int) -> tuple[str, str]:
    """What comes of the experiment of this seed; Broken if it is not as it should be, or if one of its settings, drawn by the seed, is ignored."""
    table = drawn(seed)
    word, text = outcome(table)
    if word == "ran" and seed % GOES_ON == 0:
        _goes_on(table, text)
    if word == "ran":
        path = random.Random(-seed - 1).choice(leaves(table))
        if not any(".".join(path).startswith(where) and when(table) for where, when, _ in QUIET) and silent(
            table, text, path
        ):
            raise Broken(f"{'.'.join(path)} is silently ignored")
    return word, text


def run(seed: int) -> None:
    """Judge one of them; raises Broken. `tests/soak.py` asks for it."""
    judged(seed)


def main() -> int:
    """Judge many of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("-v", action="store_true")
    arguments = parser.parse_args()
    counts: dict[str, int] = {}
    began, bad = time.monotonic(), 0
    for seed in range(arguments.first, arguments.first + arguments.count):
        try:
            word, text = judged(seed)
            if arguments.v and word != "ran":
                print(seed, word, text, flush=True)
        except Broken as problem:
            bad += 1
            word = "broken"
            print(f"{seed}: {problem}\n    {drawn(seed)}", flush=True)
        counts[word] = counts.get(word, 0) + 1
    print(f"{counts} in {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
