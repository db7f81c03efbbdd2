"""Runs under attack: what honest nodes hold, what is recorded, and what must not change."""

import json

import msgspec
import numpy as np
import pytest
import torch

import epidemic as ep
from epidemic.adversary import (
    ADVERSARIES,
    Adversary,
    Alie,
    Backdoor,
    Dissensus,
    FlipOwn,
    Foe,
    Gaussian,
    Huge,
    LabelFlip,
    Mimic,
    NotANumber,
    Reflect,
    ScaledFlip,
    SignFlip,
    Silent,
    Spectral,
)
from epidemic.aggregation import made
from epidemic.cli.app import main
from epidemic.core.errors import BadInput, RunFailed
from epidemic.core.rng import Streams
from epidemic.experiment import experiment_from, to_toml
from epidemic.experiment.compatibility import require_compatible
from epidemic.record import encode
from epidemic.runtime.attack import tolerated
from epidemic.runtime.plan import plan_round
from epidemic.runtime.setup import prepare


def small(**changes):
    settings = {
        "nodes": 8, "rounds": 4, "topology": ep.ELLocal(s=4), "data": ep.Synthetic(features=6, classes=3, samples=160),
        "model": ep.Logistic(), "partition": ep.IID(), "algorithm": ep.LocalSGD(lr=0.2, batch_size=4),
        "eval": ep.Eval(every=2, samples=40), "runtime": ep.Runtime(threads=1),
    }  # fmt: skip
    return ep.Experiment(**{**settings, **changes})


def outcome(experiment):
    """Everything that a run gives, as bytes."""
    (seed,) = ep.simulate(experiment).seeds
    return encode(seed.records) + encode(seed.summary) + seed.models.rows.numpy().tobytes()


def last(experiment):
    (seed,) = ep.simulate(experiment).seeds
    return seed.records[-1]


ALL = [
    SignFlip(nodes=2), SignFlip(nodes=2, knows="all"), SignFlip(nodes=2, knows="messages"), FlipOwn(nodes=2), ScaledFlip(nodes=2),
    Foe(nodes=2, factor="worst"), Alie(nodes=2), Reflect(nodes=2), Mimic(nodes=2, whom="outlier", warmup=2), Dissensus(nodes=2),
    Gaussian(nodes=2), LabelFlip(nodes=2), LabelFlip(nodes=2, where="rows"), Silent(nodes=2), NotANumber(nodes=2), Huge(nodes=2),
]  # fmt: skip
NAMES = [f"{one.called}-{i}" for i, one in enumerate(ALL)]


class Told(ep.Aggregator):
    """A rule that does not say how many it tolerates."""

    def __call__(self, heard):
        return heard.own


class Truthful(Adversary, frozen=True, tag="truthful"):
    """Malicious nodes that do exactly as honest ones."""

    trains = True

    def message(self, scene):
        return scene.trained


# -- what must not change ---------------------------------------------------------------------------------------------


def test_an_adversary_of_no_nodes_is_none():
    assert outcome(small(adversary=SignFlip(nodes=0))) == outcome(small())


@pytest.mark.parametrize("rule", [ep.Mean(), ep.TrimmedMean(f=1), ep.Median()])
@pytest.mark.parametrize(
    "knowing", [{}, {"faults": ep.Faults(loss=0.3)}, {"participation": ep.BernoulliParticipation(p=0.7)}]
)
def test_malicious_nodes_that_tell_the_truth_change_no_bit_of_any_model(rule, knowing):
    changes = {"topology": ep.ELLocal(s=2), "aggregation": rule, **knowing}
    plain = ep.simulate(small(**changes)).models.rows
    found = ep.simulate(small(**changes, adversary=Truthful(nodes=(1, 5)))).models.rows
    honest = [0, 2, 3, 4, 6, 7]
    assert torch.equal(plain[honest], found[honest])


def test_until_they_start_malicious_nodes_are_honest():
    plain = ep.simulate(small(rounds=3)).seeds[0]
    waiting = ep.simulate(small(rounds=3, adversary=SignFlip(nodes=[1], start=3))).seeds[0]
    begun = ep.simulate(small(rounds=3, adversary=SignFlip(nodes=[1], start=2))).seeds[0]
    honest = [0, 2, 3, 4, 5, 6, 7]
    assert torch.equal(plain.models.rows[honest], waiting.models.rows[honest])
    assert not torch.equal(plain.models.rows[honest], begun.models.rows[honest])
    assert waiting.records[-1].attack.received == 0 < begun.records[-1].attack.received


@pytest.mark.parametrize("adversary", ALL, ids=NAMES)
def test_threads_change_no_bit(adversary):
    one, three = (
        outcome(small(adversary=adversary, aggregation=ep.TrimmedMean(f=1), runtime=ep.Runtime(threads=k)))
        for k in (1, 3)
    )
    assert one == three


@pytest.mark.parametrize(
    "adversary", [Foe(nodes=2), Mimic(nodes=2, whom="outlier", warmup=3), LabelFlip(nodes=2), Dissensus(nodes=2)]
)
def test_a_run_that_is_stopped_goes_on_to_the_same_bytes(tmp_path, adversary):
    """Stopped after every round: what the adversary remembers and what was counted is saved with the run."""
    whole = small(rounds=6, adversary=adversary, checkpoint=ep.Checkpoint(rounds=1))
    ep.simulate(whole, tmp_path / "whole")

    class Stopping(ep.Callback):
        planned_rounds = 0

        def planned(self, plan, index):
            self.planned_rounds += 1
            if self.planned_rounds == 2:
                raise KeyboardInterrupt

    stops = 0
    for _ in range(6):
        try:
            ep.simulate(whole, tmp_path / "cut", resume=True, callbacks=[Stopping()])
        except ep.Interrupted:
            stops += 1
    assert stops == 5
    for name in ("records.jsonl", "summary.json", "nodes.json", "models.safetensors"):
        assert (tmp_path / "cut/seed-1" / name).read_bytes() == (tmp_path / "whole/seed-1" / name).read_bytes(), name


def test_more_rounds_for_a_finished_run_give_the_bytes_of_a_longer_one(tmp_path):
    """Models of malicious nodes that train go on from where they were, not from the average that stands for them."""
    short, long = (small(rounds=r, adversary=FlipOwn(nodes=2)) for r in (4, 6))
    ep.simulate(short, tmp_path / "a")
    ep.simulate(long, tmp_path / "a", resume=True)
    ep.simulate(long, tmp_path / "b")
    for name in ("records.jsonl", "summary.json", "models.safetensors"):
        assert (tmp_path / "a/seed-1" / name).read_bytes() == (tmp_path / "b/seed-1" / name).read_bytes(), name


# -- data -------------------------------------------------------------------------------------------------------------


def test_data_is_shared_out_among_honest_nodes_unless_the_others_need_some():
    experiment = small(adversary=SignFlip(nodes=[1, 5]))
    setup = prepare(experiment, 1)
    honest = [0, 2, 3, 4, 6, 7]
    alone = prepare(small(nodes=6), 1)
    for i, node in enumerate(honest):
        assert np.array_equal(setup.parts[node], alone.parts[i])
    assert [len(setup.parts[i]) for i in (1, 5)] == [0, 0]
    shared, plain = prepare(small(adversary=SignFlip(nodes=[1, 5], data="all")), 1), prepare(small(), 1)
    for i in range(8):
        assert np.array_equal(shared.parts[i], plain.parts[i])


def test_poison_touches_nothing_that_honest_nodes_train_on():
    attacked, plain = prepare(small(adversary=LabelFlip(nodes=[1, 5])), 1), prepare(small(), 1)
    n = len(plain.data.train)
    assert np.array_equal(attacked.data.train.inputs[:n], plain.data.train.inputs)
    assert np.array_equal(attacked.data.train.targets[:n], plain.data.train.targets)
    found, usual = (one.batches.index(Streams(1), 3) for one in (attacked, plain))
    honest = [0, 2, 3, 4, 6, 7]
    assert np.array_equal(found[honest], usual[honest])
    inputs, targets = attacked.data.train.inputs, attacked.data.train.targets
    for node in (1, 5):
        assert np.array_equal(inputs[found[node]], inputs[usual[node]])
        assert np.array_equal(targets[found[node]], 2 - targets[usual[node]])


def test_a_backdoor_poisons_its_share_of_each_batch_from_its_start_on():
    adversary = Backdoor(nodes=[3], share=0.25, start=2, target=1)
    experiment = small(
        nodes=4,
        topology=ep.Ring(),
        data=ep.Digits(),
        algorithm=ep.LocalSGD(batch_size=8, local_steps=2),
        adversary=adversary,
    )
    setup, plain = (
        prepare(experiment, 1),
        prepare(small(nodes=4, topology=ep.Ring(), data=ep.Digits(), algorithm=experiment.algorithm), 1),
    )
    for round in range(4):
        found, usual = (one.batches.index(Streams(1), round) for one in (setup, plain))
        changed = found != usual
        assert changed.sum(axis=2).tolist() == [[0, 0]] * 3 + [[2 * (round >= 2)] * 2]
    assert (setup.data.train.targets[found[changed]] == 1).all()


# -- what it does -----------------------------------------------------------------------------------------------------


def test_scaled_flip_is_the_collapse_of_the_mean_and_not_of_the_trimmed_mean():
    def accuracy(rule, adversary):
        experiment = small(
            nodes=10, rounds=15, topology=ep.ELOracle(s=6), data=ep.Digits(), algorithm=ep.LocalSGD(lr=0.3, batch_size=16),
            eval=ep.Eval(every=15, samples=300), aggregation=rule, adversary=adversary,
        )  # fmt: skip
        return last(experiment).accuracy.mean

    for rule in (ep.Mean(), ep.TrimmedMean(f=2)):
        assert accuracy(rule, None) > 0.8
    assert accuracy(ep.Mean(), ScaledFlip(nodes=2)) < 0.3
    assert accuracy(ep.TrimmedMean(f=2), ScaledFlip(nodes=2)) > 0.8


def test_scaled_flip_sends_every_attacked_node_to_0_by_the_plain_mean():
    rows = ep.simulate(small(rounds=1, topology=ep.Complete(), adversary=ScaledFlip(nodes=2))).models.rows
    assert float(rows[last_honest()].abs().max()) < 1e-6


def last_honest():
    return np.setdiff1d(np.arange(8), SignFlip(nodes=2).members(8, Streams(1)))


def test_dissensus_of_1_keeps_every_attacked_node_where_training_left_it():
    """All models after a round of plain averaging are the trained ones: D(X) is that of a run that sends nothing."""
    frozen = ep.simulate(small(rounds=3, topology=ep.Complete(), adversary=Dissensus(nodes=2))).models.rows
    alone = ep.simulate(
        small(
            rounds=3,
            topology=ep.Isolated(),
            adversary=Silent(nodes=2),
        )
    )
    torch.testing.assert_close(frozen[last_honest()], alone.models.rows[last_honest()], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("knows", ["all", "receiver", "messages"])
def test_what_they_know_decides_which_models_they_look_at(knows):
    seen = []

    class Looking(SignFlip, frozen=True, tag="looking"):
        def message(self, scene):
            seen.append(scene)
            return scene.mean

    experiment = small(rounds=1, topology=ep.ELLocal(s=2), adversary=Looking(nodes=[1, 5], knows=knows))
    ep.simulate(experiment)
    graph = plan_round(experiment, Streams(1), 0).delivery.graph
    honest = [0, 2, 3, 4, 6, 7]
    attacked = [i for i in honest if set(graph.into(i).tolist()) & {1, 5}]
    if knows == "receiver":
        assert sorted(scene.receiver for scene in seen) == attacked
        for scene in seen:
            true = [j for j in graph.into(scene.receiver).tolist() if j in honest]
            assert len(scene.honest) == 1 + len(true)
            assert torch.equal(scene.honest[0], scene.own)
            assert scene.senders.tolist() == [j for j in graph.into(scene.receiver).tolist() if j not in honest]
    else:
        (scene,) = seen
        told = {j for i in (1, 5) for j in graph.into(i).tolist() if j in honest}
        assert len(scene.honest) == (6 if knows == "all" else len(told))
        assert scene.receiver is None


def test_imagined_labels_are_what_honest_nodes_would_have_learnt_from_them():
    """By one node that looks at all: the mean of local updates on flipped labels, and honest nodes learn as ever."""
    seen = []

    class Looking(LabelFlip, frozen=True, tag="looking"):
        def message(self, scene):
            seen.append(scene.mean)
            return scene.mean

    data = ep.Synthetic(features=6, classes=3, samples=160).load()
    flipped = data.train
    mirrored = type(data)(
        type(flipped)(flipped.inputs, 2 - flipped.targets), data.test, data.classes, data.scale, data.shift
    )
    changes = {"rounds": 1, "topology": ep.Isolated(), "nodes": 7}
    rows = ep.simulate(small(**changes, data=mirrored)).models.rows
    ep.simulate(
        small(rounds=1, topology=ep.Complete(), data=data, adversary=Looking(nodes=[7], where="rows", knows="all"))
    )
    torch.testing.assert_close(seen[0], rows.mean(0), rtol=1e-5, atol=1e-6)


def test_what_is_imagined_leaves_no_trace_in_what_honest_nodes_learn():
    class Thinking(LabelFlip, frozen=True, tag="thinking"):
        def message(self, scene):
            return None

    changes = {"algorithm": ep.LocalSGD(lr=0.2, batch_size=4, momentum=0.9), "rounds": 3}
    thought, silent = (
        ep.simulate(small(adversary=adversary, **changes)).models.rows
        for adversary in (Thinking(nodes=2, where="rows"), Silent(nodes=2))
    )
    assert torch.equal(thought, silent)


# -- records ----------------------------------------------------------------------------------------------------------


def counted(experiment, rule_f, fewest):
    """By the graphs alone: node-rounds, bad ones, those that keep their own, malicious messages."""
    streams, bad, kept, received, total = Streams(1), 0, 0, 0, 0
    malicious = experiment.adversary.members(experiment.nodes, streams)
    for round in range(experiment.rounds):
        graph = plan_round(experiment, streams, round).delivery.graph.explicit()
        for i in np.setdiff1d(np.arange(experiment.nodes), malicious).tolist():
            false = int(np.isin(graph.into(i), malicious).sum())
            total += 1
            received += false
            bad += false > rule_f
            kept += 1 + len(graph.into(i)) < fewest
    return total, bad, kept, received


@pytest.mark.parametrize(
    ("rule", "f", "fewest"), [(ep.Mean(), 0, 1), (ep.TrimmedMean(f=1), 1, 3), (ep.TrimmedMean(f=2), 2, 5)]
)
def test_bad_node_rounds_kept_models_and_messages_are_counted_as_the_graphs_have_them(rule, f, fewest):
    experiment = small(nodes=12, rounds=8, topology=ep.ELLocal(s=3), aggregation=rule, adversary=SignFlip(nodes=5))
    found = last(experiment).attack
    assert (found.aggregates, found.bad, found.kept, found.received) == counted(experiment, f, fewest)
    assert found.bad > 0 == found.dropped


@pytest.mark.parametrize(
    ("adversary", "sent"), [(NotANumber(nodes=2), True), (Huge(nodes=2), True), (Silent(nodes=2), False)]
)
def test_messages_that_no_node_may_believe_are_as_if_they_had_been_lost(adversary, sent):
    """The same models as those of nodes to whom the malicious ones send nothing; insane messages are counted."""
    experiment = small(adversary=adversary)
    pairs = [(i, j) for i in SignFlip(nodes=2).members(8, Streams(1)).tolist() for j in range(8) if i != j]
    blocked = small(
        adversary=Silent(nodes=2),
        faults=ep.Faults(blocked=pairs[:7] + [p for p in pairs[7:] if p[::-1] not in pairs[:7]]),
    )
    assert torch.equal(
        ep.simulate(experiment).models.rows[last_honest()], ep.simulate(blocked).models.rows[last_honest()]
    )
    found = last(experiment).attack
    assert found.received == found.bad == 0
    assert (found.dropped > 0) is sent


def test_numbers_just_below_the_largest_are_believed():
    found = last(small(rounds=1, adversary=Huge(nodes=2, magnitude=9.9e5), eval=ep.Eval(every=5)))
    assert found.attack.dropped == 0 < found.attack.received


def test_everything_that_is_recorded_is_of_honest_nodes(tmp_path):
    experiment = small(adversary=FlipOwn(nodes=[1, 5]), eval=ep.Eval(every=2, samples=40, per_node=True))
    run = ep.simulate(experiment, tmp_path / "run")
    (seed,) = run.seeds
    honest = [0, 2, 3, 4, 6, 7]
    rows = seed.models.rows
    for record in seed.records:
        assert record.per_node.nodes == honest
        assert record.alive == 6
        assert record.loss.mean == pytest.approx(np.mean(record.per_node.loss))
    final = seed.records[-1]
    x = rows[honest].double()
    assert final.disagreement == pytest.approx(float(((x - x.mean(0)) ** 2).sum(1).mean()), rel=1e-5)
    torch.testing.assert_close(rows[[1, 5]], rows[honest].mean(0).expand(2, -1))  # the average stands for them
    nodes = json.loads((tmp_path / "run/seed-1/nodes.json").read_bytes())
    assert [node["node"] for node in nodes] == honest
    summary = seed.summary
    assert summary.malicious == [1, 5]
    assert summary.final_accuracy.mean == pytest.approx(np.mean([node["final_accuracy"] for node in nodes]))
    sent = [sum(node["bytes"].values()) for node in nodes]
    assert summary.bytes.total.mean == pytest.approx(np.mean(sent))


def test_records_without_an_adversary_say_nothing_of_one():
    record = last(small())
    assert record.attack is None
    assert b"attack" not in encode(record)
    assert "[adversary]" not in to_toml(small())


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (ep.Mean(), 0),
        (ep.Median(), 3),
        (ep.Median(before="nnm", f=2), 2),
        (ep.TrimmedMean(2), 2),
        (ep.TrimmedMean(2, before="nnm"), 2),
        (ep.TrimmedMean(5, few="less"), 3),
        (ep.aggregation.Nearest(2), 2),
        (Told(), None),
    ],
)
def test_how_many_malicious_ones_of_seven_a_rule_tolerates(rule, told):
    found = tolerated(made(rule), np.array([7]))
    assert (None if found is None else int(found[0])) == told


def test_the_success_of_a_backdoor_is_measured_and_the_trimmed_mean_lowers_it():
    changes = {
        "nodes": 10, "rounds": 15, "topology": ep.ELOracle(s=6), "data": ep.Digits(), "adversary": Backdoor(nodes=2),
        "algorithm": ep.LocalSGD(lr=0.3, batch_size=16), "eval": ep.Eval(every=15, samples=300),
    }  # fmt: skip
    plain, robust = (last(small(aggregation=rule, **changes)) for rule in (ep.Mean(), ep.TrimmedMean(f=2)))
    assert plain.attack.success.mean > 0.9
    assert robust.attack.success.mean < 0.7
    assert plain.accuracy.mean > 0.75  # it hides


# -- one's own --------------------------------------------------------------------------------------------------------


def test_ones_own_by_name_in_a_file_does_what_the_built_in_one_does(tmp_path, monkeypatch):
    (tmp_path / "liars.py").write_text("def flipped(scale):\n    return lambda scene: -scale * scene.mean\n")
    monkeypatch.chdir(tmp_path)
    table = small().table() | {
        "adversary": {"kind": "python", "factory": "liars:flipped", "options": {"scale": 1.0}, "nodes": 2}
    }
    own = experiment_from(table)
    assert experiment_from(own.table()) == own
    assert torch.equal(ep.simulate(own).models.rows, ep.simulate(small(adversary=SignFlip(nodes=2))).models.rows)


@pytest.mark.parametrize(
    ("gives", "says"),
    [
        (lambda scene: scene.mean[:2], r"message gave float32 \(2,\); it must give float32 \(21,\), or \(1, 21\)"),
        (lambda scene: scene.mean.double(), r"message gave float64"),
        (lambda scene: 3, r"message gave int"),
        (lambda scene: 1 / 0, r"failed: ZeroDivisionError"),
    ],
)
def test_ones_own_that_is_wrong_ends_the_run_with_a_line(gives, says):
    class Wrong(Adversary, frozen=True, tag="wrong"):
        def message(self, scene):
            return gives(scene)

    with pytest.raises(RunFailed, match=says) as found:
        ep.simulate(small(topology=ep.Complete(), adversary=Wrong(nodes=[1])))
    assert "\n" not in str(found.value)


def test_each_sender_may_have_a_message_of_its_own():
    class Numbered(Adversary, frozen=True, tag="numbered"):
        personal = True

        def message(self, scene):
            return scene.honest.new_tensor(scene.senders)[:, None].expand(-1, scene.honest.shape[1]) * 1.0

    seen = {}

    class Noting(ep.Aggregator):
        def __call__(self, heard):
            seen[tuple(heard.senders.tolist())] = heard.received.clone()
            return heard.own

    ep.simulate(small(rounds=1, topology=ep.Complete(), aggregation=Noting(), adversary=Numbered(nodes=[1, 5])))
    for senders, received in seen.items():
        for sender, row in zip(senders, received, strict=True):
            assert bool((row == sender).all()) == (sender in (1, 5))


# -- what does not go together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"nodes": 4, "topology": ep.Ring()},
            r"adversary\.nodes = 2 must be less than half of nodes = 4.*use at most 1",
        ),
        ({"adversary": SignFlip(nodes=[9])}, r"names node 9, but nodes are numbered 0 to 7"),
        ({"clock": ep.Clock()}, r"leave \[clock\] out"),
        ({"algorithm": ep.AsyncEL(), "clock": ep.Clock(stop=1.0)}, r'"async-el" has none'),
        ({"algorithm": ep.PushSum()}, r'use algorithm\.kind = "local-sgd"'),
        ({"algorithm": ep.GradientTracking(), "topology": ep.Ring()}, r'use algorithm\.kind = "local-sgd"'),
        ({"mixing": "samples"}, r"malicious ones can say anything"),
        ({"compression": ep.compression.Int8()}, r"leave one of them out"),
        ({"topology": ep.Fragments(ep.ELLocal(2), k=2)}, r"use its inner topology alone"),
        ({"topology": ep.Complete(cost="all-reduce")}, r'use cost = "all-to-all"'),
        ({"participation": ep.Teleportation(m=6)}, r'use kind = "uniform"'),
        ({"faults": ep.Faults(crashes=[ep.Crash(0, at=1, returns=2)])}, r'use on_return = "keep"'),
        ({"partition": ep.Explicit(sizes=[5] * 8)}, r'use adversary\.data = "all"'),
        ({"adversary": Spectral(nodes=1)}, r"use a static topology"),
        ({"adversary": Spectral(nodes=1), "topology": ep.Exponential()}, r"need.? links that go both ways|static"),
    ],
)
def test_what_does_not_go_with_an_adversary_is_refused_in_one_line(changes, says):
    with pytest.raises(BadInput, match=says) as found:
        small(**{"adversary": SignFlip(nodes=2), **changes})
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("host", "says"), [("ranks", "run it in one process"), ("deployment", "is for simulations")])
def test_hosts_that_cannot_have_an_adversary_say_so(host, says):
    with pytest.raises(BadInput, match=says):
        require_compatible(small(adversary=SignFlip(nodes=2)), host)
    require_compatible(small(adversary=SignFlip(nodes=0), topology=ep.ELOracle(s=2)), host)


@pytest.mark.parametrize("adversary", [LabelFlip(nodes=1), Backdoor(nodes=1)])
def test_poison_needs_data_that_can_be_poisoned(adversary):
    quantities = ep.Synthetic(problem="quadratic", features=3, groups=8, samples=64)
    with pytest.raises(BadInput, match=r"needs data with one class|stamps 3 x 3 pixels"):
        ep.simulate(small(data=quantities, model=ep.Point(), adversary=adversary))


def test_a_target_that_is_no_class_is_refused():
    with pytest.raises(BadInput, match=r"adversary\.target = 10 must be one of the 10 classes"):
        ep.simulate(small(data=ep.Digits(), adversary=Backdoor(nodes=1, target=10)))


def test_the_command_line_tells_what_happened(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(to_toml(small(adversary=NotANumber(nodes=2))))
    assert main(["run", "a.toml", "--out", "out"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "of honest nodes: 0 of 24 node-rounds bad, 0 kept their own model; 0 malicious messages received" in said
    assert main(["run", "a.toml", "--out", "other", "--set", "adversary.nodes=4"]) == 2
    assert "use at most 3" in capsys.readouterr().err


def test_every_kind_is_run_by_these_tests():
    run = {type(one) for one in ALL} | {Backdoor, Spectral, ADVERSARIES["min-max"], ADVERSARIES["python"]}
    assert run == set(ADVERSARIES.values())


@pytest.mark.parametrize("kind", ["spectral", "min-max"])
def test_the_others_run(kind):
    experiment = small(topology=ep.Ring(), rounds=6, adversary=ADVERSARIES[kind](nodes=[2]))
    found = last(experiment)
    assert found.attack.received == 12
    assert msgspec.json.decode(encode(found), type=type(found)) == found
