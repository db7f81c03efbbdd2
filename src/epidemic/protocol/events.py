"""What happens to a node, and what it wants done.

Messages, replies and questions' askers are opaque here: whoever drives the protocol knows what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SECOND = 1_000_000
"""Microseconds."""

# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The node has its place in the network."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The connections were opened anew, and this node is shown by another token."""

    token: str


@dataclass(frozen=True, slots=True)
class Present:
    """The network shows, or no longer shows, that somebody is at a place; the token is another one for each start."""

    node_id: int
    token: str
    there: bool


@dataclass(frozen=True, slots=True)
class Introduced:
    """A node introduced itself, and its signature is in order."""

    node_id: int
    carrier: int  # the place whose connection carries its messages; its own, unless one process has several nodes
    token: str
    round: int  # the round that it says to be in; -1: not begun
    start: int  # the round that it takes part from
    differs: tuple[str, ...] = ()  # what keeps it apart from this node
    finished: bool = False  # whether it has come to its end
    gone: bool = False  # whether it has given up, although its process may still be there
    commitment: bytes = b""  # with a committed coin, the end of its hash chain


@dataclass(frozen=True, slots=True)
class Ungreeted:
    """Somebody who was greeted did not answer in an intelligible way."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Void:
    """The certificates of these places count no more."""

    node_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message came whose signature, form and numbers are in order, over the connection of its sender."""

    sender: int
    round: int
    graph: bytes
    message: Any


@dataclass(frozen=True, slots=True)
class Trained:
    """The training of a round is done."""

    round: int


@dataclass(frozen=True, slots=True)
class Mixed:
    """What was heard in a round is mixed, and everything that was due is written down."""

    round: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """The model that was given is taken."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody asks: "again" (its message of a round), "model" (the current model) or "offer" (whether a message is welcome)."""

    topic: str
    by: int
    round: int
    reply: Any


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back to a question: ACCEPTED, BUSY, NOTHING, NOT_YET, a given model, or None for nothing intelligible in time."""

    topic: str
    by: int
    round: int
    answer: Any


@dataclass(frozen=True, slots=True)
class Timer:
    """The time has come that was asked for."""

    name: str


@dataclass(frozen=True, slots=True)
class Came:
    """Without rounds: a message came that is in order, over the connection of its sender; its numbers grow."""

    sender: int
    number: int
    note: tuple[int, ...]
    message: Any


@dataclass(frozen=True, slots=True)
class Learnt:
    """Without rounds: a training is done, and this came out."""

    count: int
    row: Any


@dataclass(frozen=True, slots=True)
class Mended:
    """Without rounds: the model made no sense, and this one is used instead."""

    row: Any


@dataclass(frozen=True, slots=True)
class Looked:
    """Without rounds: the model was evaluated and written down as it was asked for."""


@dataclass(frozen=True, slots=True)
class Approached:
    """With views: somebody begins an exchange of entries, each signed by its own place."""

    by: int
    entries: tuple[tuple[int, int], ...]  # places and ages
    reply: Any


@dataclass(frozen=True, slots=True)
class EntriesCame:
    """With views: the answer to an exchange that this node began; None: nothing intelligible in time, or it is `refused`."""

    by: int
    entries: tuple[tuple[int, int], ...] | None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Concluded:
    """The final test is done and written down."""


ACCEPTED, BUSY, NOTHING, NOT_YET = "accepted", "busy", "nothing", "not yet"

# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say:
    """Tell people."""

    text: str


@dataclass(frozen=True, slots=True)
class Greet:
    """Introduce this node to whoever is at a place; None: to everybody."""

    node_id: int | None


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Let a Timer of this name come at this time, instead of any that was asked for before."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Train:
    """Train for a round; the message will go to so many others."""

    round: int
    targets: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send the message of a round to these places."""

    round: int
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mix:
    """Close a round: mix these messages, by ascending sender."""

    round: int
    messages: tuple[tuple[int, Any], ...]
    ages: tuple[int, ...] = ()  # how many rounds old each of them is; empty: none is of an earlier round


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask somebody; exactly one Answered must follow."""

    topic: str
    to: int
    round: int
    patience: int  # microseconds


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a question with a word."""

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
    """Answer a question with the current model, when nothing changes it."""

    reply: Any
    to: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take the model that somebody gave."""

    message: Any


@dataclass(frozen=True, slots=True)
class Forget:
    """Messages of rounds before this one need not be kept."""

    before: int


@dataclass(frozen=True, slots=True)
class Learn:
    """Without rounds: train this model; the count-th training of this node. Exactly one Learnt must follow."""

    count: int
    row: Any


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Without rounds: send this to these places."""

    number: int
    to: tuple[int, ...]
    row: Any  # None: words only
    tag: str
    note: tuple[int, ...]
    part: int | None


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Without rounds: take back messages that have not begun to leave."""


@dataclass(frozen=True, slots=True)
class ComputeModel:
    """Without rounds: this model is made of messages that came; work it out, so that they need not be held."""

    row: Any


@dataclass(frozen=True, slots=True)
class Look:
    """Without rounds: evaluate this model where `evaluate`, and keep it with what the node remembers. Exactly one Looked must follow."""

    row: Any
    memory: Any
    evaluate: bool


@dataclass(frozen=True, slots=True)
class Connect:
    """With views: connect to a place whose entry this node has, and stay connected."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Disconnect:
    """With views: a connection of this node's own to a place is not needed any more."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Seek:
    """With views: connect to those whom the node was told of at first."""


@dataclass(frozen=True, slots=True)
class ExchangeViews:
    """With views: begin an exchange of entries with somebody. Exactly one EntriesCame must follow."""

    to: int
    entries: tuple[tuple[int, int], ...]
    patience: int  # microseconds


@dataclass(frozen=True, slots=True)
class AnswerEntries:
    """With views: answer an exchange that somebody began; None: refuse it."""

    reply: Any
    to: int
    entries: tuple[tuple[int, int], ...] | None


@dataclass(frozen=True, slots=True)
class Conclude:
    """All rounds are done: show it, test the model, write everything down."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Nobody needs this node any more."""


@dataclass(frozen=True, slots=True)
class Fail:
    """This node cannot go on; what it has is saved."""

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
