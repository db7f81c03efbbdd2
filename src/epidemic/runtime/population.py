"""The population: nodes hosted together. The simulator hosts all nodes, a deployed process one or a few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.aggregation import made
from epidemic.algorithms import Algorithm, Column, Inbox, RoundContext, Rows
from epidemic.core.errors import NOT_FINITE, Diverged, EpidemicError, RunFailed
from epidemic.core.graph import IntArray
from epidemic.core.workers import Workers
from epidemic.learner import Learner
from epidemic.runtime.message_coding import MEMORY, SENT, coder_of, message_bytes
from epidemic.runtime.parts import parts_of
from epidemic.runtime.setup import Setup

Positions = IntArray
"""Positions of some of the hosted nodes in the population."""

_MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a wrong algorithm, above all a user's own, may raise."""


class Population:
    """The learning state of the hosted nodes, and the two steps of a round for all of them or some."""

    def __init__(self, setup: Setup, learner: Learner, workers: Workers | None = None) -> None:
        """Start from the initial model; `workers` compress messages; None: in this thread."""
        self.setup = setup
        self.ids = setup.hosted  # (k,)
        self._learner = learner
        self._algorithm: Algorithm = setup.experiment.algorithm
        self.rule = made(setup.experiment.aggregation)  # the aggregator of received models
        self._device = setup.task.device
        self._round = 0  # the last round begun
        dtype = str(setup.initial.dtype).removeprefix("torch.")
        with self._in_a_line("columns"):
            self.columns: tuple[Column, ...] = tuple(self._algorithm.columns(len(setup.initial), dtype))
        with self._in_a_line("init"):
            self.state: Rows = self._algorithm.init(setup.initial.to(self._device).repeat(len(self.ids), 1))
            self._check_state("init", self.state, len(self.ids))
        self.coder = coder_of(setup.experiment, self.columns, setup.streams)
        if self.coder is not None and self.coder.remembers:
            self.state[MEMORY] = setup.initial.to(self._device).repeat(len(self.ids), 1)
        cut = parts_of(setup.experiment, len(setup.initial), setup.streams) if setup.experiment.free is None else []
        self.parts = [torch.from_numpy(part).to(self._device) for part in cut]  # of models whose parts go separate ways
        self._workers = Workers(1) if workers is None and self.coder is not None else workers
        self._spare: Rows = {}  # memory for the next aggregation
        self._checked = False
        self._midway = np.zeros(len(self.ids), dtype=bool)  # (k,) nodes that have trained but not yet aggregated
        self._batches_of: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def message_bytes(self) -> int:
        """The size of the numbers of one message in bytes."""
        return message_bytes(self.columns, self.coder)

    @property
    def message_sizes(self) -> tuple[int, ...]:
        """The sizes of the numbers of one message for each part of the models, in bytes."""
        width = self.message_bytes // len(self.setup.initial)
        return tuple(len(part) * width for part in self.parts) or (self.message_bytes,)

    @property
    def model_bytes(self) -> int:
        """The size in bytes of an uncompressed model, as returning nodes get it."""
        return message_bytes(self.columns, None)

    @property
    def models(self) -> Tensor:
        """The current models, which are evaluated.   # (k, d)"""
        with self._in_a_line("model"):
            return self._algorithm.model(self.state)

    def models_of(self, who: Positions | None) -> Tensor:
        """The models of these nodes, for reading.   # (k', d)"""
        return self.models if who is None else self.models[_where(who)]

    @property
    def at_once(self) -> int:
        """How many nodes to train at once if messages of the first may leave while others train."""
        return self._learner.at_once or len(self)

    def batches(self, round: int) -> NDArray[np.int64]:
        """The samples that the hosted nodes train on in a round.   # (k, r, b)"""
        if self._batches_of[0] != round:
            self._batches_of = (round, self.setup.batches.index(self.setup.streams, round))
        return self._batches_of[1]

    # -- the two steps ------------------------------------------------------------------------------------------------

    def local_update(
        self,
        round: int,
        out_degree: IntArray,
        index: NDArray[np.int64] | None = None,
        who: Positions | None = None,
    ) -> tuple[Rows, Tensor]:
        """Train nodes; those that do not take part are unchanged.

        Args:
            round: The round.
            out_degree: How many targets each of them has.   # (k',)
            index: The samples of all hosted nodes, if known already.   # (k, r, b)
            who: The nodes that take part; None: all.   # (k',)

        Returns:
            The message by column and the training losses, of those that take part.   # (k', d), (k',)
            Compressed messages include their bytes (see `message_coding`).
        """
        index = self.batches(round) if index is None else index
        state, message, loss = self._updated(self._part(who), round, out_degree, index, who)
        self._put(who, state)
        self._midway[slice(None) if who is None else who] = True
        return message, loss

    def local_update_from(
        self, state: Rows, round: int, out_degree: IntArray, who: Positions
    ) -> tuple[Rows, Rows, Tensor]:
        """The same for a given state of these nodes; the population's own state is unchanged."""
        return self._updated(state, round, out_degree, self.batches(round), who)

    def _updated(
        self, state: Rows, round: int, out_degree: IntArray, index: NDArray[np.int64], who: Positions | None
    ) -> tuple[Rows, Rows, Tensor]:
        ids = self.ids if who is None else self.ids[who]
        random, streams = self._learner.draws_random_numbers, self.setup.streams
        context = RoundContext(
            round,
            torch.from_numpy(index if who is None else index[who]).to(self._device),
            [streams.key("dropout", round, int(i)) % 2**63 for i in ids] if random else [0] * len(ids),
            torch.from_numpy(np.ascontiguousarray(out_degree)).to(self._device),
        )
        self._round = round
        with self._in_a_line("training"):
            after, message, loss = self._algorithm.local_update(_without_memory(state), self._learner, context)
            self._check_state("local_update", after, len(ids))
            self._check_message(message, loss, len(ids))
        after = _with_memory(after, state)
        return after, message if self.coder is None else self._compressed(message, after, round, ids), loss

    def _compressed(self, message: Rows, state: Rows, round: int, ids: IntArray) -> Rows:
        """Add the compressed bytes to a message, and update the state's memory of what was sent."""
        assert self.coder is not None
        assert self._workers is not None
        name = self.coder.column.name
        said = self.coder.encode(message[name], round, ids, state.get(MEMORY), self._workers)
        own = self.coder.decode_all(said, self._workers).rows if self.coder.differences else message[name]
        return {name: own, name + SENT: said}

    def aggregate(self, inbox: Inbox, who: Positions | None = None, message: Rows | None = None) -> None:
        """Apply the aggregate step to nodes. The memory of `message`, if given, is reused unless the state refers to it."""
        state = self.aggregate_into(self._part(who), inbox)
        self._midway[slice(None) if who is None else who] = False
        if who is None:
            self.state = state
        else:
            self._put(who, state)
            if not self._midway.any():  # nodes that have not aggregated yet still need their trained models
                self.state = {name: self.state[name] for name in state}
        if message is not None:
            taken = {rows.untyped_storage().data_ptr() for rows in self.state.values()}
            self._spare = {}
            for name, rows in message.items():
                if rows.untyped_storage().data_ptr() not in taken:
                    self._spare[name] = rows
                    taken.add(rows.untyped_storage().data_ptr())

    def aggregate_into(self, state: Rows, inbox: Inbox) -> Rows:
        """The state after an aggregate step from a given one; the population's own state is unchanged."""
        k = len(next(iter(state.values())))
        with self._in_a_line("aggregate"):
            after = self._algorithm.aggregate(_without_memory(state), inbox)
            self._check_state("aggregate", after, k)
        return _with_memory(after, state)

    def memory(self, column: str, like: Tensor) -> Tensor:
        """Memory for the aggregate of this column."""
        spare = self._spare.pop(column, None)
        fits = spare is not None and spare.shape == like.shape and spare.dtype == like.dtype and spare.is_contiguous()
        return spare if spare is not None and fits else torch.empty_like(like)

    def release(self) -> None:
        """Free memory that is not needed any more."""
        self._spare.clear()

    # -- taking somebody else's ---------------------------------------------------------------------------------------

    def give(self, who: Positions) -> Rows:
        """What these nodes would give to a returning one."""
        with self._in_a_line("give"):
            return self._algorithm.give(_without_memory(self._part(who)))

    def adopt(self, who: Positions, given: Rows) -> None:
        """Give these nodes the state received from others, one row each."""
        with self._in_a_line("adopt"):
            state = self._part(who)
            self._put(who, _with_memory(self._algorithm.adopt(_without_memory(state), given), state))

    # -- parts --------------------------------------------------------------------------------------------------------

    def snapshot(self, who: Positions) -> Rows:
        """A copy of these nodes' state."""
        return _copied(self.state, who)

    def restore(self, who: Positions, state: Rows) -> None:
        """Set these nodes' state to a copy made before."""
        self._midway[who] = False
        self._put(who, {name: rows.to(self._device) for name, rows in state.items()})

    def _part(self, who: Positions | None) -> Rows:
        return self.state if who is None else _copied(self.state, who)

    def _put(self, who: Positions | None, part: Rows) -> None:
        if who is None:
            self.state = part
            return
        where = _where(who)
        users = Counter(rows.untyped_storage().data_ptr() for rows in self.state.values())
        for name, rows in part.items():
            held = self.state.get(name)
            if held is None:
                held = torch.zeros(len(self.ids), *rows.shape[1:], dtype=rows.dtype, device=rows.device)
            elif users[held.untyped_storage().data_ptr()] > 1 or not held.is_contiguous():
                held = held.clone(
                    memory_format=torch.contiguous_format
                )  # one tensor under two names: separate them here
            held[where] = rows
            self.state[name] = held

    @contextmanager
    def _in_a_line(self, what: str) -> Iterator[None]:
        """Turn exceptions of an algorithm into one line; our own errors stay as they are."""
        try:
            yield
        except EpidemicError:
            raise
        except _MISTAKES as problem:
            reason = " ".join(str(problem).split())
            raise RunFailed(
                f"{self._called(self._round)}: {what} failed: {type(problem).__name__}: {reason}"
            ) from problem

    @staticmethod
    def _check_state(step: str, state: Rows, k: int) -> None:
        """Check that a state has a row for each node."""
        for name, rows in state.items():
            if not isinstance(rows, Tensor) or rows.dim() == 0 or len(rows) != k:
                found = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
                raise RunFailed(
                    f"algorithm: {step} gave {found} for {name!r} of the state; it needs a row for each of {k} nodes"
                )

    def _check_message(self, message: Rows, loss: Tensor, k: int) -> None:
        """Check once that the algorithm sends what it declares."""
        if self._checked:
            return
        if not isinstance(loss, Tensor) or tuple(loss.shape) != (k,):
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise RunFailed(
                f"algorithm: local_update gave {shape} as the loss; it needs one number for each of {k} nodes"
            )
        for column in self.columns:
            rows = message.get(column.name)
            if rows is None or tuple(rows.shape) != (k, *column.shape) or rows.dtype != column.torch_dtype:
                found = "nothing" if rows is None else f"{str(rows.dtype).removeprefix('torch.')} {tuple(rows.shape)}"
                raise RunFailed(
                    f"algorithm: local_update gave {found} for column {column.name!r}; columns() declares"
                    f" {column.dtype} {(k, *column.shape)}"
                )
        extra = message.keys() - {column.name for column in self.columns}
        if extra:
            raise RunFailed(
                f"algorithm: local_update gave {sorted(extra)[0]!r}, which columns() does not declare; add it there"
            )
        self._checked = True

    def _called(self, round: int) -> str:
        return f"{self.setup.experiment.name}, seed {self.setup.seed}, round {round}"

    def check_finite(self, what: str, round: int, ids: Positions, loss: Tensor, kept: str) -> None:
        """End the run if the loss of a node is not finite."""
        bad = ids[(~torch.isfinite(loss)).numpy()]
        if not len(bad):
            return
        which = ", ".join(map(str, bad[:8])) + (", ..." if len(bad) > 8 else "")
        fix = "lower algorithm.lr" if round else "look at the data, the model and algorithm.lr"
        raise Diverged(
            f"{self._called(round)}: the {what} of {len(bad)} of {self.setup.experiment.nodes} nodes ({which})"
            f" is {NOT_FINITE}; {fix}{kept}"
        )


def _where(who: Positions) -> Positions | slice:
    """Consecutive rows as a slice: PyTorch copies slices several times as fast as indexed rows."""
    first, last = (int(who[0]), int(who[-1])) if len(who) else (0, -1)
    in_a_row = last - first == len(who) - 1 and bool((np.diff(who) == 1).all())
    return slice(first, last + 1) if in_a_row else who


def _copied(state: Rows, who: Positions) -> Rows:
    """A copy of these rows of a state."""
    where = _where(who)
    if isinstance(where, slice):
        return {name: rows[where].clone(memory_format=torch.contiguous_format) for name, rows in state.items()}
    return {name: rows[where] for name, rows in state.items()}  # indexing with an array copies


def _without_memory(state: Rows) -> Rows:
    """The state without the memory of sent messages."""
    return {name: rows for name, rows in state.items() if name != MEMORY} if MEMORY in state else state


def _with_memory(state: Rows, before: Rows) -> Rows:
    """A new state with the nodes' memory of sent messages."""
    return {**state, MEMORY: before[MEMORY]} if MEMORY in before else state
