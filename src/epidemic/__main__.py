"""`python -m epidemic`."""

from epidemic.cli.app import entry

entry()
