"""A page of the documentation as things that can be done, one after the other, in a directory of its own.

The language of a block decides what happens to it; CONTRIBUTING.md has the rules. What cannot be done in a test is in `NOT_DONE`, each
with its reason. Experiments are made smaller behind the reader's back: see `smaller`.

As a program (`python tests/pages.py run experiment.toml`) it is the `epidemic` command with smaller experiments.
"""

import contextlib
import functools
import importlib
import io
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from markdown_it import MarkdownIt

from epidemic.core.config import import_object

ROOT = Path(__file__).resolve().parents[1]
SHELL = {"bash", "sh", "console"}
SHOWN = {
    "text": "what something prints, or a formula",
    "json": "what a file holds",
    "ini": "a unit of systemd, which is installed by root",
    "dockerfile": "a container is not built by tests",
}
"""Languages that are shown only."""

NOT_DONE = {
    "make": "the tests are run by it; its target must exist",
    "pip": "installs from the network; its extras must exist, and 'make test-wheel' installs the wheel",
    "source": "the tests run in the environment already",
    "torchrun": "starts ranks on several machines; tests/ranks does it on loopback",
    "podman": "a container is not built by tests",
    "epidemic data fetch": "downloads",
    "epidemic sweep --on slurm": "needs a cluster, which tests/slurm has; its options must exist",
    "epidemic compare --on slurm": "the same",
    "epidemic reproduce --on slurm": "the same",
}
"""Commands that are not executed, by how they begin."""

LONG = ("node", "relay", "serve", "cluster up")
"""Commands of epidemic that get a process of their own; those without an end are stopped when the page is done."""

PATIENCE = 400.0
"""Seconds that a process may take until it does what it is started for."""


class PageError(Exception):
    """Something on a page does not work as written."""


@dataclass(frozen=True)
class Block:
    """A block of code: where it is, what it is, and the file that the page says it is."""

    page: str
    line: int  # of its first line of code
    language: str
    text: str
    file: str | None = None


def blocks(text, page="page.md"):
    """The blocks of code of a page, in order."""
    found, before = [], ""
    for token in MarkdownIt().enable("table").parse(text):
        if token.type == "inline":
            before = token.content
        if token.type not in ("fence", "code_block"):
            continue
        fenced = token.type == "fence"
        language = token.info.split()[0].lower() if fenced and token.info.strip() else ""
        first = token.content.split("\n", 1)[0]
        name = re.fullmatch(r"#\s*([\w./-]+\.(?:toml|py))\s*", first) or re.search(
            r"`([\w./-]+\.(?:toml|py))`:$", before
        )
        found.append(Block(page, token.map[0] + 1 + fenced, language, token.content, name[1] if name else None))
        before = ""
    return found


def commands(text):
    """The commands of a block with their lines in it: continued lines joined, prompts, comments and output left out."""
    prompted = any(line.startswith("$ ") for line in text.splitlines())
    found, pending, began = [], "", 0
    for number, line in enumerate(text.splitlines()):
        if not pending:
            began = number
            if prompted and not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
        pending += line.strip()
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
        else:
            if pending and not pending.startswith("#"):
                found.append((began, pending))
            pending = ""
    return found


def inline(text):
    """The pieces of code in the running text, with their lines."""
    for token in MarkdownIt().enable("table").parse(text):
        if token.type == "inline":
            for child in token.children:
                if child.type == "code_inline":
                    yield token.map[0] + 1, child.content


def smaller():
    """From here on, experiments of this process have few rounds, seeds and local steps; nodes and names stay as they are.

    Done twice it changes nothing, so that files which are written and read again mean the same. More rounds stay more rounds.
    What is given back makes experiments what they were.
    """
    from epidemic.experiment.spec import Experiment

    rule = Experiment.mixing_rule
    if hasattr(rule.fget, "smaller"):
        return lambda: None

    def shrink(self):  # asked for whenever an experiment is made
        change = msgspec.structs.force_setattr
        change(self, "rounds", self.rounds if self.rounds <= 4 else 3 if self.rounds < 150 else 4)
        change(self, "seeds", self.seeds[:2])
        if getattr(self.algorithm, "local_steps", 1) > 1 and isinstance(self.algorithm, msgspec.Struct):
            change(self, "algorithm", msgspec.structs.replace(self.algorithm, local_steps=1))
        change(self, "network", msgspec.structs.replace(self.network, patience=PATIENCE))
        change(self, "runtime", msgspec.structs.replace(self.runtime, threads=1))
        return rule.fget(self)

    shrink.smaller = True
    Experiment.mixing_rule = property(shrink)
    return functools.partial(setattr, Experiment, "mixing_rule", rule)


@functools.cache
def epidemic_command():
    """The command line as Click sees it."""
    import typer

    from epidemic.cli import app

    return typer.main.get_command(app)


def check_command(words):
    """That a command of epidemic exists and has these options."""
    command, path = epidemic_command(), "epidemic"
    words = words[1:]
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            raise PageError(f"'{path}' has no command {words[0]!r}")
        path, command, words = f"{path} {words[0]}", command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        name = word.split("=", 1)[0]
        if re.match(r"--?[a-z]", name) and name not in known | {"--help", "-h"}:
            raise PageError(f"'{path}' has no option {name}")


def check_make(words):
    """That the targets are in the Makefile."""
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for word in words[1:]:
        if "=" not in word and word not in targets:
            raise PageError(f"the Makefile has no target {word!r}")


def check_pip(words):
    """That the extras of ours exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words[1:]:
        named = re.fullmatch(r"(\.|epidemic-learning|[\w./*-]+\.whl)\[([\w,-]+)\]", word)
        for extra in named[2].split(",") if named else []:
            if extra not in project["optional-dependencies"]:
                raise PageError(f"there is no extra {extra!r}")


class Desk:
    """Does what a page says, in a directory of its own, on machines that are directories."""

    def __init__(self, directory, home=None):
        self.directory = directory
        self.names = {"__name__": "__main__"}
        self.children = []  # process, its command, its output
        self.held = []  # nodes that are to be started
        self.parts = []  # what was said in TOML
        self.used = set()  # entries of NOT_DONE
        number = os.getpid()
        self.loopback = f"127.{1 + number // 250 % 250}.{1 + number % 250}"

    def __enter__(self):
        self._before = Path.cwd(), dict(os.environ), list(sys.path)
        os.chdir(self.directory)
        sys.path.insert(0, str(self.directory))
        os.environ |= {"HOME": str(self.directory / "home"), "MPLBACKEND": "Agg", "EPIDEMIC_DEBUG": "1"}
        self._as_before = smaller()
        return self

    def __exit__(self, kind, *_):
        for process, _, _ in self.children:
            if process.poll() is None:
                process.kill()
            process.wait()
        where, environment, path = self._before
        os.chdir(where)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path
        self._as_before()
        self._forget()

    def _forget(self):
        """Modules of the page are read anew when they are imported next."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(self.directory)):
                del sys.modules[name]
        importlib.invalidate_caches()

    def do(self, block):
        """Execute a block; what fails names its page and line."""
        line = block.line
        try:
            if block.language in SHELL or self._looks_like_commands(block):
                for offset, command in commands(block.text):
                    line = block.line + offset
                    self.command(command)
            elif block.file is not None and block.language in ("toml", "python"):
                self._file(block)
            elif block.language == "python":
                self._python(block)
            elif block.language == "toml":
                self._part(block.text)
            elif block.language not in SHOWN:
                known = ", ".join(sorted({*SHELL, "python", "toml", *SHOWN}))
                raise PageError(f"a block in {block.language or 'no language'!r}; say which after ```: {known}")
            elif re.search(r"^\s*(\$ )?(epidemic|python|make|pip) \w", block.text, re.MULTILINE):
                raise PageError(f"commands in a block of {block.language!r} are not tested; call it bash")
        except (Exception, SystemExit) as problem:
            raise PageError(f"{block.page}:{line}: {type(problem).__name__}: {problem}") from problem

    def finish(self):
        """Stop what goes on, wait for the rest; all must have gone well, and names in TOML must be those of modules."""
        for name in re.findall(r'"(\w+:\w+)"', "".join(self.parts)):
            import_object(name, "a part of the page in TOML")
        self._start_held()
        for child in self.children:
            process, words, output = child
            if process.poll() is None and words[0] in ("node", "relay", "serve"):
                self._until_it_speaks(child)
                process.send_signal(signal.SIGINT)
            try:
                code = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                code = "no"
            if code not in (0, 130):
                raise PageError(f"{shlex.join(['epidemic', *words])}: exit code {code}\n{output.read_text()}")

    # -- commands -----------------------------------------------------------------------------------------------------

    def command(self, text):
        """Execute a line of a shell."""
        text = self.elsewhere(text)
        host = re.search(r"#\s*on ([\w.-]+)", text)
        lexer = shlex.shlex(text, posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split = True
        words = list(lexer)
        while "&&" in words:
            self._one(words[: words.index("&&")], host)
            words = words[words.index("&&") + 1 :]
        self._one(words, host)

    def _one(self, words, host):
        background = words[-1] == "&"
        words = words[:-1] if background else words
        if any(set(word) & set("|;<>") and set(word) <= set("&|;<>") for word in words):
            raise PageError("pipes and redirections are not understood by the tests; write single commands")
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            os.environ.update([words.pop(0).split("=", 1)])
        words = [word for one in words for word in self._expanded(one)]
        text = " ".join(words)
        for beginning in NOT_DONE:
            if text == beginning or text.startswith(beginning + " "):
                self.used.add(beginning)
                {"make": check_make, "pip": check_pip, "epidemic": check_command}.get(words[0], list)(words)
                return
        if words[0] == "epidemic":
            self._epidemic(words[1:], background, self._host(host[1]) if host else self.directory)
        elif words[0] == "scp":
            self._start_held()
            if ":" in words[-2]:  # what nodes have written is fetched when they are done
                self._wait_for_nodes()
            source, target = (self._remote(word) for word in words[-2:])
            target = target / source.name if target.is_dir() else target
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        elif words[0] == "python" and len(words) > 1 and words[1].endswith(".py"):
            place = Path(words[1]) if Path(words[1]).exists() else ROOT / words[1]
            arguments, sys.argv = sys.argv, words[1:]
            try:
                runpy.run_path(str(place), run_name="__main__")
            finally:
                sys.argv = arguments
        elif words[0] in ("mkdir", "cp", "cat", "ls", "mv"):
            subprocess.run(words, check=True)
        else:
            raise PageError(f"the tests do not know how to do '{words[0]}'; see NOT_DONE in tests/pages.py")

    def _epidemic(self, words, background, where):
        from epidemic.cli import main

        check_command(["epidemic", *words])
        name = next((name for name in LONG if " ".join(words).startswith(name)), None)
        if name == "node":
            self.held.append((words, where))
            return
        if words[:2] in (["cluster", "gather"], ["cluster", "next"]):
            self._start_held()
            self._wait_for_nodes()
        last = self.held.pop() if self.held and words[:2] == ["cluster", "status"] else None
        self._start_held()
        if background or name in ("relay", "serve"):
            child = self._start(words, where)
            if name is not None:
                self._until_it_speaks(child)
            return
        if name == "cluster up":
            child = self._start(words, where)
            code, said = child[0].wait(PATIENCE), child[2].read_text()
        else:
            with contextlib.chdir(where):
                code, said = self._until_there(main, words)
        if last is not None:  # whoever is asked how it is waits for the last one, so that it cannot have ended
            self._start(*last)
        if code != 0:
            raise PageError(f"{shlex.join(['epidemic', *words])}: exit code {code}\n{said}")

    def _until_there(self, main, words):
        """Run a command in this process; looking at what processes in the background do is tried until there is something."""
        end = time.monotonic() + PATIENCE
        while True:
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                code = main(words)
            looks = words[0] == "watch" or words[:2] == ["cluster", "status"]
            alive = any(process.poll() is None for process, _, _ in self.children)
            if code == 0 or not (looks and alive) or time.monotonic() > end:
                return code, said.getvalue()
            time.sleep(0.3)

    # -- processes ----------------------------------------------------------------------------------------------------

    def _start(self, words, where):
        output = Path(tempfile.mkstemp(dir=self.directory, prefix=".output-")[1])
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), *words],
                cwd=where, stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        self.children.append((process, words, output))
        return self.children[-1]

    def _start_held(self):
        for words, where in self.held:
            self._start(words, where)
        self.held = []

    def _nodes(self):
        return [child for child in self.children if child[1][0] == "node"]

    def _wait_for_nodes(self):
        for process, words, output in self._nodes():
            if process.wait(PATIENCE) != 0:
                raise PageError(
                    f"{shlex.join(['epidemic', *words])}: exit code {process.returncode}\n{output.read_text()}"
                )

    def _until_it_speaks(self, child):
        """What has said something has read its files and begun."""
        process, _, output = child
        end = time.monotonic() + PATIENCE
        while not output.read_text() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)

    # -- places -------------------------------------------------------------------------------------------------------

    def elsewhere(self, text):
        """Other machines are loopback addresses, /srv is a directory of the page."""
        text = re.sub(r"\b10\.0\.0\.(\d+)", rf"{self.loopback}.\1", text).replace(
            "relay.example", f"{self.loopback}.99"
        )
        return text.replace("/srv/", f"{self.directory}/srv/")

    def _expanded(self, word):
        word = str(Path(word).expanduser()) if word.startswith("~") else word
        return sorted(str(path) for path in Path().glob(word)) or [word] if "*" in word else [word]

    def _host(self, name):
        place = self.directory / "hosts" / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _remote(self, word):
        host, colon, path = word.partition(":")
        return self._host(host) / path if colon else Path(word)

    # -- other languages ----------------------------------------------------------------------------------------------

    def _looks_like_commands(self, block):
        first = next((text.split()[0] for _, text in commands(block.text)), "")
        return not block.language and first in {"epidemic", "python", "scp", *(name.split()[0] for name in NOT_DONE)}

    def _python(self, block):
        code = compile("\n" * (block.line - 1) + block.text, str(ROOT / block.page), "exec")
        exec(code, self.names)

    def _file(self, block):
        place = Path(block.file)
        place.parent.mkdir(parents=True, exist_ok=True)
        more = block.language == "python" and place.exists()  # put into the same module
        place.write_text((place.read_text() if more else "") + self.elsewhere(block.text))
        if block.language == "toml":
            self._part(block.text)
        else:
            self._forget()
            if "ep.join()" not in block.text:  # a node's script runs where a command starts it
                runpy.run_path(str(place))

    def _part(self, text):
        """A part of an experiment file: every key and kind must exist."""
        from epidemic.experiment import experiment_from
        from epidemic.study.comparison import methods_from

        self.parts.append(text)
        table = tomllib.loads(text)
        methods_from(table) if "methods" in table else experiment_from(table)


def supply(directory):
    """What a reader has before starting to read: data of their own."""
    private = directory / "srv" / "private"
    private.mkdir(parents=True)
    random = np.random.default_rng(1)
    np.savez(
        private / "scans.npz",
        train_x=random.normal(size=(60, 8)), train_y=np.arange(60) % 3,
        test_x=random.normal(size=(30, 8)), test_y=np.arange(30) % 3,
    )  # fmt: skip
    rows = [f"{30 + i % 50},{1 + i % 7},{'malignant' if i % 3 else 'benign'}" for i in range(60)]
    (directory / "patients.csv").write_text("\n".join(["age,dose,outcome", *rows]) + "\n")
    (directory / "home" / "data" / "cifar10").mkdir(parents=True)


if __name__ == "__main__":
    from epidemic.cli import main

    smaller()
    sys.exit(main(sys.argv[1:]))
