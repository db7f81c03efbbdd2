"""CHOCO-SGD (Koloskova et al., 2019): nodes with the same neighbours for ever send compressed differences, and nothing is lost for good.

Every node has a public copy h of its model, which its neighbours know because they have heard of every change of it. In a round it trains to x', sends the compressed
difference q = C(x' - h), and adds q to h. Of its neighbours' copies it keeps the weighted sum s alone, its own included, and adds the weighted
sum of what it hears. Its new model is x' + eta (s - h). With weights that are doubly stochastic the mean of all models changes by
gradients only, whatever C and eta are; that the nodes come together needs an eta that is small enough for the compression. With eta = 1 and no
compression it is D-PSGD.
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

    same_neighbours: ClassVar[bool] = True  # who hears of a node for the first time does not know its copy
    exact_exchange = True  # who has missed a difference would have a wrong copy for ever

    compressor: Any = msgspec.field(default_factory=lambda: TopK(0.1))
    """A codec, as [compression] has them; what it leaves out comes later."""
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
                f'algorithm.compressor.fill = "{self.compressor.fill}" has no meaning for algorithm.kind = "choco", where what a difference'
                " leaves out comes later; leave fill out"
            )

    def columns(self, size: int, dtype: str) -> tuple[Column, ...]:
        """The difference."""
        return (Column("q", (size,), dtype),)

    def init(self, x: Tensor) -> Rows:
        """Everybody starts from one model and knows it of everybody."""
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
        """The model, in the place of a difference."""
        return {"q": state["x"]}

    def adopt(self, state: Rows, given: Rows) -> Rows:
        """Another model; the copies stay what the neighbours think."""
        return {**state, "x": given["q"]}
