"""Settings of all tests."""

import gc
import os
import tempfile

from hypothesis import settings

# The same examples in every run, and no time limits: shared machines are slow at times.
settings.register_profile("project", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("project")

# Decoded data is kept for the length of this run only, and never among the user's own.
_cache = tempfile.TemporaryDirectory(prefix="epidemic-cache-")
os.environ["EPIDEMIC_CACHE"] = _cache.name

for _own in ("EPIDEMIC_DATA", "EPIDEMIC_DEBUG"):  # a developer's settings are none of the tests' business
    os.environ.pop(_own, None)
os.environ.setdefault("COLUMNS", "100")  # the width of printed tables


def pytest_unconfigure():
    """Nothing of the cache is left behind."""
    _cache.cleanup()


LONGEST = ("test_reproduce.py", "test_sweep.py", "test_engine.py")


def pytest_collection_modifyitems(items):
    """A file is done by one worker; those that take longest start first, so that nobody waits for them at the end."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


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
