"""The command line: one file for each group of commands, which reads options, calls the package and prints.

May be imported by: nothing but `__main__`. A command decides nothing that Python users could need; that belongs in the package.
To add a command: a file with `register(app)`, called in `app.py`; imports of PyTorch and Matplotlib belong inside the functions, so that `--help` stays fast.
"""

from epidemic.cli.app import app, main

__all__ = ["app", "main"]
