"""Data: sources of samples, by kind, and partitions among the nodes.

May be imported by: `experiment/`, `runtime/` and everything above them. Nothing here downloads anything unless `epidemic data fetch` asks for it.
To add a source: a frozen Struct derived from `Source` with `read`, in a file of its own; list it in this file. A partition: a Struct derived from
`Partition` with `divide`, in `partition.py`.
"""

from __future__ import annotations

from epidemic.data.base import Dataset, Samples, Source, prepared, stratified
from epidemic.data.cifar import CIFAR10
from epidemic.data.femnist import FEMNIST
from epidemic.data.idx import MNIST, Digits, Fashion, FashionMNIST
from epidemic.data.image_tables import ImageTable
from epidemic.data.images import ImageFolder
from epidemic.data.own import Arrays, PythonData, SampleSet, as_dataset
from epidemic.data.partition import IID, PARTITIONS, Dirichlet, DirichletHsu, Explicit, Natural, Partition, Shards
from epidemic.data.synthetic import Synthetic
from epidemic.data.tables import Table

SOURCES: dict[str, type[Source]] = {
    "fashion": Fashion,
    "digits": Digits,
    "synthetic": Synthetic,
    "mnist": MNIST,
    "fashion-mnist": FashionMNIST,
    "cifar10": CIFAR10,
    "femnist": FEMNIST,
    "image-folder": ImageFolder,
    "image-table": ImageTable,
    "table": Table,
    "arrays": Arrays,
    "python": PythonData,
}

__all__ = [
    "CIFAR10",
    "FEMNIST",
    "IID",
    "MNIST",
    "PARTITIONS",
    "SOURCES",
    "Arrays",
    "Dataset",
    "Digits",
    "Dirichlet",
    "DirichletHsu",
    "Explicit",
    "Fashion",
    "FashionMNIST",
    "ImageFolder",
    "ImageTable",
    "Natural",
    "Partition",
    "PythonData",
    "SampleSet",
    "Samples",
    "Shards",
    "Source",
    "Synthetic",
    "Table",
    "as_dataset",
    "prepared",
    "stratified",
]
