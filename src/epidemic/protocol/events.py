"""Events that happen to a node, and actions that it asks for.

Messages and replies are opaque here; only the driver of the protocol looks inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SECOND = 1_000_000
"""One second in microseconds."""

# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The node is connected to the network."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The connections were reopened; peers now see this node under another token."""

    token: str


@dataclass(frozen=True, slots=True)
class Present:
    """A node appeared in or disappeared from the network; its token is a new one at each start."""

    node_id: int
    token: str
    there: bool


@dataclass(frozen=True, slots=True)
class Introduced:
    """A peer's handshake arrived, and its signature is valid."""

    node_id: int
    carrier: int  # the node whose connection carries its messages: itself, unless one process hosts several nodes
    token: str
    round: int  # the round that it reports; -1: not begun
    start: int  # the first round that it takes part in
    differs: tuple[str, ...] = ()  # settings in which it differs from this node
    finished: bool = False  # whether it has completed its run
    gone: bool = False  # whether it has failed, although its process may still run
    commitment: bytes = b""  # with a committed coin, the end of its hash chain


@dataclass(frozen=True, slots=True)
class Ungreeted:
    """A peer that was greeted gave no valid answer."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Void:
    """The certificates of these nodes are revoked."""

    node_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A valid message arrived over the connection of its sender: signature, format and numbers were checked."""

    sender: int
    round: int
    graph: bytes
    message: Any


@dataclass(frozen=True, slots=True)
class Trained:
    """The training of a round is finished."""

    round: int


@dataclass(frozen=True, slots=True)
class Mixed:
    """The messages of a round are aggregated, and all due records are written."""

    round: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """The model received from a peer is now this node's model."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A peer asks: "again" (its message of a round), "model" (the current model) or "offer" (whether a message is welcome)."""

    topic: str
    by: int
    round: int
    reply: Any


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a question: ACCEPTED, BUSY, NOTHING, NOT_YET, a model, or None if no valid answer came in time."""

    topic: str
    by: int
    round: int
    answer: Any


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer has expired."""

    name: str


@dataclass(frozen=True, slots=True)
class Came:
    """Asynchronous: a valid message arrived over the connection of its sender; a sender's numbers increase."""

    sender: int
    number: int
    note: tuple[int, ...]
    message: Any


@dataclass(frozen=True, slots=True)
class Learnt:
    """Asynchronous: a training is finished, with this result."""

    count: int
    row: Any


@dataclass(frozen=True, slots=True)
class Mended:
    """Asynchronous: the model was not finite and is replaced by this one."""

    row: Any


@dataclass(frozen=True, slots=True)
class Looked:
    """Asynchronous: the requested evaluation or save is finished."""


@dataclass(frozen=True, slots=True)
class Approached:
    """With partial views: a peer starts an exchange of entries, each signed by the node that it is about."""

    by: int
    entries: tuple[tuple[int, int], ...]  # (node id, age)
    reply: Any


@dataclass(frozen=True, slots=True)
class EntriesCame:
    """With partial views: the answer to an exchange that this node started; None: no valid answer in time, or it was `refused`."""

    by: int
    entries: tuple[tuple[int, int], ...] | None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Concluded:
    """The final evaluation is finished and written."""


ACCEPTED, BUSY, NOTHING, NOT_YET = "accepted", "busy", "nothing", "not yet"

# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say:
    """Print a line to the log."""

    text: str


@dataclass(frozen=True, slots=True)
class Greet:
    """Send a handshake to this node; None: to all."""

    node_id: int | None


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Set the timer of this name to this time, replacing its earlier one."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Train:
    """Train for a round; the message will go to `targets` nodes."""

    round: int
    targets: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send the message of a round to these nodes."""

    round: int
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mix:
    """Close a round and aggregate these messages, in ascending order of senders."""

    round: int
    messages: tuple[tuple[int, Any], ...]
    ages: tuple[int, ...] = ()  # how many rounds old each is; empty: all are of this round


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a question to a peer; exactly one Answered must follow."""

    topic: str
    to: int
    round: int
    patience: int  # microseconds


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a question with one of the fixed words, such as BUSY."""

    reply: Any
    word: str


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    """Answer a question with the message of a round."""

    reply: Any
    round: int
    to: int


@dataclass(frozen=True, slots=True)
class Give:
    """Answer a question with the current model, at a moment when nothing changes it."""

    reply: Any
    to: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Replace the model by the one that a peer sent."""

    message: Any


@dataclass(frozen=True, slots=True)
class Forget:
    """Discard kept messages of rounds before this one."""

    before: int


@dataclass(frozen=True, slots=True)
class Learn:
    """Asynchronous: train this model, as the node's count-th training. Exactly one Learnt must follow."""

    count: int
    row: Any


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Asynchronous: send a message to these nodes."""

    number: int
    to: tuple[int, ...]
    row: Any  # None: a message without a model
    tag: str
    note: tuple[int, ...]
    part: int | None


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Asynchronous: discard messages that have not begun to leave."""


@dataclass(frozen=True, slots=True)
class ComputeModel:
    """Asynchronous: compute this model now, so that the messages it is made of need not be held."""

    row: Any


@dataclass(frozen=True, slots=True)
class Look:
    """Asynchronous: save this model with the node's memory, and evaluate it if `evaluate`. Exactly one Looked must follow."""

    row: Any
    memory: Any
    evaluate: bool


@dataclass(frozen=True, slots=True)
class Connect:
    """With partial views: connect to a node in this node's view, and stay connected."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Disconnect:
    """With partial views: close the connection to a node."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Seek:
    """With partial views: connect to the initial peers, those of node.toml."""


@dataclass(frozen=True, slots=True)
class ExchangeViews:
    """With partial views: start an exchange of entries with a peer. Exactly one EntriesCame must follow."""

    to: int
    entries: tuple[tuple[int, int], ...]
    patience: int  # microseconds


@dataclass(frozen=True, slots=True)
class AnswerEntries:
    """With partial views: answer an exchange that a peer started; None: refuse it."""

    reply: Any
    to: int
    entries: tuple[tuple[int, int], ...] | None


@dataclass(frozen=True, slots=True)
class Conclude:
    """All rounds are completed: evaluate the final model and write all results."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave the network: no peer needs this node any more."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop this node with an error; its state is saved."""

    reason: str
    bad_input: bool = False


Event = (
    Started | Renewed | Present | Introduced | Ungreeted | Void | Arrived | Trained | Mixed | Adopted | Asked | Answered
    | Timer | Came | Learnt | Mended | Looked | Approached | EntriesCame | Concluded
)  # fmt: skip
Action = (
    Say | Greet | SetTimer | Train | Send | Mix | Ask | Answer | AnswerMessage | Give | Adopt | Forget | Learn | SendMessage
    | Withdraw | ComputeModel | Look | Connect | Disconnect | Seek | ExchangeViews | AnswerEntries | Conclude | Leave | Fail
)  # fmt: skip
