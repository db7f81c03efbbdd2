"""The whole specification of a run.

`spec.py` is the value, `files.py` its TOML file, `differences.py` what may differ between two of them, `fingerprint.py` identifies a user's own objects,
`modules.py` finds the user's own modules that it names.
"""

from __future__ import annotations

from epidemic.core.files import directory_name
from epidemic.experiment.compatibility import said_of
from epidemic.experiment.differences import (
    changed_settings,
    check_node_setting,
    check_run_setting,
    decisive,
    different_for_nodes,
    flat,
    node_agreement,
    same_experiment,
)
from epidemic.experiment.files import (
    as_experiment,
    experiment_from,
    first_seeds,
    found_in,
    load,
    merged,
    note_places,
    numbered_seeds,
    read_table,
    read_toml,
    to_toml,
    with_settings,
)
from epidemic.experiment.fingerprint import fingerprint
from epidemic.experiment.modules import OwnModule, installed, own_modules, python_files, references
from epidemic.experiment.spec import FORMAT, CallbackName, Checkpoint, Eval, Experiment, Network, Runtime, network_from

__all__ = [
    "FORMAT",
    "CallbackName",
    "Checkpoint",
    "Eval",
    "Experiment",
    "Network",
    "OwnModule",
    "Runtime",
    "as_experiment",
    "changed_settings",
    "check_node_setting",
    "check_run_setting",
    "decisive",
    "different_for_nodes",
    "directory_name",
    "experiment_from",
    "fingerprint",
    "first_seeds",
    "flat",
    "found_in",
    "installed",
    "load",
    "merged",
    "network_from",
    "node_agreement",
    "note_places",
    "numbered_seeds",
    "own_modules",
    "python_files",
    "read_table",
    "read_toml",
    "references",
    "said_of",
    "same_experiment",
    "to_toml",
    "with_settings",
]
