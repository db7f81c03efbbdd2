"""`epidemic devices`: files that say how fast machines are, what their links carry, and when they are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epidemic.cli.options import Json, Overwrite, check_new_file
from epidemic.core.errors import plain
from epidemic.core.formatting import count

if TYPE_CHECKING:
    from epidemic.clock import Device

devices_app = typer.Typer(
    help="Device files for the simulated clock: make them, look at them, convert public traces.", no_args_is_help=True
)

Out = Annotated[Path, typer.Argument(metavar="OUT", help="The file to write (.jsonl).", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands of `epidemic devices` to the application."""
    app.add_typer(devices_app, name="devices")


@devices_app.command("make")
def make_command(
    out: Out,
    nodes: Annotated[int, typer.Option("--nodes", "-n", metavar="N", help="How many devices.", show_default=False)],
    seed: Annotated[int, typer.Option(metavar="S", help="Of the draws.")] = 1,
    speed: Annotated[
        str, typer.Option(metavar="LAW", help="Milliseconds per sample, one forward pass.")
    ] = "lognormal:5:0.6",
    up: Annotated[str, typer.Option(metavar="LAW", help="Mbit/s out of a device.")] = "lognormal:10:0.6",
    down: Annotated[str, typer.Option(metavar="LAW", help="Mbit/s into a device; same: as out of it.")] = "same",
    on: Annotated[
        str,
        typer.Option(
            metavar="LAW",
            help="Sessions: exponential:MEAN_ON:MEAN_OFF, lognormal:MEDIAN_ON:MEDIAN_OFF:SIGMA, diurnal:LOW:HIGH, or always.",
        ),
    ] = "always",
    period: Annotated[float, typer.Option(metavar="SECONDS", help="After which sessions repeat.")] = 86400.0,
    overwrite: Overwrite = False,
) -> None:
    r"""Draw devices from laws, and write them as a file.

    A law is constant:VALUE, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA, or none, which leaves the field out. Sessions have laws of
    their own, in seconds; those of diurnal are the least and the greatest share of devices that are on. The same seed gives the same file.

    [bold]Examples[/bold]

      epidemic devices make phones.jsonl --nodes 100 --on diurnal:0.1:0.8

      epidemic devices make offices.jsonl --nodes 20 --speed constant:3 \
          --up uniform:20:50 --down lognormal:80:0.3
    """
    from epidemic.clock.make_devices import make, written
    from epidemic.core.files import write_bytes

    check_new_file(out, overwrite)
    write_bytes(out, written(make(nodes, seed, speed=speed, up=up, down=down, on=on, period=period)))
    typer.echo(f"{out}: {count(nodes, 'device')}; 'epidemic devices show {out}' shows them")


@devices_app.command("show")
def show_command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A device file, or one of stragglers-60 and ten-regions.", show_default=False
        ),
    ],
    picture: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write a picture (.png, .pdf or .svg).", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Check a device file, and show speeds, bandwidths and availability.

    [bold]Examples[/bold]

      epidemic devices show stragglers-60

      epidemic devices make phones.jsonl --nodes 100 --on diurnal:0.1:0.8

      epidemic devices show phones.jsonl -o phones.svg
    """
    from epidemic.cli.show import plain_table, print_json, show
    from epidemic.clock.devices import find_devices, read_devices
    from epidemic.report.devices import devices_figure
    from epidemic.report.style import check_picture, save

    if picture is not None:
        check_picture(picture)
    devices = read_devices(find_devices(file, Path(), "FILE"))
    title = f"{count(len(devices), 'device')} of {plain(file)}"
    if picture is not None:
        save(devices_figure(devices, title), picture)
    summary = _summary(devices)
    if json:
        return print_json({"devices": len(devices), **summary})
    table = plain_table(title, "", "devices", "min", "median", "mean", "max")
    for what, numbers in summary.items():
        table.add_row(what, f"{numbers['devices']:,}", *(_shown(numbers[k]) for k in ("min", "median", "mean", "max")))
    show(table) if summary else typer.echo(f"{title}: none of them says anything")
    if picture is not None:
        typer.echo(f"picture: {picture}")


@devices_app.command("convert")
def convert_command(
    trace: Annotated[Path, typer.Argument(metavar="IN", help="A trace, as JSON.", show_default=False)],
    out: Out,
    form: Annotated[
        str,
        typer.Option("--from", metavar="FORM", help="fedscale-capacity or fedscale-behave.", show_default=False),
    ],
    lender: Annotated[
        Path | None,
        typer.Option(
            "--with",
            metavar="FILE",
            help="Add what the trace lacks from the devices of this file, one by one.",
            show_default=False,
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    r"""Turn a public trace into a device file.

    Of FedScale: the capacity of devices (milliseconds per sample, kbit/s) and when they are active. Its files are pickles, which are never read, because they can run anything: make JSON of
    one where you trust it; the message for a pickle says how.

    [bold]Examples[/bold]

      epidemic devices convert capacity.json speeds.jsonl --from fedscale-capacity

      epidemic devices convert behave.json devices.jsonl \
          --from fedscale-behave --with speeds.jsonl
    """
    from epidemic.clock.converting import convert
    from epidemic.clock.devices import find_devices, read_devices
    from epidemic.clock.make_devices import written
    from epidemic.core.files import write_bytes

    check_new_file(out, overwrite)
    lines = convert(trace, form, None if lender is None else read_devices(find_devices(str(lender), Path(), "--with")))
    write_bytes(out, written(lines))
    typer.echo(f"{out}: {count(len(lines), 'device')}; 'epidemic devices show {out}' shows them")


def _shown(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def _summary(devices: list[Device]) -> dict[str, dict[str, Any]]:
    """A summary of each field over the devices that state it."""
    import numpy as np

    cycles = [cycle for device in devices if (cycle := device.cycle()) is not None]
    sessions = [float(b - a) for device in devices if device.on is not None for a, b in device.on.tolist()]
    columns = {
        "ms per sample": [d.ms_per_sample for d in devices if d.ms_per_sample is not None],
        "Mbit/s up": [d.up_kbps / 1000 for d in devices if d.up_kbps is not None],
        "Mbit/s down": [d.down_kbps / 1000 for d in devices if d.down_kbps is not None],
        "share of time on": [cycle.on_time / cycle.length if cycle.length else 0.0 for cycle in cycles],
        "seconds of a session": sessions,
    }
    found = {}
    for what, values in columns.items():
        if values:
            x = np.array(values)
            said = len(cycles) if values is sessions else len(values)
            found[what] = {"devices": said, "min": float(x.min()), "median": float(np.median(x)), "mean": float(x.mean()), "max": float(x.max())}  # fmt: skip
    return found
