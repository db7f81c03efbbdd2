"""What messages call things: options at a command line, arguments in Python."""

import ast
import re

import pytest

import epidemic as ep
from epidemic.cli.app import main
from epidemic.core.errors import argument, for_the_command_line
from pages import ROOT

SOURCE = ROOT / "src" / "epidemic"
FOR_COMMANDS = ("cli/", "deploy/", "study/slurm/", "web/", "study/reproduce/", "estimate/planning.py")
"""What only commands call: there is no Python argument to name."""
OF_TEXTS = {"study/sweep.py": ("parse_grid", "grid_jobs"), "study/comparison.py": ("refuse_idle_settings",),
            "experiment/files.py": ("numbered_seeds",), "experiment/differences.py": ("check_node_setting", "check_run_setting")}  # fmt: skip
"""Functions that read the texts which only commands have: --set, --grid and --seeds."""


def flags_in(path):
    """The strings with options in them that are part of a call or a raise, by the function that they are in."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            for call in ast.walk(function):
                name = getattr(call.func, "id", "") if isinstance(call, ast.Call) else ""
                said = name in ("BadInput", "RunFailed", "Interrupted") or name.startswith("require_")
                both = set()
                for part in ast.walk(call) if said else []:
                    if isinstance(part, ast.Call) and getattr(part.func, "id", "") == "spoken":
                        both.update(ast.walk(part))  # what is said here, and what is said there
                    if part in both:
                        continue
                    if isinstance(part, ast.Constant) and re.search(r"(?<![\w-])--[a-z]", str(part.value)):
                        yield function.name, part.value


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_messages_of_python_functions_name_no_options(path):
    name = str(path.relative_to(SOURCE))
    if not name.startswith(FOR_COMMANDS):
        found = [(function, text) for function, text in flags_in(path) if function not in OF_TEXTS.get(name, ())]
        assert not found, "use errors.argument or errors.spoken"


def test_an_argument_is_an_option_at_a_command_line_only():
    assert argument("rank_timeout") == "rank_timeout"
    with for_the_command_line():
        assert argument("rank_timeout") == "--rank-timeout"
    assert argument("out") == "out"


def test_python_and_commands_say_the_same_in_their_own_words(tmp_path, capsys):
    experiment = ep.Experiment(nodes=4, rounds=1, data=ep.Digits(), model=ep.Logistic(), topology=ep.Ring())
    out = tmp_path / "run"
    ep.simulate(experiment, out)
    with pytest.raises(ep.BadInput) as problem:
        ep.simulate(experiment, out)
    assert "simulate(..., resume=True)" in str(problem.value)
    assert "--" not in str(problem.value)
    assert main(["run", str(out / "experiment.toml"), "--out", str(out)]) == 2
    assert f"epidemic run --resume {out}" in capsys.readouterr().err
    with pytest.raises(ep.BadInput) as problem:
        ep.simulate(out)
    assert "resume=True" in str(problem.value)
    assert "--" not in str(problem.value)
    assert main(["run", str(out)]) == 2
    assert f"--resume {out}" in capsys.readouterr().err
    ep.compare({"a": experiment}, tmp_path / "methods")
    with pytest.raises(ep.BadInput) as problem:
        ep.compare({"a": experiment}, tmp_path / "methods")
    assert "resume with resume=True or choose another out" in str(problem.value)
    with pytest.raises(ep.BadInput) as problem:
        ep.sweep(experiment, {"nodes": [4]}, seeds=0)
    assert "--" not in str(problem.value)


def test_devices_are_refused_in_the_words_of_whoever_makes_them(capsys, tmp_path):
    from epidemic.clock.make_devices import make

    with pytest.raises(ep.BadInput, match=r"^nodes = 0 must"):
        make(0, 1, speed="none", up="constant:5")
    assert main(["devices", "make", str(tmp_path / "made.jsonl"), "--nodes", "0"]) == 2
    assert capsys.readouterr().err == "error: --nodes = 0 must be at least 1\n"
