"""The architecture: imports point only up this list."""

import ast
from pathlib import Path

import pytest

import epidemic

LAYERS = [
    ["core"],
    ["protocol"],
    ["theory"],
    ["peer_sampling"],
    ["topology"],
    ["mixing"],
    ["faults"],
    ["participation"],
    ["measure"],
    ["clock"],
    ["data"],
    ["models"],
    ["metrics"],
    ["learner"],
    ["compression"],
    ["adversary"],
    ["aggregation"],
    ["algorithms"],
    ["record"],
    ["counting"],
    ["experiment"],
    ["runtime"],
    ["callbacks"],
    ["sharding"],
    ["simulator"],
    ["deploy"],
    ["report"],
    ["web"],
    ["estimate"],
    ["study"],
    ["api"],
    ["cli"],
]

ROOT = Path(epidemic.__file__).parent
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def _imports(path):
    """The epidemic modules that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "epidemic":
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [a.name for a in node.names]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("epidemic."))


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_up(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return
    assert own in LEVEL, f"{own} must be given a place in LAYERS and in ARCHITECTURE.md"
    for name in _imports(path):
        if name in LEVEL and name != own:
            assert LEVEL[name] < LEVEL[own], f"{own} must not import {name}"


def test_a_node_or_a_simulator_never_needs_the_other_nor_the_reports():
    for own, other in (("simulator", "deploy"), ("deploy", "simulator")):
        for path in ROOT.glob(f"{own}/*.py"):
            assert not set(_imports(path)) & {"report", "study", "api", "cli", other}


def test_what_decides_knows_no_clock_thread_socket_or_tensor():
    forbidden = {
        "time",
        "threading",
        "socket",
        "asyncio",
        "torch",
        "numpy",
        "zenoh",
        "random",
        "datetime",
        "os",
        "queue",
    }
    for path in ROOT.glob("protocol/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            assert not {name.split(".")[0] for name in names} & forbidden, path
        if path.name != "closing_rules.py":
            assert not set(_imports(path)) - {"protocol"}


def test_architecture_names_every_layer():
    text = (ROOT.parents[1] / "ARCHITECTURE.md").read_text()
    for name in LEVEL:
        assert f"`{name}" in text or f"{name}.py" in text or f"{name}/" in text, (
            f"ARCHITECTURE.md does not mention {name}"
        )


# Class names that more than one file of the package has. The list may only shrink: a new class gets a name of its own.
TWICE = {
    "Chances", "Clock", "Compute", "Delivery", "Exchange", "InRounds", "Letters", "Links", "PerNode", "Post", "Run",
    "Shards", "Steps", "Terms", "View", "Weights", "World", "_Seeds",
}  # fmt: skip


def test_no_class_name_exists_twice():
    places = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    twice = {name: where for name, where in places.items() if len(where) > 1}
    new = {name: where for name, where in twice.items() if name not in TWICE}
    assert not new, f"these classes need names of their own: {new}"
