"""The committed coin: a node's targets are secret until it sends, and every receiver can then check them.

A node has a hash chain with one link for each round and announces the end of the chain, its commitment, before it begins:

    link[rounds] = a secret        link[t] = H(t + 1, link[t + 1])        commitment = link[-1] = H(0, link[0])

H is BLAKE3, keyed with the run and the node id. The message of round t reveals link[t], from which the targets of that round are drawn. Nobody can
compute a link from earlier ones, so nobody can predict later targets. A receiver hashes from the revealed link to one that it knows. This shows whether
the sender committed to the link, and whether the receiver itself is among the targets.

The number of hashes that one sender can cost is bounded: `rounds` in all, plus FEW for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from math import isqrt

from blake3 import blake3

LINK_BYTES = 32
MOST_ROUNDS = 10_000_000
"""The longest chain: computing it takes about 12 s, storing it 100 kB."""
FEW = 256
"""Hashes always spent to check a message: about 0.3 ms."""
_ID_BYTES = 4

Targets = Callable[[int, int, bytes], Container[int]]
"""The targets of a node in a round, from its node id, the round and the link that it reveals."""


def chain_key(run: bytes, node: int) -> bytes:
    """The key of H for one node of one run; links of one chain are useless in any other."""
    return blake3(b"epidemic coin chain\0" + run + node.to_bytes(8, "little")).digest()


def walk(key: bytes, link: bytes, round: int, to: int) -> bytes:
    """The link of round `to`, which is at most `round`, from the link of `round`."""
    for t in range(round, to, -1):
        link = blake3(t.to_bytes(8, "little") + link, key=key).digest()
    return link


def draw_key(link: bytes, seed: int, round: int) -> int:
    """The key of the stream that draws the targets of a round: 128 bits of (link, public seed, round)."""
    about = b"epidemic coin draw\0" + seed.to_bytes(8, "little") + round.to_bytes(8, "little")
    return int.from_bytes(blake3(about, key=link).digest(16), "little")


class Chain:
    """A node's own hash chain. Stores about sqrt(rounds) links; computing any other takes as many hashes."""

    def __init__(self, secret: bytes, run: bytes, node: int, rounds: int) -> None:
        """Compute the chain from `secret`, 32 bytes known to this node only. A run always has the same chain, also after a restart."""
        self._key = chain_key(run, node)
        self._rounds, self._step = rounds, isqrt(rounds) + 1
        link = blake3(b"epidemic coin seed\0" + run + node.to_bytes(8, "little"), key=secret).digest()
        marks, last = {rounds: link}, rounds
        for mark in range((rounds - 1) // self._step * self._step, -1, -self._step):
            marks[mark] = link = walk(self._key, link, last, mark)
            last = mark
        self._marks = marks
        self.commitment = walk(self._key, link, last, -1)

    def link(self, round: int) -> bytes:
        """The link that the message of this round reveals."""
        mark = min(self._rounds, (round // self._step + 1) * self._step)
        return walk(self._key, self._marks[mark], mark, round)


@dataclass(slots=True)
class _Revealed:
    """What this node knows of a peer's chain."""

    commitment: bytes
    round: int  # the last round whose link was revealed, -1 for none ...
    link: bytes  # ... and that link, or the commitment
    spent: int = 0  # hashes spent on checks that took more than FEW


class Commitments:
    """A node's own chain, and what it knows of the chains of its peers."""

    def __init__(self, chain: Chain, run: bytes, node: int, rounds: int, targets: Targets, saved: bytes = b"") -> None:
        """Start with the known chains of a restart in `saved`; those of another run are ignored."""
        self.commitment = chain.commitment
        self._run, self._node, self._rounds, self._targets = run, node, rounds, targets
        self._known: dict[int, _Revealed] = {}
        entry = _ID_BYTES + LINK_BYTES
        if saved[: len(run)] == run and not (len(saved) - len(run)) % entry:
            for i in range(len(run), len(saved), entry):
                self.commit(int.from_bytes(saved[i : i + _ID_BYTES], "little"), saved[i + _ID_BYTES : i + entry])

    @property
    def saved(self) -> bytes:
        """The peers' commitments, as bytes to keep over a restart."""
        known = (node.to_bytes(_ID_BYTES, "little") + one.commitment for node, one in sorted(self._known.items()))
        return self._run + b"".join(known)

    def commit(self, node: int, commitment: bytes) -> bool:
        """Record a node's commitment; False if it is missing or differs from its first one."""
        if len(commitment) != LINK_BYTES:
            return False
        return self._known.setdefault(node, _Revealed(commitment, -1, commitment)).commitment == commitment

    def problem(self, sender: int, round: int, link: bytes) -> str | None:
        """Why a message with this link does not count; None if its sender has drawn this node in that round."""
        known = self._known.get(sender)
        if known is None or len(link) != LINK_BYTES or not 0 <= round < self._rounds:
            return "wrong-coin"
        hashes = abs(round - known.round)
        if (
            hashes > FEW
        ):  # an honest sender only moves forward, so all its long checks together take at most `rounds` hashes
            known.spent += hashes
            if known.spent > self._rounds:
                return "wrong-coin"
        key = chain_key(self._run, sender)
        if round > known.round:
            fits = walk(key, link, round, known.round) == known.link
        else:
            fits = walk(key, known.link, known.round, round) == link
        if not fits:
            return "wrong-coin"
        if round > known.round:
            known.round, known.link = round, link
        return None if self._node in self._targets(sender, round, link) else "not-drawn"
