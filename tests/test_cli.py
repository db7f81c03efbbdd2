"""The command line as a user meets it."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
import typer

import epidemic
from epidemic.cli import app, main
from epidemic.core.errors import Interrupted, RunFailed
from epidemic.core.progress import Waiting
from epidemic.topology import TOPOLOGIES

SOURCES = str(Path(epidemic.__file__).parents[1])


def run(capsys, *arguments):
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_theory_as_json(capsys):
    code, out, _ = run(capsys, "theory", "--nodes", "96", "-s", "7", "--json")
    assert code == 0
    found = json.loads(out)
    assert out.count("\n") == 1
    assert found["alpha"] == pytest.approx(0.1157894737)
    assert found["beta"] == pytest.approx(0.1322388303)
    assert found["mean_drift"] == pytest.approx(1.58637e-4, rel=1e-5)
    assert found["indegree_p99"] == 13
    assert found["p_empty_inbox"] == pytest.approx(6.952e-4, rel=1e-4)
    assert found["lr_oracle"] == pytest.approx(0.0243253944)
    assert found["bound_local"] == pytest.approx(0.4220501506)
    assert found["transient_oracle"] == pytest.approx(47447.338)
    assert found["transient_local"] == pytest.approx(42636.108)


def test_theory_of_participation_masks_and_floors(capsys):
    options = ["--participation", "0.5", "--mask", "0.25", "--memory", "0.9"]
    _, out, _ = run(capsys, "theory", "--nodes", "96", "-s", "7", *options, "--json")
    found = json.loads(out)
    expected = {
        "active": 48, "alpha_aware": 0.557895, "beta_aware": 0.565383, "beta_blind": 0.633705, "blind_lost": 0.5,
        "beta_masked": 0.465010, "beta_common_mask": 0.783060, "noise_floor_oracle": 0.130952, "bias_floor_oracle": 0.165249,
        "noise_floor_local": 0.152180, "bias_floor_local": 0.198562, "neighbours_oracle": 43.08861,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=5e-6)
    _, out, _ = run(capsys, "theory", "--nodes", "96", "-s", "7", *options)
    for line in ("among 48 nodes a round", "0.5 of messages lost", "messages with 0.25 of the model", "g = 0.9 "):
        assert line in out
    _, out, _ = run(capsys, "theory", "--nodes", "96", "-s", "7", "--participation", "0.05", "--json")
    assert json.loads(out)["beta_aware"] is None  # five nodes cannot have seven neighbours


def test_compare_has_noise_and_bias_floors(capsys):
    _, out, _ = run(capsys, "topology", "compare", "--nodes", "32", "-s", "5", "--json")
    floors = {row["kind"]: row["floors"] for row in json.loads(out)["topologies"]}
    assert floors["complete"] == {"noise": 0, "bias": 0, "bias_worst": 0, "estimated": False}
    assert floors["none"]["noise"] is None  # infinite
    assert floors["one-peer-exponential"]["estimated"] is False
    assert floors["od-equidyn"]["estimated"] is True
    assert floors["el-local"]["bias_worst"] == floors["el-local"]["bias"] < floors["regular"]["bias_worst"] / 5
    _, out, _ = run(capsys, "topology", "compare", "--nodes", "32", "-s", "5")
    assert "F_N" in out
    _, out, _ = run(capsys, "topology", "ring", "--nodes", "600", "--rounds", "2", "--json")
    assert json.loads(out)["floors"] is None


def test_infinite_values_are_null_in_json(capsys):
    _, out, _ = run(capsys, "theory", "--nodes", "96", "-s", "7", "--noise", "0", "--json")
    assert json.loads(out)["transient_oracle"] is None


def test_theory_says_where_oracle_does_not_exist(capsys):
    code, out, _ = run(capsys, "theory", "--nodes", "5", "-s", "3")
    assert code == 0
    assert "EL-Oracle does not exist here" in out
    _, out, _ = run(capsys, "theory", "--nodes", "5", "-s", "3", "--json")
    assert json.loads(out)["alpha"] is None
    assert json.loads(out)["beta"] > 0


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_every_topology_can_be_looked_at(capsys, tmp_path, kind):
    extra = {
        "every": ["--set", "period=2", "--set", 'inner={kind="el-oracle", s=3}'],
        "periodic": ["--set", "period=3", "--set", 'inner={kind="ring"}'],
        "matcha": ["--set", 'inner={kind="torus"}'],
        "fragments": ["--set", 'inner={kind="el-oracle", s=3}'],
        "python": ["--set", "factory=epidemic.topology:Ring"],
    }.get(kind, [])
    picture = tmp_path / "picture.png"
    nodes = "32" if kind == "hypercube" else "24"
    code, out, err = run(
        capsys, "topology", kind, "--nodes", nodes, "--rounds", "400", "--json", "--plot", str(picture), *extra
    )
    assert (code, "error" in err) == (0, False)  # on a busy machine it says how far it is
    found = json.loads(out)
    assert found["kind"] == kind
    assert found["out_degree_mean"] == found["in_degree_mean"] == found["messages_per_node"]
    assert found["bytes_per_node"] == pytest.approx(found["messages_per_node"] * 359_336)
    assert picture.read_bytes().startswith(b"\x89PNG")
    if found["contraction_predicted"] is not None and kind not in ("ring", "unlucky"):  # those two are slow to settle
        assert found["contraction_measured"] == pytest.approx(found["contraction_predicted"], rel=0.1, abs=0.01)
    code, out, _ = run(capsys, "topology", kind, "--nodes", nodes, *extra)
    assert code == 0
    assert "contraction a round, measured" in out


@pytest.mark.parametrize("kind", ["ring", "unlucky"])
def test_slow_topologies_approach_the_predicted_rate(capsys, kind):
    _, out, _ = run(capsys, "topology", kind, "--nodes", "24", "--rounds", "2000", "--json")
    found = json.loads(out)
    assert found["contraction_measured"] == pytest.approx(found["contraction_predicted"], rel=1e-3)


def test_compare_lists_all_and_gives_the_reason_for_what_cannot_exist(capsys, tmp_path):
    code, out, err = run(capsys, "topology", "compare", "--nodes", "23", "-s", "7", "--plot", str(tmp_path / "c.svg"))
    assert (code, "error" in err) == (0, False)
    for kind, cls in TOPOLOGIES.items():
        assert kind in out or not cls.compared(4, None)
    assert "torus does not exist here" in out
    assert "nodes * s even" in out.replace("\n", " ")
    _, out, _ = run(capsys, "topology", "compare", "--nodes", "23", "-s", "7", "--json")
    rows = {row["kind"]: row for row in json.loads(out)["topologies"]}
    assert set(rows) == {f"{kind}{row}" for kind, cls in TOPOLOGIES.items() for row in cls.compared(4, None)}
    assert rows["complete"]["bytes_per_node"] == pytest.approx(22 * 359_336)
    assert rows["complete (all-reduce)"]["bytes_per_node"] == pytest.approx(2 * 22 / 23 * 359_336)
    assert rows["complete (all-reduce)"]["contraction_measured"] == rows["complete"]["contraction_measured"] == 0
    assert "both sides" in rows["torus"]["reason"]
    assert rows["el-local"]["contraction_predicted"] < rows["ring"]["contraction_predicted"]


def test_a_single_node_has_one_topology(capsys, tmp_path):
    _, out, _ = run(capsys, "topology", "compare", "--nodes", "1", "--json")
    possible = [row["kind"] for row in json.loads(out)["topologies"] if "reason" not in row]
    assert possible == ["none"]
    code, _, _ = run(capsys, "topology", "none", "--nodes", "1", "--plot", str(tmp_path / "one.png"))
    assert code == 0


def test_many_nodes_are_drawn_as_degrees(capsys, tmp_path):
    code, _, _ = run(
        capsys, "topology", "el-local", "--nodes", "2000", "--rounds", "2", "--plot", str(tmp_path / "p.png")
    )
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("theory --nodes 96 -s 96", "s = 96 must be at most nodes - 1 = 95"),
        ("theory --nodes 96 -s 0", "s = 0 must be at least 1"),
        ("theory --nodes 0", "nodes = 0 must be at least 2"),
        ("theory --nodes 96 --noise -1", "noise = -1.0 must be at least 0"),
        ("theory --nodes 96 --noise nan", "noise = nan must be a finite number"),
        ("theory --nodes 96 --heterogeneity inf", "heterogeneity = inf must be a finite number"),
        ("theory --nodes 96 --participation 2", "participation = 2.0 must be at most 1"),
        ("theory --nodes 96 --mask -1", "mask = -1.0 must be at least 0"),
        ("theory --nodes 96 --memory 1", "g = 1 must be less than 1"),
        ("theory --nodes many", "--nodes 'many'"),
        ("theory", "Missing option"),
        ("topology el-oracle --nodes 5 -s 3", "nodes * s even; use s = 2 or nodes = 6"),
        ("topology el-orcle --nodes 5", "'el-orcle' is not known; did you mean 'el-oracle'?"),
        ("topology unlucky --nodes 10 -s 3", "nodes / 2 * s even"),
        ("topology torus --nodes 97", "use nodes = 99"),
        ("topology regular --nodes 10 -s 1", "use s >= 2"),
        ("topology ring --nodes 10 -s 2", "ring takes no -s"),
        ("topology el-local --nodes 10 -m 2", "el-local takes no -m"),
        ("topology od-equidyn --nodes 10 --set eta=2", "topology.eta = 2.0 must be at most 1"),
        ("topology od-equidyn --nodes 10 --set etta=1", "did you mean 'eta'?"),
        ("topology od-equidyn --nodes 10 --set eta", "must have the form key=value"),
        ("topology every --nodes 10 --set period=2", "topology.inner is missing"),
        ("topology hypercube --nodes 24", 'use 16 or 32, or topology.kind = "base"'),
        ("topology base --nodes 10 --set k=0", "topology.k = 0 must be at least 1"),
        ("topology el-local --nodes 0", "nodes = 0 must be at least 1"),
        ("topology el-local --nodes 1000000000", "measuring nodes = 1,000,000,000 would take 1.34 TiB of memory"),
        ("topology compare --nodes 100000000000", "measuring nodes = 100,000,000,000 would take 46.57 TiB of memory"),
        ("topology el-local --nodes 10 --rounds 0", "rounds = 0 must be at least 1"),
        ("topology el-local --nodes 10 --seed -1", "seed = -1 must be at least 0"),
        ("topology el-local --nodes 10 --model-bytes -1", "model-bytes = -1 must be at least 0"),
        ("topology el-local --nodes 10 --plot x.gif", "must end in .png, .pdf, .svg"),
        ("topology el-local --nodes 10 --plot /no/where/x.png", "does not exist; create it first"),
        ("topology compare --nodes 10 -s 0", "s = 0 must be at least 1"),
        ("topology compare --nodes 10 --set eta=1", "leave it out"),
        ("topologie", "No such command"),
        ("topology el-local --nodes 10 --colour", "No such option"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(capsys, arguments, message):
    code, out, err = run(capsys, *arguments.split())
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_help_shows_examples(capsys):
    for command in ("theory", "topology"):
        code, out, _ = run(capsys, command, "--help")
        assert code == 0
        assert f"epidemic {command}" in out
    code, out, _ = run(capsys, "--version")
    assert (code, out) == (0, "epidemic 0.1.0\n")


HEAVY = {"torch", "matplotlib", "pandas", "pyarrow", "starlette", "uvicorn", "zenoh"}


def test_the_package_and_quick_commands_stay_light(tmp_path):
    """What answers at once imports nothing heavy, one command after the other in one process."""
    commands = [
        ["--help"],
        ["run", "--help"],
        ["sweep", "--help"],
        ["init", str(tmp_path / "e.toml")],
        ["theory", "--nodes", "9"],
        ["theory", "hostile", "--nodes", "9", "-b", "2"],
        ["topology", "ring", "--nodes", "9"],
    ]
    script = f"""
import contextlib, io, sys
import epidemic
seen = {{"import epidemic": sorted(sys.modules)}}
from epidemic.cli import main
for words in {commands!r}:
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(words) == 0, words
    seen[" ".join(words)] = sorted(sys.modules)
import json
print(json.dumps(seen))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for what, modules in json.loads(done.stdout).items():
        assert not {name.split(".")[0] for name in modules} & HEAVY, what


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("epidemic ru", {"run"}),
        ("epidemic run --se", {"--set", "--seeds"}),
        ("epidemic topology el", {"el-oracle", "el-local"}),
        ("epidemic reproduce table", {"table1", "table2", "table3"}),
        ("epidemic reproduce fig1 --scale s", {"smoke"}),
        ("epidemic data fetch m", {"mnist"}),
        ("epidemic run experi", set()),  # the shell offers files
    ],
)
def test_what_the_shell_offers(capsys, monkeypatch, words, offered):
    monkeypatch.setenv("_EPIDEMIC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    _, out, _ = run(capsys)
    assert set(out.split()) == offered


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_completion_is_shown_for_the_shell_that_is_named(capsys, home):
    for shell in ("bash", "zsh", "fish"):
        code, out, _ = run(capsys, "--show-completion", shell)
        assert code == 0
        assert "_EPIDEMIC_COMPLETE=complete_" + shell in out
    assert not list(home.iterdir())


def test_completion_is_installed_for_the_shell_that_is_named(capsys, home):
    code, out, _ = run(capsys, "--install-completion", "fish")
    assert code == 0
    written = [path for path in home.rglob("*") if path.is_file()]
    assert [path.name for path in written] == ["epidemic.fish"]
    assert str(written[0]) in out


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
@pytest.mark.parametrize("words", [["nope"], ["bsh"], ["bash", "zsh"], ["run", "experiment.toml"], ["--json"]])
def test_a_shell_that_is_not_known_is_refused_and_nothing_is_written(capsys, home, option, words):
    code, out, err = run(capsys, option, *words)
    assert code == 2
    assert not out
    assert err.count("\n") == 1
    assert option in err
    assert words[0] in err
    assert "bash" in err
    assert not list(home.iterdir())


def test_a_shell_that_is_not_found_must_be_named(capsys, home, monkeypatch):
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: None)
    code, _, err = run(capsys, "--install-completion")
    assert code == 2
    assert (
        err
        == "error: --install-completion: the current shell was not found; name one of bash, fish, powershell, pwsh, zsh\n"
    )
    assert not list(home.iterdir())


def test_offered_items_are_those_that_can_be_reproduced():
    from epidemic.cli import completion
    from epidemic.study.reproduce import ITEMS, SCALES

    assert set(completion.ITEMS) == {*ITEMS, "all"}
    assert completion.scales("") == list(SCALES)


def test_an_interrupt_ends_with_130(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("epidemic.theory.check_size", interrupted)
    code, _, err = run(capsys, "theory", "--nodes", "96")
    assert code == 130
    assert err == "error: interrupted\n"


IMPORTING = """
import os, sys, time
from pathlib import Path
if Path(__file__).with_name("again").exists():
    raise ImportError("imported a second time, after the interrupt")
Path(__file__).with_name("again").touch()
sys.modules["torch.distributed"] = sys
print("importing", flush=True)
try:
    while True:
        time.sleep(0.01)
except KeyboardInterrupt:
    if {dies}:
        os.abort()  # as PyTorch does in the middle of its C++ code
    raise
"""


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("module", ["typer", "torch", "numpy"])
def test_an_interrupt_during_an_import_is_one_line(tmp_path, module, dies):
    """In real processes, because it is the start of one: a module that stands in never ends being imported."""
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text(IMPORTING.format(dies=dies))
    assert main(["init", str(tmp_path / "experiment.toml")]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "epidemic", "run", "experiment.toml", "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), SOURCES])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "error: interrupted\n")
    assert not (tmp_path / "out").exists()


def test_the_console_script_is_the_one_that_imports_nothing_first():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"epidemic": "epidemic.__main__:entry"}


def every_command(command, path=()):
    yield path, command
    for name, one in getattr(command, "commands", {}).items():
        yield from every_command(one, (*path, name))


@pytest.mark.parametrize(
    ("path", "command"),
    [pytest.param(p, c, id=" ".join(p) or "epidemic") for p, c in every_command(typer.main.get_command(app))],
)
def test_examples_of_help_are_not_broken_at_80_columns(capsys, monkeypatch, path, command):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, *path, "--help")
    shown = [line.strip() for line in out.splitlines()]
    assert max(map(len, out.splitlines())) == 80
    example = (command.help or "").partition("[bold]Example")[2].splitlines()[1:]
    for line in example:
        assert line.strip() in shown, f"{line.strip()!r} is broken"


def test_an_unexpected_error_is_one_line_unless_asked_for(capsys, monkeypatch):
    def surprise(*_):
        raise LookupError("a\nsurprise")

    monkeypatch.delenv("EPIDEMIC_DEBUG", raising=False)  # tests of the network set it
    monkeypatch.setattr("epidemic.theory.check_size", surprise)
    code, _, err = run(capsys, "theory", "--nodes", "96")
    assert code == 1
    assert err == "error: unexpected LookupError: a surprise; set EPIDEMIC_DEBUG=1 to see where\n"
    monkeypatch.setenv("EPIDEMIC_DEBUG", "1")
    with pytest.raises(LookupError):
        main(["theory", "--nodes", "96"])


class _Heard(io.StringIO):
    """A stream that knows when something was written to it."""

    def __init__(self, terminal):
        super().__init__()
        self.terminal, self.heard = terminal, threading.Event()

    def isatty(self):
        return self.terminal

    def flush(self):
        self.heard.set()


@pytest.mark.parametrize("terminal", [False, True])
def test_what_takes_long_says_what_it_does(terminal):
    stream = _Heard(terminal)
    with Waiting("el-local of 9 nodes", stream, after=0) as waiting:
        waiting.tell("round 3 of 50")
        stream.heard.wait(60)
        assert stream.getvalue().startswith("\r" if terminal else "el-local of 9 nodes: ")
    assert stream.getvalue().endswith("\r\x1b[K" if terminal else "\n")


def test_what_is_quick_says_nothing():
    stream = _Heard(terminal=True)
    with Waiting("something", stream, after=3600):
        pass
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("terminal", "quiet", "speaks"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_what_is_said_at_once_is_for_terminals_and_goes_away_again(terminal, quiet, speaks):
    stream = _Heard(terminal)
    with Waiting("cluster", stream, doing="loading", at_once=True, quiet=quiet):
        assert stream.heard.wait(60 if speaks else 0) == speaks
    assert ("cluster: loading" in stream.getvalue()) == speaks
    assert stream.getvalue().endswith("\r\x1b[K") == speaks


def test_a_spectrum_that_would_take_minutes_is_left_out_with_the_reason(capsys, monkeypatch):
    monkeypatch.setattr("epidemic.mixing.ITERATIVE_LIMIT", 20)
    code, out, _ = run(capsys, "topology", "el-local", "-n", "24", "--rounds", "3")
    assert code == 0
    assert "not worked out beyond 20 nodes" in out
    _, out, _ = run(capsys, "topology", "regular", "-n", "24", "--rounds", "3", "--json")
    assert json.loads(out)["sigma"] is json.loads(out)["contraction_predicted"] is None
    code, out, _ = run(capsys, "topology", "compare", "-n", "24", "--rounds", "3")
    assert code == 0


@pytest.mark.parametrize("command", ["sweep", "reproduce"])
def test_what_is_not_shared_among_ranks_is_refused_under_torchrun(capsys, monkeypatch, command):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    code, _, err = run(capsys, command, "anything")
    assert (code, "would be done by each of 4 ranks" in err) == (2, True)


def test_what_could_not_be_saved_after_an_interrupt_is_said():
    from epidemic.cli.ranks import _conclude

    with pytest.raises(RunFailed, match="No space left"):
        _conclude([(1, "checkpoint.safetensors cannot be written: No space left", False), (1, "", True)], [1, 1], True)
    with pytest.raises(Interrupted, match="after round 3"):
        _conclude([(130, "interrupted after round 3", False), (130, "", False)], [130, 130], True)
