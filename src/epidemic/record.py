"""Records: one frozen row per evaluated round, written as it happens, read by reports; and how traffic is counted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from epidemic.core.errors import BadInput
from epidemic.core.files import read_bounded
from epidemic.core.formatting import count, html_table, number, percent, simulated, size

HEADER_BYTES = 256
"""Bytes in a message besides its numbers: run, round, sender, graph digest, signature."""
CONTROL_BYTES = 128
"""A message without a model: the signed offer that precedes a model where receivers have a cap, or the request for one."""


ENTRY_BYTES = 20
"""Bytes of one view entry in such a message: node id, address, age."""


class Spread(msgspec.Struct, frozen=True):
    """A quantity over the nodes; sd is that of the whole population."""

    mean: float
    sd: float
    min: float
    max: float

    @staticmethod
    def of(values: Any) -> Spread:
        """Summarise one number per node by mean, standard deviation, minimum and maximum."""
        v = np.asarray(values, dtype=np.float64)
        return Spread(float(v.mean()), float(v.std()), float(v.min()), float(v.max()))


class OwnSpread(msgspec.Struct, frozen=True):
    """A user's own metric over the nodes; None where it is not a finite number."""

    mean: float | None
    sd: float | None
    min: float | None
    max: float | None

    @staticmethod
    def of(values: Any) -> OwnSpread:
        """Summarise one number per node; values that are not finite become None."""
        with np.errstate(invalid="ignore"):  # infinite ones
            found = msgspec.structs.astuple(Spread.of(values))
        return OwnSpread(*(v if math.isfinite(v) else None for v in found))


class MeanMax(msgspec.Struct, frozen=True):
    """The mean over the nodes, and the largest."""

    mean: float
    max: int


class Traffic(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes that a node has sent since the start: models, what travels with them, and messages without a model."""

    model: MeanMax
    header: MeanMax
    control: MeanMax
    total: MeanMax
    wasted: MeanMax | None = None  # of models that no node received, if there were any


Counted = Annotated[int, Meta(ge=0, le=2**53)]
"""A count that another node may have sent."""


class HeardCounts(msgspec.Struct, frozen=True):
    """How many messages counted at a deployed node, of those that the graphs of its rounds gave it.

    With a private coin the graph is unknown, and as many messages are expected as a node sends: more may count than were expected.
    """

    rounds: Counted  # that it took part in
    lonely: Counted  # of these rounds, those without any message although there should have been one
    expected: Counted  # messages, in all of these rounds
    heard: Counted
    recent_rounds: Counted  # the last ones, since it was started
    recent_expected: Counted
    recent_heard: Counted

    def __post_init__(self) -> None:
        parts = ((self.lonely, self.rounds), (self.recent_rounds, self.rounds), (self.recent_expected, self.expected))
        if any(part > whole for part, whole in (*parts, (self.recent_heard, self.heard))):
            raise ValueError("a part of the rounds or messages is larger than all of them")

    @property
    def lonely_share(self) -> float:
        """The share of rounds in which the node learnt alone."""
        return self.lonely / self.rounds if self.rounds else 0.0

    @staticmethod
    def total(parts: Iterable[HeardCounts]) -> HeardCounts | None:
        """The sum over several nodes; None of none."""
        found = [msgspec.structs.astuple(part) for part in parts]
        return HeardCounts(*(sum(numbers) for numbers in zip(*found, strict=True))) if found else None


class AttackCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an adversary has done to honest nodes since the start. A node-round is one honest node in one round in which it took part."""

    aggregates: int  # node-rounds
    bad: (
        int | None
    )  # of them, those with more malicious messages than the rule tolerates; None where the rule does not say how many
    kept: int  # those in which a node had too few models for its rule, and kept its own
    received: int  # malicious messages that counted
    dropped: int  # malicious messages that did not: not finite, or larger than network.largest
    success: Spread | None = (
        None  # over honest nodes: share of triggered samples that are classified as the adversary wants
    )

    def rows(self) -> list[tuple[str, int]]:
        """The counts with their names for people."""
        named = {
            "bad node-rounds": self.bad,
            "node-rounds with the own model kept": self.kept,
            "malicious messages": self.received,
            "malicious messages dropped": self.dropped,
        }
        return [(name, value) for name, value in named.items() if value is not None]


class Living(msgspec.Struct, frozen=True):
    """Only of the nodes that were up and took part in the last round; the models of others have not changed since they last did."""

    accuracy: Spread | None
    loss: Spread
    disagreement: float


class NodeNumbers(msgspec.Struct, frozen=True, omit_defaults=True):
    """What every single node's model is worth on the evaluated samples (`eval.per_node`); all lists are in the order of `nodes`."""

    nodes: list[int]  # their ids
    loss: list[float]
    accuracy: list[float] | None = None  # None where there is none
    metrics: dict[str, list[float | None]] = {}  # a user's own; None where one is not a finite number

    @staticmethod
    def joined(parts: Sequence[NodeNumbers]) -> NodeNumbers:
        """Several as one, in their order."""
        return NodeNumbers(
            [node for part in parts for node in part.nodes],
            [value for part in parts for value in part.loss],
            None if parts[0].accuracy is None else [value for part in parts for value in part.accuracy or ()],
            {name: [value for part in parts for value in part.metrics[name]] for name in parts[0].metrics},
        )


class MessageCounts(msgspec.Struct, frozen=True):
    """Messages of all nodes since the start. Sent ones are received, lost, or on their way; received ones are used, wasted or held."""

    sent: int
    received: int
    used: int
    wasted: int  # received and of no use: late, replaced, or over a limit
    lost: int  # by faults or because the receiver was away


class Moment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of a run under the simulated clock."""

    seconds: float
    steps: float  # local steps of a node, mean
    messages: MessageCounts
    staleness: float | None = (
        None  # seconds between sending and use, mean since the last record; None: nothing was used
    )
    staleness_95: float | None = None  # their 95th percentile
    busy: float  # share of the nodes' online time since the start in which they trained
    uplink: float | None = None  # share of it in which their uplinks sent; None where uplinks have no limit
    online: int  # nodes that are there now
    accuracies: list[float] = []  # of each node, where there are classes

    def numbers(self) -> dict[str, float | None]:
        """Every single number by name, as columns of tables and curves of other tools are called."""
        messages = {f"messages_{part}": getattr(self.messages, part) for part in MessageCounts.__struct_fields__}
        rest = ("staleness", "staleness_95", "busy", "uplink", "online")
        return {
            "seconds": self.seconds,
            "steps": self.steps,
            **messages,
            **{name: getattr(self, name) for name in rest},
        }


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a run after `round` rounds: what the nodes' models are worth on the evaluated samples, and what was sent.

    `record.accuracy.mean` is over nodes, `record.mean_model_accuracy` that of the average of all models, `record.disagreement`
    D(X), the mean squared distance of the nodes' models to their average, `record.bytes.total.mean` the bytes that a node has sent since the start, `record.metrics["name"].mean` your own.
    """

    round: int
    seed: int
    alive: int  # nodes that were up and took part in the last round
    accuracy: Spread | None = None  # over nodes; None where the targets are not classes
    loss: Spread
    mean_model_accuracy: float | None = None  # of the average of all models
    mean_model_loss: float | None = None  # a deployed node does not know the others' models
    train_loss: float | None = None  # mean over nodes in the last round
    disagreement: float | None = None  # D(X), as above; a deployed node does not know it
    living: Living | None = None  # the same of the nodes that took part in the last round, where some did not
    bytes: Traffic
    metrics: dict[str, OwnSpread] = msgspec.field(default_factory=dict)  # a user's own
    time: Moment | None = None  # under the simulated clock
    per_node: NodeNumbers | None = None  # with eval.per_node
    delivery: HeardCounts | None = None  # of deployed nodes, where there are rounds
    attack: AttackCounts | None = None  # where some nodes are malicious; then everything else is of the honest ones

    def __repr__(self) -> str:
        accuracy = "" if self.accuracy is None else f"accuracy {percent(self.accuracy.mean)}, "
        apart = "" if self.disagreement is None else f"D {self.disagreement:.3g}, "
        found = f"{accuracy}loss {self.loss.mean:.4f}, {apart}sent {size(self.bytes.total.mean)} per node"
        at = "" if self.time is None else f", {simulated(self.time.seconds)}"
        return f"Record(round {self.round}{at}, seed {self.seed}: {found})"

    def _repr_html_(self) -> str:
        heads = ["over nodes", "mean", "sd", "min", "max"]
        spreads: dict[str, Any] = {"accuracy": self.accuracy, "loss": self.loss, **self.metrics}
        rows = [
            [name, *(number(getattr(spread, part)) for part in heads[1:])]
            for name, spread in spreads.items()
            if spread is not None
        ]
        single = {
            "accuracy of the average model": self.mean_model_accuracy,
            "loss of the average model": self.mean_model_loss,
            "training loss": self.train_loss,
            "disagreement": self.disagreement,
        }
        rows += [[name, number(value), "", "", ""] for name, value in single.items() if value is not None]
        sent = self.bytes.total
        rows.append(["sent per node", size(sent.mean), "", "", size(sent.max)])
        if self.attack is not None:
            rows += [[name, number(value), "", "", ""] for name, value in self.attack.rows()]
            if (success := self.attack.success) is not None:
                rows.append(["success of the attack", *(number(getattr(success, part)) for part in heads[1:])])
        at = ""
        if self.time is not None:
            at = f" after {simulated(self.time.seconds)}"
            rows += [[name.replace("_", " "), number(v), "", "", ""] for name, v in self.time.numbers().items()]
        return html_table(f"round {self.round}{at}, seed {self.seed}, {count(self.alive, 'node')} up", rows, heads)


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The results of one seed. "best" is over the evaluated rounds, "final" on the full test set."""

    name: str
    seed: int
    rounds: int
    best_accuracy: float | None
    best_accuracy_round: int | None
    best_loss: float
    best_loss_round: int
    final_accuracy: Spread | None
    final_loss: Spread
    final_mean_model_accuracy: float | None
    final_mean_model_loss: float | None
    final_disagreement: float | None
    final_metrics: dict[str, OwnSpread]
    test_samples: int
    bytes: Traffic
    final_living_accuracy: Spread | None = None  # of nodes that took part in the last round, if not all did
    seconds: float | None = None  # simulated ones, under the clock
    ended_early: str = ""  # why, if a callback ended the seed before all rounds were done
    delivery: HeardCounts | None = None  # of deployed nodes, where there are rounds
    attack: AttackCounts | None = None  # where some nodes are malicious; then everything else is of the honest ones
    malicious: list[int] = []  # which nodes those are


def encode(value: object) -> bytes:
    """Return a value as one line of JSON, with its end of line."""
    return msgspec.json.encode(value) + b"\n"


LARGEST_RECORDS = 2**30
"""Bytes of the records of a seed: about half a million of them."""


def read_records(path: Path) -> tuple[list[Record], bool]:
    """The records of a file, and whether its last line was cut off (it is then left out)."""
    try:
        raw = read_bounded(path, LARGEST_RECORDS)
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise BadInput(f"{path} cannot be read: {problem}") from None
    lines = raw.split(b"\n")
    cut = lines.pop() != b""
    try:
        return [msgspec.json.decode(line, type=Record) for line in lines], cut
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise BadInput(f"{path} is not a file of records: {problem}") from None
