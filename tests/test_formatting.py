"""Numbers for people."""

import io
from html import escape
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import epidemic as ep
from epidemic.cli import main
from epidemic.cli.plot import screen
from epidemic.core.formatting import count, interval, mean_and_half, score, size
from epidemic.experiment import to_toml
from epidemic.report.page import page
from epidemic.report.statistics import Interval


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


@pytest.mark.parametrize(
    ("mean", "half", "digits", "said"),
    [
        (0.0735, 0.0150, 1, "0.073±0.015"),
        (0.0235, 0.0, 1, "0.0235±0.0000"),
        (0.0235, None, 1, "0.0235"),
        (10.5, 3.18, 0, "10.5±3.2"),
        (57.0, 14.2, 0, "57±14"),
        (30.0, 0.0, 0, "30±0"),
        (71.1, 5.9, 1, "71.1±5.9"),
        (0.004, 0.2, 2, "0.00±0.20"),
        (66.213, 0.00831, 1, "66.2130±0.0083"),
        (0.5, 0.0000314, 2, "0.500000±0.000031"),
        (0.5, 1e-14, 2, "0.50±0.00"),
        (3.14e-12, 2e-13, 2, "3.14e-12±2e-13"),
        (0.0, 0.0, 1, "0.0±0.0"),
        (12.0, float("nan"), 1, "12.0±-"),
    ],
)
def test_a_mean_has_the_digits_of_its_interval(mean, half, digits, said):
    assert interval(Interval(mean, half, 3), digits=digits) == said


@given(st.floats(-1e6, 1e6), st.floats(1e-5, 1e6), st.integers(0, 4))
def test_mean_and_interval_have_the_same_digits_and_the_interval_is_never_rounded_away(mean, half, digits):
    left, right = interval(Interval(mean, half, 3), digits=digits).split("±")
    assert len(left.partition(".")[2]) == len(right.partition(".")[2])
    assert abs(float(left) - mean) <= 10.0 ** -len(left.partition(".")[2]) * (0.5 + 1e-6)
    if half > 1e-12 * abs(mean):
        assert 0.94 * half <= float(right) <= 1.06 * half


def test_figures_say_both_with_the_same_digits():
    assert mean_and_half(66.2123, 1.34) == "66.2 ± 1.3"
    assert mean_and_half(66.2123, 0.0) == "66.21 ± 0"
    assert mean_and_half(66.2123, None) == "66.21"


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


@pytest.mark.parametrize(
    ("number", "what", "said"),
    [
        (1, "round", "1 round"),
        (0, "round", "0 rounds"),
        (12345, "node", "12,345 nodes"),
        (1, "class", "1 class"),
        (2, "process", "2 processes"),
    ],
)
def test_counts_agree_with_their_nouns(number, what, said):
    assert count(number, what) == said
