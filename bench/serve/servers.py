"""The servers that are compared: how each is started, what it needs to be told, when it is ready, how much memory it holds."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

READY_SECONDS = 300


class ServerFailed(Exception):
    pass


class Server:
    """One process. `stop` sends SIGTERM and says how long the end took, and with what exit code."""

    def __init__(self, command):
        self.command = [str(part) for part in command]
        self.log = tempfile.TemporaryFile()
        self.process = None
        self.address = None

    def __enter__(self):
        self.launch()
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    def failed(self, why):
        self.process.kill()
        self.process.wait()
        self.log.seek(0)
        return ServerFailed(f"{' '.join(self.command)}: {why}\n{self.log.read()[-2000:].decode('utf-8', 'replace')}")

    def peak_rss(self):
        """Bytes: the most that was resident so far."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) * 1024

    def end(self, patience):
        """(seconds from SIGTERM to the end, exit code); killed after `patience` seconds, and then the code is -9."""
        start = time.perf_counter()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        return time.perf_counter() - start, code


class Ours(Server):
    """Context is of each sequence."""

    def __init__(self, program, model, parallel, context, threads, more=()):
        command = [program, "serve", model, "--port", 0, "--parallel", parallel, "--context", context, "--threads", threads]
        super().__init__([*command, "--drain-seconds", 10, *more])

    def launch(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        try:
            url = json.loads(line)["url"]
        except (ValueError, KeyError):
            raise self.failed(f"no address on standard output: {line!r}") from None
        self.address = ("127.0.0.1", int(url.rstrip("/").rsplit(":", 1)[1]))

    def body(self, stop_ids):
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/models")
            name = json.loads(connection.getresponse().read())["data"][0]["id"]
        return {"model": name, "logit_bias": {str(token): -100 for token in stop_ids}}


class Theirs(Server):
    """llama-server: its context is that of all slots together."""

    def __init__(self, programs, model, parallel, context, threads):
        with contextlib.closing(socket.socket()) as probe:  # it takes no port 0
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [pathlib.Path(programs, "llama-server"), "-m", model, "-np", parallel, "-c", parallel * context, "-fa", "on", "-t", threads]
        super().__init__([*command, "--host", "127.0.0.1", "--port", port])
        self.address = ("127.0.0.1", port)

    def launch(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log, env=os.environ)
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise self.failed(f"exit code {self.process.returncode}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection(*self.address, timeout=5)
                with contextlib.closing(connection):
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        return
            time.sleep(0.1)
        raise self.failed(f"not ready after {READY_SECONDS} s")

    def body(self, stop_ids):
        return {"ignore_eos": True, "cache_prompt": True}
