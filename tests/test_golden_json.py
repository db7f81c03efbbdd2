"""Golden `--json` outputs of every command. Numbers have six digits, so that the last ones, which may depend on the processor, do not matter."""

import json
import re
import shutil

import click
import pytest
import typer

import exact
import golden
from epidemic.cli import app, main

METHODS = (
    exact.EXPERIMENT
    + """
[[methods]]
name = "EL-Oracle"

[[methods]]
name = "ring"
topology = {kind = "ring"}
"""
)
CLOCKED = exact.EXPERIMENT + "clock = {compute = {seconds = 0.25}, links = {uplink = 1, latency = 0.125}}\n"
KEYS = "keys show keys"
FILES = {"exact.toml": exact.EXPERIMENT, "methods.toml": METHODS, "clocked.toml": CLOCKED}

COMMANDS = {
    "run": ("run exact.toml --out run --quiet",),
    "run-under-the-clock": ("run clocked.toml --out run --quiet --seeds 1",),
    "compare": ("compare methods.toml --out compared --target 0.3 --quiet",),
    "sweep": (
        "sweep exact.toml --grid topology.s=1,2 --seeds 1 --out swept --quiet",
        "sweep --status swept",
    ),
    "report-export": (
        "run exact.toml --out run --quiet",
        "report run -o table.csv -o page.html --target 0.3",
        "export run/seed-1 --mean -o model.safetensors",
    ),
    "plan": ("plan exact.toml",),
    "timeline": ("timeline clocked.toml -o picture.svg",),
    "theory": ("theory --nodes 16 -s 3 --loss 0.1", "theory --nodes 5 -s 3"),
    "topology": ("topology ring --nodes 4 --rounds 3", "topology compare --nodes 8 -s 2 --rounds 3"),
    "compatibility": ("compatibility choco el-local", "compatibility pull clock", "compatibility choco ring"),
    "data": ("data list", "data check arrays --path data.npz", "data show exact.toml"),
    "devices": ("devices show stragglers-60",),
    "keys": (KEYS,),
    "reproduce": ("reproduce table1 --scale smoke --dry-run --quiet",),
}
ELSEWHERE = {"cluster up", "cluster status"}
"""They ask processes that run, and are tested with them (tests/net); what nodes say is in frames-handshake.txt."""

BY_MACHINE = {
    "plan": {"program", "memory_in_all", "machine_memory", "seconds_per_round", "seconds_per_evaluation", "seconds"},
    "data list": {"directory", "here"},
    "keys show": {"serial", "expires", "fingerprint"},
}
"""What differs by machine and time in what these commands say."""


def without(value, names):
    """The same with these entries left out by name, and floats with six digits."""
    if isinstance(value, dict):
        return {key: "(by machine)" if key in names else without(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [without(one, names) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def compact(value):
    """JSON with a line for each entry, but short lists and objects in one."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return re.sub(
        r"([\[{])\s+([^\[\]{}]{,400}?)\s+([\]}])", lambda m: m[1] + re.sub(r"\s*\n\s*", " ", m[2]) + m[3], text
    )


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with the experiments, their data and their module."""
    exact.write(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    shutil.copy(exact.__file__, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_outputs(name, here, capsys):
    lines = ["# What commands print with --json, on the experiments of tests/exact.py. Numbers have six digits."]
    if name == "keys":
        assert main(["keys", "init", "keys", "--hosts", "alpha.example,beta.example"]) == 0
        assert main(["keys", "revoke", "keys", "node-1"]) == 0
        capsys.readouterr()
    for command in COMMANDS[name]:
        assert main([*command.split(), "--json"]) == 0, capsys.readouterr().err
        out = capsys.readouterr().out
        assert out.endswith(("}\n", "]\n"))
        assert out.count("\n") == 1, "one line of JSON, and nothing else"
        names = next((names for start, names in BY_MACHINE.items() if command.startswith(start)), set())
        lines += [
            "",
            f"$ epidemic {command} --json",
            compact(without(json.loads(out), names)).replace(str(here), "(here)"),
        ]
    golden.check(f"json-{name}", "\n".join(lines))


def commands_with_json(command, path=()):
    """The words of every command that has --json."""
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from commands_with_json(one, (*path, name))
    elif any("--json" in parameter.opts for parameter in command.params):
        yield " ".join(path)


def test_every_command_with_json_is_here():
    tried = [command for commands in COMMANDS.values() for command in commands]
    for words in commands_with_json(typer.main.get_command(app)):
        assert words in ELSEWHERE or any(command.startswith(words) for command in tried), words
