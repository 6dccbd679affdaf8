"""Starts `lapidary serve` for tests, and talks HTTP to it with the standard library alone.

Used by the tests of this folder and of tests/load. Every server gets a free port; everything it says is kept, and shown when a test
that waits for it fails.
"""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMOLLM2 = "smollm2-135m-instruct"
GEMMA3 = "gemma3-270m"
TINY_MODELS = ROOT / "tests" / "data" / "gguf" / "models"
READY_SECONDS = 120


class ServerFailed(Exception):
    """The server did not start, or did not end as it should: its exit code and the end of what it said."""


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The error object of a refusal; a KeyError when it has none is a failure of the test."""
        return self.json["error"]

    def __repr__(self):
        return f"{self.status} {self.body[:400]!r}"


class Stream:
    """Events of an answer in text/event-stream, as they come. Iterating gives the JSON of each; the end is [DONE] or the connection's."""

    def __init__(self, connection, response):
        self.connection, self.response = connection, response
        self.done = False  # [DONE] was seen

    def __iter__(self):
        while line := self.response.readline():
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    self.done = True
                    return
                yield json.loads(data)

    def close(self):
        """Hangs up, wherever the answer is."""
        if self.connection.sock:
            with contextlib.suppress(OSError):
                self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.response.close()
        self.connection.close()


class Http:
    """A client of one address. Each request has a connection of its own."""

    def __init__(self, host, port, headers=None, timeout=300):
        self.host, self.port, self.headers, self.timeout = host, port, dict(headers or {}), timeout

    def _send(self, method, path, body, headers):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        everything = {**self.headers, **(headers or {})}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            everything.setdefault("Content-Type", "application/json")
        connection.request(method, path, body=body, headers=everything)
        return connection, connection.getresponse()

    def request(self, method, path, body=None, headers=None):
        connection, response = self._send(method, path, body, headers)
        with contextlib.closing(connection):
            return Answer(response.status, dict((k.lower(), v) for k, v in response.getheaders()), response.read())

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def stream(self, path, body, headers=None):
        """A Stream, or an Answer when the server answers with anything but a stream."""
        connection, response = self._send("POST", path, body, headers)
        if not response.getheader("Content-Type", "").startswith("text/event-stream"):
            with contextlib.closing(connection):
                return Answer(response.status, dict((k.lower(), v) for k, v in response.getheaders()), response.read())
        return Stream(connection, response)


class Server(Http):
    """`with Server(program, model, "--parallel", 4) as server:`. Ends by SIGTERM, and the exit code must then be 0."""

    def __init__(self, program, model, *flags, headers=None, timeout=300, environment=None):
        super().__init__("127.0.0.1", None, headers, timeout)
        self.command = [str(program), "serve", str(model), "--port", "0", *map(str, flags)]
        self.environment = {**os.environ, **(environment or {})}
        self.process = self.ready = None
        self.over = False  # its end was waited for
        self.log = tempfile.TemporaryFile()

    def start(self):
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, env=self.environment, text=True
        )
        lines, found = [], threading.Event()

        def read():  # to the end, so that the pipe never fills
            for line in self.process.stdout:
                lines.append(line)
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and event.get("event") == "ready":
                        self.ready = event
                        found.set()
            found.set()

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        if not found.wait(READY_SECONDS) or not self.ready:
            self.process.kill()
            self.process.wait()
            raise ServerFailed(f"{' '.join(self.command)}: exit code {self.process.returncode}\n{''.join(lines)}{self.said()}")
        self.port = int(self.ready["url"].rstrip("/").rsplit(":", 1)[1])
        return self

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, error, trace):
        if self.over:
            return
        if self.process.poll() is not None:
            if kind is None:
                raise ServerFailed(f"exit code {self.process.returncode} before its time\n{self.said()}")
            return
        code = self.stop()
        if kind is None and code != 0:
            raise ServerFailed(f"exit code {code} after SIGTERM\n{self.said()}")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self.process.pid

    def model(self):
        return self.get("/v1/models").json["data"][0]["id"]

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=60):
        """The exit code."""
        code = self.process.wait(seconds)
        self.over = True
        return code

    def stop(self, seconds=60):
        """SIGTERM; the exit code. A server that does not end in time is killed and -9 told."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(seconds)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self):
        self.process.kill()
        return self.wait()

    def said(self, most=4000):
        """The end of what it wrote to standard error."""
        self.log.flush()
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), most, max(0, size - most)).decode("utf-8", "replace")

    def rss(self):
        """Resident bytes now."""
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def kv(self):
        return self.get("/v1/kv").json

    def wait_idle(self, seconds=60):
        """Until nothing runs or waits; the last view of /v1/kv."""
        end = time.monotonic() + seconds
        while True:
            view = self.kv()
            if not view["running"] and not view["queued"] and not view["paused"]:
                return view
            if time.monotonic() > end:
                raise AssertionError(f"still at work after {seconds} s: {json.dumps(view)[:600]}")
            time.sleep(0.05)


def pages_in_use(view):
    return sum(pool["pages_in_use"] for pool in view["pools"])


def main(module_globals):
    """For test files: `NAME_test.py LAPIDARY [unittest's arguments]`."""
    if len(sys.argv) < 2 or not pathlib.Path(sys.argv[1]).is_file():
        sys.exit(f"usage: {pathlib.Path(sys.argv[0]).name} LAPIDARY [unittest's arguments]")
    module_globals["LAPIDARY"] = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(module=module_globals["__name__"], warnings="ignore")
