"""The `epidemic` command, and how it ends: exit code 2 bad input, 1 failure while running, 130 interrupted."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Annotated, Any

import typer

from epidemic import __version__
from epidemic.cli import clusters, datasets, experiments, keys, nodes, reports, serve, studies, theory, topology
from epidemic.cli.loading import Loading
from epidemic.errors import BadInput, Interrupted, RunFailed
from epidemic.progress import told_to

INTERRUPTED = 130

app = typer.Typer(
    name="epidemic",
    help="Epidemic Learning: machine learning by many nodes that hold private data and have no server.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
theory.register(app)
topology.register(app)
experiments.register(app)
studies.register(app)
reports.register(app)
serve.register(app)
clusters.register(app)
nodes.register(app)
keys.register(app)
datasets.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"epidemic {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = typer.main.get_command(app)
    try:
        with _loading_shown(arguments):
            result = command.main(args=arguments, prog_name="epidemic", standalone_mode=False)
        if result == INTERRUPTED:  # how Typer reports Ctrl-C
            return _fail("interrupted", INTERRUPTED)
        return result if isinstance(result, int) else 0
    except SystemExit as end:  # how Typer ends after completion
        return end.code if isinstance(end.code, int) else 0
    except BadInput as problem:
        return _fail(str(problem), 2)
    except RunFailed as problem:
        return _fail(str(problem), 1)
    except Interrupted as stop:
        return _fail(str(stop), INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as problem:
        if hasattr(problem, "format_message"):  # a usage error of Typer's
            return _fail(_usage(problem, arguments), 2) if problem.format_message().strip() else 2  # help was shown
        if "EPIDEMIC_DEBUG" in os.environ:
            raise
        if isinstance(problem, MemoryError) or "can't allocate memory" in str(problem):
            reason = str(problem).partition("can't allocate memory: ")[2] or str(problem)
            return _fail(
                f"not enough memory{': ' * bool(reason)}{reason}; use smaller sizes (nodes, model, batches, data)", 1
            )
        return _fail(f"unexpected {type(problem).__name__}: {problem}; set EPIDEMIC_DEBUG=1 to see where", 1)


def _loading_shown(arguments: list[str]) -> AbstractContextManager[None]:
    """Somebody who watches a terminal is told how far reading data has come."""
    if not sys.stderr.isatty() or {"--quiet", "-q"} & set(arguments):
        return nullcontext()
    return told_to(Loading())


def _usage(problem: Any, arguments: list[str]) -> str:
    """One line for a usage error, naming what was given."""
    context, options = getattr(problem, "ctx", None), getattr(getattr(problem, "param", None), "opts", [])
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    given = next((f"{a} {b!r}: " for a, b in pairwise(words) if a in options), "")
    path = context.command_path if context is not None else "epidemic"
    return f"{given}{problem.format_message().rstrip('.')}; see '{path} --help'"


def _fail(message: str, code: int) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return code


def entry() -> None:
    """The console script."""
    sys.exit(main())
