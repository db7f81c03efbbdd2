"""The section on simulated time: how busy processors and uplinks were, what became of messages, and how old they were when used."""

from __future__ import annotations

from html import escape

from epidemic.record import Moment
from epidemic.report.contents import ReportContents
from epidemic.report.numbers import shown_interval
from epidemic.report.parts import legend, section, table
from epidemic.report.sections import lines_figure, run_name
from epidemic.report.statistics import Interval
from epidemic.report.targets import over_seeds

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
