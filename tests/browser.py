"""A headless Chromium driven through a pair of pipes, where there is one; it may reach nothing but the page."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.waiting import LIMIT

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    """Return the path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _pipe() -> tuple[int, int]:
    """Return the two ends of a pipe, neither of them 3 or 4, which the browser reads and writes."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


class Browser:
    """One page of a headless Chromium: what it shows, what it asks for, what it complains about."""

    def __init__(self, path: str, folder: Path) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._next, self._read = 0, b""
        reader, self._to = _pipe()
        self._from, writer = _pipe()
        options = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
            "--force-color-profile=srgb", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}",
            "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{reader} 4>&{writer}', "bash", path, *options],
            pass_fds=(reader, writer), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": str(folder)},
        )  # fmt: skip
        os.close(reader)
        os.close(writer)
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the page's protocol."""
        return self._ask(method, session=self._session, **parameters)

    def open(self, page: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Show a file in a window of this size and colour scheme."""
        self.requests.clear()
        self.complaints.clear()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1.0, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.ask("Page.navigate", url=page.absolute().as_uri())
        end = time.monotonic() + LIMIT
        while self.evaluate("document.readyState") != "complete" or self.evaluate("location.protocol") != "file:":
            if time.monotonic() > end:
                raise TimeoutError(page)
            time.sleep(0.02)

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description"))
        return found["result"].get("value")

    def _ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._next += 1
        call = {"id": self._next, "method": method, "params": parameters}
        if session is not None:
            call["sessionId"] = session
        os.write(self._to, json.dumps(call).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._on_message(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            if not select.select([self._from], [], [], LIMIT)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._from, 1 << 20)
            if not part:
                raise RuntimeError("the browser has gone")
            self._read += part
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)

    def _on_message(self, event: dict[str, Any]) -> None:
        method, reported = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(reported["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(reported["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(reported["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(reported["args"]))
