"""What is counted under a simulated clock, and recorded on request."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tally:
    """Messages and bytes of all nodes since the start; every message sent is received, lost or on its way."""

    sent: int = 0
    received: int = 0
    used: int = 0
    wasted: int = 0
    lost: int = 0
    in_flight: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_lost: int = 0
    bytes_in_flight: int = 0
    steps: int = 0
    ages: list[int] = field(default_factory=list)  # microseconds, of messages used since the last record


@dataclass(frozen=True)
class Span:
    """A span of time in which a node did one thing; seconds."""

    node: int
    kind: str  # training, sending, offline
    start: float
    end: float


@dataclass(frozen=True)
class Trip:
    """The way of one message; seconds."""

    sender: int
    receiver: int
    left: float
    arrived: float
    fate: str  # arrived, lost


@dataclass(frozen=True)
class Closing:
    """A node closed a round with these messages; seconds."""

    node: int
    round: int
    at: float
    senders: tuple[int, ...]
    ages: tuple[int, ...]  # rounds, of each message


@dataclass
class Log:
    """Events recorded for timelines and tests."""

    spans: list[Span] = field(default_factory=list)
    trips: list[Trip] = field(default_factory=list)
    events: list[tuple[int, int, int]] = field(default_factory=list)  # (time, kind, node)
    closings: list[Closing] = field(default_factory=list)  # of methods with rounds

    def span(self, node: int, kind: str, start: int, end: int) -> None:
        """Record a span of a node."""
        if end > start:
            self.spans.append(Span(node, kind, start / 1e6, end / 1e6))
