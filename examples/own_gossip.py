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


class Neighbourly(ep.FreeRunning, frozen=True):
    """Train all the time; take a share `trust` of every model that is shown."""

    trust: float = 0.5

    def node(self, me):
        """The node that `me` is."""
        return NeighbourlyNode(me, self.trust)


class NeighbourlyNode(ep.Node):
    """Events come as calls; what it wants done it says to `self.me`. Models are handles, never numbers."""

    def __init__(self, me, trust):
        super().__init__(me)
        self.trust = trust
        self.shown = []  # letters that came while it trained
        self.times = 0

    def started(self):
        """The run begins."""
        self.me.train()

    def trained(self, row):
        """Take what was shown meanwhile, show the result to somebody, and train on."""
        for letter in self.shown:
            row = self.me.mix([(1 - self.trust, row), (self.trust, letter.row)])
        self.me.used(self.shown)
        self.shown = []
        self.me.model = row
        self.me.send(self.me.peers(self.times)[:1], row)
        self.times += 1
        self.me.train()

    def received(self, letter):
        """Keep it until the training ends."""
        self.shown.append(letter)

    def letters_held(self):
        """Every letter is used, dropped, or held: the clock checks that."""
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
    print(f"{last.accuracy.mean:.1%} after {last.time.seconds:.1f} simulated seconds, {last.time.letters.sent} letters")
