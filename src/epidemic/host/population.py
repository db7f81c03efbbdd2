"""Population: nodes that are hosted together. The simulator hosts all of them, a deployed process one or a few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.algorithms import Algorithm, Column, Inbox, Rows, Turn
from epidemic.errors import Diverged, EpidemicError, RunFailed
from epidemic.graph import IntArray
from epidemic.host.setup import Setup
from epidemic.learner import Learner

Positions = IntArray
"""Some of the hosted nodes, by their place in the population."""

_MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What an algorithm, above all a user's own, raises when it is wrong."""


class Population:
    """The learning state of the hosted nodes, and what they do in a round, all of them or a part."""

    def __init__(self, setup: Setup, learner: Learner) -> None:
        self.setup = setup
        self.ids = setup.hosted  # (k,)
        self._learner = learner
        self._algorithm: Algorithm = setup.experiment.algorithm
        self._device = setup.task.device
        self._round = 0  # the last one that was begun
        dtype = str(setup.initial.dtype).removeprefix("torch.")
        with self._in_a_line("columns"):
            self.columns: tuple[Column, ...] = tuple(self._algorithm.columns(len(setup.initial), dtype))
        with self._in_a_line("init"):
            self.state: Rows = self._algorithm.init(setup.initial.to(self._device).repeat(len(self.ids), 1))
            self._check_state("init", self.state, len(self.ids))
        self._spare: Rows = {}  # memory that the next mixture goes into
        self._checked = False

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def letter_bytes(self) -> int:
        """What the numbers of one letter take."""
        return sum(column.bytes for column in self.columns)

    @property
    def models(self) -> Tensor:
        """The models that are evaluated.   # (k, d)"""
        with self._in_a_line("model"):
            return self._algorithm.model(self.state)

    def batches(self, round: int) -> NDArray[np.int64]:
        """The samples that the hosted nodes train on in a round.   # (k, r, b)"""
        return self.setup.batches.index(self.setup.streams, round)

    # -- the two steps ------------------------------------------------------------------------------------------------

    def emit(
        self,
        round: int,
        out_degree: IntArray,
        index: NDArray[np.int64] | None = None,
        who: Positions | None = None,
    ) -> tuple[Rows, Tensor]:
        """Let nodes train: their message and their losses. Who does not take part stays as it is.

        Args:
            round: The round.
            out_degree: To how many others each of them sends.   # (k',)
            index: The samples of all hosted nodes, if they are known already.   # (k, r, b)
            who: Who takes part; everybody if not given.   # (k',)

        Returns:
            The message by column and the training losses, of those who take part.   # (k', d), (k',)
        """
        index = self.batches(round) if index is None else index
        ids = self.ids if who is None else self.ids[who]
        random, streams = self._learner.draws_random_numbers, self.setup.streams
        turn = Turn(
            round,
            torch.from_numpy(index if who is None else index[who]).to(self._device),
            [streams.key("dropout", round, int(i)) % 2**63 for i in ids] if random else [0] * len(ids),
            torch.from_numpy(np.ascontiguousarray(out_degree)).to(self._device),
        )
        self._round = round
        with self._in_a_line("training"):
            state, message, loss = self._algorithm.emit(self._part(who), self._learner, turn)
            self._check_state("emit", state, len(ids))
            self._check_message(message, loss, len(ids))
        self._put(who, state)
        return message, loss

    def absorb(self, inbox: Inbox, who: Positions | None = None, message: Rows | None = None) -> None:
        """Let nodes take what arrived. The memory of the message, if given, is used again where the state does not hold it."""
        with self._in_a_line("absorb"):
            state = self._algorithm.absorb(self._part(who), inbox)
            self._check_state("absorb", state, len(self.ids) if who is None else len(who))
        if who is None:
            self.state = state
        else:
            self._put(who, state)
            self.state = {name: self.state[name] for name in state}
        if message is not None:
            taken = {rows.untyped_storage().data_ptr() for rows in self.state.values()}
            self._spare = {}
            for name, rows in message.items():
                if rows.untyped_storage().data_ptr() not in taken:
                    self._spare[name] = rows
                    taken.add(rows.untyped_storage().data_ptr())

    def memory(self, column: str, like: Tensor) -> Tensor:
        """Memory for a mixture of this column."""
        spare = self._spare.pop(column, None)
        fits = spare is not None and spare.shape == like.shape and spare.dtype == like.dtype and spare.is_contiguous()
        return spare if spare is not None and fits else torch.empty_like(like)

    def release(self) -> None:
        """Give back what memory is not needed any more."""
        self._spare.clear()

    # -- taking somebody else's ---------------------------------------------------------------------------------------

    def give(self, who: Positions) -> Rows:
        """What these nodes would give to one that returns."""
        with self._in_a_line("give"):
            return self._algorithm.give(self._part(who))

    def adopt(self, who: Positions, given: Rows) -> None:
        """Let these nodes take what others gave them, a row for each."""
        with self._in_a_line("adopt"):
            self._put(who, self._algorithm.adopt(self._part(who), given))

    # -- parts --------------------------------------------------------------------------------------------------------

    def snapshot(self, who: Positions) -> Rows:
        """A copy of these nodes' state."""
        return {name: rows[who].clone() for name, rows in self.state.items()}

    def restore(self, who: Positions, state: Rows) -> None:
        """Put these nodes' state back."""
        self._put(who, {name: rows.to(self._device) for name, rows in state.items()})

    def _part(self, who: Positions | None) -> Rows:
        return self.state if who is None else {name: rows[who] for name, rows in self.state.items()}

    def _put(self, who: Positions | None, part: Rows) -> None:
        if who is None:
            self.state = part
            return
        users = Counter(rows.untyped_storage().data_ptr() for rows in self.state.values())
        for name, rows in part.items():
            held = self.state.get(name)
            if held is None:
                held = torch.zeros(len(self.ids), *rows.shape[1:], dtype=rows.dtype, device=rows.device)
            elif users[held.untyped_storage().data_ptr()] > 1 or not held.is_contiguous():
                held = held.clone(memory_format=torch.contiguous_format)  # one tensor under two names: they part here
            held[who] = rows
            self.state[name] = held

    @contextmanager
    def _in_a_line(self, what: str) -> Iterator[None]:
        """What an algorithm raises, as one line; what it says in our own words stays as it is."""
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
        """That a state has a row for each node."""
        for name, rows in state.items():
            if not isinstance(rows, Tensor) or rows.dim() == 0 or len(rows) != k:
                found = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
                raise RunFailed(
                    f"algorithm: {step} gave {found} for {name!r} of the state; it needs a row for each of {k} nodes"
                )

    def _check_message(self, message: Rows, loss: Tensor, k: int) -> None:
        """That the algorithm sends what it has declared; looked at once."""
        if self._checked:
            return
        if not isinstance(loss, Tensor) or tuple(loss.shape) != (k,):
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise RunFailed(f"algorithm: emit gave {shape} as the loss; it needs one number for each of {k} nodes")
        for column in self.columns:
            rows = message.get(column.name)
            if rows is None or tuple(rows.shape) != (k, *column.shape) or rows.dtype != column.torch_dtype:
                found = "nothing" if rows is None else f"{str(rows.dtype).removeprefix('torch.')} {tuple(rows.shape)}"
                raise RunFailed(
                    f"algorithm: emit gave {found} for column {column.name!r}; columns() declares"
                    f" {column.dtype} {(k, *column.shape)}"
                )
        extra = message.keys() - {column.name for column in self.columns}
        if extra:
            raise RunFailed(
                f"algorithm: emit gave {sorted(extra)[0]!r}, which columns() does not declare; add it there"
            )
        self._checked = True

    def _called(self, round: int) -> str:
        return f"{self.setup.experiment.name}, seed {self.setup.seed}, round {round}"

    def check_finite(self, what: str, round: int, ids: Positions, loss: Tensor, kept: str) -> None:
        """End the run if the loss of a node is no longer a number."""
        bad = ids[(~torch.isfinite(loss)).numpy()]
        if not len(bad):
            return
        which = ", ".join(map(str, bad[:8])) + (", ..." if len(bad) > 8 else "")
        fix = "lower algorithm.lr" if round else "look at the data, the model and algorithm.lr"
        raise Diverged(
            f"{self._called(round)}: the {what} of {len(bad)} of {self.setup.experiment.nodes} nodes ({which})"
            f" is no longer a finite number; {fix}{kept}"
        )
