"""A real headless Chromium for tests, by its DevTools protocol over a pipe.

The pipe needs the standard library only: no driver that has to fit the browser's version, no websocket client, no port.
Messages are JSON, each ended by a zero byte; file descriptor 3 of the browser reads them, 4 writes them.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--hide-scrollbars",
]  # fmt: skip
SECONDS = 60.0  # for any answer


class Browser:
    """One page, and all that it said and asked for.

    Attributes:
        errors: of the console, uncaught ones, and what the browser logs as error, such as a blocked resource.
        requests: addresses, in order.
    """

    def __init__(self, *, write_to, read_from):
        self._write_to, self._read_from = write_to, read_from
        self._received, self._last_id = b"", 0
        self._events = []
        self._session = None
        self.errors = []
        self.requests = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Return the browser's answer to a command of the protocol."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_to, json.dumps(message).encode() + b"\0")
        while (answer := self._next_message()).get("id") != self._last_id:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, address, *, width, height=900):
        """Show a page, as wide as asked for, and wait until it is loaded and has said what it says at once."""
        self.errors, self.requests, self._events = [], [], []
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._note(self._next_message())
        self.value("new Promise(done => setTimeout(done, 100))")

    def value(self, expression):
        """Return what JavaScript makes of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key, *, code, number, text=""):
        values = {"key": key, "code": code, "windowsVirtualKeyCode": number, "text": text}
        self.call("Input.dispatchKeyEvent", type="keyDown", **values)
        self.call("Input.dispatchKeyEvent", type="keyUp", **values)

    def _note(self, event):
        method, parameters = event.get("method", ""), event.get("params", {})
        self._events.append(event)
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])

    def _next_message(self):
        until = time.monotonic() + SECONDS
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read_from], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._read_from, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError(f"the browser {'has ended' if ready else f'is silent for {SECONDS:g} s'}")
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)


@contextmanager
def started_browser(folder):
    """Start Chromium with a fresh profile in a folder, and end it; skip the test where there is none."""
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    ends = _ends()
    there, write_to, read_from, back = ends
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{there} 4>&{back}', "bash", program, *FLAGS, f"--user-data-dir={folder}"],
        pass_fds=(there, back), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    try:
        os.close(there)
        os.close(back)
        yield Browser(write_to=write_to, read_from=read_from)
    finally:
        # Told to end, or the pipe closed, Chromium ends its children too.
        os.close(write_to)
        os.close(read_from)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ends():
    """Return the ends of two pipes, none of them 3 or 4: those are what the browser gets."""
    ends = []
    for end in (*os.pipe(), *os.pipe()):
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
        os.close(end)
    there_out, there_in, back_out, back_in = ends
    return [there_out, there_in, back_out, back_in]
