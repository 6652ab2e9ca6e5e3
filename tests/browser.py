"""Chromium without a window, driven through a pipe by its DevTools protocol: no package is needed for it."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_S = 180.0


def find_browser() -> str | None:
    """The program, if one is on PATH."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in one process. Raises `TimeoutError` where it does not answer."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}",
                   "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"]  # fmt: skip
        command += ["--no-sandbox"] if os.geteuid() == 0 else []
        # The protocol's pipe is descriptors 3 and 4.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._ids, self._unread, self._session = itertools.count(1), b"", ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")
        permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
        self.call("Browser.grantPermissions", permissions=permissions)

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one method of the protocol."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._awaited(lambda said: said.get("id") == number)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def show(self, page: Path, *, width: int, theme: str) -> None:
        """Load the page as a window of this width and a reader of this theme have it."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": theme}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        self._awaited(lambda said: said.get("method") == "Page.loadEventFired")

    def value(self, script: str) -> Any:
        """What an expression of JavaScript gives, awaited; a user's click is simulated."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )  # fmt: skip
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self, file: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip={**size, "scale": 1})["data"]  # fmt: skip
        file.write_bytes(base64.b64decode(data))

    def _awaited(self, wanted: Any) -> dict[str, Any]:
        """The first message that is wanted; others are dropped."""
        until = time.monotonic() + TIMEOUT_S
        while True:
            line, end, rest = self._unread.partition(b"\0")
            if end:
                self._unread = rest
                said: dict[str, Any] = json.loads(line)
                if wanted(said):
                    return said
                continue
            left = until - time.monotonic()
            if left < 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError("the browser did not answer")
            more = os.read(self._read, 1 << 20)
            if not more:
                raise TimeoutError("the browser has ended")
            self._unread += more
