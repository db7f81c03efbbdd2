"""A method without rounds of one's own, in one file: a node trains, shows its model to one other, and goes on with the better mixed of the two.

Run it under a simulated clock:

    python examples/own_gossip.py

From an experiment file it is named, and then runs in `epidemic run`, `compare`, `sweep` and, with `clock.stop`, on real machines:

    [algorithm]
    kind = "python"
    factory = "own_gossip:Neighbourly"
    options = {lr = 0.1, trust = 0.3}
"""

import epidemic as ep


class Neighbourly(ep.AsynchronousMethod, frozen=True):
    """Train all the time; take a share `trust` of every model that is shown."""

    trust: float = 0.5

    def node(self, context):
        """The node that `context` is."""
        return NeighbourlyNode(context, self.trust)


class NeighbourlyNode(ep.Node):
    """Events come as calls; what it wants done it says to `self.context`. Models are handles, never numbers."""

    def __init__(self, context, trust):
        super().__init__(context)
        self.trust = trust
        self.shown = []  # messages that came while it trained
        self.times = 0

    def started(self):
        """The run begins."""
        self.context.train()

    def trained(self, row):
        """Take what was shown meanwhile, show the result to somebody, and train on."""
        for message in self.shown:
            row = self.context.mix([(1 - self.trust, row), (self.trust, message.row)])
        self.context.used(self.shown)
        self.shown = []
        self.context.model = row
        self.context.send(self.context.peers(self.times)[:1], row)
        self.times += 1
        self.context.train()

    def received(self, message):
        """Keep it until the training ends."""
        self.shown.append(message)

    def messages_held(self):
        """Every message is used, dropped, or held: the clock checks that."""
        return len(self.shown)


if __name__ == "__main__":
    experiment = ep.Experiment(
        name="neighbourly",
        nodes=16,
        rounds=40,
        topology=ep.ELLocal(s=1),
        algorithm=Neighbourly(lr=0.2, trust=0.3),
        data=ep.Digits(),
        model=ep.Logistic(),
        clock=ep.Clock(
            compute=ep.clock.PerNodeCompute(median=0.05, sigma=0.5), links=ep.clock.Links(uplink=10, latency=0.02)
        ),
    )
    run = ep.simulate(experiment)
    last = run.records[-1]
    print(
        f"{last.accuracy.mean:.1%} after {last.time.seconds:.1f} simulated seconds, {last.time.messages.sent} messages"
    )
