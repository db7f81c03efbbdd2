"""Tables, figures and the HTML report, made from the records of finished or unfinished runs only: nothing here trains, and no model is read.

`results.py` reads directories back, `settings.py` finds what differs between runs, `shown.py` decides what is shown, `page.py` writes the page.
May be imported by: `web/`, `methods.py`, `api/`, `reproduce/` and `cli/`; never by `engine/` or `net/`.
To add a section of the page: a function from `Shown` to HTML in `sections.py`, listed in `page.py`. To add a chart: a pure function in `charts.py`.
"""
