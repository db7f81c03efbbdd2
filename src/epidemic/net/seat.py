"""Seat: one place of a process: its decisions, its run, and what it has sent. What belongs to methods without rounds is in `free_seat`."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from epidemic.algorithms import Column, Rows
from epidemic.errors import EpidemicError
from epidemic.host.coding import Coder, letter_in
from epidemic.host.journal import Extra, Journal
from epidemic.net.keys import Identity
from epidemic.net.status import Status
from epidemic.net.wire import Format, Letter
from epidemic.protocol.events import SECOND
from epidemic.protocol.member import Member
from epidemic.protocol.rounds import Rounds
from epidemic.protocol.rules import Count
from epidemic.record import Delivery

KEPT = ("lost", "jumped", "taken", "expected", "heard", "lonely", "asked", "longest_wait")
"""What a node counts besides messages, and goes on counting after a restart."""
KNOWN, SAMPLE = "known", "sample"
"""What a checkpoint calls the bytes of whom a node knows."""
COMMITTED = "committed"
"""What a checkpoint calls the bytes of what others have committed to."""

with warnings.catch_warnings():  # PyTorch warns once that letters cannot be written to; nobody writes to them
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0\0\0\0", dtype=torch.float32)


class Seat:
    """One place, whatever its method."""

    def __init__(self, identity: Identity, position: int, journal: Journal, format: Format) -> None:
        self.identity = identity
        self.place = identity.place
        self.position = position
        self.journal = journal
        self.format = format
        self.samples = int(journal.setup.samples[position])
        self.member: Member
        self.error: EpidemicError | None = None
        self.over = False
        self.mended = 0  # mixtures that were thrown away because they were insane
        self._lock = threading.Lock()
        self._letters = self._bytes = self._asked = self._told = 0
        self.undelivered = self.local = 0
        self._repeated: Counter[str] = Counter()  # messages that came and were not looked at

    # -- letters ------------------------------------------------------------------------------------------------------

    def seal(self, round: int, graph: bytes, row: dict[str, Tensor]) -> bytearray:
        """A signed frame with these numbers."""
        tensors = {name: raw_bytes(numbers) for name, numbers in row.items()}
        return self.format.seal(round, self.place, graph, tensors, self.identity.key, self.samples)

    def sent(self, letters: int, left: bool, *, local: bool = False, each: int | None = None) -> None:
        """So many letters left, or did not; called by any thread. `each`: the bytes of their numbers, if not the usual ones."""
        with self._lock:
            if left:
                self._letters += letters
                self._bytes += letters * (self.format.body_bytes if each is None else each)
                self.local += letters * local
            else:
                self.undelivered += letters

    def repeated(self, outcome: str) -> None:
        """A message came that was not looked at, because it or enough of its kind had come before; called by any thread."""
        with self._lock:
            self._repeated[outcome] += 1

    @property
    def letters(self) -> Counter[str]:
        """Letters by what became of them, those that were not looked at included."""
        with self._lock:
            return Counter(self.tally) + self._repeated

    def told(self, numbers: int) -> None:
        """So many bytes left that are no letter: whom this node knows."""
        with self._lock:
            self._told += numbers

    def settle_books(self) -> None:
        """Put what was sent since the last time into the run's books."""
        with self._lock:
            letters, self._letters = self._letters, 0
            numbers, self._bytes = self._bytes, 0
            told, self._told = self._told, 0
        asked, self._asked = self.member.count.asked - self._asked, self.member.count.asked
        self.journal.counters.sent(letters, numbers, asked, told)

    def mark(self, state: str, why: str = "") -> None:
        """Say in the run's directory how it is, unless it has come to its end there."""
        store = self.journal.store
        if store is not None and not store.finished and not self.journal.unconfirmed:
            store.mark(state, why)

    # -- what a method adds -------------------------------------------------------------------------------------------

    @property
    def tally(self) -> Mapping[str, int]:
        """Letters by what became of them."""
        raise NotImplementedError

    def extra(self) -> Extra:
        """What goes into a checkpoint besides the model."""
        raise NotImplementedError

    def more_status(self) -> dict[str, Any]:
        """What is said of it besides."""
        return {}

    # -- what is saved ------------------------------------------------------------------------------------------------

    def tallies(self) -> dict[str, int]:
        """What was counted, for a checkpoint."""
        count = self.member.count
        found = {f"letters.{k}": v for k, v in self.letters.items()}
        found |= {f"refused.{k}": v for k, v in count.refused.items()}
        return found | {k: getattr(count, k) for k in KEPT}

    def counted(self, tallies: Mapping[str, int]) -> tuple[dict[str, int], Count]:
        """Tallies of letters and other counts, from a checkpoint."""
        count, tally = Count(), dict[str, int]()
        for key, value in tallies.items():
            kind, _, what = key.partition(".")
            if kind == "letters":
                tally[what] = value
            elif kind == "refused":
                count.refused[what] = value
            elif hasattr(count, key):
                setattr(count, key, value)
        self._asked = count.asked
        return tally, count

    # -- for people ---------------------------------------------------------------------------------------------------

    def status(self, refused: dict[str, int]) -> Status:
        """How this node is; `refused` is what its process has refused."""
        member, journal = self.member, self.journal
        count, tally = member.count, self.letters
        last = journal.records[-1] if journal.records else None
        refusals = dict(count.refused)
        for reason, times in refused.items():
            refusals[reason] = refusals.get(reason, 0) + times
        if self.mended:
            refusals["insane"] = refusals.get("insane", 0) + self.mended
        sent = journal.counters
        about: dict[str, Any] = {
            "round": max(member.round, member.done),
            "rounds": member.rules.rounds,
            "undelivered": self.undelivered,
            "limit": 0.0,
        }
        return Status(
            place=self.place,
            state=member.phase,
            accuracy=None if last is None or last.accuracy is None else last.accuracy.mean,
            loss=None if last is None else last.loss.mean,
            bytes=int(sent.model[0] + sent.header[0] + sent.control[0]),
            alive=1 + len(member.roster.alive(member.now)),
            nodes=journal.experiment.nodes,
            late=max(0, tally.get("late", 0)),
            lost=count.lost,
            refused=sum(refusals.values()),
            jumped=count.jumped,
            longest_wait=round(count.longest_wait / SECOND, 3),
            letters={k: v for k, v in tally.items() if v > 0},
            refusals={k: v for k, v in refusals.items() if v > 0},
            local=self.local,
            **about | self.more_status(),
        )


@dataclass
class Outgoing:
    """The letter of a round: its numbers, and sealed where it leaves the process."""

    round: int
    targets: tuple[int, ...]
    row: dict[str, Tensor]  # by column; its bytes where it is compressed
    frame: bytearray | None = None
    payload: Any = None

    def sealed(self, seat: Seat, graph: bytes) -> bytearray:
        """The signed frame; made once."""
        if self.frame is None:
            self.frame = seat.seal(self.round, graph, self.row)
        return self.frame


class RoundSeat(Seat):
    """One place of a method with rounds."""

    member: Rounds

    def __init__(self, identity: Identity, position: int, journal: Journal, format: Format) -> None:
        super().__init__(identity, position, journal, format)
        journal.delivery = self.delivery
        self.kept: dict[int, Outgoing] = {}
        self.message: Rows = {}  # (1, ...) what it emitted in the round that it is in
        self.loss = torch.zeros(1)
        self.before: Rows | None = None  # its state when the round began
        self.own: Rows | None = None  # its state before it last mixed
        self.remembers: Callable[[], dict[str, bytes]] | None = (
            None  # whom it knows, for a checkpoint, where it does not know everybody
        )

    @property
    def said(self) -> dict[str, Tensor]:
        """What leaves it of that, a row for each column."""
        return {name: rows[0] for name, rows in letter_in(self.message).items()}

    def keep(self, letter: Outgoing) -> None:
        """Keep a letter for those who ask for it again."""
        self.kept[letter.round] = letter

    def forget(self, before: int) -> None:
        """Letters of rounds before this one are not asked for any more."""
        self.kept = {round: letter for round, letter in self.kept.items() if round >= before}

    @property
    def tally(self) -> Mapping[str, int]:
        """Letters by what became of them."""
        return self.member.mailbox.tally

    def extra(self) -> Extra:
        """What goes into a checkpoint besides the model: tallies, and with a barrier the letters that may be asked for again."""
        tensors: dict[str, Tensor] = {}
        if self.member.rules.barrier:
            for round, letter in list(self.kept.items()):
                tensors |= {f"letter.{round}.{name}": row for name, row in letter.row.items()}
        if self.remembers is not None:
            for name, raw in self.remembers().items():
                tensors[name] = torch.tensor(list(raw), dtype=torch.uint8)
        if self.member.coin is not None:
            tensors[COMMITTED] = torch.tensor(list(self.member.coin.saved), dtype=torch.uint8)
        return Extra(tensors, self.tallies())

    def restored(
        self, extra: Extra | None, targets: Callable[[int], tuple[int, ...]]
    ) -> tuple[dict[str, int], Count, dict[int, tuple[int, ...]]]:
        """What a checkpoint had added: tallies of letters, other counts, and the targets of the letters that are kept."""
        if extra is None:
            return {}, Count(), {}
        tally, count = self.counted(extra.tallies)
        rows: dict[int, dict[str, Tensor]] = {}
        for key, row in extra.tensors.items():
            if key.startswith("letter."):
                _, number, name = key.split(".", 2)
                rows.setdefault(int(number), {})[name] = row
        for round in sorted(rows):
            self.keep(Outgoing(round, targets(round), rows[round]))
        return tally, count, {round: letter.targets for round, letter in self.kept.items()}

    def delivery(self) -> Delivery:
        """How many messages counted of those expected. Parts are read before sums, because another thread may go on counting."""
        recent, count = list(self.member.recent), self.member.count
        lonely = count.lonely
        return Delivery(
            rounds=count.taken,
            lonely=min(lonely, count.taken),
            expected=count.expected,
            heard=count.heard,
            recent_rounds=min(len(recent), count.taken),
            recent_expected=sum(expected for _, expected in recent),
            recent_heard=sum(heard for heard, _ in recent),
        )

    def more_status(self) -> dict[str, Any]:
        """What is said of rounds."""
        rounds = self.member
        return {
            "undelivered": self.undelivered + rounds.offers.undelivered,
            "limit": round(rounds.pace.limit / SECOND, 3),
            "known": None if rounds.known is None else len(rounds.known.side.places),
            "delivery": self.delivery(),
        }


def raw_bytes(row: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A row's numbers as bytes, sharing its memory where it is on the CPU."""
    return row.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def rows_of(
    letter: Letter | dict[str, Tensor], columns: tuple[Column, ...], coder: Coder | None = None
) -> dict[str, Tensor]:
    """The numbers of a letter, or the bytes of a compressed one, without copying them."""
    if isinstance(letter, dict):  # of a place of the same process
        return letter
    if coder is not None:
        return {name: torch.frombuffer(raw, dtype=torch.uint8) for name, raw in letter.tensors.items()}
    return {
        column.name: torch.frombuffer(letter.tensors[column.name], dtype=column.torch_dtype).reshape(column.shape)
        for column in columns
    }
