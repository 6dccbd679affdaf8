"""A page in headless Chromium, driven over the DevTools protocol through a pair of pipes: standard library only, no port, no driver.

    with Browser() as browser:
        page = browser.open("file:///tmp/report.html", width=360, height=740, scheme="dark")
        page.value("document.title")
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time

CANDIDATES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 20  # for any one answer

# The keys that the tests press: name -> (code, Windows virtual key code, text).
KEYS = {
    "Tab": ("Tab", 9, ""),
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    " ": ("Space", 32, " "),
    "PageUp": ("PageUp", 33, ""),
    "PageDown": ("PageDown", 34, ""),
    "End": ("End", 35, ""),
    "Home": ("Home", 36, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
}


def chromium():
    """The browser's path. RuntimeError without one: a missing browser is a failure, not a reason to skip."""
    for name in CANDIDATES:
        path = shutil.which(name)
        if path:
            return path
    raise RuntimeError(f"no browser: expected one of {', '.join(CANDIDATES)} in PATH (tools/bootstrap test installs chromium)")


class Browser:
    def __enter__(self):
        self._profile = tempfile.mkdtemp(prefix="lapidary-browser-")
        commands_out, commands_in = os.pipe()  # the browser reads its descriptor 3 and writes its descriptor 4
        answers_out, answers_in = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (commands_out, answers_in)]
        log = os.open(os.path.join(self._profile, "log"), os.O_CREAT | os.O_RDWR)
        arguments = [
            chromium(),
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._profile}",
            "--no-first-run",
            "--no-default-browser-check",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # the sandbox refuses to run as root
            "about:blank",
        ]
        actions = [
            (os.POSIX_SPAWN_DUP2, high[0], 3),
            (os.POSIX_SPAWN_DUP2, high[1], 4),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        self._process = os.posix_spawn(arguments[0], arguments, os.environ, file_actions=actions, setpgroup=0)
        for fd in (commands_out, answers_in, *high, log):
            os.close(fd)
        self._in, self._out = commands_in, answers_out
        self._buffer, self._last, self._events = b"", 0, []
        return self

    def __exit__(self, *_):
        try:
            os.killpg(self._process, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self._process, 0)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _read(self, seconds):
        """The next message; None when none comes in time."""
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._out], [], [], max(0, end - time.monotonic()))
            if not ready:
                return None
            part = os.read(self._out, 1 << 20)
            if not part:
                with open(os.path.join(self._profile, "log"), encoding="utf-8", errors="replace") as log:
                    raise RuntimeError("the browser ended:\n" + log.read()[-2000:])
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._in, data) :]
        end = time.monotonic() + SECONDS
        while True:
            answer = self._read(end - time.monotonic())
            if answer is None:
                raise TimeoutError(f"{method}: no answer within {SECONDS} s")
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self._events.append(answer)

    def events(self, session):
        while (message := self._read(0)) is not None:
            if "method" in message:
                self._events.append(message)
        return [event for event in self._events if event.get("sessionId") == session]

    def open(self, url, width=1280, height=900, scheme="light", context=None):
        return Page(self, url, width, height, scheme, context)

    def new_context(self):
        """As a browser of its own: nothing kept from others. Ends with end_context()."""
        return self.call("Target.createBrowserContext")["browserContextId"]

    def end_context(self, context):
        self.call("Target.disposeBrowserContext", browserContextId=context)


class Page:
    def __init__(self, browser, url, width, height, scheme, context=None):
        self._browser = browser
        where = {"browserContextId": context} if context else {}
        self.target = browser.call("Target.createTarget", url="about:blank", **where)["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.set_scheme(scheme)
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self.target)

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)

    def set_scheme(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media="screen", features=features)

    def value(self, expression):
        """What JavaScript makes of the expression, as JSON."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression, seconds=SECONDS):
        end = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"not within {seconds} s: {expression}")
            time.sleep(0.02)

    def press(self, key, times=1, shift=False):
        code, number, text = KEYS[key]
        common = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
            self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        """Into what has the focus, as an input method does."""
        self.call("Input.insertText", text=text)

    def move_mouse(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path, selector="html"):
        """A picture of one element, however far down it is."""
        where = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y, width, height = self.value(f"(r => [r.x + scrollX, r.y + scrollY, r.width, r.height])({where})")
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))

    def _events(self, method):
        return [event["params"] for event in self._browser.events(self._session) if event["method"] == method]

    def complaints(self):
        """Everything that a developer would see in red or yellow."""
        console = [e for e in self._events("Runtime.consoleAPICalled") if e["type"] in ("error", "warning", "assert")]
        log = [e["entry"]["text"] for e in self._events("Log.entryAdded") if e["entry"]["level"] in ("error", "warning")]
        return [*console, *log, *self._events("Runtime.exceptionThrown")]

    def requests(self):
        return [event["request"]["url"] for event in self._events("Network.requestWillBeSent")]
