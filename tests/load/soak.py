#!/usr/bin/env python3
"""Too many clients for a while, some of them rude, and a server that is killed and started again every so often.

    tests/load/soak.py build/lapidary --seconds 20                          as CI runs it: a made model
    tests/load/soak.py build/lapidary --seconds 600 --model smollm2-135m-instruct

Clients send all that mix.py knows; others hang up, send garbage, read slowly or not at all; one keeps conversations, asks the server to
save them, and after each kill -9 expects what was acknowledged to be held and to go on with the same tokens. Nothing but the kills may end
the server, every answer must be a right one or a named refusal, and memory must stay level: the last life is left without a kill, half of
the time, and the resident set of its last third is held against that of its middle third.
"""

import argparse
import collections
import contextlib
import http.client
import json
import pathlib
import random
import socket
import sys
import tempfile
import threading
import time

import mix
import served

import made_model  # of tests/clients, which mix puts on the path

BUSY = (429, 503)
GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"\x00" * 300, b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{", b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\n\r\n",
)  # fmt: skip
BODIES = (b"{", b"[" * 50_000, b'{"prompt": "\\ud800"}', b'{"prompt": "a", "max_tokens": 1e400}', b'{"prompt": "a", "temperatur": 1}', b"\xff\xfe",
          b'{"prompt": []}', b'{"prompt": [-1]}', b'{"messages": 5}', b'{"prompt": "a", "logit_bias": {"99999999": 1}}')  # fmt: skip


class Soak:
    def __init__(self, options, model, folder):
        self.options, self.model = options, model
        self.flags = ["--parallel", 4, "--queue", 8, "--kv-dir", f"{folder}/kv", "--name", "soak", *options.server_flags.split()]
        self.server = None
        self.generation = 0  # lives of the server so far; odd while it is down: a request that sees it change may fail
        self.stop = threading.Event()
        self.counts, self.failures = collections.Counter(), []
        self.lock = threading.Lock()
        self.begun = time.monotonic()
        self.rss = []  # [life's samples: (seconds, bytes)]

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def fail(self, text):
        with self.lock:
            self.failures.append(f"after {time.monotonic() - self.begun:.1f} s: {text}")
        self.stop.set()

    def start(self):
        self.server = served.Server(self.options.lapidary, self.model, *self.flags, timeout=120).start()
        self.rss.append([])
        self.generation += 1

    def kill(self):
        self.generation += 1
        self.server.kill()
        self.count("kills")

    def client(self, work, number):
        """Repeats one kind of client until the end; errors of connections count only while the server was up all the time."""
        rng = random.Random(self.options.seed * 1000 + number)
        while not self.stop.is_set():
            before = self.generation
            if before % 2 == 0:
                time.sleep(0.02)
                continue
            try:
                work(self.server, rng)
            except (OSError, http.client.HTTPException, ValueError, AssertionError) as error:
                time.sleep(0.05)
                if self.generation == before and self.server.process.poll() is None:
                    self.fail(f"{work.__name__}: {type(error).__name__}: {error}")
                else:
                    self.count("cut off by a kill")

    # Kinds of clients: one request each.

    def ordinary(self, server, rng):
        (request,) = mix.make(1, rng.randrange(1 << 30), "soak", self.options.longest, 24, (0, 1, 2, 50, 106))
        try:
            mix.ask(server, request)
            self.count("left" if request.leave_after else "answered")
        except mix.Refused as refused:
            if refused.answer.status not in BUSY:
                raise AssertionError(f"{request}: {refused.answer}\n{json.dumps(request.body)[:400]}") from None
            if "retry-after" not in refused.answer.headers:
                raise AssertionError(f"{refused.answer.status} without Retry-After: {refused.answer}") from None
            self.count("refused as busy")
            time.sleep(rng.uniform(0, 0.1))

    def hanging_up(self, server, rng):
        with contextlib.closing(socket.create_connection((server.host, server.port), timeout=30)) as connection:
            prompt = mix.words(rng, rng.randrange(1, self.options.longest))
            body = json.dumps({"model": "soak", "prompt": prompt, "max_tokens": 200, "stream": rng.random() < 0.7}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            whole = head.encode() + body
            connection.sendall(whole[: rng.randrange(1, len(whole))] if rng.random() < 0.3 else whole)
            time.sleep(rng.uniform(0, 0.3))
        self.count("hung up")

    def malformed(self, server, rng):
        if rng.random() < 0.5:
            answer = server.post(rng.choice(("/v1/completions", "/v1/chat/completions", "/v1/embeddings")), rng.choice(BODIES))
            if answer.status // 100 != 4 and answer.status not in BUSY:
                raise AssertionError(f"a malformed body got {answer}")
            answer.error["message"]
        else:
            with contextlib.closing(socket.create_connection((server.host, server.port), timeout=30)) as connection:
                data = rng.choice(GARBAGE)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(data if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 2000)))
                    connection.shutdown(socket.SHUT_WR)
                    said = connection.recv(4096)
                    if said and not (said.startswith(b"HTTP/1.") and said[9:10] in (b"4", b"5")):
                        raise AssertionError(f"garbage got {said[:200]!r}")
        self.count("malformed")
        time.sleep(rng.uniform(0, 0.05))

    def slow(self, server, rng):
        """Reads next to nothing of a long stream with much beside each token, then goes."""
        with contextlib.closing(socket.socket()) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(30)
            connection.connect((server.host, server.port))
            body = json.dumps({"model": "soak", "prompt": "slow", "max_tokens": 300, "logprobs": 5, "stream": True}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            end = time.monotonic() + rng.uniform(0.5, 3)
            while time.monotonic() < end and not self.stop.is_set() and connection.recv(64):
                time.sleep(0.05)
        self.count("slow readers")

    def looking(self, server, rng):
        for path in ("/health", "/metrics", "/v1/kv", "/v1/models", "/ready"):
            answer = server.get(path)
            if answer.status != 200:
                raise AssertionError(f"{path}: {answer}")
        self.count("looks")
        time.sleep(0.2)

    # The keeper of conversations.

    def last_turn(self, messages):
        body = {"model": "soak", "messages": messages, "max_tokens": 8, "temperature": 0.8, "seed": 5, "logprobs": True}
        while not self.stop.is_set():
            answer = self.server.post("/v1/chat/completions", body)
            if answer.status == 200:
                usage = answer.json["usage"]
                return answer.json["choices"], usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]
            if answer.status not in BUSY:
                raise AssertionError(f"a turn: {answer}")
            time.sleep(0.1)
        raise EndOfTime

    def save(self):
        answer = self.server.post("/v1/kv/save", {})
        if answer.status != 200:
            raise AssertionError(f"/v1/kv/save: {answer}")
        self.count("saves acknowledged")

    def converse(self, rng):
        """A conversation whose last turn was asked, then saved: (messages, its answer)."""
        messages = [{"role": "user", "content": mix.words(rng, 120)}]
        choices, _, _ = self.last_turn(messages)
        messages += [{"role": "assistant", "content": choices[0]["message"]["content"] or "."}, {"role": "user", "content": mix.words(rng, 10)}]
        choices, _, _ = self.last_turn(messages)
        self.save()
        return messages, choices

    def check_restored(self, conversation):
        messages, expected = conversation
        choices, held, prompt = self.last_turn(messages)
        if found := mix.difference(expected, choices):
            raise AssertionError(f"after a restart: {found}")
        if held < prompt // 2:
            raise AssertionError(f"an acknowledged conversation is gone: {held} of {prompt} tokens are held")
        self.count("conversations restored")

    def watch(self):
        start = time.monotonic()
        while not self.stop.wait(0.25):
            with contextlib.suppress(OSError, ValueError, IndexError):
                if self.generation % 2:
                    self.rss[-1].append((time.monotonic() - start, self.server.rss()))

    def lives(self):
        """The time as lives of a server: the last one is half of it, and not killed."""
        total = self.options.seconds
        count = max(2, min(8, round(total / 2 / 30)))
        return [total / 2 / count] * count + [total / 2]

    def run(self):
        rng = random.Random(self.options.seed)
        self.start()
        threads = [threading.Thread(target=self.watch)]
        works = [self.ordinary] * 14 + [self.hanging_up] * 3 + [self.malformed] * 2 + [self.slow] * 2 + [self.looking]
        threads += [threading.Thread(target=self.client, args=(work, n)) for n, work in enumerate(works)]
        for thread in threads:
            thread.start()
        code = None
        try:
            lives = self.lives()
            for number, seconds in enumerate(lives):
                end = time.monotonic() + seconds
                last = number == len(lives) - 1
                conversation = self.converse(rng)
                self.sleep_until(end)
                if not last:
                    self.kill()
                    self.start()
                    self.check_restored(conversation)
            code = self.server.stop(60) if self.options.end_busy else None  # SIGTERM while all are at it
        except EndOfTime:
            pass
        except (AssertionError, served.ServerFailed, OSError, http.client.HTTPException, ValueError, KeyError) as error:
            self.fail(f"{type(error).__name__}: {error}")
        if code is not None:
            self.generation += 1
        self.stop.set()
        for thread in threads:
            thread.join()
        return self.finish(code)

    def sleep_until(self, end):
        while time.monotonic() < end:
            if self.stop.wait(0.2):
                raise EndOfTime
            if self.server.process.poll() is not None:
                raise AssertionError(f"the server ended by itself, exit code {self.server.process.returncode}")

    def finish(self, code):
        report = {"seconds": self.options.seconds, "counts": dict(sorted(self.counts.items())), "exit_code": code}
        if code is None and self.server.process.poll() is None and not self.failures:
            view = self.server.wait_idle()
            self.server.post("/v1/kv/clear", {})
            view = self.server.kv()
            report["pages_left"] = served.pages_in_use(view)
            if report["pages_left"]:
                self.failures.append(f"pages held by nobody: {view['pools']}")
            report["worst_gap_seconds"] = view["gaps"]["worst_seconds"]
            report["exit_code"] = code = self.server.stop(60)
        elif self.server.process.poll() is None:
            self.server.kill()
        if code != 0:
            self.failures.append(f"exit code {code} after SIGTERM")
        report["memory"] = memory_of(self.rss[-1])
        growth = report["memory"].get("last_third_over_middle")
        if growth is not None and self.options.seconds >= 300 and growth > 1.05:
            self.failures.append(f"the resident set grows: {report['memory']}")
        for what in ("answered", "refused as busy", "hung up", "malformed", "slow readers", "kills", "conversations restored", "looks"):
            if not self.counts[what] and not self.failures:
                self.failures.append(f"nothing was {what}")
        report["failures"] = self.failures
        if self.failures:
            print(self.server.said(), file=sys.stderr)
        return report


class EndOfTime(Exception):
    """Something failed elsewhere."""


def memory_of(samples):
    """Of one life: megabytes at its thirds, and the slope of a straight line through the samples of its second half."""
    if len(samples) < 6:
        return {"samples": len(samples)}
    third = len(samples) // 3
    middle, last = (max(size for _, size in part) for part in (samples[third : 2 * third], samples[2 * third :]))
    half = samples[len(samples) // 2 :]
    mean_t, mean_y = (sum(column) / len(half) for column in zip(*half))
    slope = sum((t - mean_t) * (y - mean_y) for t, y in half) / max(1e-9, sum((t - mean_t) ** 2 for t, _ in half))
    return {"samples": len(samples), "middle_mb": round(middle / 1e6, 1), "last_mb": round(last / 1e6, 1),
            "last_third_over_middle": round(last / middle, 4), "slope_mb_per_minute": round(slope * 60 / 1e6, 3)}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lapidary", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--model", help="default: a made one, small and with a chat template")
    parser.add_argument("--longest", type=int, default=300, help="words of a prompt")
    parser.add_argument("--server-flags", default="--kv-bytes 256MiB", help="more flags of the server, as one argument")
    parser.add_argument("--end-busy", action="store_true", help="SIGTERM while the clients are at it (leaves out the look at the pages)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Soak(options, options.model or made_model.make(f"{folder}/made"), folder).run()
    print(json.dumps(report, indent=1))
    sys.exit(1 if report["failures"] else 0)


if __name__ == "__main__":
    main()
