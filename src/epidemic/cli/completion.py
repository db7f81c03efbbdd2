"""What the shell offers when Tab is pressed, and how it learns to. Nothing here may be slow: no PyTorch, no reading of data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from epidemic.core.errors import BadInput, suggestion

INSTALL, SHOW = "--install-completion", "--show-completion"
SHELLS = ("bash", "fish", "powershell", "pwsh", "zsh")

ITEMS = (
    *("table1", "table2", "table3", "fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8"),
    *("contraction", "drift", "cap", "spectra", "async", "rivals", "all"),
)
"""The items of `epidemic reproduce`, whose module is slow to import; a test compares them."""


def set_up_completion(arguments: list[str]) -> bool:
    """Install or show completion, if the first argument asks for it; return whether it did.

    Typer's own options take no word and ignore one that follows, so the shell that a user names is honoured here.
    """
    if not arguments or arguments[0] not in (INSTALL, SHOW):
        return False
    from typer._completion_shared import _get_shell_name, get_completion_script, install

    option, *named = arguments
    if len(named) > 1:
        raise BadInput(f"{option} takes one shell, not {' '.join(named)!r}; name one of {', '.join(SHELLS)}")
    if named and named[0] not in SHELLS:
        raise BadInput(f"{option} {named[0]!r} is not a shell that is known{suggestion(named[0], SHELLS)}")
    shell = named[0] if named else _get_shell_name()
    if shell not in SHELLS:
        found = "the current shell was not found" if shell is None else f"{shell!r} has no completion"
        raise BadInput(f"{option}: {found}; name one of {', '.join(SHELLS)}")
    if option == SHOW:
        typer.echo(get_completion_script(prog_name="epidemic", complete_var="_EPIDEMIC_COMPLETE", shell=shell))
        return True
    try:
        _, path = install(shell, "epidemic", "_EPIDEMIC_COMPLETE")
    except OSError as problem:
        raise BadInput(f"{option}: completion for {shell} cannot be written: {problem}") from None
    typer.echo(f"completion for {shell} is installed in {path}; start a new terminal to use it")
    return True


def topologies(incomplete: str) -> list[str]:
    """The kinds of topologies, and what compares them."""
    from epidemic.topology import TOPOLOGIES

    return [kind for kind in (*TOPOLOGIES, "compare") if kind.startswith(incomplete)]


def services(incomplete: str) -> list[str]:
    """The kinds of peer sampling services."""
    from epidemic.peer_sampling import SERVICES

    return [kind for kind in SERVICES if kind.startswith(incomplete)]


def naming(kinds: Callable[[str], list[str]], **others: Callable[[str], list[str]]) -> type[TyperCommand]:
    """A command whose help names kinds: registries are imported when the help is shown, not when the program starts.

    Args:
        kinds: What completes a kind; all of them stand for {kinds} in the texts.
        others: The same for other words in braces.
    """

    class Naming(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            for word, complete in {"kinds": kinds, **others}.items():
                names = ", ".join(name for name in complete("") if name != "compare")
                self.help = (self.help or "").replace(f"{{{word}}}", names)
                for option in self.params:
                    if getattr(option, "help", None):
                        option.help = option.help.replace(f"{{{word}}}", names)  # type: ignore[attr-defined]
            super().format_help(ctx, formatter)

    return Naming


def items(incomplete: str) -> list[str]:
    """Return the items of the paper that begin with `incomplete`, for the shell's completion."""
    return [item for item in ITEMS if item.startswith(incomplete)]


def scales(incomplete: str) -> list[str]:
    """Return the scales of `reproduce` that begin with `incomplete`, for the shell's completion."""
    return [scale for scale in ("smoke", "laptop", "paper") if scale.startswith(incomplete)]


def downloads(incomplete: str) -> list[str]:
    """The data sets that can be fetched."""
    from epidemic.data.fetch import DOWNLOADS

    return [name for name in DOWNLOADS if name.startswith(incomplete)]
