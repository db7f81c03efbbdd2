"""Numbers for people."""

import io
from html import escape
from types import SimpleNamespace

import pytest
from rich.console import Console

import epidemic as ep
from epidemic.cli import main
from epidemic.cli.plot import screen
from epidemic.core.formatting import score, size
from epidemic.experiment import to_toml
from epidemic.report.page import page


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3 * 2**29, "1.50 GiB"),
        (2**40, "1.00 TiB"),
        (2**61, "2,048.00 PiB"),
    ],
)
def test_bytes_have_one_way_to_be_said(value, said):
    assert size(value) == said


def test_models_are_as_good_as_their_accuracy_or_else_their_loss():
    half, loss = SimpleNamespace(mean=0.5), SimpleNamespace(mean=1.23456)
    assert score(half, loss) == "accuracy 50.00%"
    assert score(None, loss) == "loss 1.2346"


def test_disagreement_is_explained_where_it_is_shown(tmp_path, capsys):
    """In the table of a run, in the report, and on the terminal's curves."""
    experiment = ep.Experiment(
        nodes=4, rounds=1, topology=ep.Ring(), data=ep.Digits(), model=ep.Logistic(), partition=ep.IID()
    )
    (tmp_path / "e.toml").write_text(to_toml(experiment))
    assert main(["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "run"), "-q"]) == 0
    meaning = "the mean squared distance of the nodes' models to their average"
    assert meaning in " ".join(capsys.readouterr().out.split())
    results = ep.read_results(tmp_path / "run")
    assert escape(meaning) in page(results, "D")
    console = Console(width=110, file=io.StringIO())
    console.print(screen(results, 110, 60))
    assert meaning in console.file.getvalue()
