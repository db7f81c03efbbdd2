"""The golden transcript: what a small run does, round by round. Whatever executes experiments must replay it.

Graphs, batches, weights and bytes are exact. Models are compared through a few projections, to 1e-5, because the last digits
belong to the machine. To write it anew after a deliberate change of behaviour: python tests/test_transcript.py
"""

import json
from pathlib import Path

import numpy as np
import pytest

import epidemic as ep
from epidemic.algorithms import LocalSGD
from epidemic.callbacks import Callback
from epidemic.core.rng import Streams
from epidemic.faults import Crash, Faults

GOLDEN = Path(__file__).parent / "golden"

COMMON = {
    "nodes": 7,
    "rounds": 5,
    "data": ep.Synthetic(features=4, classes=3, samples=90),
    "partition": ep.Dirichlet(alpha=0.5, min_samples=3),
    "model": ep.Logistic(),
    "eval": ep.Eval(every=5),
}
EXPERIMENTS = {
    "el-local": ep.Experiment(
        topology=ep.ELLocal(2), algorithm=LocalSGD(lr=0.1, local_steps=2, batch_size=3), **COMMON
    ),
    "el-oracle": ep.Experiment(
        topology=ep.ELOracle(4), algorithm=LocalSGD(lr=0.1, batch_size=4, momentum=0.5), **COMMON
    ),
    "faults": ep.Experiment(
        topology=ep.ELLocal(3),
        algorithm=LocalSGD(lr=0.1, batch_size=3),
        faults=Faults(loss=0.1, cap=3, crashes=(Crash(2, at=1, returns=3),)),
        **COMMON,
    ),
    "equitopo": ep.Experiment(topology=ep.ODEquiDyn(), algorithm=LocalSGD(lr=0.1, batch_size=3), **COMMON),
}


def projections(x):
    """Four numbers for each node that tell models apart."""
    directions = Streams(0)("projections").normals(x.shape[1], 4)
    return (x.double().numpy() @ directions).tolist()


class Scribe(Callback):
    def __init__(self):
        self.rounds = []
        self.initial = None

    def started(self, setup, learner, rounds_done):
        self.initial = projections(setup.initial[None])

    def planned(self, plan, index):
        g = plan.delivery.graph
        matrix = plan.weights.dense()
        self.rounds.append(
            {
                "digest": plan.delivery.intended.digest(),
                "heard": [g.into(i).tolist() for i in range(g.n)],
                "batches": index.tolist(),
                "weights": [[round(float(v), 12) for v in row] for row in matrix],
                "models_sent": plan.delivery.models_sent.tolist(),
                "offers_sent": plan.delivery.offers_sent.tolist(),
            }
        )

    def advanced(self, rounds_done, x):
        self.rounds[-1]["models"] = projections(x)


def transcript(experiment):
    scribe = Scribe()
    run = ep.simulate(experiment, callbacks=scribe)
    sent = run.records[-1].bytes
    return {
        "initial": scribe.initial,
        "rounds": scribe.rounds,
        "bytes": {k: getattr(sent, k).max for k in ("model", "header", "control")},
    }


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("strategy", ["stacked", "per-node"])
def test_the_golden_transcript_is_replayed(name, strategy):
    import msgspec

    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    found = transcript(msgspec.structs.replace(EXPERIMENTS[name], runtime=ep.Runtime(strategy=strategy)))
    assert found["bytes"] == golden["bytes"]
    np.testing.assert_allclose(found["initial"], golden["initial"], atol=1e-6)
    for t, (now, then) in enumerate(zip(found["rounds"], golden["rounds"], strict=True)):
        for key in ("digest", "heard", "batches", "models_sent", "offers_sent"):
            assert now[key] == then[key], f"round {t}: {key}"
        np.testing.assert_allclose(now["weights"], then["weights"], atol=1e-12)
        np.testing.assert_allclose(now["models"], then["models"], atol=1e-5)


if __name__ == "__main__":
    for name, experiment in EXPERIMENTS.items():
        (GOLDEN / f"{name}.json").write_text(json.dumps(transcript(experiment)) + "\n")
