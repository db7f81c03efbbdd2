"""Tables, figures and the HTML report, made from the records of finished or unfinished runs only: nothing here trains, and no model is read.

`results.py` reads directories back, `settings.py` finds what differs between runs, `contents.py` decides what is shown, `page.py` writes the page.
May be imported by: `web/`, `study/`, `api/`, `study/` and `cli/`; never by `simulator/` or `deploy/`.
To add a section of the page: a function from `ReportContents` to HTML in `sections.py`, listed in `page.py`. To add a chart: a pure function in `charts.py`.
"""
