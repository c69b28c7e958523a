"""Chromium without a window, driven by its DevTools protocol over two pipes: no package of Python is needed."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Page:
    """A page of a browser, which remembers what its console said."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands, self._answers = commands, answers
        self._session: dict[str, str] = {}
        self._sent = 0
        self.said: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def _next(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            if not byte:
                raise EOFError("the browser has ended")
            message += byte
        answer: dict[str, Any] = json.loads(message)
        if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.said.append(json.dumps(answer["params"])[:500])
        return answer

    def call(self, method: str, **arguments: object) -> dict[str, Any]:
        """The result of a command of the protocol."""
        self._sent += 1
        command = {"id": self._sent, "method": method, "params": arguments, **self._session}
        self._commands.write(json.dumps(command).encode() + b"\0")
        while (answer := self._next()).get("id") != self._sent:
            pass
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, address: str) -> None:
        """Returns once the page and all that it names are loaded."""
        self.call("Page.navigate", url=address)
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int) -> None:
        size = {"width": width, "height": 100}  # what is drawn costs more than what is laid out
        self.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """Shows the page to a user who prefers a scheme, `light` or `dark`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Chromium, with its settings in the folder `profile`."""
    theirs, commands = os.pipe()  # the browser reads from descriptor 3 and writes to 4
    answers, their_answers = os.pipe()
    flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe"
    starts = f'exec {CHROMIUM} {flags} --user-data-dir="$0" 3<&{theirs} 4>&{their_answers}'
    with subprocess.Popen(["bash", "-c", starts, profile], pass_fds=(theirs, their_answers), stderr=subprocess.DEVNULL):
        os.close(theirs)
        os.close(their_answers)
        with os.fdopen(commands, "wb", buffering=0) as asked, os.fdopen(answers, "rb") as answered:
            page = Page(asked, answered)
            try:
                yield page
            finally:
                page.call("Browser.close")
