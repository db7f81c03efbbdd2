"""Settings of all tests."""

import gc
import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run, and no time limits: shared machines are slow at times.
settings.register_profile("project", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)  # for `make soak`
settings.load_profile("project")

# Decoded data is kept for the length of this run only, and never among the user's own.
_cache = tempfile.TemporaryDirectory(prefix="epidemic-cache-")
os.environ["EPIDEMIC_CACHE"] = _cache.name

for _own in ("EPIDEMIC_DATA", "EPIDEMIC_DEBUG"):  # a developer's settings are none of the tests' business
    os.environ.pop(_own, None)
os.environ.setdefault("COLUMNS", "100")  # the width of printed tables

# A shell that starts the tests in the background leaves them deaf to Ctrl-C, and processes that they start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure():
    """Nothing of the cache is left behind."""
    _cache.cleanup()


HERE = Path(__file__).parent
FIRST = ("test_reproduce.py", "test_sweep.py", "test_engine.py", "test_page.py")
LAST = (
    "test_partial.py",
    "test_coins.py",
    "test_broken_protocols.py",
    "test_staying.py",
    "test_schedules.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """A file is done by one worker, since its tests may share what took long to make. Those that take longest start first.

    Files whose tests share nothing and take long come last, test by test, so that all workers end at the same time.
    """

    def place(item):
        name = item.path.name
        if name in FIRST:
            return FIRST.index(name)
        return len(FIRST) + 1 + LAST.index(name) if name in LAST else len(FIRST)

    items.sort(key=place)
    for item in items:
        if item.path.parent == HERE and item.path.name not in LAST:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


def pytest_collection_finish():
    """What is there before the first test, all of PyTorch among it, is never looked through for garbage again: that took a tenth of the time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """What could not be tested here is said where nobody overlooks it."""
    reasons = {
        report.longrepr[2]
        for report in terminalreporter.stats.get("skipped", [])
        if "NO BROWSER" in str(report.longrepr) or "NO SLURM" in str(report.longrepr)
    }
    for reason in reasons:
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.write_line(reason)
