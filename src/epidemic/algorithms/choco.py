"""CHOCO-SGD (Koloskova et al., 2019): nodes with fixed neighbours send compressed differences, and nothing is lost for good.

Every node has a public copy h of its model, which its neighbours know because they have received every change of it. In a round it trains to x', sends the
compressed difference q = C(x' - h), and adds q to h. It keeps only the weighted sum s of its neighbours' copies and its own, and adds the weighted sum of
what it receives. Its new model is x' + eta (s - h). With doubly stochastic weights the mean of all models changes by gradients only, for any C and eta;
consensus needs an eta that is small enough for the compression. With eta = 1 and no compression it is D-PSGD.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from torch import Tensor

from epidemic.algorithms.base import Column, Inbox, LocalTraining, RoundContext, Rows
from epidemic.compression import Codec, Partial, TopK, codec_from
from epidemic.core.errors import BadInput, require_real
from epidemic.learner import Learner


class Choco(LocalTraining, frozen=True, tag="choco"):
    """Local SGD, and a consensus step over public copies that are kept up to date by compressed differences; static graphs only."""

    same_neighbours: ClassVar[bool] = True  # a new neighbour would not know the copy
    exact_exchange = True  # a node that misses one difference stays out of sync

    compressor: Any = msgspec.field(default_factory=lambda: TopK(0.1))
    """A codec as in [compression]; what it leaves out is sent later."""
    eta: float = 0.2
    """The consensus step. The stronger the compression, the smaller; too large a one diverges."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.compressor, Codec):
            codec = codec_from(self.compressor, "algorithm.compressor")
            msgspec.structs.force_setattr(self, "compressor", codec)
        require_real("algorithm.eta", self.eta, high=1, above=0)
        if isinstance(self.compressor, Partial) and self.compressor.fill != "count":
            raise BadInput(
                f'algorithm.compressor.fill = "{self.compressor.fill}" has no meaning for algorithm.kind = "choco", which sends later what'
                " a difference leaves out; remove fill"
            )

    def columns(self, size: int, dtype: str) -> tuple[Column, ...]:
        """One column: the compressed difference."""
        return (Column("q", (size,), dtype),)

    def init(self, x: Tensor) -> Rows:
        """The initial state: all nodes start from one model and know each other's copies."""
        return self.with_memory({"x": x, "h": x.clone(), "s": x.clone()})

    def local_update(self, state: Rows, learner: Learner, context: RoundContext) -> tuple[Rows, Rows, Tensor]:
        """Train; the message is what the copy lacks, before it is compressed."""
        loss = self.train(state["x"], state, learner, context)
        return state, {"q": state["x"] - state["h"]}, loss

    def aggregate(self, state: Rows, inbox: Inbox) -> Rows:
        """Bring the copies up to date, and step towards their mean."""
        h = state["h"] + inbox.own("q")  # as it was sent
        s = state["s"] + inbox.mean("q")
        return {**state, "x": state["x"] + self.eta * (s - h), "h": h, "s": s}

    def give(self, state: Rows) -> Rows:
        """The model, in place of a difference."""
        return {"q": state["x"]}

    def adopt(self, state: Rows, given: Rows) -> Rows:
        """Another model; the copies stay what the neighbours think."""
        return {**state, "x": given["q"]}
