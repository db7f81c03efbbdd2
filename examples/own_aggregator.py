"""An aggregator of one's own, in one file: the mean of the half of the received models that is nearest to one's own model, and of that model.

    python examples/own_aggregator.py

From an experiment file it is named, and then runs in `epidemic run`, with `--ranks`, under a clock, in methods without rounds, in `compare` and `sweep`,
and on real machines:

    [aggregation]
    kind = "python"
    factory = "own_aggregator:NearestHalf"
"""

import torch

import epidemic as ep


class NearestHalf(ep.Aggregator):
    """The mean of the own model and the half of the received ones that is nearest to it; of an odd number the larger half."""

    fewest = 2  # its own model and one more; a node that has fewer keeps its own

    def __call__(self, heard):
        """One model of several.   # own (d,), received (h, d) -> (d,)"""
        distances = (heard.received - heard.own).norm(dim=1)  # (h,)
        half = (len(distances) + 1) // 2
        nearest = torch.argsort(distances, stable=True)[:half]  # of two at the same distance the smaller sender
        return torch.cat([heard.own[None], heard.received[nearest]]).mean(dim=0)


if __name__ == "__main__":
    common = {"nodes": 16, "rounds": 30, "seeds": [1, 2, 3], "data": ep.Digits(), "eval": ep.Eval(every=5)}
    found = ep.compare(
        {
            "nearest half": ep.Experiment(aggregation=NearestHalf(), topology=ep.ELLocal(s=5), **common),
            "mean": ep.Experiment(topology=ep.ELLocal(s=5), **common),
        }
    )
    print(found)
