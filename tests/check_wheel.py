"""The installed wheel has all that the commands need: `python tests/check_wheel.py VENV/bin/epidemic`, run by `make test-wheel`.

Everything happens in an empty directory, so nothing of the clone can help.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SMALL = ["--set", "rounds=2", "--set", "nodes=8"]
COMMANDS = [
    ["--help"],
    ["--version"],
    ["theory", "--nodes", "96", "-s", "7"],
    ["data", "list"],
    ["init", "experiment.toml"],  # template.toml
    ["run", "experiment.toml", "--out", "runs/fashion", *SMALL],  # the embedded data
    ["run", "experiment.toml", "--out", "runs/digits", "--set", "data.kind=digits", *SMALL],
    ["report", "runs", "-o", "report.html", "-o", "table.csv"],  # page.css
    [
        "cluster",
        "up",
        "experiment.toml",
        "--out",
        "runs/cluster",
        "--set",
        "rounds=2",
        "--nodes",
        "3",
        "--set",
        "topology.s=2",
    ],
    ["reproduce", "fig3"],
]


def main(program):
    """Run them all; the first that fails ends it."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EPIDEMIC", "VIRTUAL"))
    }
    with tempfile.TemporaryDirectory() as place:
        environment["EPIDEMIC_CACHE"] = str(Path(place) / "cache")
        for arguments in COMMANDS:
            done = subprocess.run([program, *arguments], cwd=place, env=environment, capture_output=True, text=True)
            print("ok  " if done.returncode == 0 else "FAIL", "epidemic", *arguments)
            if done.returncode != 0:
                sys.exit(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).absolute()))
