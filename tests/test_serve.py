"""The live page shows what the directories hold, as it changes, to whoever may see it, and nothing else."""

import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from epidemic.cli.app import main
from epidemic.core.errors import BadInput
from epidemic.web import server, watch
from epidemic.web.app import HEADERS, MOST_CLIENTS, application
from epidemic.web.view import LivePage, block
from epidemic.web.watch import Catalogue, Records
from written import Written, finished, links, served

HOSTILE = '<script>alert("x")</script><img src=http://example.org/a>'


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def client(*directories, **options):
    return TestClient(application(directories, **options), base_url="http://127.0.0.1:8321", follow_redirects=False)


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_runs_sweeps_and_their_pages_are_found(runs):
    finished(runs / "first")
    for lr in ("0.1", "0.05", "0.01"):
        finished(runs / "grid" / f"lr={lr}", seeds=(1, 2))
    visitor = client(runs)
    index = visitor.get("/")
    assert index.status_code == 200
    assert "sweep of 3 runs" in index.text
    shown = re.findall(r'href="/run/[0-9a-f]+">([^<]*)<', index.text)
    assert shown == ["first", "lr=0.01", "lr=0.05", "lr=0.1"], "by their numbers, not their messages"
    assert index.text.count("<b>90.00 %") == 4
    assert index.text.count("s-unfinished") == 4, "one seed of two is not all of them: three rows and the count"
    for kind, text in (("run", "D(X)"), ("group", "Disagreement")):
        page = visitor.get(links(index.text, kind)[0])
        assert page.status_code == 200
        assert text in page.text
        assert page.text.count("<polyline class") >= 4
    for address in (links(index.text, "run")[0], links(index.text, "group")[0]):
        report = visitor.get("/report" + address)
        assert "This page is one file and loads nothing" in report.text
        assert "style-src 'sha256-" in report.headers["content-security-policy"]


def test_a_directory_that_holds_nothing_yet_says_so(runs):
    assert "Nothing to see in" in client(runs).get("/").text


def test_a_damaged_run_is_said_and_the_others_are_shown(runs):
    finished(runs / "good")
    broken = Written(runs / "broken")
    (broken.path / "records.jsonl").write_text("no record\n")
    (runs / "worse" / "seed-1").mkdir(parents=True)
    (runs / "worse" / "seed-1" / "run.json").write_text("{")
    (runs / "bytes" / "seed-1").mkdir(parents=True)
    (runs / "bytes" / "seed-1" / "run.json").write_bytes(b'{"experiment": {"name": "\xff", "rounds": 3}}')
    for name in ("run.json", "state.json", "records.jsonl"):
        (deep := Written(runs / f"deep-{name}")).path.joinpath(name).write_bytes(b"[" * 100_000 + b"\n")
    text = client(runs).get("/").text
    assert "good" in text
    assert deep.path.is_dir()
    assert "records.jsonl is damaged" in text
    assert "run.json cannot be read" in text


def test_what_cannot_be_shown_is_said_and_ends_nothing(runs, monkeypatch):
    finished(runs / "good")
    visitor = client(runs)
    (address,) = links(visitor.get("/").text, "run")

    def overflow(*_):
        raise OverflowError("1e308")

    with monkeypatch.context() as patch:
        patch.setattr("epidemic.web.pages.run_page", overflow)
        assert "This cannot be shown" in visitor.get(address).text
        patch.setattr("epidemic.web.app.page", overflow)
        assert visitor.get("/report" + address).status_code == 409
        patch.setattr(Catalogue, "_walk", overflow)
        assert visitor.get("/").status_code == 200
    assert visitor.get("/").status_code == 200


def test_the_states_of_seeds_make_that_of_their_run(runs):
    one, two = Written(runs / "a", seed=1, seeds=(1, 2)), Written(runs / "a", seed=2, seeds=(1, 2))
    catalogue = Catalogue([runs])

    def state():
        catalogue.look()
        return next(iter(catalogue.runs.values())).state

    assert state().state == "running"
    one.finish()
    assert state().state == "running"
    two.die()
    assert state().state == "gone", "a killed process writes nothing down, but lets go of the lock"
    two.fail("the loss is not a number")
    assert (state().state, state().why) == ("failed", "the loss is not a number")
    two.finish()
    assert state().state == "finished"


def test_records_are_read_on_and_anew_after_going_back(runs):
    written = Written(runs / "a")
    path = written.path / "records.jsonl"
    records = Records(path)

    def look():
        about = path.stat()
        records.look((about.st_ino, about.st_size, about.st_mtime_ns))
        return [(r.round, r.accuracy.mean) for r in records.rows]

    written.record(0, 0.1)
    assert look() == [(0, 0.1)]
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"round": 2, "se')
    assert look() == [(0, 0.1)], "a line that is being written is left for later"
    path.write_bytes(whole)
    written.record(1, 0.2)
    written.record(2, 0.3)
    assert look() == [(0, 0.1), (1, 0.2), (2, 0.3)]
    path.write_bytes(whole)
    written.record(1, 0.25)
    written.record(2, 0.35)
    written.record(3, 0.4)
    assert look() == [(0, 0.1), (1, 0.25), (2, 0.35), (3, 0.4)], "cut back and gone on with between two looks"


def test_a_line_without_an_end_is_read_once(runs, monkeypatch):
    monkeypatch.setattr(watch, "LARGEST_LINE", 1000)
    monkeypatch.setattr(watch, "LARGEST_LOOK", 4000)
    written = Written(runs / "a")
    path = written.path / "records.jsonl"
    written.record(0, 0.1)
    whole, read = path.read_bytes(), []

    class Counting(io.FileIO):
        def read(self, size):
            read.append(size)
            return super().read(size)

    monkeypatch.setattr(watch, "open_regular", lambda _: Counting(path))
    records = Records(path)

    def look(tail):
        with path.open("ab") as file:
            file.write(tail)
        about = path.stat()
        records.look((about.st_ino, about.st_size, about.st_mtime_ns))

    look(b"x" * 5000)
    assert records.problem == "records.jsonl is damaged after 1 records: a line has no end"
    read.clear()
    for _ in range(3):
        look(b"x" * 5000)
    assert max(read) == len(whole), "only what was read before is looked at"
    path.write_bytes(whole)
    written.record(1, 0.2)
    look(b"")
    assert (records.problem, len(records.rows)) == ("", 2), "mended by going on"


def test_only_pieces_that_changed_are_sent():
    before = LivePage("t", [(None, "<h1>x</h1>"), block("a", "1"), block("b", "2")])
    after = LivePage("t", [(None, "<h1>x</h1>"), block("a", "1"), block("b", "3")])
    assert after.since(before) == [("b", '<div id="b">3</div>')]
    more = LivePage("t", [*after.pieces, block("c", "4")])
    assert [name for name, _ in more.since(after)] == ["main"]
    assert after.since(after) == []


def test_two_hundred_runs_are_looked_at_quickly(runs):
    for i in range(200):
        finished(runs / f"lr={i}")
    catalogue = Catalogue([runs])
    catalogue.look()
    began = time.process_time()
    for _ in range(5):
        catalogue.look()
    assert time.process_time() - began < 2.5, "half a second each, ten times what it takes"
    visitor = client(runs)
    text = visitor.get("/").text
    assert text.count('<tr id="r-') == 200
    assert len(text) < 400_000
    group = visitor.get(links(text, "group")[0]).text
    assert "24 of 200 runs are drawn" in group


# -- who may see it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(runs, method):
    answer = client(runs).request(method, "/")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_every_answer_has_the_strict_headers(runs):
    finished(runs / "first")
    visitor = client(runs)
    run = links(visitor.get("/").text, "run")[0]
    for path in ("/", run, "/live.js", "/live.css", "/nothing", "/run/0", "/events/run/0", "/run/../../etc/passwd"):
        answer = visitor.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, path
    for answer in (visitor.post("/"), visitor.get("/", headers={"host": "evil.example"})):
        assert HEADERS.items() <= dict(answer.headers).items()
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert not re.search(r"script-src[^;]*unsafe", policy)
    assert visitor.head("/").text == ""
    assert not re.search(r"<script(?! src=\"/live.js\")|\son\w+=", visitor.get(run).text), (
        "no script in the page itself"
    )


def test_an_answer_to_what_went_wrong_has_them_too(runs, monkeypatch):
    app = application([runs])
    monkeypatch.setattr(app.state.live, "view", lambda *_: 1 / 0)
    answer = TestClient(app, base_url="http://localhost", raise_server_exceptions=False).get("/")
    assert answer.status_code == 500
    assert HEADERS.items() <= dict(answer.headers).items()


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8321", 200), ("localhost", 200), ("[::1]:8321", 200), ("LOCALHOST:1", 200), ("127.9.9.9", 200),
     ("evil.example", 400), ("127.0.0.1.evil.example", 400), ("10.0.0.5:8321", 400), ("", 400), ("localhost@evil.example", 400),
     ("[localhost]", 400), ("[127.0.0.1]", 400), ("[::1", 400), ("[::2]", 400)],
)  # fmt: skip
def test_a_strangers_name_for_this_machine_is_refused(runs, host, status):
    assert client(runs).get("/", headers={"host": host}).status_code == status


def test_elsewhere_a_token_is_needed_once(runs):
    finished(runs / "first")
    visitor = client(runs, host="0.0.0.0", token="right", cookie="epidemic-1")
    for path in ("/", "/?token=wrong", "/?token=", "/live.js", "/events/"):
        assert visitor.get(path).status_code == 401, path
    answer = visitor.get("/?token=right&x=1", headers={"host": "10.0.0.5"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/?x=1")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    known = {"cookie": "epidemic-1=right", "host": "10.0.0.5"}
    assert visitor.get("/", headers=known).status_code == 200
    assert visitor.get("/?token=wrong", headers=known).status_code == 401
    assert visitor.get("/", headers={"cookie": "epidemic-1=wröng".encode()}).status_code == 401
    away = visitor.get("http://127.0.0.1:8321//evil.example/?token=right")
    assert away.headers["location"] == "/evil.example/", "nobody is sent away"


def test_nothing_outside_is_shown(runs, tmp_path):
    outside = tmp_path / "outside"
    finished(outside / "secret")
    finished(runs / "honest")
    (runs / "whole").symlink_to(outside)
    (runs / "run").symlink_to(outside / "secret")
    (runs / "seeds").mkdir()
    (runs / "seeds" / "seed-1").symlink_to(outside / "secret" / "seed-1")
    inside = Written(runs / "inside")
    (inside.path / "records.jsonl").unlink()
    (inside.path / "records.jsonl").symlink_to(outside / "secret" / "seed-1" / "records.jsonl")
    pipe = Written(runs / "pipe")
    (pipe.path / "state.json").unlink()
    os.mkfifo(pipe.path / "state.json")
    visitor = client(runs)
    text = visitor.get("/").text
    assert re.findall(r'href="/run/[0-9a-f]+">([^<]*)<', text) == ["honest"]
    assert "secret" not in text
    assert "holds a symbolic link" in text
    assert "state.json is not a file" in text
    secret = Catalogue([outside])
    secret.look()
    key = next(iter(secret.runs.values())).key
    for path in (
        f"/run/{key}",
        f"/report/run/{key}",
        f"/events/run/{key}",
        "/run/..%2f..%2foutside",
        "/run/%2fetc%2fpasswd",
        "/../x",
    ):
        assert visitor.get(path).status_code == 404, path


def test_whatever_is_on_disk_is_shown_and_not_executed(runs):
    written = Written(runs / "grid" / "x=<b>1<", name=HOSTILE, kind='"><script>')
    written.record(0)
    written.fail(HOSTILE)
    finished(runs / "grid" / "x=2", name="\x1b[31m\u202ered\udcff".encode("utf-8", "replace").decode())
    visitor = client(runs)
    index = visitor.get("/").text
    for path in ("/", *links(index, "run"), *links(index, "group")):
        text = visitor.get(path).text
        assert "<script>" not in text
        assert "<img" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "&lt;script&gt;alert" in index


# -- as it changes ----------------------------------------------------------------------------------------------------


@contextmanager
def listening(address, path, **headers):
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    try:
        yield answer
    finally:
        connection.close()


def event(answer):
    """The next event: its id and what it says."""
    name = ""
    while True:
        line = answer.readline().decode()
        assert line, "the stream ended"
        if line.startswith("id: "):
            name = line[4:].strip()
        if line.startswith("data: "):
            return name, json.loads(line[6:])


def until(answer, text):
    """Listen until something that is sent holds a text."""
    while True:
        name, found = event(answer)
        if text in found["title"] or any(text in html for _, html in found["parts"]):
            return name, found


def test_a_run_is_told_as_it_starts_goes_on_fails_and_finishes(runs):
    with served(runs) as address, listening(address, "/events/?have=x") as index:
        assert index.headers["content-type"].startswith("text/event-stream")
        first, news = event(index)
        assert [name for name, _ in news["parts"]] == ["main"], "who has something else gets everything"
        written = Written(runs / "first")
        until(index, "s-running")
        written.record(0, 0.1)
        until(index, "10.00 %")
        written.record(1, 0.2)
        name, news = until(index, "20.00 %")
        assert [part.split("-")[0] for part, _ in news["parts"]] == ["r"], "one row is exchanged"
        key = news["parts"][0][0].removeprefix("r-")
        with listening(address, f"/events/run/{key}") as run:
            event(run)
            written.record(2, 0.3)
            _, news = until(run, "30.00 %")
            assert {"tiles", "f-accuracy", "s-1"} <= {part for part, _ in news["parts"]}
            written.fail("the disk is full")
            until(run, "the disk is full")
            written.finish(0.3)
            until(run, "finished: first")
        name, _ = until(index, "s-finished")
        with listening(address, f"/events/?have={name}") as again:
            other = Written(runs / "second")
            _, news = event(again)
            assert "second" in str(news), "who has the page as it is gets only what comes"
            other.die()


def test_strangers_pages_and_too_many_visitors_get_no_events(runs):
    app = application([runs])
    visitor = TestClient(app, base_url="http://localhost")
    assert visitor.get("/events/", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    app.state.live.clients = MOST_CLIENTS
    assert visitor.get("/events/").status_code == 503
    assert visitor.get("/").status_code == 200


def _opened(address):
    return socket.create_connection((urlsplit(address).hostname, urlsplit(address).port), timeout=5)


def test_silent_connections_lock_nobody_out(runs):
    with served(runs) as address, ExitStack() as stack:
        silent = [stack.enter_context(_opened(address)) for _ in range(4 * MOST_CLIENTS + 10)]
        visitor = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
        visitor.request("GET", "/live.css")
        assert visitor.getresponse().status == 200
        visitor.close()
        assert _ended(silent[0]), "the oldest had to make room"


def _ended(connection):
    """Waits until the other end has closed it."""
    with suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return True


@pytest.mark.parametrize("before", [b"", b"GET /live.css HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_who_never_finishes_asking_is_let_go(runs, monkeypatch, before):
    monkeypatch.setattr(server, "ASK_WITHIN", 0.3)
    with served(runs) as address, _opened(address) as slow:
        slow.sendall(before)
        if before:
            assert slow.recv(65536)
        slow.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        assert _ended(slow), "though more is promised"


# -- the command ------------------------------------------------------------------------------------------------------


def error(capsys, *arguments):
    assert main(["serve", *map(str, arguments)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_bad_input_is_one_line(runs, capsys, monkeypatch):
    assert "missing does not exist" in error(capsys, runs / "missing", "--port", 0)
    (runs / "file").touch()
    assert "is a file" in error(capsys, runs / "file", "--port", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "is in use; choose another one" in error(capsys, runs, "--port", taken.getsockname()[1])
    assert "--port = 70000 must be at most 65535" in error(capsys, runs, "--port", 70000)
    assert "not an address of this machine" in error(capsys, runs, "--host", "no such host", "--port", 0)
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert "pip install 'epidemic-learning[web]'" in error(capsys, runs)


def test_without_a_port_the_next_free_one_is_taken(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(server, "PORT", port)
        with server._next_free("127.0.0.1") as found:
            assert port < found.getsockname()[1] <= port + server.NEXT


def test_the_command_line_does_without_the_server_until_it_is_asked_for():
    code = "import sys, epidemic, epidemic.cli.app; print(sorted({'starlette', 'uvicorn', 'anyio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_no_directory_is_refused():
    with pytest.raises(BadInput, match="no directory was given"):
        Catalogue([])


def test_ctrl_c_ends_it_at_once_though_a_page_is_open(runs):
    command = [sys.executable, "-m", "epidemic", "serve", str(runs), "--port", "0", "--host", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            first = process.stdout.readline()
            port, token = re.search(r":(\d+)/\?token=([\w-]{32})$", first.strip()).groups()
            assert "token" in process.stdout.readline()
            address = f"http://127.0.0.1:{port}"
            with listening(address, "/events/", cookie=f"epidemic-{port}={token}") as answer:
                event(answer)
                process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
