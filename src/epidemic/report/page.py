"""The report: one HTML page that holds everything and asks for nothing, made from results only."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from epidemic import __version__
from epidemic.report import sections
from epidemic.report.contents import ReportContents
from epidemic.report.parts import count
from epidemic.report.results import Results
from epidemic.report.sweeps import sweep_section
from epidemic.report.time_section import clock_section

NOTES = 12
"""More notes than this are folded."""


def page(results: Results, title: str = "Epidemic Learning: results", target: float | None = None) -> str:
    """The whole page.

    Args:
        results: The runs, from `read_results`. What differs between them decides how they are drawn.
        title: The heading.
        target: The accuracy whose cost is compared, from 0 to 1; by default the best of a regular topology, else of the first run.
    """
    shown = ReportContents(results, target)
    parts = [
        sweep_section(shown),
        sections.summary(shown),
        sections.learning(shown),
        sections.cost(shown),
        clock_section(shown),
        sections.nodes(shown),
        sections.classes(shown),
        sections.load(shown),
        sections.differences(shown),
        sections.environment(shown),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f'<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>\n{style()}</style></head><body><header><h1>{escape(title)}</h1>"
        f"<p>{count(len(shown.runs), 'experiment')}, {count(sum(len(r.seeds) for r in shown.runs), 'run')} over all seeds."
        " Means over seeds; ± and bands are 95 % intervals (Student t).</p>"
        f"{_notes(shown.notes)}</header><main>{''.join(parts)}</main>"
        f"<footer>Made by epidemic {__version__}. This page is one file and loads nothing.</footer></body></html>\n"
    )


def style() -> str:
    """The style sheet that charts and tables of a report need."""
    return (files("epidemic.report") / "page.css").read_text(encoding="utf-8")


def _notes(notes: list[str]) -> str:
    if not notes:
        return ""
    items = [f"<li>{escape(note)}</li>" for note in notes]
    first = f"<ul class=notes>{''.join(items[:NOTES])}</ul>"
    if len(items) <= NOTES:
        return first
    rest = f"<ul class=notes>{''.join(items[NOTES:])}</ul>"
    return f"{first}<details><summary>{count(len(items) - NOTES, 'more note')}</summary>{rest}</details>"
