"""Processes of nodes compute in long stretches, and nobody's own choice is overruled."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has such policies")

ASKED = """
import json, os, threading
from epidemic.deploy.runtime import compute_in_stretches
{before}
compute_in_stretches()
found = []
thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
thread.start()
thread.join()
print(json.dumps([os.sched_getscheduler(0), found[0], os.getpriority(os.PRIO_PROCESS, 0), open("/proc/self/sched").read()]))
"""


def asked(before=""):
    done = subprocess.run(
        [sys.executable, "-c", ASKED.format(before=before)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_a_process_and_its_threads_are_said_to_compute_and_keep_their_priority():
    own, of_thread, nice, said = asked("os.nice(3)")
    assert (own, of_thread, nice) == (os.SCHED_BATCH, os.SCHED_BATCH, os.getpriority(os.PRIO_PROCESS, 0) + 3)
    release = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))
    if release >= (6, 12) and "slice" in said:
        [stretch] = [line.split(":")[1].strip() for line in said.splitlines() if line.strip().startswith("se.slice")]
        assert float(stretch) in (100.0, 100_000_000.0)


def test_a_policy_that_somebody_has_chosen_stays():
    own, of_thread, _, _ = asked("os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))")
    assert (own, of_thread) == (os.SCHED_IDLE, os.SCHED_IDLE)
