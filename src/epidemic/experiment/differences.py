"""What may differ between runs of one experiment in a directory, and between the nodes of a deployment.

Everything that has to decide whether two experiments are the same asks here. A key stands for itself and all below it; `*` stands for anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from epidemic.algorithms import UNSAID_KIND
from epidemic.core.config import parse_setting
from epidemic.core.errors import BadInput
from epidemic.data import Source
from epidemic.experiment.files import toml_value
from epidemic.experiment.spec import Experiment

BETWEEN_RUNS = {
    "seeds": "Each seed is a run of its own.",
    "checkpoint": "When the state is saved has no influence on it.",
    "runtime": "How it is computed has none either, but for strategy and device, which have one on the last digits; a directory has one.",
    "network": "The simulator has no network.",
    "callbacks": "Callbacks have no influence on results.",
    "data.path": "Where the data lies says nothing about what it is.",
    "data.*.path": "The same, handed to a function of a user's own as one of its options.",
}
"""Settings that may differ between runs of the same experiment in one directory, and why."""

GROWING = {"rounds": "A run may continue to more rounds; what was done stays as it is."}
"""Settings that may grow when a run continues."""

BETWEEN_NODES = {
    "name": "What the experiment is called here.",
    "checkpoint": "When this node saves its state.",
    "runtime": "How this node computes.",
    "callbacks": "Callbacks of this node.",
    "network.patience": "How long this node looks for the others.",
    "data.path": "Where the data lies on this machine.",
    "data.*.path": "The same, handed to a function of a user's own as one of its options.",
}
"""Settings that may differ between the nodes of a deployment and be set for one node."""

BETWEEN_NODES_WITH_OWN_DATA = {
    **BETWEEN_NODES,
    "data": "Each node has data of its own.",
    "partition": "Nothing is divided.",
}
"""The same if network.data = "own"."""

MEANT = {
    "algorithm.kind": UNSAID_KIND,
    "algorithm.sampling": "replacement",
    "algorithm.optimizer": "sgd",
    "algorithm.nesterov": False,
    "clock.protocol": "plain",
    "network.most_samples": 1_000_000,
    "network.witnesses": 0,
}
"""The meaning of a file that was written before a key existed."""


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return found


def among(key: str, free: Iterable[str]) -> bool:
    """Whether a dotted key is covered by these keys."""
    return any(key == other or key.startswith(other + ".") or fnmatchcase(key, other) for other in free)


def decisive(table: Mapping[str, Any], free: Iterable[str] = BETWEEN_RUNS) -> dict[str, Any]:
    """An experiment's tables with dotted keys, without those that may differ. Values equal to what their absence means are left out."""
    return {k: v for k, v in flat(table).items() if not among(k, free) and (k not in MEANT or MEANT[k] != v)}


def same_experiment(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """The dotted keys in which two experiments' tables differ, without those that may differ between runs."""
    left, right = decisive(a), decisive(b)
    return sorted(key for key in {*left, *right} if left.get(key) != right.get(key))


def node_agreement(experiment: Experiment) -> dict[str, Any]:
    """What the nodes of a deployment must have in common, by dotted keys. A deployed run has one seed, which nodes compare separately."""
    whole, own_data = experiment.table(), experiment.own_data
    table = decisive(whole, _free_of_nodes(own_data=own_data))
    if own_data and "data" in whole and isinstance(experiment.data, Source):
        shared = {key: whole["data"].get(key) for key in experiment.data.common}
        table |= flat({"data": {key: value for key, value in shared.items() if value}})
    return {key: value for key, value in table.items() if key != "seeds"}


def different_for_nodes(a: Experiment, b: Experiment) -> list[str]:
    """The dotted keys in which the experiments of two nodes differ but must agree; includes seeds."""
    left, right = ({**node_agreement(one), "seeds": list(one.seeds)} for one in (a, b))
    return sorted(key for key in {*left, *right} if left.get(key) != right.get(key))


def check_node_setting(setting: str, *, own_data: bool) -> None:
    """Refuse `key=value` for a single node unless it may differ between nodes or grow on all of them."""
    for key in _keys(setting):
        if not among(key, {**_free_of_nodes(own_data=own_data), **GROWING}):
            raise BadInput(
                f"--set {setting}: all nodes must have the same experiment; for one node, only"
                f" {_listed(_free_of_nodes(own_data=own_data))} can be set, and more {_listed(GROWING)} on all of them"
            )


def check_run_setting(setting: str) -> None:
    """Refuse `key=value` when resuming a run unless it may differ between runs of a directory."""
    for key in _keys(setting):
        if not among(key, {**BETWEEN_RUNS, **GROWING}) or among("runtime.strategy", [key]):
            raise BadInput(
                f"--set {setting}: --resume continues the existing experiment; only {_listed(BETWEEN_RUNS)} can be set"
                f" (but not runtime.strategy), and more {_listed(GROWING)}"
            )


def changed_settings(before: Experiment, now: Experiment) -> list[str]:
    """The settings that may differ between runs and were changed, as `key=value`."""
    old, new = flat(before.table()), flat(now.table())
    free = {**BETWEEN_RUNS, **GROWING}
    changed = [k for k, v in new.items() if among(k, free) and old.get(k) != v and k != "runtime.strategy"]
    if set(now.seeds) <= set(before.seeds):
        changed = [key for key in changed if key != "seeds"]
    return [f"{key}={toml_value(new[key])}" for key in changed]


def _free_of_nodes(*, own_data: bool) -> Mapping[str, str]:
    return BETWEEN_NODES_WITH_OWN_DATA if own_data else BETWEEN_NODES


def _keys(setting: str) -> list[str]:
    """The dotted keys that a setting changes; an empty table stands for itself."""
    key, value = parse_setting(setting)
    return list(flat({key: value})) or [key]


def _listed(free: Iterable[str]) -> str:
    return ", ".join(key for key in free if "*" not in key)
