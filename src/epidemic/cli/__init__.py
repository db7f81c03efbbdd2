"""The command line: thin shells around the package."""

from epidemic.cli.app import app, main

__all__ = ["app", "main"]
