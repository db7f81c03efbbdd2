"""Epidemic Learning: machine learning by many nodes that hold private data and have no server.

    import epidemic as ep
    run = ep.simulate(ep.Experiment(nodes=96, rounds=100, topology=ep.ELLocal(s=7)))
    run.summary, run.plot(), run.dataframe(), run.models[3]

What there is of a kind is in the namespace of that kind: `ep.topology.Ring`, `ep.algorithms.PushSum`, `ep.aggregation.TrimmedMean`, `ep.data.MNIST`, `ep.models`,
`ep.compression`, `ep.clock`, `ep.peer_sampling`, ... `dir(ep)` shows these and the names of daily use; the other classes can be had by `ep.NAME` too.

Names are imported when they are first used, so that `import epidemic` does not load PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from epidemic import (
        adversary,
        aggregation,
        algorithms,
        callbacks,
        clock,
        compression,
        data,
        faults,
        metrics,
        models,
        participation,
        peer_sampling,
        theory,
        topology,
    )
    from epidemic.adversary import Adversary
    from epidemic.aggregation import (
        GTS,
        IOS,
        WMSR,
        Aggregator,
        Centred,
        Clipped,
        GeometricMedian,
        Heard,
        Krum,
        MeaMed,
        Mean,
        Median,
        MultiKrum,
        Nearest,
        PythonAggregator,
        TrimmedMean,
    )
    from epidemic.algorithms import (
        ADPSGD,
        Adam,
        AdamW,
        AsyncEL,
        AsynchronousMethod,
        Choco,
        Column,
        ConstantRate,
        CosineDecay,
        Defaults,
        DivShare,
        ExactDiffusion,
        GossipLearning,
        GradientTracking,
        LocalSGD,
        OwnLoop,
        PushPull,
        PushSum,
        PythonAlgorithm,
        QGMomentum,
        StepDecay,
        Tokens,
    )
    from epidemic.api import Comparison, Run, RunSummary, Sweep, compare, simulate, sweep
    from epidemic.callbacks import Callback
    from epidemic.clock import Clock
    from epidemic.core.errors import BadInput, EpidemicError, Interrupted, RunFailed
    from epidemic.core.graph import Graph
    from epidemic.core.rng import Streams
    from epidemic.data import (
        CIFAR10,
        FEMNIST,
        IID,
        MNIST,
        Arrays,
        Dataset,
        Digits,
        Dirichlet,
        DirichletHsu,
        Explicit,
        Fashion,
        FashionMNIST,
        ImageFolder,
        ImageTable,
        Natural,
        PythonData,
        Samples,
        Shards,
        Synthetic,
        Table,
    )
    from epidemic.deploy.joining import JoinedNode, join
    from epidemic.experiment import Checkpoint, Eval, Experiment, Network, Runtime, load
    from epidemic.faults import Crash, Faults, RandomCrashes
    from epidemic.models import FEMNISTCNN, MLP, GNLeNet, Logistic, Point, PythonModel, SmallCNN
    from epidemic.participation import BernoulliParticipation, Everybody, Teleportation, UniformParticipation
    from epidemic.peer_sampling import Cyclon, Jelasity, Spray
    from epidemic.protocol.node import Node
    from epidemic.record import Record
    from epidemic.report.results import Results, read_results
    from epidemic.simulator import Models, SeedRun
    from epidemic.topology import (
        Base,
        Complete,
        DEquiStatic,
        ELLocal,
        ELOracle,
        ErdosRenyi,
        Every,
        Exponential,
        Fragments,
        Geometric,
        Hypercube,
        Isolated,
        Matcha,
        ODEquiDyn,
        OnePeerExponential,
        OUEquiDyn,
        PeerSwap,
        Periodic,
        Pull,
        PythonTopology,
        Regular,
        Ring,
        Torus,
        UEquiStatic,
        Unlucky,
    )

_HOME = {
    "api": "Comparison Run RunSummary Sweep compare simulate sweep",
    "callbacks": "Callback",
    "clock": "Clock",
    "adversary": "Adversary",
    "aggregation": "Aggregator Centred Clipped GTS GeometricMedian Heard IOS Krum MeaMed Mean Median MultiKrum Nearest PythonAggregator TrimmedMean WMSR",
    "algorithms": "ADPSGD Adam AdamW AsyncEL Choco Column ConstantRate CosineDecay Defaults DivShare ExactDiffusion AsynchronousMethod GossipLearning"
    " GradientTracking LocalSGD OwnLoop PushPull PushSum PythonAlgorithm QGMomentum StepDecay Tokens",
    "data": "CIFAR10 FEMNIST IID MNIST Arrays Dataset Digits Dirichlet DirichletHsu Explicit Fashion FashionMNIST ImageFolder ImageTable"
    " Natural PythonData Samples Shards Synthetic Table",
    "deploy.joining": "JoinedNode join",
    "simulator": "Models SeedRun",
    "core.errors": "BadInput EpidemicError Interrupted RunFailed",
    "experiment": "Checkpoint Eval Experiment Network Runtime load",
    "faults": "Crash Faults RandomCrashes",
    "core.graph": "Graph",
    "models": "FEMNISTCNN MLP GNLeNet Logistic Point PythonModel SmallCNN",
    "participation": "BernoulliParticipation Everybody Teleportation UniformParticipation",
    "protocol.node": "Node",
    "record": "Record",
    "report.results": "Results read_results",
    "core.rng": "Streams",
    "peer_sampling": "Cyclon Jelasity Spray",
    "topology": "Base Complete DEquiStatic ELLocal ELOracle ErdosRenyi Every Exponential Fragments Geometric Hypercube Isolated Matcha ODEquiDyn"
    " OnePeerExponential OUEquiDyn PeerSwap Periodic Pull PythonTopology Regular Ring Torus UEquiStatic Unlucky",
}
_MODULE = {name: module for module, names in _HOME.items() for name in names.split()}

_ROOMS = (
    "adversary",
    "aggregation",
    "algorithms",
    "callbacks",
    "clock",
    "compression",
    "data",
    "faults",
    "metrics",
    "models",
    "participation",
    "peer_sampling",
    "theory",
    "topology",
)
"""Namespaces."""

_DAILY = (
    *(
        "Experiment",
        "Eval",
        "Faults",
        "Clock",
        "Network",
        "Runtime",
        "load",
        "simulate",
        "compare",
        "sweep",
        "join",
        "read_results",
    ),
    *(
        "ELLocal",
        "ELOracle",
        "Ring",
        "LocalSGD",
        "TrimmedMean",
        "Dirichlet",
        "IID",
        "Digits",
        "Fashion",
        "CIFAR10",
        "MLP",
    ),
    *(
        "Graph",
        "Streams",
        "Defaults",
        "AsynchronousMethod",
        "Node",
        "Aggregator",
        "Callback",
        "BadInput",
        "EpidemicError",
    ),
)
"""What is run, described and derived from day by day."""

__all__ = ["__version__", *_ROOMS, *sorted(_MODULE)]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"epidemic.{name}")
    if name not in _MODULE:
        raise AttributeError(f"module 'epidemic' has no attribute {name!r}")
    return getattr(importlib.import_module(f"epidemic.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(("__version__", *_ROOMS, *_DAILY))
