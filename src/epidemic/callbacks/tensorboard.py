"""A callback that writes curves for TensorBoard, each seed in a directory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epidemic.callbacks.base import Callback
from epidemic.callbacks.scalars import numbers
from epidemic.core.errors import BadInput
from epidemic.data.images import need
from epidemic.record import MessageCounts

if TYPE_CHECKING:
    from epidemic.learner import Learner
    from epidemic.record import Record, Summary
    from epidemic.runtime.setup import Setup

TAGS = {
    "accuracy": "accuracy/mean",
    "accuracy_min": "accuracy/min",
    "accuracy_max": "accuracy/max",
    "mean_model_accuracy": "accuracy/average_model",
    "loss": "loss/mean",
    "loss_max": "loss/max",
    "mean_model_loss": "loss/average_model",
    "train_loss": "loss/training",
    "disagreement": "network/disagreement",
    "bytes": "network/bytes_sent_per_node",
    "alive": "network/nodes_up",
    "seconds": "time/simulated_seconds",
    "steps": "time/local_steps",
    "busy": "time/processors_busy",
    "uplink": "time/uplinks_busy",
    "online": "time/nodes_online",
    "staleness": "messages/staleness",
    "staleness_95": "messages/staleness_95",
    **{f"messages_{part}": f"messages/{part}" for part in MessageCounts.__struct_fields__},
}
"""What curves are called: what stands before the slash is a group on the page. A user's own metrics are in a group `metrics`."""


class TensorBoard(Callback):
    """Writes the numbers of every record as scalars for TensorBoard, each seed in a directory of its own.

    Accuracy, loss, training loss, disagreement, your own metrics, and the bytes sent, against rounds; under the simulated clock also against simulated time,
    which is then TensorBoard's "relative" axis. View them with `tensorboard --logdir DIR`. A resumed seed continues its curves: points beyond its checkpoint are
    replaced.

    Needs the package tensorboard: pip install 'epidemic-learning[tensorboard]'.

    Args:
        directory: Where to write; seed 3 goes to DIR/seed-3.

    Example:
        >>> ep.simulate(experiment, callbacks=[ep.callbacks.TensorBoard("logs/first")])
    """

    def __init__(self, directory: str | Path) -> None:
        need("tensorboard", "TensorBoard's curves", "tensorboard")
        self.directory = Path(directory)
        if self.directory.exists() and not self.directory.is_dir():
            raise BadInput(f"{self.directory} is a file; choose a directory for TensorBoard's curves")
        self._seed: Path | None = None
        self._open: Any = None

    def started(self, setup: Setup, learner: Learner, rounds_done: int) -> None:
        """Open the directory of this seed."""
        self._close()
        self._seed = self.directory / f"seed-{setup.seed}"

    def resumed(self, records: Sequence[Record]) -> None:
        """Continue after the last record; write all of them if there are no curves yet."""
        assert self._seed is not None
        known = any(self._seed.glob("events.out.tfevents.*"))
        if known and records[-1].time is None:
            self._writer(purge=records[-1].round + 1)
            return
        for record in records:  # under the clock, a round may have several records, of which only some were kept
            if not known or record.round == records[-1].round:
                self.recorded(record)

    def recorded(self, record: Record) -> None:
        """Write it at once, because the process may be killed."""
        writer = self._writer(purge=record.round)
        when = None if record.time is None else record.time.seconds
        for name, value in numbers(record).items():
            writer.add_scalar(TAGS.get(name, f"metrics/{name}"), value, record.round, when)
        writer.flush()

    def finished(self, summary: Summary) -> None:
        """Close the seed's event file, so that it can be read whole."""
        self._close()

    def _writer(self, purge: int) -> Any:
        """The open file; a new one replaces what earlier ones hold of rounds from `purge` on."""
        if self._open is None:
            writer = need("torch.utils.tensorboard", "TensorBoard's curves", "tensorboard").SummaryWriter
            try:
                self._open = writer(str(self._seed), purge_step=purge)
            except OSError as problem:
                raise BadInput(
                    f"{self._seed} cannot be written: {problem.strerror}; choose another directory"
                ) from None
        return self._open

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
