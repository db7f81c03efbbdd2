"""Settings of all tests."""

import os

from hypothesis import settings

# The same examples in every run, and no time limits: shared machines are slow at times.
settings.register_profile("project", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("project")

os.environ.setdefault("COLUMNS", "100")  # the width of printed tables
