"""Gossip Learning (Ormandi, Hegedus, Jelasity): models walk over the network, one message at a time.

Every node sends its model, with its age in steps, once a period. A receiver merges it with its own and trains (mu), or replaces its own and trains (rw), or
trains both and then merges (um). Partitioned: a message carries one part of the model, with an age of its own. With token accounts (Danner and Jelasity,
2018) nodes save messages that would be sent by the clock, and spend them when something arrives.

An age is not the number of a node's own steps: merged models have the larger of two ages, so it grows faster than any node trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import ClassVar, Literal

import msgspec

from epidemic.algorithms.asynchronous import SECOND, AsynchronousMethod, Message, Node, NodeContext, Row
from epidemic.core.config import build
from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.core.settings import Settings

VARIANTS = ("rw", "mu", "um")
MERGES = ("average", "age")
CAPACITY = {"queue": 8, "replace": 1, "drop": 0}
"""How many messages wait while a node trains, by rule; the first is a default."""
STRATEGIES = {"proactive": (), "simple": ("C",), "generalised": ("A", "C"), "randomised": ("A", "C")}
"""Which numbers a token account of each strategy takes."""
SHORTEST = 0.1
"""A jittered period is at least this part of the period, and longer by at most as much as it may be shorter, so that the mean stays."""


class Tokens(Settings, frozen=True, forbid_unknown_fields=True):
    """A token account: a period either sends or saves a token, and a receipt may spend some.

    proactive: every period sends, as without an account. simple: a period sends if the account is full (C), a receipt if it is not empty.
    generalised: a receipt spends about one of A tokens, half of that if the message was older than the own model. randomised: periods send
    more often the fuller the account is beyond A, and a useful receipt spends one of A tokens on average.
    """

    strategy: Literal["proactive", "simple", "generalised", "randomised"] = "randomised"
    A: int | None = None
    C: int | None = None

    def __post_init__(self) -> None:
        require_choice("algorithm.tokens.strategy", self.strategy, STRATEGIES)
        for name in ("A", "C"):
            value, taken = getattr(self, name), name in STRATEGIES[self.strategy]
            if taken and value is None:
                raise BadInput(f'algorithm.tokens.{name} is missing; strategy = "{self.strategy}" needs it, at least 1')
            if not taken and value is not None:
                raise BadInput(
                    f'algorithm.tokens.{name} = {value!r} has no meaning for strategy = "{self.strategy}"; leave it out'
                )
            if value is not None:
                require_int(f"algorithm.tokens.{name}", value, 1)
        if self.A is not None and self.C is not None and self.A > self.C:
            raise BadInput(f"algorithm.tokens.A = {self.A} must be at most C = {self.C}")

    def proactive(self, balance: int) -> float:
        """The probability that a period sends."""
        A, C = self.A or 1, self.C or 1
        if self.strategy == "proactive":
            return 1.0
        if self.strategy == "randomised":
            return min(1.0, max(0.0, (balance - A + 1) / (C - A + 1)))
        return 1.0 if balance >= C else 0.0

    def reactive(self, balance: int, useful: bool, chance: float) -> int:
        """The number of messages that a receipt triggers."""
        A = self.A or 1
        if self.strategy == "proactive":
            return 0
        if self.strategy == "simple":
            return min(balance, 1)
        if self.strategy == "generalised":
            return (A - 1 + balance) // (A if useful else 2 * A)
        whole, rest = divmod(balance, A)
        return whole + (chance < rest / A) if useful else 0


class GossipLearning(AsynchronousMethod, frozen=True, tag="gossip-learning"):
    """Send the model once a period; merge with received models, and train.

    A period's message goes to the s nodes that el-local(s) draws (s = 1 is the classic method), or to one random neighbour of a static topology.
    """

    merges_pairs: ClassVar[bool] = True
    trains_on_receipt: ClassVar[bool] = True

    period: float = 1.0
    """Seconds between two sendings of a node."""
    jitter: float = 0.0
    """The standard deviation of a period, as a part of it; 0.1 is usual."""
    variant: Literal["rw", "mu", "um"] = "mu"
    merge: Literal["average", "age"] = "age"
    on_busy: Literal["queue", "replace", "drop"] = "queue"
    """What happens to messages that arrive while a node trains: the newest `capacity` of them wait, the newest one waits, or none."""
    capacity: int | None = None
    start_trained: bool = False
    """Whether a node trains once before anything has arrived."""
    parts: int = 1
    """Into how many parts a model is cut; a message carries one."""
    tokens: Tokens | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("algorithm.period", self.period, 1 / SECOND)
        require_real("algorithm.jitter", self.jitter, 0, 1)
        require_choice("algorithm.variant", self.variant, VARIANTS)
        require_choice("algorithm.merge", self.merge, MERGES)
        require_choice("algorithm.on_busy", self.on_busy, CAPACITY)
        require_int("algorithm.parts", self.parts, 1)
        if self.capacity is not None:
            require_int("algorithm.capacity", self.capacity, 1)
            if self.on_busy != "queue":
                raise BadInput(
                    f'algorithm.capacity = {self.capacity} has no meaning with on_busy = "{self.on_busy}";'
                    ' leave it out or use on_busy = "queue"'
                )
        if self.tokens is not None:
            msgspec.structs.force_setattr(self, "tokens", build(self.tokens, Tokens, "algorithm.tokens"))
        if self.variant == "um" and self.parts > 1:
            raise BadInput(
                f'algorithm.parts = {self.parts} must be 1 with variant = "um", which trains the model that came; use variant = "mu"'
            )

    @property
    def aggregates(self) -> bool:  # type: ignore[override]
        """Two whole models are merged, and neither is thrown away."""
        return self.parts == 1 and self.variant != "rw"

    @property
    def notes(self) -> int:
        """The age of what a message carries."""
        return 1

    def node(self, context: NodeContext) -> GossipNode:
        """Make the node of this context."""
        return GossipNode(context, self)

    def room(self) -> int:
        """How many messages may wait while a node trains."""
        return CAPACITY[self.on_busy] if self.capacity is None else self.capacity

    def gap(self, chance: float) -> int:
        """Microseconds to the next period, of a uniform number in [0, 1)."""
        factor = 1.0
        if self.jitter:
            factor += self.jitter * NormalDist().inv_cdf(max(chance, 2**-54))
        return max(1, round(self.period * SECOND * min(max(factor, SHORTEST), 2 - SHORTEST)))

    def weight(self, own: int, theirs: int) -> float:
        """The weight of a received model, by the ages of both."""
        if self.variant == "rw":
            return 1.0
        return 0.5 if self.merge == "average" or own + theirs == 0 else theirs / (own + theirs)


class GossipNode(Node):
    """A node that handles one message at a time: merges it, trains, and answers if it has tokens to spend."""

    def __init__(self, context: NodeContext, settings: GossipLearning) -> None:
        super().__init__(context)
        self.settings = settings
        self.ages = [0] * settings.parts
        self.training = False
        self.handled: Message | None = None  # what the training is for
        self.useful = False  # whether it was at least as old as the own model
        self.own: Row | None = None  # um: the own model after its steps, while the other one is trained
        self.inbox: list[Message] = []  # those that wait, in order
        self.periods = 0
        self.sendings = 0
        self.receipts = 0
        self.balance = 0  # tokens

    def started(self) -> None:
        """Begin to send at a random moment of the first period."""
        context, settings = self.context, self.settings
        context.wake_at(context.now + int(context.chance("phase", 0) * settings.period * SECOND))
        if settings.start_trained:
            self._train(context.model)

    def woken(self, tag: str) -> None:
        """Send the period's message, or save a token."""
        context, tokens = self.context, self.settings.tokens
        if tokens is None or context.chance("proactive", self.periods) < tokens.proactive(self.balance):
            self._send()
        else:
            self.balance += 1
        context.wake_at(
            context.now + self.settings.gap(context.chance("jitter", self.periods) if self.settings.jitter else 0.0)
        )
        self.periods += 1

    def received(self, message: Message) -> None:
        """Handle a message, or queue it; a full queue drops the oldest."""
        self.inbox.append(message)
        if not self.training:
            self._handle_next()
        elif len(self.inbox) > self.settings.room():
            self.context.dropped([self.inbox.pop(0)])

    def trained(self, row: Row) -> None:
        """Finish a training; continue with queued messages."""
        message, steps = self.handled, self.settings.local_steps
        if message is not None and message.row is not None and self.settings.variant == "um":
            if self.own is None:
                self.own = row
                self._train(message.row)
                return
            trained = Message(message.sender, row, note=(_age(message) + steps,))
            self.context.model, self.own = self.own, None
            self.ages[0] += steps
            self._take(trained)
            self.context.used([message])
        else:
            self.context.model = row
            self.ages = [age + steps for age in self.ages]
        self.training, self.handled = False, None
        if message is not None:
            self._react()
        if self.inbox:
            self._handle_next()

    def messages_held(self) -> int:
        """Queued messages, and the one whose model is being trained before it is merged."""
        return len(self.inbox) + (self.handled is not None and self.settings.variant == "um")

    def state(self) -> dict[str, int]:
        """The ages of its model, its tokens, and how often it has chosen."""
        counters = {
            "periods": self.periods,
            "sendings": self.sendings,
            "receipts": self.receipts,
            "tokens": self.balance,
        }
        return {**counters, **{f"age {part}": age for part, age in enumerate(self.ages)}}

    def restore(self, state: Mapping[str, int]) -> None:
        """Restore the ages and counters."""
        self.periods, self.sendings, self.receipts = state["periods"], state["sendings"], state["receipts"]
        self.balance = state["tokens"]
        self.ages = [state[f"age {part}"] for part in range(self.settings.parts)]

    def _handle_next(self) -> None:
        message = self.inbox.pop(0)
        self.useful = _age(message) >= self.ages[message.part or 0]
        self.handled = message
        if self.settings.variant != "um":
            self._take(message)
            self.context.used([message])
        self._train(self.context.model)

    def _train(self, row: Row) -> None:
        self.training = True
        self.context.train(row)

    def _take(self, message: Message) -> None:
        """Merge a received model with the own one, or replace the own one."""
        part = message.part or 0
        weight = self.settings.weight(self.ages[part], _age(message))
        shares = 1 - weight, weight
        if message.part is None:
            self.context.model = self.context.aggregate(self.context.model, [message], shares)
        else:
            terms = [
                (share, row)
                for share, row in zip(shares, (self.context.model, message.row), strict=True)
                if share and row is not None
            ]
            self.context.model = self.context.patch(self.context.model, {part: terms})
        self.ages[part] = _age(message) if self.settings.variant == "rw" else max(self.ages[part], _age(message))

    def _react(self) -> None:
        """Spend tokens on a message that was handled."""
        tokens = self.settings.tokens
        if tokens is None:
            return
        spent = tokens.reactive(self.balance, self.useful, self.context.chance("reactive", self.receipts))
        self.receipts += 1
        self.balance -= spent
        for _ in range(spent):
            self._send()

    def _send(self) -> None:
        context, parts = self.context, self.settings.parts
        part = int(context.chance("part", self.sendings) * parts) if parts > 1 else None
        peers = context.peers(self.sendings)
        context.send(peers[:1] if context.static else peers, context.model, note=(self.ages[part or 0],), part=part)
        self.sendings += 1


def _age(message: Message) -> int:
    """The age that a message states."""
    return max(0, message.note[0]) if message.note else 0
