"""What can be said about the documentation by reading it; tests/docs executes it."""

import inspect
import re
import shlex
import subprocess
import sys
import tomllib
import unicodedata

import pytest

import check_site
import epidemic as ep
import pages

ROOT = pages.ROOT
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *(ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "results/cifar10/README.md")),
]


def name(path):
    return str(path.relative_to(ROOT))


# -- what is said in passing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_and_names_in_the_text_exist(path):
    for line, code in pages.inline(path.read_text()):
        try:
            words = shlex.split(code) if code.startswith(("epidemic ", "make ", "pip ")) else []
            if words:
                {"epidemic": pages.check_command, "make": pages.check_make, "pip": pages.check_pip}[words[0]](words)
            for found in re.findall(r"\bep\.([A-Za-z]\w*)", code):
                assert hasattr(ep, found), f"there is no ep.{found}"
        except (AssertionError, ValueError, pages.PageError) as problem:
            raise AssertionError(f"{name(path)}:{line}: `{code}`: {problem}") from None


def anchors(path):
    """The names of the headings of a page, as the forges and MkDocs make them."""
    found = set()
    for line in path.read_text().splitlines():
        if heading := re.match(r"#+ (.*)", line):
            text = unicodedata.normalize("NFKD", re.sub(r"[`*\[\]]|\(.*?\)", "", heading[1])).lower()
            found.add(re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", text).strip()))
    return found


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = path.parent / file if file else path
        assert place.exists(), f"{name(path)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(place), (
                f"{name(path)} links to {target}; {name(place.resolve())} has no such heading"
            )


def test_every_page_is_on_the_site():
    site = (ROOT / "mkdocs.yml").read_text()
    for path in PAGES[1:]:
        assert name(path).removeprefix("docs/") in site, f"mkdocs.yml does not list {name(path)}"


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs/api.md").read_text()
    listed = set(re.findall(r"^::: epidemic\.[\w.]*?(\w+)$", text, re.MULTILINE))
    public = {name for name in ep.__all__ if name != "__version__" and not inspect.ismodule(getattr(ep, name))}
    assert public <= listed, f"docs/api.md lacks {', '.join(sorted(public - listed))}"


def test_readme_is_short_and_opens_with_two_commands():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 950
    first = pages.blocks(text)[0]
    assert [command.split("#")[0].strip() for _, command in pages.commands(first.text)] == ["make demo", "make test"]


def test_what_is_not_executed_is_still_there_and_nothing_else():
    texts = [block.text for path in PAGES for block in pages.blocks(path.read_text())]
    given = [command for text in texts for _, command in pages.commands(text)]
    for beginning, reason in pages.NOT_DONE.items():
        assert reason
        assert any(command.startswith(beginning) for command in given), f"no page has '{beginning}' any more"


def test_every_file_of_the_package_that_is_no_code_is_in_the_wheel():
    package = ROOT / "src" / "epidemic"
    globs = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["epidemic"]
    packed = {path for glob in globs for path in package.glob(glob)}
    files = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files <= packed, f"pyproject.toml's package-data lacks {', '.join(map(name, sorted(files - packed)))}"


# -- the tests of pages themselves ------------------------------------------------------------------------------------

PAGE = """
Text with `epidemic run`.

    epidemic theory --nodes 8 -s 3    # on this machine

1. In a list:

    ```bash
    epidemic init \\
        a.toml
    ```

Saved as `b.toml`:

```toml
nodes = 4
```

```python
# c.py
x = 1
```
"""


def test_blocks_are_found_with_line_language_and_file():
    found = pages.blocks(PAGE)
    assert [(b.line, b.language, b.file) for b in found] == [
        (4, "", None), (9, "bash", None), (16, "toml", "b.toml"), (20, "python", "c.py"),
    ]  # fmt: skip
    assert pages.commands(found[1].text) == [(0, "epidemic init  a.toml")]


@pytest.mark.parametrize(
    ("language", "text", "says"),
    [
        ("bash", "\nepidemic theory --nods 8", "p.md:8: .*no option --nods"),
        ("bash", "epidemic topology rng --nodes 8", "p.md:7: .*exit code 2"),
        ("bash", "epidemic report runs/missing", "p.md:7: .*exit code 2"),
        ("bash", "curl example.org", "p.md:7: .*'curl'"),
        ("bash", "epidemic theory --nodes 8 -s 3 | less", "pipes"),
        ("bash", "make dmo", "no target 'dmo'"),
        ("bash", "pip install '.[picture]'", "no extra 'picture'"),
        ("python", "import epidemic as ep\nep.ELLocal(z=3)", "p.md:7: TypeError"),
        ("toml", "nodse = 3", "p.md:7: .*nodse"),
        ("toml", 'topology = {kind = "el-local", s = 96}', "p.md:7: .*95"),
        ("", "frobnicate", "no language"),
        ("text", "epidemic theory", "call it bash"),
    ],
)
def test_what_does_not_work_is_reported_with_page_and_line(tmp_path, language, text, says):
    with pages.Desk(tmp_path) as desk, pytest.raises(pages.PageError, match=says):
        desk.do(pages.Block("p.md", 7, language, text))


def test_a_name_in_toml_that_no_module_has_is_found(tmp_path):
    with pages.Desk(tmp_path) as desk:
        desk.do(pages.Block("p.md", 1, "python", "def load(): pass", "mine.py"))
        desk.do(pages.Block("p.md", 5, "toml", 'data = {kind = "python", function = "mine:laod"}'))
        with pytest.raises(ep.BadInput, match="laod"):
            desk.finish()


def test_only_fetching_from_another_machine_waits_for_its_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "PATIENCE", 0.05)
    (tmp_path / "relay").mkdir()
    with pages.Desk(tmp_path) as desk:
        lone = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        desk.children.append((lone, ["node", "node-0"], tmp_path / "output"))
        desk.command("scp -r relay relay.example:")
        assert lone.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            desk.command("scp -r relay.example:relay back")


def test_a_site_that_loads_from_elsewhere_or_leads_nowhere_is_refused(tmp_path):
    (tmp_path / "b.html").write_text('<h1 id="top">B</h1>')
    (tmp_path / "a.css").write_text("body { background: url(https://example.org/a.png) }")
    page = tmp_path / "a.html"
    page.write_text(
        '<link rel="canonical" href="https://example.org"><a href="https://example.org">x</a><a href="b.html#top">y</a>'
    )
    assert list(check_site.problems(tmp_path)) == ["a.css loads https://example.org/a.png"]
    page.write_text(
        '<script src="//example.org/a.js"></script><link rel="stylesheet" href="https://example.org/a.css">'
        '<img src="c.png"><a href="b.html#bottom">z</a>'
    )
    assert list(check_site.problems(tmp_path))[:-1] == [
        "a.html loads //example.org/a.js",
        "a.html loads https://example.org/a.css",
        "a.html: c.png does not exist",
        "a.html: b.html#bottom: no such place in that page",
    ]


def searchable(root):
    """A site of one page that can be searched from the disk."""
    index = '{"docs": [{"location": "a.html", "title": "A", "text": ""}]}'
    (root / "search").mkdir()
    (root / "search" / "search_index.json").write_text(index)
    (root / "search" / "search_index.js").write_text(f"var __index = {index}")
    (root / "worker.js").touch()
    (root / "a.html").write_text(
        '<script src="img/iframe-worker.js"></script><script id="__config">{"search": "worker.js"}</script>'
    )


def test_a_site_that_cannot_be_searched_from_the_disk_is_noticed(tmp_path):
    searchable(tmp_path)
    assert not list(check_site.search_problems(tmp_path))
    (tmp_path / "worker.js").unlink()
    assert list(check_site.search_problems(tmp_path)) == ["a.html names no script that searches"]
    (tmp_path / "search" / "search_index.js").write_text('var __index = {"docs": []}')
    (tmp_path / "b.html").write_text('<script id="__config"></script>')
    assert list(check_site.search_problems(tmp_path)) == [
        "search: the index for pages on the disk is another one",
        "a.html names no script that searches",
        "b.html is not in the index of the search",
        "b.html does not load what searches without a worker",
        "b.html names no script that searches",
    ]
    (tmp_path / "search" / "search_index.js").unlink()
    assert "no index" in "".join(check_site.search_problems(tmp_path))


# -- what deployments install -----------------------------------------------------------------------------------------


def installed(command, directory):
    """What `pip install` is asked for by a line of a shell, beside a wheel in /tmp."""
    wheel = directory / f"epidemic_learning-{ep.__version__}-py3-none-any.whl"
    wheel.touch()
    (directory / "pip").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (directory / "pip").chmod(0o755)
    path = f"{directory}:/usr/bin:/bin"
    words = subprocess.run(
        ["sh", "-c", command.replace("/tmp/", f"{directory}/")],
        cwd=directory, env={"PATH": path}, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    named = [re.fullmatch(r"(.+\.whl)(?:\[([\w,]+)\])?", word) for word in words]
    found = [match for match in named if match]
    assert len(found) == 1, words
    assert (directory / found[0][1]).is_file(), f"{found[0][1]} is not the wheel, {wheel.name}"
    return set((found[0][2] or "").split(","))


def test_deployments_install_what_their_data_needs(tmp_path):
    text = (ROOT / "docs" / "deploy.md").read_text()
    container = re.search(r"^RUN (pip install .*epidemic.*)$", text, re.MULTILINE)
    assert {"images", "tables"} <= installed(container[1], tmp_path)
    machines = text.partition("\n## Three machines\n")[2].partition("\n## ")[0]
    commands = [code for _, code in pages.inline(machines) if code.startswith("pip install") and "epidemic" in code]
    assert len(commands) == 1
    assert {"images", "tables"} <= installed(commands[0], tmp_path)
