"""The `epidemic` command, and how it ends: exit code 2 bad input, 1 failure while running, 130 interrupted."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import pairwise
from typing import Annotated, Any

import typer

from epidemic import __version__
from epidemic.cli import (
    clusters,
    compatibility,
    datasets,
    devices,
    doctor,
    experiments,
    keys,
    nodes,
    plan,
    predict,
    reports,
    serve,
    studies,
    theory,
    timeline,
    topology,
)
from epidemic.cli.completion import set_up_completion
from epidemic.cli.ranks import check_command
from epidemic.core.config import NO_CODE
from epidemic.core.errors import BadInput, EpidemicError, Interrupted, RankLost, for_the_command_line
from epidemic.core.progress import Loading, told_to

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
compatibility.register(app)
experiments.register(app)
studies.register(app)
plan.register(app)
predict.register(app)
reports.register(app)
timeline.register(app)
serve.register(app)
clusters.register(app)
nodes.register(app)
keys.register(app)
datasets.register(app)
devices.register(app)
doctor.register(app)


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
    code, text, _ = outcome(sys.argv[1:] if arguments is None else arguments)
    if text:
        print("error: " + " ".join(text.split()), file=sys.stderr)
    return code


def outcome(arguments: list[str]) -> tuple[int, str, bool]:
    """Run the command line: its exit code, what went wrong, and whether it is that another rank of a simulation was lost."""
    command = typer.main.get_command(app)
    try:
        if set_up_completion(arguments):
            return 0, "", False
        check_command(arguments)
        with for_the_command_line(), _loading_shown(arguments), _no_code(arguments):
            result = command.main(args=arguments, prog_name="epidemic", standalone_mode=False)
        if result == INTERRUPTED:  # how Typer reports Ctrl-C
            return INTERRUPTED, "interrupted", False
        return result if isinstance(result, int) else 0, "", False
    except SystemExit as end:  # how Typer ends after completion
        return end.code if isinstance(end.code, int) else 0, "", False
    except EpidemicError as problem:
        code = 2 if isinstance(problem, BadInput) else INTERRUPTED if isinstance(problem, Interrupted) else 1
        return code, "" if _said_by_another_rank(problem) else str(problem), isinstance(problem, RankLost)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED, "interrupted", False
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0, "", False
    except Exception as problem:
        if hasattr(problem, "format_message"):  # a usage error of Typer's
            return 2, _usage(problem, arguments) if problem.format_message().strip() else "", False  # help was shown
        if "EPIDEMIC_DEBUG" in os.environ:
            raise
        if isinstance(problem, MemoryError) or "can't allocate memory" in str(problem):
            reason = str(problem).partition("can't allocate memory: ")[2] or str(problem)
            fix = "use smaller sizes (nodes, model, batches, data)"
            return 1, f"not enough memory{': ' * bool(reason)}{reason}; {fix}", False
        return 1, f"unexpected {type(problem).__name__}: {problem}; set EPIDEMIC_DEBUG=1 to see where", False


def _said_by_another_rank(problem: EpidemicError) -> bool:
    """Whether the first rank of a simulation reports this for all."""
    return os.environ.get("RANK", "0") != "0" and (problem.agreed or isinstance(problem, Interrupted))


def _loading_shown(arguments: list[str]) -> AbstractContextManager[None]:
    """Show on a terminal how far reading data has come."""
    if not sys.stderr.isatty() or {"--quiet", "-q"} & set(arguments):
        return nullcontext()
    return told_to(Loading())


@contextmanager
def _no_code(arguments: list[str]) -> Iterator[None]:
    """With --no-code, refuse code that files name, here and in started processes."""
    before = os.environ.get(NO_CODE)
    if "--no-code" in arguments:
        os.environ[NO_CODE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(NO_CODE, None)
        else:
            os.environ[NO_CODE] = before


def _usage(problem: Any, arguments: list[str]) -> str:
    """One line for a usage error, naming what was given."""
    context, options = getattr(problem, "ctx", None), getattr(getattr(problem, "param", None), "opts", [])
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    given = next((f"{a} {b!r}: " for a, b in pairwise(words) if a in options), "")
    path = context.command_path if context is not None else "epidemic"
    return f"{given}{problem.format_message().rstrip('.')}; see '{path} --help'"


def entry() -> None:
    """Run the command line and exit with its code; the console script calls this."""
    code = main()
    if code and _among_ranks():
        with suppress(OSError):  # the reader is gone
            sys.stdout.flush()
        os._exit(code)  # a process group that was not dissolved may abort the process at its end
    sys.exit(code)


def _among_ranks() -> bool:
    """Whether this process has met others and not parted from them.

    Nothing is imported to find out: after Ctrl-C during an import, PyTorch may be half loaded.
    """
    several = getattr(sys.modules.get("epidemic.core.workers"), "several", None)
    return several is not None and several()
