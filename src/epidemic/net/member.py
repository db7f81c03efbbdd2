"""Member: the learning of one deployed node. It computes what the simulator computes for that node, and knows no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from epidemic.algorithms import Rows
from epidemic.graph import FloatArray, Graph, IntArray
from epidemic.host.mixture import mix
from epidemic.host.setup import Setup
from epidemic.learner import Learner
from epidemic.mixing import Weights, weights
from epidemic.net.wire import Column
from epidemic.rng import Streams
from epidemic.workers import Workers


@dataclass(frozen=True, eq=False)
class Turn:
    """A round, as one node sees it before it happens."""

    round: int
    intended: Graph | None  # None with a private coin: nobody knows it
    digest: bytes  # of the graph, 8 bytes
    targets: IntArray  # whom it sends to
    expected: IntArray | None  # whom it hears; None: not known


class Member:
    """One node's model and what it does with it."""

    def __init__(self, setup: Setup, learner: Learner, workers: Workers, place: int) -> None:
        self.setup = setup
        self.place = place
        self._learner = learner
        self._workers = workers
        self._algorithm = setup.experiment.algorithm
        self.state: Rows = self._algorithm.init(setup.initial.to(setup.task.device)[None].clone())

    @property
    def columns(self) -> tuple[Column, ...]:
        """What its messages consist of."""
        x = self.state["x"]
        return (Column("x", (x.shape[1],), str(x.dtype).removeprefix("torch.")),)

    def turn(self, round: int, secret: Streams | None = None) -> Turn:
        """What round `round` has in store; with a secret, its targets are drawn from that and nobody else knows them."""
        experiment, n = self.setup.experiment, self.setup.experiment.nodes
        if secret is not None:
            targets = experiment.topology.graph(n, round, secret).out_of(self.place)
            return Turn(round, None, bytes(8), targets, None)
        graph = experiment.topology.graph(n, round, self.setup.streams)
        digest = bytes.fromhex(graph.digest())
        return Turn(round, graph, digest, graph.out_of(self.place), graph.into(self.place))

    def emit(self, round: int) -> tuple[Rows, float]:
        """Train; what to send, and the training loss.   # (1, d) each"""
        streams = self.setup.streams
        index = torch.from_numpy(self.setup.batches.index(streams, round)).to(self.setup.task.device)
        seed = streams.key("dropout", round, self.place) % 2**63 if self._learner.draws_random_numbers else 0
        self.state, message, loss = self._algorithm.emit(self.state, self._learner, index, [seed])
        return message, float(loss[0])

    def absorb(self, turn: Turn, message: Rows, letters: Mapping[int, Mapping[str, memoryview]]) -> None:
        """Mix the own message with the letters of this round, by sender, and take the mixture."""
        senders = np.array(sorted(letters), dtype=np.int64)
        share = scipy.sparse.csr_array(self._shares(turn, senders)[None])
        mixed: Rows = {}
        for name, own in message.items():
            rows = torch.empty(1 + len(senders), own.shape[1], dtype=own.dtype, device="cpu")
            rows[0] = own[0].cpu()
            for row, sender in zip(rows[1:], senders.tolist(), strict=True):
                raw_bytes(row)[:] = np.frombuffer(letters[sender][name], np.uint8)
            rows = rows.to(own.device)
            mixed[name] = mix(Weights(1, share), rows, self._workers, torch.empty_like(own))
        self.state = self._algorithm.absorb(self.state, mixed)

    def _shares(self, turn: Turn, senders: IntArray) -> FloatArray:
        """How much each voice counts, its own first.   # (1 + heard,)"""
        n = self.setup.experiment.nodes
        arrived = Graph.from_edges(n, senders, np.full(len(senders), self.place))
        rule = self.setup.experiment.mixing_rule
        matrix = weights(rule, arrived if turn.intended is None else turn.intended, arrived).matrix
        assert matrix is not None
        found: FloatArray = matrix.data[matrix.indptr[self.place] : matrix.indptr[self.place + 1]]
        return found

    def adopt(self, tensors: Mapping[str, memoryview]) -> None:
        """Take another node's model; what is only its own (momentum) stays."""
        x = self.state["x"]
        row = torch.empty(x.shape[1], dtype=x.dtype)
        raw_bytes(row)[:] = np.frombuffer(tensors["x"], np.uint8)
        self.state["x"] = row[None].to(x.device)


def raw_bytes(row: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """A row's numbers as bytes, sharing its memory where it is on the CPU."""
    return row.detach().cpu().contiguous().view(torch.uint8).numpy()
