"""Data made on the spot: Gaussian classes of any size, and a quadratic problem whose constants are known exactly.

Drawn from a fixed stream of its own, so the same settings are the same data in every run.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.core.memory import require_memory
from epidemic.core.rng import Streams
from epidemic.data.base import Dataset, Samples, Source
from epidemic.theory import Problem


class Synthetic(Source, frozen=True, tag="synthetic"):
    """Gaussian classes (`problem = "classes"`), or the quadratic problem of theory checks (`problem = "quadratic"`).

    Quadratic: each of `groups` nodes has a centre c_i at distance about `spread` from the common mean, and samples
    c_i + `noise` * N(0, I). With the model "point" and lr, the local loss is ||x - c_i||^2 / 2 plus a constant: L = 1.
    """

    about: ClassVar[str] = "made on the spot: Gaussian classes of any size, or a quadratic problem with known constants"

    built_in: ClassVar[bool] = True

    problem: Literal["classes", "quadratic"] = "classes"
    features: int = 64
    classes: int = 10
    samples: int = 10_000
    """Training samples; a fifth as many are for testing."""
    groups: int = 96
    """Quadratic: number of centres; with partition.kind = "natural" each node gets one."""
    spread: float = 1.0
    """Distance of the classes' or nodes' centres, relative to the noise of one feature."""
    noise: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("data.problem", self.problem, ["classes", "quadratic"])
        require_int("data.features", self.features, 1)
        require_int("data.classes", self.classes, 2)
        require_int("data.samples", self.samples, 5)
        require_int("data.groups", self.groups, 1)
        require_real("data.spread", self.spread, 0)
        require_real("data.noise", self.noise, 0)
        if self.path is not None:
            raise BadInput(f"data.path = {self.path!r}: synthetic data is made on the spot; leave the path out")
        if self.problem == "quadratic" and self.samples < self.groups:
            raise BadInput(f"data.samples = {self.samples} must be at least data.groups = {self.groups}")

    def read(self) -> Dataset:
        require_memory(
            f"data.samples = {self.samples} with data.features = {self.features}",
            8 * (self.samples + max(self.classes, self.groups)) * self.features,
            "use less",
        )
        return self._quadratic() if self.problem == "quadratic" else self._classes()

    def _classes(self) -> Dataset:
        streams = Streams(0)
        centres = self.spread * streams("synthetic-centres").normals(self.classes, self.features)

        def draw(size: int, purpose: str) -> Samples:
            stream = streams(purpose)
            labels = stream.integers(self.classes, size).astype(np.int64)
            noise = self.noise * stream.normals(size, self.features)
            return Samples((centres[labels] + noise).astype(np.float32), labels)

        names = tuple(f"class {i}" for i in range(self.classes))
        return Dataset(draw(self.samples, "synthetic-train"), draw(max(self.samples // 5, 1), "synthetic-test"), names)

    def _centres(self) -> NDArray[np.float64]:
        centres = Streams(0)("synthetic-centres").normals(self.groups, self.features)
        centres -= centres.mean(axis=0)
        scale = np.sqrt((centres**2).sum() / self.groups) or 1.0
        return centres * (self.spread / scale)

    def _quadratic(self) -> Dataset:
        centres = self._centres()

        def draw(size: int, purpose: str) -> Samples:
            stream = Streams(0)(purpose)
            owner = np.arange(size) % self.groups
            noise = stream.normals(size, self.features)
            for i in range(
                self.groups
            ):  # the noise of each node sums to exactly zero, so its centre is exactly its mean
                noise[owner == i] -= noise[owner == i].mean(axis=0)
            points = centres[owner] + self.noise * noise
            return Samples(points.astype(np.float64), np.zeros((size, self.features)), owner)

        size = self.samples - self.samples % self.groups
        return Dataset(draw(size, "synthetic-train"), draw(max(size // 5, self.groups), "synthetic-test"))

    def known(self) -> Problem:
        """The constants of the quadratic problem, exactly, from the data itself; the optimum is the origin."""
        if self.problem != "quadratic":
            raise BadInput('only data.problem = "quadratic" has known constants')
        data = self._quadratic().train
        assert data.groups is not None
        centres = np.stack([data.inputs[data.groups == i].mean(axis=0) for i in range(self.groups)])
        noise = ((data.inputs - centres[data.groups]) ** 2).sum(axis=1).mean()
        heterogeneity = ((centres - centres.mean(axis=0)) ** 2).sum(axis=1).mean()
        return Problem(1.0, 1.0, float(noise), float(heterogeneity))
