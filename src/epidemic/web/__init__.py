"""The live page: `epidemic serve` shows directories as they are now, to everyone who has the address. It only reads.

`watch.py` finds runs and reads them on, `clusters.py` does so for clusters, `pages.py` and `picture.py` make HTML, `app.py` has the addresses and refuses strangers.
May be imported by: `cli/` only. An address names a digest, never a path; all text is escaped; no file of a run is executed.
To add a page: a function that returns a `LivePage` in `pages.py`, and its address in `app.py`.
"""
