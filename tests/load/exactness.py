#!/usr/bin/env python3
"""Whatever else a server does, each answer is the one it gives alone: token for token, log-probability for log-probability.

    tests/load/exactness.py build/lapidary                          60 requests to a made model, as CI runs it
    tests/load/exactness.py build/lapidary --full                   200 requests of up to some 4k tokens to SmolLM2
    tests/load/exactness.py build/lapidary --model gemma3-270m --requests 100 --longest 2000

The answers of a server that does one request at a time and reuses nothing are written down. Then another one gets the same requests, in
another order each time, 1, 4 and 16 at once, with its prefix cache; some clients leave in the middle. At the end no page is held.
"""

import argparse
import collections
import json
import pathlib
import queue
import random
import sys
import tempfile
import threading
import time

import mix
import served

import made_model  # of tests/clients, which mix puts on the path


def run(server, requests, at_once):
    """{number: answer} and tokens that were held."""
    todo, answers, held, errors = queue.SimpleQueue(), {}, [], []
    for request in requests:
        todo.put(request)

    def work():
        while not errors:
            try:
                request = todo.get_nowait()
            except queue.Empty:
                return
            try:
                answers[request.number], tokens = mix.ask(server, request)
                held.append(tokens)
            except Exception as error:  # noqa: BLE001: told by the main thread
                errors.append((request, error))

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        request, error = errors[0]
        raise AssertionError(f"{request}: {type(error).__name__}: {error}\n{json.dumps(request.body)[:600]}\n{server.said()}")
    return answers, sum(held)


def check_idle(server):
    view = server.wait_idle()
    if view["sequences"]:
        raise AssertionError(f"sequences without a request: {view['sequences']}")


def compare(requests, expected, got, where):
    for request in requests:
        if found := mix.difference(expected[request.number], got[request.number]):
            raise AssertionError(f"{where}, {request}: {found}\n{json.dumps(request.body)[:600]}")


def measure(options, model, flags):
    report = {"model": options.model or "made", "requests": options.requests, "levels": []}
    with served.Server(options.lapidary, model, *flags, "--no-prefix-cache", "--parallel", 1) as server:
        name = server.model()
        stop_ids = (0, 1, 2, 50, 106)
        requests = mix.make(options.requests, options.seed, name, options.longest, options.most_tokens, stop_ids, server.get("/v1/models").json["data"][0]["chat"])
        start = time.monotonic()
        expected, _ = run(server, requests, 1)
        check_idle(server)
        report["kinds"] = dict(collections.Counter(request.kind for request in requests))
        report["prompt_tokens"] = sum(answer.get("prompt_tokens", 0) for answer in expected.values())
        report["alone_seconds"] = round(time.monotonic() - start, 1)
        print(f"alone: {report['alone_seconds']} s", file=sys.stderr, flush=True)
    with served.Server(options.lapidary, model, *flags, "--parallel", options.parallel, *options.server_flags.split()) as server:
        for at_once in options.at_once:
            order = requests[:]
            random.Random(at_once).shuffle(order)
            start = time.monotonic()
            got, held = run(server, order, at_once)
            compare(requests, expected, got, f"{at_once} at once")
            check_idle(server)
            totals = server.kv()["totals"]
            level = {"at_once": at_once, "seconds": round(time.monotonic() - start, 1), "held_tokens": held, "preemptions": totals["preemptions"]}
            report["levels"].append(level)
            print(f"{at_once} at once: all the same, {level['seconds']} s, {held} tokens held", file=sys.stderr, flush=True)
        if not any(level["held_tokens"] for level in report["levels"]):
            raise AssertionError("no request had anything held: reuse was not tried")
        answer = server.post("/v1/kv/clear", {})
        if answer.status != 200:
            raise AssertionError(f"/v1/kv/clear: {answer}")
        view = server.kv()
        if served.pages_in_use(view) or view["room"]["used_bytes"]:
            raise AssertionError(f"pages are held by nobody: {view['pools']}, {view['room']}")
        report["pages_left"] = 0
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lapidary", type=pathlib.Path)
    parser.add_argument("--full", action="store_true", help="SmolLM2, 200 requests, prompts of up to some 4k tokens: many minutes")
    parser.add_argument("--model", help="default: a made one, small and with a chat template")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--longest", type=int, default=400, help="words of a prompt")
    parser.add_argument("--most-tokens", type=int, default=24, help="of an answer")
    parser.add_argument("--at-once", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 16])
    parser.add_argument("--parallel", type=int, default=8, help="of the server: fewer than at once, so that requests wait too")
    parser.add_argument("--server-flags", default="", help="more flags of the second server, as one argument")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.full:
        options.model, options.requests, options.longest, options.most_tokens = options.model or served.SMOLLM2, 200, 3000, 48
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or made_model.make(f"{folder}/made")
        try:
            report = measure(options, model, [])
        except (AssertionError, served.ServerFailed) as error:
            sys.exit(f"exactness: {error}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
