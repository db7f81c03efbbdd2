"""A run as a command: whoever asks it to end is heard, and it has ended when `execute` returns."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from epidemic.core.errors import Interrupted, RunFailed
from epidemic.study import commands
from epidemic.study.commands import LAST_WORDS, execute

pytestmark = pytest.mark.skipif(not hasattr(os, "setsid"), reason="signals as POSIX has them")


def python(text):
    return [sys.executable, "-u", "-c", text]


STUBBORN = """
import os, pathlib, signal, sys, time
def note(*_):
    pathlib.Path("asked").write_text(str(int(pathlib.Path("asked").read_text()) + 1))
pathlib.Path("asked").write_text("0")
signal.signal(signal.SIGTERM, note)
pathlib.Path("pid").write_text(str(os.getpid()))
while True:
    time.sleep(0.02)
"""
SAVES = """
import os, pathlib, signal, sys, time
def save(*_):
    print("error: interrupted after round 7", file=sys.stderr)
    sys.exit(130)
signal.signal(signal.SIGTERM, save)
pathlib.Path("pid").write_text(str(os.getpid()))
while True:
    time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def waited(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def asking(*conditions, number=signal.SIGINT):
    """Send this process a signal as soon as each of these holds, one after the other."""

    def ask():
        for condition in conditions:
            waited(condition)
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def there(name, content=None):
    return lambda: Path(name).is_file() and (content is None or Path(name).read_text() == content)


def gone(pid):
    return not Path(f"/proc/{pid}").exists() if Path("/proc").is_dir() else True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_is_asked_to_save_and_its_last_words_are_kept(number):
    thread = asking(there("pid"), number=number)
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"^interrupted after round 7$"):
        execute(python(SAVES))
    thread.join()
    assert signal.getsignal(number) is before
    assert gone(Path("pid").read_text())


def test_a_run_that_does_not_answer_is_killed_at_the_third_time(monkeypatch):
    monkeypatch.setattr(commands, "AT_ONCE", 0.0)
    thread = asking(there("pid"), there("asked", "1"), there("asked", "2"))
    with pytest.raises(Interrupted):
        execute(python(STUBBORN))
    thread.join()
    assert gone(Path("pid").read_text())


def test_signals_that_come_together_are_one_wish_and_the_run_may_save():
    slow = SAVES.replace(
        "    print(",
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN); open('heard', 'w').close(); time.sleep(1)\n    print(",
    )
    thread = asking(there("pid"), there("heard"), there("heard"), there("heard"))
    with pytest.raises(Interrupted, match=r"^interrupted after round 7$"):
        execute(python(slow))
    thread.join()


def test_what_a_run_has_started_and_left_behind_does_not_hold_anybody_up():
    left = "import os, time; pid = os.fork(); time.sleep(60) if not pid else open('left', 'w').write(str(pid)); print('error: the reason', file=__import__('sys').stderr); os._exit(1)"
    begin = time.monotonic()
    try:
        with pytest.raises(RunFailed, match=r"^the reason$"):
            execute(python(left))
        assert time.monotonic() - begin < 30 + LAST_WORDS
    finally:
        os.kill(int(Path("left").read_text()), signal.SIGKILL)


def test_a_wish_that_comes_before_the_run_is_there_is_not_forgotten(monkeypatch):
    import subprocess

    start = subprocess.Popen

    def slow(*arguments, **more):
        os.kill(os.getpid(), signal.SIGINT)
        process = start(*arguments, **more)
        waited(there("pid"))  # it can save now
        return process

    monkeypatch.setattr(subprocess, "Popen", slow)
    with pytest.raises(Interrupted):
        execute(python(SAVES))
    assert gone(Path("pid").read_text())


def test_a_command_that_cannot_be_started_fails_in_one_line():
    with pytest.raises(RunFailed, match=r"could not be started: .*nowhere"):
        execute(["/nowhere/python"])
