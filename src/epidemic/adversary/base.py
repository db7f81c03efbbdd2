"""What an adversary is: what malicious nodes do instead of learning and sending what they learnt.

An adversary is a frozen value. It writes the messages of all malicious nodes together, because they work together; where it is called, and who
is malicious, is the host's business. It says by attributes what it needs, so that nothing is computed that nobody looks at:

    trains       its nodes take part: they train on data of their own and aggregate what they hear
    lies         it writes messages; if not, its nodes send what they have trained
    personal     every receiver gets a message of its own, whatever the adversary knows
    looks_back   it needs models as they were before the round's training
    imagines     what it looks at are the models that honest nodes would send, had they trained on flipped labels

Shapes: h honest nodes of a round, q models that are looked at, k malicious nodes that write to one receiver, d numbers of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.core.errors import BadInput, require_choice, require_int
from epidemic.core.graph import FloatArray, Graph
from epidemic.core.rng import Streams
from epidemic.core.settings import Settings
from epidemic.data import Dataset, Samples

Ids = NDArray[np.int64]
Knows = Literal["all", "receiver", "messages"]
KNOWS = ("all", "receiver", "messages")
DATA = ("auto", "honest", "all")


@dataclass(frozen=True, eq=False)
class Sight:
    """A round, as the malicious nodes see it after the honest ones have trained and before anything is sent."""

    round: int
    graph: Graph  # who means to send to whom
    malicious: Ids  # (b,)
    honest: Ids  # (h,) those that take part in the round, ascending
    rows: Tensor  # (h, d) what they are about to send
    before: Tensor | None  # (d,) the mean of their models before training, for those that look back
    streams: Streams


@dataclass(frozen=True, eq=False)
class Scene:
    """What malicious nodes know when they write to one receiver, or the same to all of them."""

    sight: Sight
    senders: Ids  # (k,) the malicious nodes that write, ascending
    honest: Tensor  # (q, d) the honest models that they look at; where knows = "receiver" its own is the first
    aggregate: Callable[[Tensor], Tensor]
    """What the receiver's rule would make of these inputs, its own first.   # (m, d) -> (d,)"""
    notes: Mapping[str, Tensor] = field(default_factory=dict)
    """What the adversary worked out for the round."""
    receiver: int | None = None  # None: all of them
    own: Tensor | None = None  # (d,) the receiver's own model
    received: Tensor | None = None  # (g, d) the honest messages to it
    weights: FloatArray | None = None  # (1 + g,) of the weighted average, its own first
    malicious_weight: float = 0.0  # what is left for the malicious messages together
    trained: Tensor | None = None  # (k, d) of nodes that train: what they would send if they were honest ...
    untrained: Tensor | None = None  # (k, d) ... and what they had before

    @property
    def count(self) -> int:
        """How many malicious messages there are, k."""
        return len(self.senders)

    @cached_property
    def mean(self) -> Tensor:
        """The mean of the honest models that are looked at.   # (d,)"""
        return self.honest.mean(0)

    @cached_property
    def deviation(self) -> Tensor:
        """Their standard deviation, coordinate by coordinate, with q - 1 in the denominator; of a single one 0.   # (d,)"""
        q = len(self.honest)
        if q == 1:
            return torch.zeros_like(self.honest[0])
        apart = self.honest - self.mean
        return apart.mul_(apart).sum(0).div_(q - 1).sqrt_()  # torch.std along this axis takes ten times as long


class Adversary(Settings, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the adversaries. Derive from it and write `message`."""

    trains: ClassVar[bool] = False
    lies: ClassVar[bool] = True
    personal: ClassVar[bool] = False
    looks_back: ClassVar[bool] = False
    imagines: ClassVar[bool] = False
    static_only: ClassVar[bool] = False
    """Whether it needs one graph for all rounds whose links go both ways."""

    nodes: int | tuple[int, ...] = 1
    """How many nodes are malicious, drawn by the seed, or a list of them."""
    data: Literal["auto", "honest", "all"] = "auto"
    """honest: the data is shared out among honest nodes only. all: malicious nodes hold their share, too. auto: what the adversary needs."""
    start: int = 0
    """The round from which on they are malicious; until then they do as honest nodes do."""

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, int | str):  # a list or range from Python, too
            msgspec.structs.force_setattr(self, "nodes", tuple(self.nodes))
        if isinstance(self.nodes, tuple):
            for node in self.nodes:
                require_int("adversary.nodes", node, 0)
            if len(set(self.nodes)) < len(self.nodes):
                raise BadInput(f"adversary.nodes = {list(self.nodes)} must be different")
        else:
            require_int("adversary.nodes", self.nodes, 0)
        require_choice("adversary.data", self.data, DATA)
        require_int("adversary.start", self.start, 0)
        if self.data == "honest" and (self.trains or self.start):
            why = f"adversary.start = {self.start}" if self.start else f'adversary.kind = "{self.called}"'
            raise BadInput(
                f'adversary.data = "honest" leaves its nodes nothing to train on, and {why} needs it; use "all"'
            )

    @property
    def called(self) -> str:
        """Its kind, as files call it."""
        return str(self.__struct_config__.tag or type(self).__name__)

    @property
    def size(self) -> int:
        """How many nodes are malicious."""
        return len(self.nodes) if isinstance(self.nodes, tuple) else self.nodes

    @property
    def holds_data(self) -> bool:
        """Whether malicious nodes have a share of the data."""
        return self.data == "all" or (self.data == "auto" and (self.trains or self.start > 0))

    @property
    def sees(self) -> Knows:
        """Which honest models it looks at."""
        return "all"

    @property
    def alike(self) -> bool:
        """Whether all receivers get the same."""
        return self.sees != "receiver" and not self.personal

    def check(self, n: int) -> None:
        """Raise BadInput if there are no such nodes, or too many."""
        if isinstance(self.nodes, tuple) and self.nodes and max(self.nodes) >= n:
            raise BadInput(f"adversary.nodes names node {max(self.nodes)}, but nodes are numbered 0 to {n - 1}")
        if self.size and 2 * self.size >= n:
            raise BadInput(
                f"adversary.nodes = {self.size} must be less than half of nodes = {n}: no rule can tell a majority of liars from honest"
                f" nodes; use at most {(n - 1) // 2}"
            )

    def members(self, n: int, streams: Streams) -> Ids:
        """The malicious nodes of a run, ascending. They are chosen before any graph is drawn, by a stream of their own.   # (b,)"""
        if isinstance(self.nodes, tuple):
            return np.sort(np.array(self.nodes, dtype=np.int64))
        return np.sort(streams("adversary").permutation(n)[: self.nodes])

    # -- data -------------------------------------------------------------------------------------------------------------

    def check_data(self, data: Dataset) -> None:
        """Raise BadInput if it can do nothing with data like this."""

    def poisoned(self, samples: Samples, data: Dataset) -> Samples | None:
        """What its nodes train on instead of these samples of theirs; None: on them as they are."""
        return None

    @property
    def poison_share(self) -> float:
        """The share of each batch that is poisoned."""
        return 1.0

    def triggered(self, samples: Samples, data: Dataset) -> Samples | None:
        """Test samples with the targets that the adversary wants; its success rate is the accuracy on them. None: it has no such aim."""
        return None

    # -- messages ---------------------------------------------------------------------------------------------------------

    def prepare(self, sight: Sight, memory: dict[str, Tensor]) -> dict[str, Tensor]:
        """What it works out once a round, for `Scene.notes`. `memory` is its own, is kept from round to round and saved with the run."""
        return {}

    def message(self, scene: Scene) -> Tensor | None:
        """What the malicious nodes send.

        Several threads may call it at once, so nothing may be remembered.

        Args:
            scene: What they know.

        Returns:
            One message of all of them, or one of each; None: nothing.   # (d,) or (k, d)
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method message(scene)")


class Informed(Adversary, frozen=True):
    """Base of adversaries whose knowledge is a setting."""

    knows: Knows = "receiver"
    """all: every honest model of the round. receiver: that of the receiver, and the honest messages to it. messages: what malicious
    nodes themselves receive."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("adversary.knows", self.knows, KNOWS)

    @property
    def sees(self) -> Knows:
        """Whose messages the adversary looks at, as set by `knows`."""
        return self.knows
