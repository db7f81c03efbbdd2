"""Free seat: one place of a process whose method has no rounds, and what of it is kept over a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from epidemic.host.journal import Extra, Journal
from epidemic.net.epoch import first_number
from epidemic.net.free_wire import FreeFormat
from epidemic.net.keys import Identity
from epidemic.net.seat import Seat
from epidemic.protocol.events import SECOND
from epidemic.protocol.free import Free, Memory
from epidemic.protocol.rules import Count
from epidemic.record import Letters, Moment


class FreeSeat(Seat):
    """One place of a method without rounds."""

    member: Free
    format: FreeFormat

    def __init__(self, identity: Identity, position: int, journal: Journal, format: FreeFormat) -> None:
        super().__init__(identity, position, journal, format)
        journal.rounds = float("inf")
        journal.moment = self.moment
        self.memory = Memory()  # as it was when the model was last looked at
        self.loss: float | None = None  # of the last training
        self.own: Tensor | None = None  # what the last training gave: sane, whatever others send   # (d,)
        self.busy = 0.0  # seconds of training

    @property
    def tally(self) -> Mapping[str, int]:
        """Letters by what became of them."""
        return self.member.tally

    def moment(self) -> Moment:
        """Where it stands."""
        seconds, header = self.memory.elapsed / SECOND, self.format.frame_bytes - self.format.body_bytes
        tally, sent = self.tally, int(self.journal.counters.header[0]) // header
        letters = Letters(
            sent + self.undelivered,
            tally.get("counted", 0),
            tally.get("used", 0),
            tally.get("wasted", 0),
            self.undelivered,
        )
        return Moment(
            seconds=round(seconds, 6),
            steps=self.memory.trained * self.journal.experiment.algorithm.local_steps,
            letters=letters,
            busy=min(1.0, self.busy / seconds) if seconds else 0.0,
            online=self.journal.alive,
        )

    # -- what is saved ------------------------------------------------------------------------------------------------

    def extra(self) -> Extra:
        """What goes into a checkpoint besides the model: what the node remembers, and tallies."""
        memory = self.memory
        kept = {"elapsed": memory.elapsed, "trained": memory.trained, "number": memory.number}
        kept |= {"busy": int(self.busy * SECOND), "undelivered": self.undelivered}
        kept |= {f"choices.{purpose}": count for purpose, count in memory.choices.items()}
        kept |= {f"state.{name}": value for name, value in memory.state.items()}
        return Extra({}, self.tallies() | {f"free.{key}": value for key, value in kept.items()})

    def restored(self, extra: Extra | None) -> tuple[Memory, dict[str, int], Count]:
        """What a checkpoint had added: what the node remembers, tallies of letters, other counts.

        Messages are numbered from a new epoch on, so that numbers grow although messages were sent after the checkpoint.
        """
        memory, tally, count = Memory(), dict[str, int](), Count()
        if extra is not None:
            tally, count = self.counted({k: v for k, v in extra.tallies.items() if not k.startswith("free.")})
            kept = {k.removeprefix("free."): v for k, v in extra.tallies.items() if k.startswith("free.")}
            memory.elapsed, memory.trained, memory.number = (kept.pop(k, 0) for k in ("elapsed", "trained", "number"))
            self.busy, self.undelivered = kept.pop("busy", 0) / SECOND, kept.pop("undelivered", 0)
            for key, value in kept.items():
                kind, _, name = key.partition(".")
                (memory.choices if kind == "choices" else memory.state)[name] = value
        memory.number = first_number(self.identity.folder, memory.number)
        self.memory = memory
        return memory, tally, count

    # -- for people ---------------------------------------------------------------------------------------------------

    def more_status(self) -> dict[str, Any]:
        """Trainings, and how much time is left."""
        free = self.member
        left = (free.rules.stop - free.elapsed) / SECOND
        return {"round": max(free.round, 0), "trained": free.trained, "left": round(max(0.0, left), 3)}
