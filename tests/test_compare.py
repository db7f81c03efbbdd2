"""Comparisons and the commands around them."""

import json
import math

import pytest

from epidemic.cli import main
from epidemic.core.errors import BadInput
from epidemic.core.files import directory_name
from epidemic.record import MeanMax, Record, Spread, Traffic, read_records
from epidemic.report.statistics import Interval, curve, first_reaching
from epidemic.study import comparison as comparing

FILE = """
name = "methods"
nodes = 12
rounds = 12
seeds = [1, 2]
data = {kind = "digits"}
model = {kind = "logistic"}
partition = {kind = "shards"}
algorithm = {lr = 0.2, local_steps = 2}
eval = {every = 3, samples = 100}
runtime = {strategy = "per-node"}

[[methods]]
name = "everybody"
topology = {kind = "complete"}

[[methods]]
name = "EL local"
topology = {kind = "el-local", s = 3}

[[methods]]
name = "ring, slow"
topology = {kind = "ring"}
algorithm.lr = 0.02
"""


def _record(round, accuracy, sent=0.0, seed=1):
    part = MeanMax(sent, int(sent))
    spread = Spread(accuracy, 0, accuracy, accuracy)
    return Record(round=round, seed=seed, alive=1, accuracy=spread, loss=Spread(1 - accuracy, 0, 0, 0), mean_model_loss=0.0, disagreement=0.1,
                  bytes=Traffic(part, part, part, part))  # fmt: skip


def test_student_t_intervals():
    """m = 5: half-width 1.241664 times the standard deviation; one seed has none."""
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    found = Interval.of(values)
    assert found.mean == 3
    assert found.half_width == pytest.approx(1.241664 * math.sqrt(2.5), rel=1e-6)
    assert Interval.of([7.0]) == Interval(7.0, None, 1)


def test_curves_keep_the_rounds_that_all_seeds_have():
    a = [_record(0, 0.1), _record(5, 0.5), _record(10, 0.7)]
    b = [_record(0, 0.3), _record(5, 0.7)]
    found = curve([a, b], "accuracy")
    assert found.rounds == [0, 5]
    assert found.mean == pytest.approx([0.2, 0.6])
    assert first_reaching(a, 0.5).round == 5
    assert first_reaching(a, 0.9) is None


def test_compare_from_a_file(tmp_path, capsys):
    file = tmp_path / "methods.toml"
    file.write_text(FILE)
    out = tmp_path / "out"
    assert main(["compare", str(file), "--out", str(out), "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["everybody", "EL local", "ring, slow"]
    assert found["baseline"] == "ring, slow"
    assert found["target"] == pytest.approx(rows["ring, slow"]["best_accuracy"]["mean"])
    assert rows["EL local"]["ahead"]["mean"] > 0.05
    assert rows["EL local"]["seeds_reaching_target"] == 2
    assert rows["EL local"]["bytes_to_target"]["mean"] < rows["everybody"]["bytes_to_target"]["mean"]
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "comparison.svg").exists()
    records, cut = read_records(out / "el-local" / "seed-2" / "records.jsonl")
    assert [r.round for r in records] == [0, 3, 6, 9, 12]
    assert not cut

    assert main(["compare", str(file), "--out", str(out), "--quiet"]) == 2
    assert "holds an earlier comparison; resume with --resume" in capsys.readouterr().err
    assert json.loads((out / "comparison.json").read_text())["baseline"] == "ring, slow"
    assert main(["compare", str(file), "--out", str(out), "--quiet", "--resume", "--target", "0.99"]) == 0
    shown = capsys.readouterr().out
    assert "0/2 seeds" in shown
    assert "EL local" in shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[[methods]]", "[[method]]"), "compare needs [[methods]]"),
        (('name = "EL local"\n', ""), "methods[1].name is missing"),
        (('"EL local"', '"everybody"'), "occurs twice"),
        (('"EL local"', r'"EL\nlocal"'), r"method 'EL\nlocal' has a line break or a control character in its name"),
        (("s = 3", "s = 30"), "method 'EL local': topology.s = 30 must be at most nodes - 1 = 11"),
        (('algorithm.lr = 0.02', 'seeds = [5, 6]'), "has other data or seeds"),
        (('algorithm.lr = 0.02', 'algorithm.rate = 0.02'), "method 'ring, slow': algorithm.rate is not a known key"),
    ],
)  # fmt: skip
def test_mistakes_in_a_comparison(tmp_path, capsys, change, message):
    file = tmp_path / "methods.toml"
    file.write_text(FILE.replace(*change))
    assert main(["compare", str(file), "--out", str(tmp_path / "out"), "--quiet"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_wrong_target(tmp_path, capsys):
    assert main(["compare", "--target", "70", "--out", str(tmp_path)]) == 2
    assert "must be between 0 and 1" in capsys.readouterr().err


def test_the_demo_compares_pairs_and_better_mixing_keeps_models_closer(tmp_path, capsys):
    """128 nodes on the embedded data. Who is how far apart follows from the graphs, on every seed; accuracies of two seeds follow nothing."""
    out, rounds = tmp_path / "demo", 20
    settings = [f"rounds={rounds}", "seeds=[1, 2]", "eval.every=10", "eval.samples=200", "runtime.strategy=stacked"]
    changes = [word for setting in settings for word in ("--set", setting)]
    assert main(["compare", "--out", str(out), "--quiet", "--json", *changes]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == [method["name"] for method in comparing.DEMO["methods"]]
    records = {
        name: [read_records(out / directory_name(name) / f"seed-{seed}" / "records.jsonl")[0] for seed in (1, 2)]
        for name in rows
    }
    for seed in (0, 1):  # the same model and samples to begin with
        assert len({(of[seed][0].accuracy, of[seed][0].loss) for of in records.values()}) == 1
        apart = {name: of[seed][-1].disagreement for name, of in records.items()}
        assert apart["complete"] < 1e-10
        assert apart["EL-Oracle"] < apart["static ring"] / 4
        assert apart["EL-Local"] < apart["static ring"] / 4
    best = {name: [max(r.accuracy.mean for r in one) for one in of] for name, of in records.items()}
    assert found["baseline"] == "static ring"
    assert found["target"] == pytest.approx(sum(best["static ring"]) / 2)
    for name, row in rows.items():
        one, two = (a - b for a, b in zip(best[name], best["static ring"], strict=True))
        assert row["best_accuracy"]["mean"] == pytest.approx(sum(best[name]) / 2)
        assert row["ahead"]["mean"] == pytest.approx((one + two) / 2)
        assert row["ahead"]["half_width"] == pytest.approx(12.7062 * abs(one - two) / 2, rel=1e-4)
    message = 4 * (14 * 14 * 32 + 32 + 32 * 10 + 10) + 256
    messages = {"complete": 127, "EL-Oracle": 2, "EL-Local": 2, "static ring": 2}
    assert {name: rows[name]["bytes_in_all"] for name in messages} == {
        name: rounds * sent * message for name, sent in messages.items()
    }
    for picture in ("comparison.png", "spreading.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")


def test_the_baseline_is_the_static_sparse_one():
    methods = comparing.methods_from(comparing.DEMO)
    assert comparing._baseline(methods) == "static ring"
    assert comparing._baseline({"complete": methods["complete"]}) == "complete"


def test_records_with_a_cut_last_line_are_read(tmp_path):
    from epidemic.record import encode

    path = tmp_path / "records.jsonl"
    path.write_bytes(encode(_record(0, 0.1)) + encode(_record(5, 0.2))[:-20])
    records, cut = read_records(path)
    assert [r.round for r in records] == [0]
    assert cut
    path.write_bytes(b"rubbish\n")
    with pytest.raises(BadInput, match="is not a file of records"):
        read_records(path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_records(tmp_path / "none")


# -- the commands around runs -----------------------------------------------------------------------------------------


def test_init_run_and_show(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "first.toml"]) == 0
    assert main(["init", "first.toml"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["run", "first.toml", "--set", "rounds=10"]) == 0
    out, err = capsys.readouterr()
    assert "results: runs/first" in out
    assert "round 10/10  accuracy" in err
    assert main(["run", "first.toml", "--set", "rounds=4", "--out", "second", "--json", "-q"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["seeds"][0]["rounds"] == 4
    assert err == ""
    assert main(["data", "show", "first.toml", "--plot", "classes.png", "--set", "partition.alpha=1.0"]) == 0
    assert (tmp_path / "classes.png").read_bytes().startswith(b"\x89PNG")
    assert "share of the largest class" in capsys.readouterr().out
    assert main(["data", "show", "first.toml"]) == 0
    assert "ankle boot (800)" in capsys.readouterr().out


def test_data_commands(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("EPIDEMIC_DATA", str(tmp_path))
    monkeypatch.setattr("epidemic.data.idx.DEBIAN", tmp_path / "none")
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    for kind in ("fashion", "digits", "cifar10", "femnist", "python"):
        assert kind in out
    assert main(["data", "check", "digits"]) == 0
    assert "digits: 1,437 training and 360 test samples of shape (1, 8, 8), 10 classes" in capsys.readouterr().out
    for arguments, message in (
        (["check", "digit"], "did you mean 'digits'?"),
        (["check", "mnist"], "run 'epidemic data fetch mnist'"),
        (["check", "cifar10", "--path", str(tmp_path)], "holds no CIFAR-10"),
        (["fetch", "femnist"], "'femnist' cannot be fetched"),
    ):
        assert main(["data", *arguments]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_fetch_command(tmp_path, capsys, monkeypatch):
    import hashlib

    from epidemic.data import fetch as fetching

    source = tmp_path / "source.bin"
    source.write_bytes(b"content")
    download = fetching.Download("copy.bin", source.as_uri(), hashlib.md5(b"content").hexdigest())
    monkeypatch.setitem(fetching.DOWNLOADS, "mnist", (download,))
    assert main(["data", "fetch", "mnist", "--to", str(tmp_path / "to")]) == 0
    assert (tmp_path / "to" / "copy.bin").read_bytes() == b"content"
    monkeypatch.setitem(fetching.DOWNLOADS, "mnist", (fetching.Download("b", "http://127.0.0.1:1/b", "0"),))
    assert main(["data", "fetch", "mnist", "--to", str(tmp_path / "to")]) == 1
    assert "cannot be fetched" in capsys.readouterr().err


def test_a_failing_run_ends_with_1(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["init", "first.toml"])
    capsys.readouterr()
    assert main(["run", "first.toml", "--set", "algorithm.lr=1e30", "-q"]) == 1
    err = capsys.readouterr().err
    assert "is no longer a finite number; look at the data, the model and algorithm.lr" in err
    assert err.count("\n") == 1


def test_a_setting_that_every_method_overrides_is_refused(tmp_path, capsys):
    assert main(["compare", "--set", "topology.s=2", "--out", str(tmp_path / "x")]) == 2
    assert "--set topology.s=2 has no effect: method 'complete' sets topology itself" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_directories_are_checked_before_anything_is_trained(tmp_path, capsys):
    file = tmp_path / "methods.toml"
    file.write_text(FILE)
    out = tmp_path / "out"
    assert main(["compare", str(file), "--out", str(out), "--quiet"]) == 0
    before = sorted(out.rglob("*"))
    capsys.readouterr()
    changed = ["compare", str(file), "--out", str(out), "--quiet", "--resume", "--set", "eval.samples=33"]
    assert main(changed) == 2
    assert "holds a different experiment (in eval.samples)" in capsys.readouterr().err
    assert sorted(out.rglob("*")) == before


@pytest.mark.parametrize("change", [("rounds = 12", "rounds = 0"), ('{kind = "complete"}', '{kind = "none"}')])
def test_a_comparison_without_traffic_can_be_drawn(tmp_path, change):
    file = tmp_path / "methods.toml"
    text = FILE.replace(*change)
    file.write_text(text if change[0].startswith("rounds") else text[: text.index('[[methods]]\nname = "EL local"')])
    assert main(["compare", str(file), "--out", str(tmp_path / "out"), "--quiet"]) == 0


def test_a_comparison_needs_classes(tmp_path, capsys):
    file = tmp_path / "methods.toml"
    file.write_text(FILE.replace('{kind = "digits"}', '{kind = "synthetic", problem = "quadratic"}'))
    assert main(["compare", str(file), "--out", str(tmp_path / "out")]) == 2
    assert "compare needs data with classes" in capsys.readouterr().err


def test_names_are_told_apart_as_directories():
    from epidemic.core.files import directory_name

    assert directory_name("EL local, s=7") == "el-local-s-7"
    names = ["日本", "中国", "method", "é", "e", "../../x", "[/b]"]
    assert len({directory_name(n) for n in names}) == len(names)
    assert all("/" not in directory_name(n) and directory_name(n) for n in names)


def test_odd_names_are_printed_as_they_are(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["init", "first.toml"])
    assert main(["run", "first.toml", "--set", "rounds=1", "--set", 'name="a[/b]"', "-q"]) == 0
    assert "a[/b]: 32 nodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "first.toml", "--out", ""], 2, "give the results a directory of their own"),
        (["run", "first.toml", "--out", "afile/x"], 2, "is a file; choose a directory"),
        (["run", "first.toml", "--set", "data.kind=python", "--set", "data.function=broken:make"], 2, "cannot be imported: SyntaxError"),
        (["run", "first.toml", "--set", "data.kind=python", "--set", "data.function=raising:make"], 2, "failed: ZeroDivisionError"),
        (["run", "first.toml", "--set", "model.kind=python", "--set", "model.factory=raising:make"], 2, "failed: ZeroDivisionError"),
        (["run", "first.toml", "--set", "model.kind=python", "--set", "model.factory=os:sep"], 2, "must name a function, not str"),
        (["run", "first.toml", "--set", "algorithm.order=x"], 2, "must be one of 'adapt-then-combine', 'combine-then-adapt'"),
        (["run", "first.toml", "--set", "faults.crashes=[1]"], 2, "faults.crashes[0] = 1 must be a table"),
        (["run", "first.toml", "--set", "faults.max_retries=x"], 2, "faults.max_retries = 'x' must be one of 'unlimited'"),
        (["run", "first.toml", "--set", "faults.blocked=[[1]]"], 2, "faults.blocked[0]"),
        (["run", "first.toml", "--set", "topology.s=4.5"], 2, "topology.s = 4.5 must be a whole number"),
        (["run", "first.toml", "--set", "runtime.device=meta"], 2, 'runtime.device = "meta" is not available'),
        (["run", "first.toml", "--set", "data.kind=femnist"], 2, "set data.path to its location"),
        (["export", ".", "--mean", "-o", "nowhere/x.safetensors"], 2, "does not exist; create it first"),
        (["theory", "-n", "96", "--noise", "1e308", "--heterogeneity", "1e308"], 2, "noise = 1e+308 must be at most 1e+60"),
    ],
)  # fmt: skip
def test_abuse_gets_one_line(tmp_path, capsys, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    main(["init", "first.toml"])
    (tmp_path / "afile").write_text("")
    (tmp_path / "broken.py").write_text("def make(:\n")
    (tmp_path / "raising.py").write_text("def make():\n    return 1 / 0\n")
    capsys.readouterr()
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    said = [line for line in err.splitlines() if not line.startswith("executing the code of")]
    assert len(said) == 1
    assert message in said[0]
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").rglob("*.lock"))


def test_help_without_arguments_is_only_help(capsys):
    assert main([]) == 2
    assert "error" not in capsys.readouterr().err


def test_numbers_are_never_cut_off_in_narrow_terminals(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["theory", "-n", "96", "-s", "7"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
