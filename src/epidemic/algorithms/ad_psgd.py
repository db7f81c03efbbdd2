"""AD-PSGD (Lian et al., 2018): nodes average in pairs, one pair at a time, without rounds.

Odd nodes are active: after training, one exchanges models with a random even (passive) neighbour, which answers at any time, also while it trains. So no
node waits for one that waits.

Every change is a displacement. The active node sends its row X_a; the passive one answers with its row X_p and moves by (X_a - X_p) / 2; on the answer the
active one moves by (X_p - X_a) / 2, and by what it learnt. So the sum of all rows changes by learning only, whatever happened to either row in between;
assigning averages would not preserve it when a row changes while a message is on its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epidemic.algorithms.asynchronous import SECOND, AsynchronousMethod, Message, MessageKind, Node, NodeContext, Row
from epidemic.core.errors import BadInput, require_real
from epidemic.core.rng import Streams
from epidemic.topology import ELLocal, kind_of

ASK, ANSWER = "ask", "answer"

REMEMBERED = 8
"""Exchanges whose answers are still awaited; an answer to an older one comes too late."""

DRAWS = 100
"""Draws without a live passive node after which the search is given up."""


class ADPSGD(AsynchronousMethod, frozen=True, tag="ad-psgd"):
    """Train, average with one random node of the other half, add what was learnt, and train on."""

    patience: float = 30.0
    """Seconds to wait for an answer before training continues; a later answer still counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("algorithm.patience", self.patience, 1 / SECOND)

    @property
    def notes(self) -> int:
        """Integers in a message: the number of the exchange."""
        return 1

    @property
    def kinds(self) -> tuple[MessageKind, ...]:
        """The kinds of messages: questions and answers."""
        return MessageKind(ASK, notes=1), MessageKind(ANSWER, notes=1)

    def check(self, topology: Any, mixing: str) -> None:
        """Raise BadInput unless the topology lets a node exchange with one other at a time."""
        if isinstance(topology, ELLocal) and topology.s != 1:
            raise BadInput(
                f'topology.s = {topology.s} must be 1 for algorithm.kind = "ad-psgd", whose nodes exchange with one other at a time'
            )
        if kind_of(topology) == "none":
            raise BadInput(
                'topology.kind = "none" leaves algorithm.kind = "ad-psgd" no peer to exchange with; use complete'
            )

    def check_run(self, topology: Any, nodes: int, streams: Streams) -> None:
        """Raise BadInput unless every node has a neighbour in the other half."""
        if isinstance(topology, ELLocal):
            return
        graph = topology.graph(nodes, 0, streams)
        if graph.clique is not None:
            return
        asks = (graph.senders % 2 == 1) & (graph.receivers % 2 == 0)  # (m,) the edges that serve
        left = set(range(nodes)) - set(graph.senders[asks].tolist()) - set(graph.receivers[asks].tolist())
        if left:
            mine, others = ("odd", "even") if _active(min(left)) else ("even", "odd")
            raise BadInput(
                f'algorithm.kind = "ad-psgd": node {min(left)} is {mine} and has no {others} neighbour to exchange with (seed {streams.seed});'
                " use another topology (complete, ring, torus, regular with more neighbours) or another seed"
            )

    def node(self, context: NodeContext) -> ADPSGDNode:
        """Make the node of this context."""
        return ADPSGDNode(context, self)


class ADPSGDNode(Node):
    """An active node trains and asks in turn; a passive one trains all the time, and answers."""

    def __init__(self, context: NodeContext, settings: ADPSGD) -> None:
        super().__init__(context)
        self.settings = settings
        self.moves = 0  # how often the row changed
        self.read = (0, context.model)  # the row that is trained, and the number of moves before it was read
        self.learnt: Row | None = None  # the result of the training, while the exchange runs
        self.asked: dict[int, tuple[int, Row]] = {}  # by exchange: the row that was sent, and the moves before
        self.exchanges = 0
        self.draws = 0
        self.gave_up = 0

    def started(self) -> None:
        """Train the initial model."""
        self._train()

    def trained(self, row: Row) -> None:
        """Ask a neighbour to exchange; a passive node trains on at once, and so does one that finds nobody."""
        self.learnt = row
        if not _active(self.context.id):
            self._train_on()
            return
        partner = self._partner()
        if partner is None:
            self.gave_up += 1
            self._train_on()
            return
        self.exchanges += 1
        self.asked[self.exchanges] = (self.moves, self.context.model)
        if len(self.asked) > REMEMBERED:
            del self.asked[min(self.asked)]
        self.context.send([partner], self.context.model, tag=ASK, note=(self.exchanges,))
        self.context.wake_at(self.context.now + round(self.settings.patience * SECOND), ANSWER)

    def received(self, message: Message) -> None:
        """Do the own half of the exchange that it belongs to."""
        number = message.note[0] if message.note else 0
        if message.row is None or message.tag != (ANSWER if _active(self.context.id) else ASK):
            self.context.dropped([message])
        elif message.tag == ASK:
            self.context.send([message.sender], self.context.model, tag=ANSWER, note=(number,))
            self._move((self.moves, self.context.model), message.row)
            self.context.used([message])
        elif number not in self.asked:
            self.context.dropped([message])
        else:
            self._move(self.asked.pop(number), message.row)
            self.context.used([message])
            if number == self.exchanges and self.learnt is not None:
                self.context.cancel(ANSWER)
                self._train_on()

    def woken(self, tag: str) -> None:
        """Give up an exchange without an answer: withdraw an unsent question, and train on."""
        if self.learnt is not None:
            self.gave_up += 1
            self.context.withdraw()
            self._train_on()

    def counts(self) -> dict[str, int]:
        """Exchanges that exceeded the patience, were lost, or had no partner."""
        return {"gave_up": self.gave_up}

    def state(self) -> dict[str, int]:
        """Its counters: an answer to a question of before a restart must not pass for one to a later question."""
        return {"exchanges": self.exchanges, "draws": self.draws, "gave_up": self.gave_up}

    def restore(self, state: Mapping[str, int]) -> None:
        """Restore the count of exchanges."""
        self.exchanges, self.draws, self.gave_up = state["exchanges"], state["draws"], state["gave_up"]

    def _move(self, snapshot: tuple[int, Row], other: Row) -> None:
        """x += (other - snapshot) / 2."""
        before, row = snapshot
        if before == self.moves:
            self.context.model = self.context.mix([(0.5, row), (0.5, other)])
        else:
            self.context.model = self.context.mix([(1.0, self.context.model), (0.5, other), (-0.5, row)])
        self.moves += 1

    def _train_on(self) -> None:
        """Add what was learnt to x; train."""
        before, row = self.read
        learnt, self.learnt = self.learnt, None
        assert learnt is not None
        if before == self.moves:
            self.context.model = learnt
        else:
            self.context.model = self.context.mix([(1.0, self.context.model), (1.0, learnt), (-1.0, row)])
        self.moves += 1
        self._train()

    def _train(self) -> None:
        self.read = (self.moves, self.context.model)
        self.context.train()

    def _partner(self) -> int | None:
        """The first passive one that is drawn; el-local draws one at a time, of both halves."""
        for _ in range(1 if self.context.static else DRAWS):
            peers = self.context.peers(self.draws)
            self.draws += 1
            for peer in peers:
                if not _active(peer):
                    return peer
        return None


def _active(node: int) -> bool:
    return node % 2 == 1
