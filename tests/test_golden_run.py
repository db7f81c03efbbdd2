"""Golden run directories: every byte of them, but what differs by machine and time, which is left out by name."""

import hashlib
import json
import re

import msgspec
import pytest

import epidemic as ep
import exact
import golden
from epidemic.core.errors import Interrupted

BY_MACHINE = {"run.json": ("versions", "machine"), "timings.jsonl": ("seconds",), "places.json": None}
"""Of these files, these entries (None: everything) differ by machine and time."""
ONE_SEED = exact.EXPERIMENT.replace("seeds = [1, 2]", "seeds = [1]")
CLOCK = ONE_SEED.replace('topology = {kind = "el-oracle", s = 1}', 'topology = {kind = "el-local", s = 1}').replace(
    "nodes = 4", "nodes = 2"
)
CLOCKED = {
    "rounds-under-the-clock": ONE_SEED
    + "clock = {compute = {seconds = 0.25}, links = {uplink = 1, latency = 0.125}}\n",
    "asynchronous": CLOCK.replace("algorithm = {", 'algorithm = {kind = "async-el", ')
    + "clock = {stop = 2.0, evaluate = 1.0, compute = {seconds = 0.25}, links = {uplink = 1, latency = 0.125}}\n",
}


def shown(path, directory):
    """A file of a run as lines."""
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        if "progress" in header["__metadata__"]:  # the length of timings.jsonl, and so the digest of all that
            header["__metadata__"]["progress"] = re.sub(
                r'"timings_bytes":\d+', '"timings_bytes":"(by machine)"', header["__metadata__"]["progress"]
            )
            header["__metadata__"]["digest"] = "(by machine)"
        lines = [f"  {name}: {msgspec.json.encode(about).decode()}" for name, about in header.items()]
        numbers = data[8 + length :]
        return [
            *lines,
            f"  {len(data)} bytes; of the numbers {len(numbers)}: {hashlib.blake2b(numbers, digest_size=16).hexdigest()}",
        ]
    text = data.decode().replace(str(directory), "(directory)")
    if path.name in BY_MACHINE:
        without = BY_MACHINE[path.name]
        if without is None:
            return ["  (by machine)"]
        values = [json.loads(text)] if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
        for value in values:
            for name in without:
                assert name in value
                value[name] = "(by machine)"
        text = "\n".join(json.dumps(value, indent=1 if path.suffix == ".json" else None) for value in values)
    return ["  " + line for line in text.splitlines()]


def directory_text(directory, root, words):
    """All files of a directory, one after the other."""
    lines = ["# " + line for line in words.splitlines()]
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            lines += ["", f"{path.relative_to(directory)}", *shown(path, root)]
    return "\n".join(lines)


WORDS = """\
Every byte of the directory of {what}, with momentum; all its numbers are exact (tests/exact.py).
By machine: of run.json `versions` and `machine`, of timings.jsonl `seconds` and so its length in
the checkpoint, all of places.json, and where the directory is."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Paths of files begin where the tests are."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_directory_of_a_finished_run(threads, tmp_path):
    ep.simulate(ep.load(exact.write(tmp_path), [f"runtime.threads={threads}"]), out="run", progress=False)
    text = directory_text(tmp_path / "run", tmp_path, WORDS.format(what="a finished run of two seeds"))
    text = text.replace(f"threads = {threads}", "threads = (any)").replace(
        f'"threads": {threads}', '"threads": "(any)"'
    )
    assert "stacked" in text
    golden.check("run-finished", text)


class Interrupt(ep.Callback):
    """Interrupts a run after its third round, as Ctrl-C would."""

    def advanced(self, round, models):
        if round == 3:
            raise KeyboardInterrupt


def test_the_directory_of_an_interrupted_run(tmp_path):
    with pytest.raises(Interrupted):
        ep.simulate(exact.write(tmp_path), out="run", progress=False, callbacks=Interrupt())
    text = directory_text(
        tmp_path / "run", tmp_path, WORDS.format(what="a run that was interrupted after round 3 of 4")
    )
    golden.check("run-interrupted", text)


@pytest.mark.parametrize("name", CLOCKED)
def test_the_directory_of_a_run_under_the_clock(name, tmp_path):
    ep.simulate(exact.write(tmp_path, CLOCKED[name]), out="run", progress=False)
    text = directory_text(tmp_path / "run", tmp_path, WORDS.format(what=f"a finished run, {name.replace('-', ' ')}"))
    golden.check(f"run-{name}", text)
