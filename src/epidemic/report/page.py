"""The report: one HTML page that holds everything and asks for nothing, made from results only."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from epidemic import __version__
from epidemic.core.formatting import count
from epidemic.record import Moment
from epidemic.report import sections
from epidemic.report.contents import ReportContents
from epidemic.report.parts import legend, section, shown_interval, table
from epidemic.report.results import Results
from epidemic.report.sections import lines_figure, run_name
from epidemic.report.statistics import Interval, over_seeds
from epidemic.report.sweeps import sweep_section

# -- The section on simulated time: how busy processors and uplinks were, what became of messages, and how old they were when used --


HEADS = ("run", "simulated seconds", "processors busy (%)", "uplinks busy (%)", "messages sent", "used (%)", "wasted (%)", "lost (%)",
         "staleness (s)", "95 % of it below (s)", "nodes there")  # fmt: skip


def clock_section(shown: ReportContents) -> str:
    """What the nodes did with their time; nothing where no run has any."""
    if not shown.clock:
        return ""
    rows = []
    for whole, run, look, timed in zip(shown.all, shown.runs, shown.looks, shown.timed, strict=True):
        moments = [[r.time for r in records if r.time is not None] for records in run.by_seed]
        cells = _cells(moments) if timed else ["-"] * (len(HEADS) - 1)
        rows.append([run_name(whole, look), *cells])
    x = shown.time_label
    figures = [lines_figure("busy", "Processors: share of the time in which nodes trained", shown.by_time("busy", 100), x, "busy since the start (%)",
                            from_zero=True)]  # fmt: skip
    if any(found.mean for found in shown.curves("uplink")):
        figures.append(lines_figure("uplink", "Uplinks: share of the time in which nodes sent", shown.by_time("uplink", 100), x,
                                    "busy since the start (%)", from_zero=True))  # fmt: skip
    if any(found.mean for found in shown.curves("staleness")):
        figures.append(lines_figure("staleness", "Staleness: how old messages were when they were used", shown.by_time("staleness"), x,
                                    "seconds between sending and use, mean", from_zero=True))  # fmt: skip
    if any(min(found.mean, default=0.0) != max(found.mean, default=0.0) for found in shown.curves("online")):
        figures.append(lines_figure("online", "Nodes online", shown.by_time("online"), x, "nodes", from_zero=True))
    note = (
        "Busy is the share of the nodes' online time since the start in which they trained, or their uplinks sent; a dash where uplinks have"
        " no limit. Messages are those of all nodes: used ones went into a model, wasted ones came and were of no use (late, replaced, over a"
        " limit), lost ones never came; the others were on their way or still held. Staleness is the time between sending and use, of the"
        " messages used since the evaluation before; the table has that of the last one."
    )
    content = (
        f"{table(HEADS, rows)}<p>{escape(note)}</p>{legend(shown.legend())}<div class=grid2>{''.join(figures)}</div>"
    )
    return section("Under the clock", content)


def _cells(by_seed: list[list[Moment]]) -> list[str]:
    last = [moments[-1] for moments in by_seed]

    def share(part: str) -> Interval | None:
        return over_seeds([getattr(m.messages, part) / m.messages.sent if m.messages.sent else None for m in last])

    return [
        shown_interval(over_seeds([m.seconds for m in last]), 1, 1),
        shown_interval(over_seeds([m.busy for m in last]), 100, 1),
        shown_interval(over_seeds([m.uplink for m in last]), 100, 1),
        shown_interval(over_seeds([m.messages.sent for m in last]), 1, 0),
        *(shown_interval(share(part), 100, 1) for part in ("used", "wasted", "lost")),
        shown_interval(over_seeds([_latest(moments, "staleness") for moments in by_seed]), 1, 2),
        shown_interval(over_seeds([_latest(moments, "staleness_95") for moments in by_seed]), 1, 2),
        shown_interval(over_seeds([m.online for m in last]), 1, 0),
    ]


def _latest(moments: list[Moment], what: str) -> float | None:
    """The last value that there is: between the last two evaluations nothing may have been used."""
    known: list[float] = [value for m in moments if (value := getattr(m, what)) is not None]
    return known[-1] if known else None


NOTES = 12
"""More notes than this are collapsed."""


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
