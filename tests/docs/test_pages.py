"""Every command and every block of code of the documentation works as written: `make test-docs`.

Slow, because real runs and real processes are started; what can be checked by reading is in tests/test_documentation.py.
"""

import textwrap

import pytest
import typer

import pages
from epidemic.cli import app
from test_documentation import PAGES, name


@pytest.mark.parametrize("path", [p for p in PAGES if pages.blocks(p.read_text())], ids=name)
def test_every_block_works_as_written(path, tmp_path):
    pages.supply(tmp_path)
    with pages.Desk(tmp_path) as desk:
        for block in pages.blocks(path.read_text(), name(path)):
            desk.do(block)
        desk.finish()


# -- the examples of --help -------------------------------------------------------------------------------------------

RUN = ["epidemic init experiment.toml", "epidemic run experiment.toml --out runs/first"]
HOSTS = "10.0.0.1:7447,10.0.0.2:7447,10.0.0.3:7447,10.0.0.4:7447"
KEYS = "epidemic keys init keys --hosts 10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4"
GIVEN = {
    "epidemic topology": ["my_module.py"],
    "epidemic run": RUN[:1],
    "epidemic compare": ["methods.toml"],
    "epidemic export": RUN,
    "epidemic sweep": RUN[:1],
    "epidemic plan": RUN[:1],
    "epidemic report": [
        *RUN,
        "epidemic run experiment.toml --out runs/second",
        "epidemic run experiment.toml --out runs/demo",
    ],
    "epidemic timeline": ["experiment.toml", RUN[1]],
    "epidemic watch": RUN[:1],
    "epidemic serve": ["mkdir -p runs/grid runs/eight"],
    "epidemic data show": RUN[:1],
    "epidemic devices convert": ["capacity.json", "behave.json"],
    "epidemic cluster init": RUN[:1],
    "epidemic cluster up": [RUN[0], "train.py"],
    "epidemic cluster status": [
        RUN[0],
        f"epidemic cluster init experiment.toml --hosts {HOSTS} --set nodes=4 --set topology.s=2 --out runs/eight",
        "epidemic node runs/eight/node-0",
        "epidemic node runs/eight/node-1",
    ],
    "epidemic cluster gather": [
        RUN[0],
        "epidemic cluster up experiment.toml --nodes 3 --set topology.s=2 --out hospital",
        "mv hospital/together before",
    ],
    "epidemic cluster next": [
        RUN[0],
        "epidemic cluster up experiment.toml --nodes 3 --set topology.s=2 --out hospital",
        "epidemic export hospital/together --mean -o mean.safetensors",
    ],
    "epidemic keys add": [KEYS],
    "epidemic keys revoke": [KEYS],
    "epidemic keys show": [KEYS],
    "epidemic node": [
        "nodes.toml",
        f"epidemic cluster init nodes.toml --hosts {HOSTS} --out ready",
        "mv ready/node-0 ready/node-1 ready/node-2 ready/node-3 .",
    ],
    "epidemic doctor": [
        "nodes.toml",
        f"epidemic cluster init nodes.toml --hosts {HOSTS} --out ready",
        "mv ready/node-3 .",
    ],
    "epidemic predict": [
        "patients.toml",
        "epidemic run patients.toml --out runs/patients",
        "epidemic export runs/patients --mean -o mean.safetensors",
    ],
    "epidemic relay": [
        RUN[0],
        f"epidemic cluster init experiment.toml --hosts {HOSTS} --set nodes=4 --set topology.s=2 --relay relay.example:7447 --out ready",
        "mv ready/relay .",
    ],
}
"""What the examples of a command take for granted: commands, or one of these files."""
ALTERNATIVES = ["epidemic node"]
FILES = {
    "experiment.toml": """
        nodes = 8
        data = {kind = "digits"}
        topology = {kind = "el-local", s = 3}
        [clock]
        compute = {seconds = 0.1}
    """,
    "my_module.py": """
        import epidemic as ep

        class Star:
            def graph(self, n, round, streams):
                return ep.Ring().graph(n, round, streams)
    """,
    "train.py": """
        import torch
        import epidemic as ep

        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        with ep.join() as node:
            node.attach(model)
            for round in node.rounds():
                node.report(loss=1.0)
                node.exchange()
    """,
    "methods.toml": """
        nodes = 8
        [[methods]]
        name = "EL-Local"
        topology = {kind = "el-local", s = 3}
        [[methods]]
        name = "static"
        topology = {kind = "regular", s = 3}
    """,
    "capacity.json": '{"1": {"computation": 12.5, "communication": 8000}}',
    "behave.json": '{"1": {"active": [1, 3, 6, 9], "inactive": [1, 4, 7, 10], "finish_time": 10}}',
    "patients.toml": """
        nodes = 4
        topology = {kind = "el-local", s = 2}
        data = {kind = "table", path = "patients.csv", target = "outcome"}
        model = {kind = "logistic"}
    """,
    "nodes.toml": """
        nodes = 4
        topology = {kind = "el-local", s = 2}
        data = {kind = "arrays", path = "/srv/private/scans.npz"}
        partition = {kind = "iid"}
    """,
}


def leaves(command, path="epidemic"):
    """All commands by their full name."""
    if not hasattr(command, "commands"):
        return {path: command}
    itself = {path: command} if command.invoke_without_command and command.params else {}
    return itself | {
        k: v for name, inner in command.commands.items() for k, v in leaves(inner, f"{path} {name}").items()
    }


def examples(command):
    """The lines below 'Example' in the help of a command; not only commands, some are Python."""
    _, _, text = (command.help or "").partition("[bold]Example")
    return [line for _, line in pages.commands("\n".join(text.splitlines()[1:]))]


COMMANDS = leaves(typer.main.get_command(app))


def sequences():
    """The examples of each command, to be done one after the other; those of some are alternatives, each for itself."""
    for path, command in COMMANDS.items():
        shown = examples(command)
        for lines in [[line] for line in shown] if path in ALTERNATIVES else [shown] if shown else []:
            yield pytest.param(path, lines, id=" ".join(lines) if path in ALTERNATIVES else path)


@pytest.mark.parametrize(("path", "lines"), list(sequences()))
def test_every_example_of_help_works_as_written(path, lines, tmp_path):
    pages.supply(tmp_path)
    with pages.Desk(tmp_path) as desk:
        given = GIVEN.get(path, [])
        for line in given:
            if line in FILES:
                (tmp_path / line).write_text(desk.elsewhere(textwrap.dedent(FILES[line])))
        python = [line for line in lines if line.endswith("# in Python")]
        for line in python:
            compile(line, path, "exec")
        todo = [line for line in [*given, *lines] if line not in FILES and line not in python]
        desk.do(pages.Block(f"{path} --help", 1, "bash", "\n".join(todo)))
        desk.finish()


def test_what_examples_take_for_granted_belongs_to_a_command():
    assert set(GIVEN) <= {path for path, command in COMMANDS.items() if examples(command)} | {"epidemic keys show"}
