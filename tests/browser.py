"""A real browser for tests: Chromium, told what to do over a pipe by its own protocol. Nothing is waited for but what is looked for."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import contextmanager

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
PATIENCE = 60.0


class Page:
    """One page of a browser."""

    def __init__(self, process, read, write):
        self._process, self._read, self._write = process, read, write
        self._number, self._left, self._session = 0, b"", None
        self.problems = []  # what the console and the page's rules complain about
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def _call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self._receive(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
        raise TimeoutError(method)

    def _receive(self, end):
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            self._left += os.read(self._read, 2**20)
        raw, _, self._left = self._left.partition(b"\0")
        message = json.loads(raw)
        self._note(message)
        return message

    def _note(self, message):
        about, parameters = message.get("method"), message.get("params", {})
        if about == "Runtime.exceptionThrown":
            self.problems.append(parameters["exceptionDetails"]["text"])
        if about == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])
        if about == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.problems.append(str(parameters["args"]))

    def look(self, *, width=1280, height=900, dark=False):
        """How wide the page is, and in which light."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self._call("Emulation.setEmulatedMedia", features=[scheme, still])

    def open(self, address):
        """Go there."""
        self._call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, script):
        """Of an expression in the page."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script, patience=PATIENCE):
        """Until an expression is true."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if self.value(script):
                return
            time.sleep(0.05)
        raise AssertionError(f"{script} never came true; the page says: {self.value('document.body.innerText')}")

    def says(self, text, patience=PATIENCE):
        """Wait until the page shows a text."""
        self.wait(f"document.body.innerText.includes({json.dumps(text)})", patience)

    def picture(self, path, *, whole=False):
        """What is seen, as a file."""
        raw = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(raw))
        return path


@contextmanager
def browser(home):
    """A page of a browser that lives in a directory of its own."""
    ours_read, theirs_write = os.pipe()
    theirs_read, ours_write = os.pipe()

    def as_three_and_four():
        a, b = os.dup(theirs_read), os.dup(theirs_write)
        os.dup2(a, 3)
        os.dup2(b, 4)

    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
        "--disable-component-update", "--hide-scrollbars", f"--user-data-dir={home / 'profile'}", "--remote-debugging-pipe", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=as_three_and_four,
        env={**os.environ, "HOME": str(home)},
    )  # fmt: skip
    os.close(theirs_read)
    os.close(theirs_write)
    try:
        yield Page(process, ours_read, ours_write)
    finally:
        process.kill()
        process.wait()
        os.close(ours_read)
        os.close(ours_write)
