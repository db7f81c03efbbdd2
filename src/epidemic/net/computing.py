"""Computing: what the main thread of a process does for its nodes, whatever their method: give and take models, conclude, fail, save."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from epidemic.errors import BadInput, RunFailed
from epidemic.host.journal import Host
from epidemic.net.isolation import said_of_node
from epidemic.net.seat import Seat
from epidemic.protocol import events as e

S = TypeVar("S", bound=Seat)
Work = Sequence[tuple[Any, e.Action]]


@dataclass(frozen=True)
class Calls:
    """What computing has done by the rest of the process."""

    done: Callable[[Sequence[tuple[int, e.Event]]], None]  # tells what has been computed
    flush: Callable[[float], None]  # waits until letters are on their way
    refused: Callable[[], dict[str, int]]  # what was refused
    gave_up: Callable[[Seat], None]  # tells the others
    say: Callable[[Seat, str], None]


class Computing(Generic[S]):
    """The computing of one process."""

    def __init__(self, host: Host, seats: Mapping[int, S], calls: Calls) -> None:
        self._host = host
        self._seats = seats
        self._calls = calls
        self._experiment = host.population.setup.experiment

    # -- what a method adds -------------------------------------------------------------------------------------------

    def compute(self, found: Work) -> None:
        """Do what the protocols want computed."""
        raise NotImplementedError

    def settle_end(self, seat: S) -> None:
        """Bring a node's run to its end: its last record, and what is saved."""
        raise NotImplementedError

    def rewind(self, seat: S) -> None:
        """Put a node back to where it can go on from."""
        raise NotImplementedError

    # -- the end of a node --------------------------------------------------------------------------------------------

    def conclude(self, seat: S) -> None:
        """Test the model and write everything down; the others are told."""
        self._calls.flush(self._experiment.network.deadline)
        seat.settle_books()
        self.settle_end(seat)

        def about(_: int) -> dict[str, Any]:
            status = seat.status(self._calls.refused())
            names = ("longest_wait", "letters", "refusals", "lost", "jumped", "undelivered", "local")
            return {name: getattr(status, name) for name in names}

        summary = seat.journal.conclude(about)
        found, delivery = summary.final_accuracy, summary.delivery
        text = "finished" + ("" if found is None else f": accuracy {found.mean:.2%} on the full test set")
        if delivery is not None:
            text += f", {delivery.heard} of {delivery.expected} expected messages heard"
        self._calls.say(seat, text)
        if alone := said_of_node(delivery, self._experiment.network.deadline):
            self._calls.say(seat, f"warning: {alone}")
        self._calls.done([(seat.place, e.Concluded())])

    def fail(self, seat: S, action: e.Fail) -> None:
        """A node cannot go on: save what it has, and let the other nodes of the process go on."""
        reason = action.reason
        seat.error = BadInput(reason) if action.bad_input else RunFailed(f"{reason}{seat.journal.kept}")
        self._save(seat)
        seat.mark("failed", str(seat.error))
        seat.over = True
        self._calls.gave_up(seat)

    def mended(self, seat: S) -> None:
        """Count what was thrown away, and say it once."""
        seat.mended += 1
        if seat.mended == 1:
            self._calls.say(
                seat,
                f"{seat.member.unit} {seat.member.round}: what others sent made no sane model"
                f" (network.largest = {self._experiment.network.largest:g}): going on with its own (further ones are counted only)",
            )

    # -- stopping -----------------------------------------------------------------------------------------------------

    def save_all(self) -> None:
        """Save every node that is not at its end."""
        for seat in self._seats.values():
            if not seat.over:
                self._save(seat)

    def _save(self, seat: S) -> None:
        self.rewind(seat)
        if seat.journal.recorded >= 0 and not seat.journal.over:
            seat.journal.save()
