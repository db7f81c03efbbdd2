"""How messages travel under the simulated clock: in which order, and when they arrive.

  uplink   one queue per sender; a message arrives one latency after its last byte has left
  duplex   the same, and one queue per receiver, in the order of first bytes
  fair     all transfers share all up- and downlinks by max-min fairness, as a fluid

Times are whole microseconds, rates bytes per microsecond.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from epidemic.algorithms.asynchronous import Message

LEAVING, LOST, WITHDRAWN, ARRIVED = "", "lost", "withdrawn", "arrived"

Push = Callable[[int, int, Any], None]
"""Schedules an event: time, node, content."""


class Flight:
    """A message on its way to one receiver."""

    __slots__ = ("begins", "ends", "fate", "left", "message", "rate", "size", "to")

    def __init__(self, message: Message, to: int, size: int, fate: str = LEAVING) -> None:
        self.message = message
        self.to = to
        self.size = size
        self.fate = fate
        self.begins = self.ends = -1  # when its bytes leave the sender
        self.left = float(size)  # fluid model: bytes still to leave, and their rate
        self.rate = 0.0


class LinkWorld(Protocol):
    """Capacities and latencies of all links of the simulated world."""

    uplink: Any  # (n,) bytes per microsecond; inf: no limit
    downlink: Any

    def latency(self, sender: int, receiver: int) -> int:
        """The latency of a link in microseconds."""
        ...


class Uplink:
    """One queue per sender; downlinks have no limit."""

    def __init__(self, world: LinkWorld, nodes: int, push: Push) -> None:
        self._latency = world.latency
        self._up: list[float] = [float(rate) for rate in world.uplink]
        self._push = push
        self.free = [0] * nodes  # when each uplink is free again
        self.busy = [0] * nodes  # microseconds of sending, as far as certain
        self._queue: list[deque[Flight]] = [deque() for _ in range(nodes)]

    def send(self, flight: Flight, now: int) -> None:
        """Add a message to its sender's queue."""
        sender = flight.message.sender
        begins = self.free[sender]
        if begins < now:
            begins = now
        ends = begins + round(flight.size / self._up[sender])
        flight.begins, flight.ends = begins, ends
        self.free[sender] = ends
        self.busy[sender] += ends - begins
        queue = self._queue[sender]
        while queue and queue[0].ends <= now:
            queue.popleft()
        if ends > now:
            queue.append(flight)
        self._leave(flight, sender)

    def _leave(self, flight: Flight, sender: int) -> None:
        self._push(flight.ends + self._latency(sender, flight.to), flight.to, flight)

    def event(self, what: Any, now: int) -> Flight | None:
        """Handle an event of the links; returns the message that arrived by it, if any."""
        return what if what.fate != WITHDRAWN else None

    def withdraw(self, sender: int, now: int) -> list[Flight]:
        """Remove and return messages that have not begun to leave."""
        return self._clear(sender, now, lambda flight: flight.begins > now)

    def cut(self, sender: int, now: int) -> list[Flight]:
        """Remove and return messages that have not left completely, because the sender goes offline."""
        return self._clear(sender, now, lambda flight: flight.ends > now)

    def _clear(self, sender: int, now: int, which: Callable[[Flight], bool]) -> list[Flight]:
        queue = self._queue[sender]
        found = [flight for flight in queue if which(flight)]
        if found:
            kept = [flight for flight in queue if not which(flight)]
            self._queue[sender] = deque(kept)
            self.busy[sender] -= self.free[sender] - max(found[0].begins, now)
            self.free[sender] = kept[-1].ends if kept else now
        return found


class _FirstByte:
    """The first byte of a message arrives."""

    __slots__ = ("flight",)

    def __init__(self, flight: Flight) -> None:
        self.flight = flight


class Duplex(Uplink):
    """One queue at each end; a message passes through while it is still being sent."""

    def __init__(self, world: LinkWorld, nodes: int, push: Push) -> None:
        super().__init__(world, nodes, push)
        self._down: list[float] = [float(rate) for rate in world.downlink]
        self._free_down = [0] * nodes

    def _leave(self, flight: Flight, sender: int) -> None:
        self._push(flight.begins + self._latency(sender, flight.to), flight.to, _FirstByte(flight))

    def event(self, what: Any, now: int) -> Flight | None:
        """Handle a first byte, which enters the receiver's queue, or a last byte, which is an arrival."""
        if not isinstance(what, _FirstByte):
            return super().event(what, now)
        flight = what.flight
        if flight.fate == WITHDRAWN:
            return None
        down = round(flight.size / self._down[flight.to])
        done = max(now + flight.ends - flight.begins, now + down, self._free_down[flight.to] + down)
        self._free_down[flight.to] = done
        self._push(done, flight.to, flight)
        return None


class _Look:
    """The next transfer of the fluid model should be complete, unless rates have changed."""

    __slots__ = ("version",)

    def __init__(self, version: int) -> None:
        self.version = version


class Fair:
    """Max-min fair sharing of all links, recomputed whenever a transfer begins or ends. Slow; used to check the other models."""

    def __init__(self, world: LinkWorld, nodes: int, push: Push) -> None:
        self._latency = world.latency
        self._up: list[float] = [float(rate) for rate in world.uplink]
        self._down: list[float] = [float(rate) for rate in world.downlink]
        self._push = push
        self._flows: list[Flight] = []
        self._at = 0
        self._version = 0
        self.busy = [0] * nodes

    def send(self, flight: Flight, now: int) -> None:
        """Start the transfer of a message."""
        self._flow(now)
        flight.begins = now
        self._flows.append(flight)
        self._share(now)

    def event(self, what: Any, now: int) -> Flight | None:
        """Handle the end of a transfer; the message arrives after its latency."""
        if not isinstance(what, _Look):
            return what if what.fate != WITHDRAWN else None
        if what.version != self._version:
            return None
        self._flow(now)
        # Less than half a microsecond's worth of bytes is rounding error.
        through = [flight for flight in self._flows if flight.left <= flight.rate * 0.5 or flight.rate == math.inf]
        for flight in through:
            flight.ends = now
            self._push(now + self._latency(flight.message.sender, flight.to), flight.to, flight)
        self._flows = [flight for flight in self._flows if flight.ends < 0]
        self._share(now)
        return None

    def withdraw(self, sender: int, now: int) -> list[Flight]:
        """Return nothing: all transfers have begun."""
        return []

    def cut(self, sender: int, now: int) -> list[Flight]:
        """Cancel and return the transfers of a sender that goes offline."""
        self._flow(now)
        found = [flight for flight in self._flows if flight.message.sender == sender]
        self._flows = [flight for flight in self._flows if flight.message.sender != sender]
        self._share(now)
        return found

    def _flow(self, now: int) -> None:
        passed = now - self._at
        if passed:
            for sender in {flight.message.sender for flight in self._flows}:
                self.busy[sender] += passed
            for flight in self._flows:
                flight.left = 0.0 if flight.rate == math.inf else max(0.0, flight.left - flight.rate * passed)
        self._at = now

    def _share(self, now: int) -> None:
        """Set all rates: fix those on the tightest link, then repeat with what is left."""
        self._version += 1
        left = {("up", f.message.sender): self._up[f.message.sender] for f in self._flows}
        left |= {("down", f.to): self._down[f.to] for f in self._flows}
        open_flows = list(self._flows)
        while open_flows:
            users: dict[tuple[str, int], int] = {}
            for flight in open_flows:
                for link in (("up", flight.message.sender), ("down", flight.to)):
                    users[link] = users.get(link, 0) + 1
            link = min(users, key=lambda one: (left[one] / users[one], one))
            rate = left[link] / users[link]
            rest = []
            for flight in open_flows:
                own = (("up", flight.message.sender), ("down", flight.to))
                if link not in own:
                    rest.append(flight)
                    continue
                flight.rate = rate
                for one in own:
                    left[one] = max(0.0, left[one] - rate) if left[one] < math.inf else math.inf
            open_flows = rest
        soonest = min((_time(flight) for flight in self._flows), default=None)
        if soonest is not None:
            self._push(now + soonest, -1, _Look(self._version))


def _time(flight: Flight) -> int:
    """Microseconds until a transfer is complete at its rate."""
    if flight.rate == math.inf or not flight.left:
        return 0
    return max(1, round(flight.left / flight.rate))


LINKS = {"uplink": Uplink, "duplex": Duplex, "fair": Fair}
