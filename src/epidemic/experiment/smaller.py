"""What an experiment cannot have together with smaller letters: compressed ones, or those of fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epidemic.compression import Codec, Partial
from epidemic.errors import BadInput
from epidemic.faults import Faults
from epidemic.topology import Fragments, exchange_of, fragments_of, peer_sampling

if TYPE_CHECKING:
    from epidemic.experiment.spec import Experiment


def check_compression(experiment: Experiment) -> None:
    """Raise BadInput where letters cannot be compressed as they should be."""
    used = getattr(experiment.algorithm, "compressor", None) or experiment.compression
    if isinstance(used, Codec) and not used.exact and exchange_of(experiment.topology) == "all-reduce":
        raise BadInput(
            'topology.cost = "all-reduce" adds models up on their way, which compressed letters do not allow; use cost = "all-to-all", or'
            " do not compress"
        )
    if getattr(experiment.algorithm, "compressor", None) is not None:
        _check_every_letter(experiment)
    codec = experiment.compression
    if codec is None:
        return
    if not isinstance(codec, Codec):
        raise BadInput(f"compression = {codec!r} must be a codec, for example Float16()")
    kind = f'compression.kind = "{codec.__struct_config__.tag}"'
    if experiment.free is not None:
        raise BadInput(
            f'{kind} is for methods with rounds, and algorithm.kind = "{experiment.free.called}" has none; leave it out, or use'
            ' algorithm.kind = "divshare", whose letters are parts of models'
        )
    if getattr(experiment.algorithm, "compressor", None) is not None:
        raise BadInput(
            f"{kind}: this algorithm compresses its letters itself; set algorithm.compressor and leave it out"
        )
    if codec.exact:
        return
    if not averages_models(experiment.algorithm):
        raise BadInput(
            f"{kind} is for algorithms whose letters are models that are averaged, and this one needs its letters exact;"
            ' leave it out, or use algorithm.kind = "local-sgd"'
        )
    if isinstance(codec, Partial) and codec.fill == "count" and experiment.mixing_rule == "native":
        raise BadInput(
            f'{kind} with fill = "count" shares the weight of a coordinate anew, which has no meaning for the weights that a topology'
            ' brings along; use compression.fill = "own" or mixing = "uniform"'
        )


def _check_every_letter(experiment: Experiment) -> None:
    """Refuse faults and absences where letters are differences: who misses one is wrong for ever."""
    if experiment.participation.partial:
        raise BadInput(
            "participation: this algorithm's letters are differences, and whoever misses one is wrong for ever; leave it out, or use"
            ' algorithm.kind = "local-sgd" with [compression]'
        )
    faults = experiment.faults
    if faults != Faults(on_return=faults.on_return, max_retries=faults.max_retries):
        raise BadInput(
            "faults: this algorithm's letters are differences, and whoever misses one is wrong for ever; leave loss, crashes, blocked,"
            ' partitions and cap out, or use algorithm.kind = "local-sgd" with [compression]'
        )


def check_fragments(experiment: Experiment) -> None:
    """Raise BadInput where parts of models cannot go separate ways."""
    inner = getattr(experiment.topology, "inner", None)
    while inner is not None:
        if isinstance(inner, Fragments):
            raise BadInput(
                'topology.inner.kind = "fragments": parts of models go by all that is inside; make it the outermost'
            )
        inner = getattr(inner, "inner", None)
    if fragments_of(experiment.topology) == 1:
        return
    if experiment.clock is not None:
        raise BadInput(
            'topology.kind = "fragments" is for rounds without a [clock]; under one use algorithm.kind = "divshare", whose letters are'
            " fragments"
        )
    if peer_sampling(experiment.topology) is not None:
        raise BadInput(
            'topology.kind = "fragments" draws links of each part among all nodes; leave topology.inner.view out'
        )
    if experiment.compression is not None and not experiment.compression.exact:
        raise BadInput(
            'topology.kind = "fragments" has letters of parts of models, which [compression] does not know; leave one of them out'
        )
    if getattr(experiment.algorithm, "compressor", None) is not None or not averages_models(experiment.algorithm):
        raise BadInput(
            'topology.kind = "fragments" is for algorithms whose letters are models that are averaged; use its inner topology alone, or'
            ' algorithm.kind = "local-sgd"'
        )


def averages_models(algorithm: Any) -> bool:
    """Whether an algorithm's letters are one model each, of which it can do without some digits or coordinates."""
    columns = algorithm.columns(8, "float32")
    return [(c.name, c.shape) for c in columns] == [("x", (8,))] and not getattr(algorithm, "exact_exchange", False)
