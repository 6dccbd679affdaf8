"""What the browser tests of the web page have in common: the program, and a page that is held to say nothing in red and to reach nothing
but its server."""

import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

from devtools import Browser

PROGRAM = MODEL = SERVER = None  # set by serve_page.py: two paths, and the Program that most tests share
LAST = "[...document.querySelectorAll('.turn.assistant')].at(-1)"
IDLE = "document.getElementById('send').textContent === 'Send'"
WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth || [...document.querySelectorAll('main *, header *')].some((e) => \
  e.checkVisibility() && !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1)"


class Program:
    """The real server on a port of its own. SIGTERM at the end must be enough."""

    def __init__(self, folder, *more):
        environment = {"HOME": str(folder), "PATH": os.environ["PATH"]}
        command = [PROGRAM, "serve", MODEL, "--port", "0", "--name", "tiny", "--log-format", "json", *more]
        self._log = open(folder / "serve.log", "w+b")
        self._process = subprocess.Popen(command, env=environment, cwd=folder, stdout=self._log, stderr=subprocess.STDOUT)
        end = time.monotonic() + 60
        while not (ready := self.lines("ready")):
            if self._process.poll() is not None or time.monotonic() > end:
                self._process.kill()
                raise RuntimeError("the server did not come up:\n" + self.log())
            time.sleep(0.05)
        self.url = ready[0]["url"].rstrip("/") + "/"

    def log(self):
        return pathlib.Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def lines(self, event):
        """Those of the log that say that this happened."""
        whole = [text for text in self.log().splitlines() if text.startswith("{") and text.endswith("}")]
        return [line for line in map(json.loads, whole) if line.get("event") == event]

    def close(self):
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._log.close()


class PageTest(unittest.TestCase):
    """Every test finds a browser in which nothing was kept, and ends without a complaint and without a request to anybody else."""

    expected = ()  # parts of complaints that a test provokes

    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(Browser())

    def setUp(self):
        self.context = self.browser.new_context()
        self.addCleanup(self.browser.end_context, self.context)
        self.pages = []

    def tearDown(self):
        for page in self.pages:
            complaints = [c for c in page.complaints() if not any(part in str(c) for part in self.expected)]
            self.assertEqual(complaints, [])
            foreign = [url for url in page.requests() if not url.startswith((self.url, "data:", "blob:", "about:"))]
            self.assertEqual(foreign, [])

    def open(self, width=1280, height=900, scheme="light"):
        page = self.browser.open(self.url, width=width, height=height, scheme=scheme, context=self.context)
        self.pages.append(page)
        return page

    def ready(self, **how):
        page = self.open(**how)
        page.wait("document.getElementById('model').textContent === 'tiny'")
        return page

    def write(self, page, text):
        page.value("document.getElementById('prompt').focus()")
        page.type(text)
        page.press("Enter")

    def send(self, page, text):
        self.write(page, text)
        page.wait(IDLE)

    def click(self, page, text, root="document"):
        found = page.value(f"(b => (b?.click(), !!b))([...{root}.querySelectorAll('button')].filter((b) => b.checkVisibility() && b.textContent === {json.dumps(text)}).at(-1))")
        self.assertTrue(found, f"there is no button {text}")
