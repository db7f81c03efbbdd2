"""`epidemic predict`: an exported model applied to the rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epidemic.cli.options import Json, NoCode, Overwrite, check_new_file
from epidemic.core.errors import BadInput


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("predict")(predict_command)


def predict_command(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A file of 'epidemic export', of a run on a table.", show_default=False),
    ],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A CSV or Parquet file.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The .csv file to write.", show_default=False)
    ],
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Copy this column, too.", show_default=False)
    ] = None,
    separator: Annotated[str, typer.Option(metavar="C", help="Between the columns of a CSV file.")] = ",",
    no_code: NoCode = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Apply an exported model to each row of a table, scaled as in training, and write the predictions.

    Classes come with the probability of each; other columns of the table are ignored. Where it has the column that is predicted, the
    command says how right the model is.

    [bold]Example[/bold]

      epidemic predict mean.safetensors patients.csv -o predictions.csv
    """
    if output.suffix != ".csv":
        raise BadInput(f"{output} must end in .csv")
    if len(separator) != 1:
        raise BadInput(f'--separator {separator!r} must be one character, for example ";"')
    check_new_file(output, overwrite)
    from epidemic.cli.show import print_json
    from epidemic.core.config import look_beside
    from epidemic.core.files import write_whole
    from epidemic.core.formatting import percent
    from epidemic.runtime.exported import predict, read_exported

    look_beside(model)
    exported = read_exported(model)
    about = exported.about
    found = predict(exported, table, separator, tuple(keep or ()))
    from epidemic.data.images import need

    frame = need("pandas", "Tables", "tables").DataFrame(found.table(about))
    write_whole(output, lambda part: frame.to_csv(part, index=False))
    measure = "accuracy" if about.classes else "root mean squared error"
    if as_json:
        return print_json({"file": str(output), "rows": len(frame), "target": about.target, measure: found.known})
    known = "" if found.known is None else percent(found.known) if about.classes else f"{found.known:.4g}"
    how_right = f"; {measure} {known} by its column {about.target!r}" if known else ""
    return typer.echo(f"wrote {output}: {len(frame)} row{'s' * (len(frame) != 1)}{how_right}")
