"""Callbacks: told in order, able to end a seed, never able to spoil a run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import epidemic as ep
from epidemic.callbacks import Callback, EarlyStopping, all_of
from epidemic.callbacks.trackers import BUILT_IN, TAGS, scalars
from epidemic.cli import main
from epidemic.core.errors import BadInput, RunFailed
from epidemic.report.page import page

EXPERIMENT = ep.Experiment(
    name="callbacks", nodes=6, rounds=40, seeds=[1], topology=ep.ELLocal(2), data=ep.Digits(), partition=ep.IID(), model=ep.Logistic(),
    algorithm=ep.LocalSGD(lr=0.1, batch_size=4), eval=ep.Eval(every=4, samples=60), checkpoint=ep.Checkpoint(rounds=3, seconds=0),
    runtime=ep.Runtime(strategy="per-node", threads=1),
)  # fmt: skip
STOPPING = {"target": 0.35}


def outcome(directory, seed=1):
    path = Path(directory) / f"seed-{seed}"
    names = ("records.jsonl", "models.safetensors", "summary.json", "nodes.json", "state.json")
    return {name: (path / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run that a target ended, and what it left."""
    directory = tmp_path_factory.mktemp("ended") / "run"
    run = ep.simulate(EXPERIMENT, directory, callbacks=EarlyStopping(**STOPPING))
    return run, directory


def test_a_reason_ends_a_seed_which_is_then_finished(ended):
    run, directory = ended
    summary = run.seeds[0].summary
    assert 0 < summary.rounds < EXPERIMENT.rounds
    assert summary.rounds == run.records[-1].round
    assert run.records[-1].accuracy.mean >= 0.35 > run.records[-2].accuracy.mean
    assert "has reached the target 0.35" in summary.ended_early
    state = json.loads((directory / "seed-1" / "state.json").read_text())
    assert state == {"state": "finished", "why": summary.ended_early}
    again = ep.simulate(EXPERIMENT, directory, resume=True)
    assert again.seeds[0].summary == summary
    assert again.records == run.records


def test_a_seed_that_is_ended_is_the_beginning_of_the_whole_one(ended):
    run, _ = ended
    whole = ep.simulate(EXPERIMENT)
    assert run.records == whole.records[: len(run.records)]
    assert whole.seeds[0].summary.ended_early == ""
    assert b"ended_early" not in msgspec.json.encode(whole.seeds[0].summary)


class Killed(BaseException):
    """Like kill -9: nobody catches it and saves."""


class Killer(Callback):
    def __init__(self, where, round):
        self.where, self.round = where, round

    def advanced(self, rounds_done, x):
        if self.where == "advanced" and rounds_done == self.round:
            raise Killed

    def recorded(self, record):
        if self.where == "recorded" and record.round >= self.round:
            raise Killed

    def evaluating(self, what):
        if self.where == "evaluating":
            raise Killed


@pytest.mark.parametrize(
    ("where", "round"), [("advanced", 2), ("advanced", 5), ("recorded", 8), ("evaluating", 0), ("last", 0)]
)
def test_going_on_ends_in_the_same_round_with_the_same_bytes(ended, tmp_path, where, round):
    run, directory = ended
    if where == "last":
        where, round = "recorded", run.records[-1].round  # after the record that decides, before it is known
    with pytest.raises(Killed):
        ep.simulate(EXPERIMENT, tmp_path / "run", callbacks=[Killer(where, round), EarlyStopping(**STOPPING)])
    ep.simulate(EXPERIMENT, tmp_path / "run", resume=True, callbacks=EarlyStopping(**STOPPING))
    assert outcome(tmp_path / "run") == outcome(directory)


def test_kill_minus_9_and_resume_gives_the_same_bytes(ended, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"import os, signal, sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_callbacks as t\n"
        "class Kill(t.Callback):\n"
        "    def advanced(self, rounds_done, x):\n"
        "        if rounds_done == 7:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "t.ep.simulate(t.EXPERIMENT, sys.argv[1], callbacks=[t.EarlyStopping(**t.STOPPING), Kill()])\n"
    )
    done = subprocess.run([sys.executable, script, tmp_path / "run"], timeout=120, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    ep.simulate(EXPERIMENT, tmp_path / "run", resume=True, callbacks=EarlyStopping(**STOPPING))
    assert outcome(tmp_path / "run") == outcome(ended[1])


def test_patience_counts_evaluations_without_an_improvement():
    stop = EarlyStopping("loss", patience=2, min_delta=0.1)
    losses = [1.0, 0.95, 0.5, 0.45, 0.41]
    asked = []
    for i, loss in enumerate(losses):
        stop.recorded(record_with(loss=loss, round=i))
        asked.append(stop.stop())
    assert asked[:4] == [None] * 4
    assert asked[4] == "loss has not improved on 0.5 for 2 evaluations"
    stop.started(None, None, 0)  # another seed is judged by itself
    assert stop.stop() is None


def record_with(loss=1.0, round=0, **more):
    zero = {"mean": 0.0, "max": 0}
    return msgspec.convert(
        {
            "round": round, "seed": 1, "alive": 2, "loss": {"mean": loss, "sd": 0.0, "min": loss, "max": loss},
            "bytes": dict.fromkeys(("model", "header", "control", "total"), zero), **more,
        },
        ep.Record,
    )  # fmt: skip


def test_a_metric_of_ones_own_can_be_watched_and_an_infinite_one_is_no_improvement():
    stop = EarlyStopping("mine", patience=1, mode="min")
    own = {"mean": 2.0, "sd": 0.0, "min": 2.0, "max": 2.0}
    stop.recorded(record_with(metrics={"mine": own}))
    assert stop.stop() is None
    stop.recorded(record_with(metrics={"mine": dict.fromkeys(own)}))
    assert stop.stop() == "mine has not improved on 2 for 1 evaluation"


def test_names_of_numbers_are_those_of_the_list(ended):
    assert set(scalars(ended[0].records[-1])) == set(BUILT_IN)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs patience=N"),
        ({"patience": 0}, "patience = 0 must be at least 1"),
        ({"patience": 1, "min_delta": -1}, "min_delta = -1 must be at least 0"),
        ({"target": float("nan")}, "target = nan must be a finite number"),
        ({"metric": "mine", "patience": 1}, "say which values of 'mine' are better"),
        (
            {"metric": "acuracy", "patience": 1},
            "metric = 'acuracy' is not built in; did you mean 'accuracy'. .if it is",
        ),
        ({"metric": "zzz", "patience": 1}, "known: " + ", ".join(sorted(BUILT_IN)) + " .if it is your own, say"),
        ({"metric": "bytes", "target": 1e6}, "EarlyStopping: say which values of 'bytes' are better"),
        ({"metric": ["loss"], "patience": 1}, "must be the name of a metric"),
        ({"target": 60}, r"target = 60 must be in \[0, 1\], as accuracy is; 60 % is 0.6"),
        (
            {"metric": "mean_model_accuracy", "target": -1},
            r"target = -1 must be in \[0, 1\], as mean_model_accuracy is",
        ),
        ({"metric": "loss", "patience": 1, "mode": "max"}, "mode = 'max' contradicts metric = 'loss'"),
    ],
)
def test_early_stopping_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(BadInput, match=message):
        EarlyStopping(**arguments)


def test_a_metric_that_nobody_records_is_refused_by_name():
    with pytest.raises(
        ep.RunFailed, match=r"EarlyStopping: metric = 'f1' is not in the records; known: accuracy.*train_loss"
    ):
        ep.simulate(EXPERIMENT, callbacks=EarlyStopping("f1", patience=2, mode="max"))


# -- callbacks that fail ----------------------------------------------------------------------------------------------


class Broken(Callback):
    def __init__(self, where):
        def fail(*_):
            raise ValueError("not\ntoday")

        setattr(self, where, fail)


@pytest.mark.parametrize("where", ["started", "planned", "advanced", "recorded", "stop", "evaluating", "finished"])
def test_a_callback_that_raises_is_named_and_the_run_can_go_on(ended, tmp_path, where):
    stopping = EarlyStopping(**STOPPING)
    with pytest.raises(RunFailed) as caught:
        ep.simulate(EXPERIMENT, tmp_path / "run", callbacks=[stopping, Broken(where)])
    assert str(caught.value).startswith(f"callback Broken failed in {where}(): ValueError: not today; ")
    saved = (
        "seed 1 itself is finished" if where == "finished" else "resume with: simulate(..., resume=True) with the same"
    )
    assert saved in str(caught.value)
    state = json.loads((tmp_path / "run" / "seed-1" / "state.json").read_text())
    assert state["state"] == ("finished" if where == "finished" else "failed")
    ep.simulate(EXPERIMENT, tmp_path / "run", resume=True, callbacks=stopping)
    assert outcome(tmp_path / "run") == outcome(ended[1])


def test_a_failure_after_some_rounds_keeps_them(tmp_path):
    class Late(Callback):
        def advanced(self, rounds_done, x):
            if rounds_done == 8:
                raise KeyError("gone")

    class Begins(Callback):
        def started(self, setup, learner, rounds_done):
            self.at = rounds_done

    with pytest.raises(RunFailed, match=r"KeyError: 'gone'; stopped at seed 1, after round 8 of 40"):
        ep.simulate(EXPERIMENT, tmp_path / "run", callbacks=Late())
    begins = Begins()
    ep.simulate(EXPERIMENT, tmp_path / "run", resume=True, callbacks=[begins, EarlyStopping(target=0.0)])
    assert begins.at == 8


def test_stop_must_give_words():
    class Yes(Callback):
        def stop(self):
            return True

    with pytest.raises(RunFailed, match=r"callback Yes failed in stop\(\): TypeError: it must return a reason as text"):
        ep.simulate(EXPERIMENT, callbacks=Yes())


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([EarlyStopping], r"callbacks\[0\] = EarlyStopping is a class; make one of it: EarlyStopping\(\.\.\.\)"),
        ([Callback(), print], r"callbacks\[1\] = <built-in function print> is not a callback"),
        (7, "callbacks = 7 must be a list of callbacks"),
    ],
)
def test_what_is_no_callback_is_refused(callbacks, message):
    with pytest.raises(BadInput, match=message):
        all_of(callbacks)


def test_several_are_told_in_their_order_and_what_was_before():
    told = []

    class Note(Callback):
        def __init__(self, name):
            self.name = name

        def started(self, setup, learner, rounds_done):
            told.append((self.name, "started"))

        def resumed(self, records):
            told.append((self.name, len(records)))

    both = all_of(n for n in (Note("a"), Note("b")))
    both.started(None, None, 0)
    both.resumed([1, 2])
    assert told == [("a", "started"), ("b", "started"), ("a", 2), ("b", 2)]


# -- seeds of different lengths ---------------------------------------------------------------------------------------


class OnlySeedTwo(Callback):
    def started(self, setup, learner, rounds_done):
        self.wanted = setup.seed == 2

    def recorded(self, record):
        self.round = record.round

    def stop(self):
        return "<enough>" if self.wanted and self.round >= 8 else None


def test_reports_cope_with_seeds_of_different_lengths(tmp_path, capsys):
    experiment = msgspec.structs.replace(EXPERIMENT, seeds=(1, 2), rounds=16)
    run = ep.simulate(experiment, tmp_path / "run", callbacks=OnlySeedTwo())
    assert run.summary.rounds == (16, 8)
    results = ep.read_results(tmp_path / "run")
    kept, notes = results.runs[0].settled()
    assert [seed.seed for seed in kept.seeds] == [1, 2]
    assert notes[0] == "seed 2 of callbacks ended early after round 8: <enough>"
    assert notes[1].startswith("the seeds of callbacks ended after 8, 16 rounds: its curves end with the first of them")
    assert results.runs[0].finished
    assert "ended early after round 8: &lt;enough&gt;" in page(results)
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "t.csv")]) == 0
    assert main(["watch", str(tmp_path / "run"), "--once"]) == 0
    assert "finished" in capsys.readouterr().out
    assert len(run.plot().axes) == 3
    assert len(run.dataframe()) == 5 + 3


def test_methods_that_end_early_can_be_compared():
    other = msgspec.structs.replace(EXPERIMENT, topology=ep.Ring())
    found = ep.compare({"EL": EXPERIMENT, "ring": other}, callbacks=EarlyStopping(**STOPPING))
    assert all(run.seeds[0].summary.ended_early for run in found.values())
    assert [row.name for row in found.table.rows] == ["EL", "ring"]


# -- TensorBoard ------------------------------------------------------------------------------------------------------


def curves(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory), {"scalars": 0})
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_draws_every_record_once_even_if_the_run_was_killed(ended, tmp_path):
    run, _ = ended
    logs = tmp_path / "logs"
    with pytest.raises(Killed):  # the record of round 8 is drawn, and lost: the checkpoint is of round 6
        ep.simulate(EXPERIMENT, tmp_path / "run", callbacks=[ep.callbacks.TensorBoard(logs), Killer("recorded", 8)])
    stopping = EarlyStopping(**STOPPING)
    ep.simulate(EXPERIMENT, tmp_path / "run", resume=True, callbacks=[ep.callbacks.TensorBoard(logs), stopping])
    found = curves(logs / "seed-1")
    assert set(found) == {TAGS[name] for name in BUILT_IN}
    for name in BUILT_IN:
        values = found[TAGS[name]]
        expected = [(r.round, scalars(r)[name]) for r in run.records if name in scalars(r)]
        assert [step for step, _ in values] == [step for step, _ in expected], name
        assert [v for _, v in values] == pytest.approx([v for _, v in expected], rel=1e-6)


def test_tensorboard_that_comes_later_draws_what_was_before(tmp_path):
    short = msgspec.structs.replace(EXPERIMENT, rounds=8)
    with pytest.raises(Killed):
        ep.simulate(short, tmp_path / "run", callbacks=Killer("advanced", 7))
    ep.simulate(short, tmp_path / "run", resume=True, callbacks=ep.callbacks.TensorBoard(tmp_path / "logs"))
    assert [step for step, _ in curves(tmp_path / "logs" / "seed-1")["loss/mean"]] == [0, 4, 8]


def test_tensorboard_needs_a_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="is a file; choose a directory"):
        ep.callbacks.TensorBoard(tmp_path / "file")


@pytest.mark.parametrize(("name", "package"), [("TensorBoard", "tensorboard"), ("WandB", "wandb")])
def test_a_missing_package_is_said_with_the_line_that_installs_it(monkeypatch, tmp_path, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    line = rf"need the package {package}; install it with: pip install 'epidemic-learning\[{package}\]'"
    with pytest.raises(BadInput, match=line):
        getattr(ep.callbacks, name)(str(tmp_path))


# -- Weights & Biases -------------------------------------------------------------------------------------------------


class FakeWandB:
    """What the callback uses of the package: init, and a run with log, step, summary and finish."""

    def __init__(self):
        self.runs = []

    def init(self, **settings):
        run = SimpleNamespace(settings=settings, logged=[], summary={}, step=0, ended=None)
        run.log = lambda values, step: run.logged.append((step, values))
        run.finish = lambda exit_code=0: setattr(run, "ended", exit_code)
        self.runs.append(run)
        return run


def test_weights_and_biases_gets_a_run_for_each_seed():
    wandb = FakeWandB()
    experiment = msgspec.structs.replace(EXPERIMENT, seeds=(1, 2), rounds=8)
    run = ep.simulate(experiment, callbacks=ep.callbacks.WandB("project", module=wandb, mode="offline", tags=["x"]))
    assert [r.settings["name"] for r in wandb.runs] == ["callbacks, seed 1", "callbacks, seed 2"]
    for seed, logged in zip(run.seeds, wandb.runs, strict=True):
        assert logged.settings["mode"] == "offline"
        assert logged.settings["tags"] == ["x"]
        assert "id" not in logged.settings
        assert logged.settings["config"]["topology"] == {"kind": "el-local", "s": 2}
        json.dumps(logged.settings["config"])
        assert [(step, v["loss"]) for step, v in logged.logged] == [(r.round, r.loss.mean) for r in seed.records]
        assert logged.summary["final_accuracy"] == seed.summary.final_accuracy.mean
        assert logged.ended == 0


def test_weights_and_biases_goes_on_with_what_is_not_known_there(tmp_path):
    short = msgspec.structs.replace(EXPERIMENT, rounds=8)
    wandb = FakeWandB()
    logging = ep.callbacks.WandB(module=wandb, id="first")
    with pytest.raises(Killed):
        ep.simulate(short, tmp_path / "run", callbacks=[logging, Killer("advanced", 7)])
    ep.simulate(short, tmp_path / "run", resume=True, callbacks=logging)
    left, new = wandb.runs
    assert left.ended == 1
    assert new.settings["id"] == "first-1"
    assert new.settings["resume"] == "allow"
    assert [step for step, _ in new.logged] == [0, 4, 8]


def test_our_own_errors_in_a_callback_name_it_and_keep_the_run(tmp_path):
    class Full(Callback):
        def recorded(self, record):
            if record.round == 4:
                raise ep.BadInput("the disk is full")

    with pytest.raises(ep.RunFailed, match=r"callback Full failed in recorded\(\): the disk is full; stopped at seed"):
        ep.simulate(EXPERIMENT, tmp_path / "run", callbacks=Full())
    assert list(tmp_path.rglob("checkpoint.safetensors"))


def test_where_a_callback_decides_the_way_on_is_with_it(tmp_path):
    class Stop(Callback):
        def advanced(self, rounds_done, x):
            if rounds_done == 3:
                raise KeyboardInterrupt

    with pytest.raises(ep.Interrupted, match=r"resume with: simulate\(\.\.\., resume=True\) with the same callbacks"):
        ep.simulate(EXPERIMENT, tmp_path / "run", callbacks=[Stop(), ep.callbacks.EarlyStopping(patience=3)])
