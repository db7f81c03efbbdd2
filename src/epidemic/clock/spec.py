"""`[clock]`: the modelled world of a simulated clock as one frozen value. Times are seconds, rates Mbit/s."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from epidemic.clock.churn import CHURNS, Comings
from epidemic.clock.compute import COMPUTES, ConstantCompute, SlowedCompute, Unslowed
from epidemic.clock.devices import SHIPPED, assigned, find_devices, read_devices
from epidemic.clock.draws import MOST_SECONDS
from epidemic.clock.links import LATENCIES, Links, MatrixLatency
from epidemic.clock.world import World
from epidemic.core.config import build, build_kind
from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.core.rng import Streams
from epidemic.core.settings import Settings
from epidemic.protocol.closing_rules import CloseBarrier, Closing, check_spelling, close_from


class Clock(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long everything takes, when nodes are online, and when the run ends.

    Example:
        >>> Clock(compute=PerNodeCompute(median=0.05, sigma=0.5), links=Links(uplink=10, latency=0.05))
    """

    compute: Unslowed | SlowedCompute = msgspec.field(default_factory=ConstantCompute)
    """How long a local step takes."""
    links: Links = msgspec.field(default_factory=Links)
    churn: Comings | None = None
    """When nodes leave and return; None: they are always online."""
    devices: str = ""
    """A device file, or the name of one in the package: stragglers-60, ten-regions."""
    reuse: bool = False
    """Whether several nodes may share a device, if there are fewer devices than nodes."""
    close: Closing = msgspec.field(default_factory=CloseBarrier)
    """The rule by which a node closes a round."""
    protocol: Literal["plain", "deployed"] = "plain"
    """Further behaviour of nodes in rounds. plain: none; rounds close by `close`. deployed: that of deployed nodes: they adapt their waits, catch up, ask
    again for missing messages, offer messages if there is a cap, and give up silent peers.
    """
    stop: float = 0.0
    """Simulated seconds after which the run ends; 0: never."""
    megabytes: float = 0.0
    """Megabytes sent by the average node after which the run ends; 0: never."""
    evaluate: float = 0.0
    """Simulated seconds between evaluations; 0: every eval.every rounds."""

    def __post_init__(self) -> None:
        check_spelling(self.close, "clock.close")
        for name, kinds in (
            ("compute", Unslowed | SlowedCompute),
            ("links", Links),
            ("churn", Comings | None),
            ("close", Closing),
        ):
            if not isinstance(getattr(self, name), kinds):
                raise BadInput(
                    f"clock.{name} = {getattr(self, name)!r} must be of one of its kinds; see epidemic.clock"
                )
        if not isinstance(self.devices, str):
            raise BadInput(f"clock.devices = {self.devices!r} must name a file")
        require_choice("clock.protocol", self.protocol, ["plain", "deployed"])
        require_real("clock.stop", self.stop, 0, MOST_SECONDS)
        require_real("clock.megabytes", self.megabytes, 0)
        require_real("clock.evaluate", self.evaluate, 0, MOST_SECONDS)
        if not self.devices:
            for name, part in (("compute", self.compute), ("churn", self.churn)):
                if part is not None and part.needs_devices:
                    raise BadInput(f'clock.{name}.kind = "devices" needs clock.devices, the name of a device file')
            if not (self.links.uplink or self.links.downlink):
                for name in ("model", "order"):
                    value = getattr(self.links, name)
                    if value != getattr(Links(), name):
                        raise BadInput(
                            f'clock.links.{name} = "{value}" has no effect on links that are unlimited; give clock.links.uplink in Mbit/s, or'
                            " leave it out"
                        )
            if self.reuse:
                raise BadInput("clock.reuse = true needs clock.devices, the name of a device file")

    @property
    def files(self) -> list[str]:
        """The user's own files that the world is read from, without those in the package."""
        named = [self.devices] if self.devices and self.devices not in SHIPPED else []
        latency = self.links.latency
        return named + ([latency.path] if isinstance(latency, MatrixLatency) else [])

    def world(self, n: int, streams: Streams, batch_size: int, where: Path) -> World:
        """The world of n nodes in one run; relative paths start at `where`."""
        require_int("nodes", n, 1)
        require_int("algorithm.batch_size", batch_size, 1)
        every = read_devices(find_devices(self.devices, where)) if self.devices else []
        devices = assigned(every, n, self.reuse, streams) if every else []
        churn_needs = self.churn is not None and self.churn.needs_devices
        if devices and not (self.compute.needs_devices or churn_needs or any(d.has_links for d in devices)):
            raise BadInput(
                f"clock.devices = {self.devices!r} is of no use here: it has no up_kbps or down_kbps, and neither compute nor churn"
                ' is of kind "devices"; choose these kinds, or leave it out'
            )
        return World(
            seconds=self.compute.medians(n, streams, devices, batch_size),
            spread=self.compute.spread,
            uplink=self.links.uplinks(n, devices),
            downlink=self.links.downlinks(n, devices),
            delay=self.links.delay(streams, where),
            timeline=None if self.churn is None else self.churn.timeline(n, streams, devices),
            streams=streams,
            about={"latency_s": self.links.described(where), **({"devices": len(every)} if every else {})},
        )


def clock_from(table: object, where: str = "clock") -> Clock:
    """Read the clock from the tables of a TOML file; a compute table without a kind is "constant"."""
    if isinstance(table, Clock) or not isinstance(table, Mapping):
        return build(table, Clock, where)
    values: dict[str, Any] = dict(table)
    if "compute" in values:
        values["compute"] = _compute(values["compute"], f"{where}.compute")
    if "links" in values:
        values["links"] = _links(values["links"], f"{where}.links")
    if "churn" in values:
        values["churn"] = build_kind(values["churn"], CHURNS, f"{where}.churn")
    if "close" in values:
        values["close"] = close_from(values["close"], f"{where}.close", "barrier")
    return build(values, Clock, where)


def _compute(table: Any, where: str) -> Any:
    if not isinstance(table, Mapping):
        return build_kind(table, COMPUTES, where)
    table = {"kind": "constant", **table}
    if table["kind"] == "slowed" and "inner" in table:
        kinds = {kind: cls for kind, cls in COMPUTES.items() if cls is not SlowedCompute}
        table["inner"] = build_kind(table["inner"], kinds, f"{where}.inner")
    return build_kind(table, COMPUTES, where)


def _links(table: Any, where: str) -> Links:
    latency = table.get("latency", 0) if isinstance(table, Mapping) else 0
    if isinstance(latency, Mapping):
        table = {**table, "latency": build_kind(latency, LATENCIES, f"{where}.latency")}
    elif isinstance(latency, str):
        kinds = " or ".join(LATENCIES)
        raise BadInput(f"{where}.latency = {latency!r} must be a number of seconds, or a table of kind {kinds}")
    return build(table, Links, where)
