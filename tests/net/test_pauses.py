"""A short pause does not take a small cluster apart, and an operator is told where nodes learnt alone."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import epidemic as ep
from conftest import experiment
from epidemic.clock import CloseAdaptive, CloseBarrier, CloseQuorum
from epidemic.experiment import to_toml

PAUSE = 1.5
TOGETHER = 20.0
"""Seconds after a fault within which nodes are in the same round again; on a busy machine most of them go into waiting for a core."""
APART = 2
"""Rounds between the first and the last node that are in step."""
AFTERWARDS = 60
"""Rounds in which messages are counted after that."""
CLOSE = {
    "adaptive": CloseAdaptive(deadline=10.0),
    "quorum": CloseQuorum(q=1.0, deadline=10.0),
}  # as many as each node sends


@pytest.mark.parametrize("close", ["adaptive", "quorum"])
def test_after_a_short_pause_of_all_but_one_three_nodes_go_on_together(deploy, close):
    what = experiment(
        nodes=3, rounds=1_000_000, topology=ep.ELLocal(2), algorithm=ep.LocalSGD(lr=0.01, local_steps=10),
        eval=ep.Eval(every=1_000_000, samples=100), network=ep.Network(close=CLOSE[close]),
    )  # fmt: skip
    there = deploy(what).start()
    begun = there.until_round(40, range(3), patience=120)
    paused = [there.cluster.children[i].process.pid for i in (1, 2)]
    for pid in paused:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(max(PAUSE, 4 * begun[0].limit))  # this is the fault: longer than the usual wait of several rounds
    for pid in paused:
        os.kill(pid, signal.SIGCONT)

    def in_step(found):
        rounds = [status.round for status in found.values()]
        return len(rounds) == 3 and max(rounds) - min(rounds) <= APART

    back = there.until(in_step, patience=TOGETHER)
    on = max(status.round for status in back.values()) + AFTERWARDS
    later = there.until_round(on, range(3), patience=120)
    for node_id in range(3):
        before, after = back[node_id].delivery, later[node_id].delivery
        heard, expected = after.heard - before.heard, after.expected - before.expected
        assert expected == 2 * (after.rounds - before.rounds)
        assert heard >= 0.95 * expected, (node_id, before, after)
        assert after.recent_rounds == 20
        assert after.recent_expected == 40
        assert after.recent_heard >= 0.95 * after.recent_expected, (node_id, after)
    there.cluster.stop()


def command(*words):
    environment = {k: v for k, v in os.environ.items() if k != "EPIDEMIC_DEBUG"}
    line = [sys.executable, "-m", "epidemic", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=240, check=False)
    return done.returncode, done.stdout, done.stderr


def test_cluster_up_says_who_learnt_alone_and_fails_where_most_rounds_were_lonely(tmp_path):
    file, out = tmp_path / "experiment.toml", tmp_path / "up"
    file.write_text(
        to_toml(experiment(nodes=3, rounds=10, topology=ep.ELLocal(2), network=ep.Network(close=CloseBarrier())))
    )
    code, said, err = command("cluster", "up", file, "--out", out, "--quiet")
    assert (code, err) == (0, "")
    assert "heard in all" in said
    assert said.count("20/20") == 6  # of three nodes, lately and in all
    assert "60/60" in said
    own = json.loads((out / "node-1/run/seed-1/summary.json").read_text())["delivery"]
    assert (own["rounds"], own["lonely"], own["expected"], own["heard"]) == (10, 0, 20, 20)
    whole = json.loads((out / "together/seed-1/summary.json").read_text())["delivery"]
    assert (whole["rounds"], whole["expected"], whole["heard"]) == (30, 60, 60)
    assert [n["delivery"] for n in json.loads((out / "together/seed-1/nodes.json").read_text())][1] == own

    def alone(node, rounds):
        """As if no message had come to a node in so many of its rounds."""
        path = out / f"node-{node}/run/seed-1/summary.json"
        summary = json.loads(path.read_text())
        summary["delivery"] |= {
            "lonely": rounds,
            "heard": 20 - 2 * rounds,
            "recent_rounds": 0,
            "recent_expected": 0,
            "recent_heard": 0,
        }
        path.write_text(json.dumps(summary))

    alone(1, 2)  # one of three, and not more than a tenth of all
    code, said, err = command("cluster", "up", "--resume", out, "--json")
    assert code == 0
    line = "1 of 3 nodes learnt alone in more than a tenth of their rounds: node 1 in 2 of 10 rounds (20 %); let nodes wait longer by network.close (now at most 30 s)"
    assert err.startswith(f"warning: {line}")
    assert len(err.splitlines()) == 1
    assert json.loads(said)["warnings"] == [err.removeprefix("warning: ").strip()]
    assert json.loads(said)["delivery"]["1"]["lonely"] == 2
    alone(1, 9)
    alone(2, 7)
    code, said, err = command("cluster", "up", "--resume", out, "--quiet")
    assert code == 1
    assert err.startswith("error: the nodes learnt alone in 16 of 30 rounds (53 %), more than half: node 1 in 9 of 10")
    assert "node 2 in 7 of 10 rounds (70 %); let nodes wait longer by network.close (now at most 30 s)" in err
    assert len(err.splitlines()) == 1
    assert "16/30" in said  # what came out is there nevertheless
    code, said, err = command("cluster", "gather", *sorted(out.glob("node-*")), "--out", tmp_path / "gathered")
    assert code == 0
    assert err.startswith("warning: the nodes learnt alone in 16 of 30 rounds")
