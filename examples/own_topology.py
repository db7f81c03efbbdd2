"""A topology of one's own, in one file: a random k-out graph with memory.

Every node draws a random order of the others and goes through it. In each round it sends to k of them and remembers these: in the next round it forgets
the one that it has known longest and takes the next of its order. So a graph shares all but one target of each node with the graph before, every node
reaches all others before it begins anew with another order, and in a single round the k targets are a uniform draw, as in EL-Local.

    python examples/own_topology.py

From an experiment file it is named, and then runs in `epidemic run`, with `--ranks`, under a clock, in `compare` and `sweep`, and on real machines:

    [topology]
    kind = "python"
    factory = "own_topology:Remembering"
    options = {k = 3}
"""

import numpy as np

import epidemic as ep


class Remembering:
    """Every node sends to `k` others; each of them stays its target for k rounds, and one is exchanged in every round."""

    random = True  # another graph in every round

    def __init__(self, k=3):
        self.k = k

    def check(self, n):
        """Refuse numbers of nodes for which there is no such graph."""
        if not 1 <= self.k <= n - 1:
            raise ep.BadInput(f"topology.options.k = {self.k} must be from 1 to nodes - 1 = {n - 1}")

    def graph(self, n, round, streams):
        """The graph of a round. It follows from the round alone: nothing is kept between calls, so every host gets the same one."""
        season, step = divmod(round, n - 1)  # all nodes have been through their orders after n - 1 rounds
        generator = streams.generator("own-topology", season)
        order = np.argsort(generator.random((n, n - 1)), axis=1, kind="stable")  # (n, n - 1), from 0 to n - 2
        known = order[:, np.arange(step, step + self.k) % (n - 1)]  # (n, k)
        senders = np.repeat(np.arange(n), self.k)
        targets = (senders + 1 + known.ravel()) % n  # never the sender itself
        return ep.Graph.from_edges(n, senders, targets)


if __name__ == "__main__":
    common = {"nodes": 16, "rounds": 30, "seeds": [1, 2, 3], "data": ep.Digits(), "eval": ep.Eval(every=5)}
    found = ep.compare(
        {
            "with memory": ep.Experiment(topology=Remembering(k=2), **common),
            "EL-Local": ep.Experiment(topology=ep.ELLocal(s=2), **common),
        }
    )
    print(found)
