"""What an experiment cannot have together with a simulated clock, or without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epidemic.algorithms import FreeRunning
from epidemic.clock import Clock, CloseNeighbours, CloseQuorum, LateLetters
from epidemic.errors import BadInput
from epidemic.faults import Faults
from epidemic.rng import Streams
from epidemic.topology import peer_sampling, require_letters

if TYPE_CHECKING:
    from epidemic.experiment.spec import Experiment


def check_clock(experiment: Experiment) -> None:
    """Raise BadInput where clock, algorithm and faults do not fit each other."""
    clock, free = experiment.clock, experiment.free
    if clock is None:
        if free is not None:
            raise BadInput(free.no_rounds)
        return
    if not isinstance(clock, Clock):
        raise BadInput(f"clock = {clock!r} must be Clock(...)")
    require_letters(experiment.topology, "under a [clock]")
    if experiment.faults != Faults(loss=experiment.faults.loss, max_retries=experiment.faults.max_retries):
        raise BadInput(
            "faults: under a [clock] only faults.loss can be had, because the others speak of rounds;"
            " say when nodes are away by clock.churn, and leave out crashes, blocked, partitions and cap"
        )
    if experiment.participation.partial:
        raise BadInput(
            "participation speaks of rounds that begin for all at once, and cannot be had under a [clock];"
            " say who is there when by clock.churn"
        )
    if free is not None:
        _check_free(experiment, clock, free)
    else:
        _check_rounds(experiment, clock)


def _check_free(experiment: Experiment, clock: Clock, algorithm: FreeRunning) -> None:
    if clock.close != CloseNeighbours():
        raise BadInput(
            f'clock.close has no meaning for algorithm.kind = "{algorithm.called}", which has no rounds to close; leave it out'
        )
    for seed in experiment.seeds:
        algorithm.check_run(experiment.topology, experiment.nodes, Streams(seed))


def _check_rounds(experiment: Experiment, clock: Clock) -> None:
    close, loses = clock.close, clock.churn is not None
    if loses and peer_sampling(experiment.topology) is not None:
        raise BadInput(
            "topology.view goes on round by round and does not learn who is away by clock.churn;"
            " leave out the view or the churn, or use rounds without a [clock] and faults.random_crashes"
        )
    if not isinstance(close, LateLetters):
        if loses:
            kind = close.__struct_config__.tag
            raise BadInput(
                f'clock.close.kind = "{kind}" waits for every letter, and clock.churn loses some: nodes would wait for ever;'
                ' use "deadline", "schedule", or "quorum" with a deadline'
            )
        return
    if isinstance(close, CloseQuorum) and not close.deadline and (loses or experiment.faults.loss):
        raise BadInput(
            f"clock.close.q = {close.q:g} may never be reached where letters get lost (clock.churn, faults.loss):"
            " give it a clock.close.deadline in seconds"
        )
    if close.late == "carry" and experiment.mixing_rule != "uniform":
        raise BadInput(
            f'clock.close.late = "carry" needs uniform weights, and mixing is "{experiment.mixing_rule}" here;'
            ' use late = "drop" or mixing = "uniform"'
        )
    if getattr(experiment.algorithm, "exact_exchange", False):
        raise BadInput(
            f'clock.close.kind = "{close.__struct_config__.tag}" loses letters that come too late, which this algorithm cannot bear;'
            ' use "neighbours" or "global"'
        )
