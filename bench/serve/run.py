#!/usr/bin/env python3
"""Measures `lapidary serve` and llama-server side by side: the same files, threads, prompts and clients, in turns.

    bench/serve/run.py --work DIR                              everything: fetches and builds llama.cpp; most of an hour
    bench/serve/run.py --llama-bin DIR --work DIR --rounds 3 --only streams,together --models smollm2-135m-instruct
    bench/serve/run.py --work DIR --update docs/benchmarks.md  puts the tables between the document's markers
    bench/serve/run.py --smoke --work DIR                      ours alone and a little of everything, as CI runs it
    bench/serve/run.py --self-test                             no server but one of its own, no network

Rows (--only): streams (1, 4 and 16 clients, one request after the other each), together (16 requests that arrive at once), replay
(conversations with a long common beginning, turn by turn), intrusion (the worst gap of a running stream while a prompt of some 8k tokens, or
the longest that fits, is computed), memory (the most that was resident, after 16 clients), sigterm (with a request in flight).
Both servers are started anew in every round, the other one first each time; a ratio is the median over rounds of ours over theirs of the
same round. Writes DIR/serve.json with every measurement.
"""

import argparse
import asyncio
import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import client  # noqa: E402
import llama_cpp  # noqa: E402
import measure  # noqa: E402
import servers  # noqa: E402
import tables  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = ("streams", "together", "replay", "intrusion", "memory", "sigterm")
# Ends of text by id, so that ours writes texts of full length as theirs does with ignore_eos.
MODELS = {"smollm2-135m-instruct": (0, 2), "gemma3-270m": (1, 106)}


class Plan:
    """How much of everything."""

    streams, requests, prompt_words, tokens = (1, 4, 16), 2, 120, 64
    conversations, turns, prefix_words, turn_words, answer_tokens = 3, 10, 1000, 60, 32
    intruder_words, running_tokens, long_context = 7600, 3000, 8192
    slots, context = 16, 1024
    sigterm_tokens, patience = 600, 60


class Smoke(Plan):
    streams, requests, prompt_words, tokens = (1, 4), 1, 8, 4
    conversations, turns, prefix_words, turn_words, answer_tokens = 2, 3, 20, 4, 4
    intruder_words, running_tokens, long_context = 600, 3000, 4096
    slots, context = 4, 512
    sigterm_tokens = 40


class Comparison:
    def __init__(self, options, plan, make):
        self.options, self.plan, self.make = options, plan, make  # make: {side: function(model, parallel, context) → server}
        self.values = {}  # (model, row, test, unit) → {side: [value of each round]}

    def add(self, model, row, test, unit, side, value):
        self.values.setdefault((model, row, test, unit), {}).setdefault(side, []).append(value)
        print(f"{model}  {row}  {test}  {side}  {tables.cell([value], unit)}", file=sys.stderr, flush=True)

    def wide(self, model, side, file, seed):
        """Rows of many short requests, on one server."""
        plan, only = self.plan, self.options.only
        if not {"streams", "together", "memory", "sigterm"} & set(only):
            return
        with self.make[side](file, plan.slots, plan.context) as server:
            body = server.body(self.options.stop_ids[model])
            asyncio.run(client.closed_loop(server.address, body, 1, 1, 8, 4, seed))  # warm
            if "together" in only:
                found = asyncio.run(client.closed_loop(server.address, body, plan.slots, 1, plan.prompt_words, plan.tokens, seed + 1))
                self.add(model, "together", f"{plan.slots} at once: mean first token", tables.SECONDS, side, found["mean first token"])
            for count in plan.streams if "streams" in only else ():
                found = asyncio.run(
                    client.closed_loop(server.address, body, count, plan.requests, plan.prompt_words, plan.tokens, seed + 10 + count)
                )
                name = f"{count} client{'s' if count > 1 else ''}"
                self.add(model, "streams", f"{name}: tokens", tables.RATE, side, found["tokens per second"])
                for test in ("first token p50", "first token p95", "gap p50", "gap p95", "gap p99"):
                    self.add(model, "streams", f"{name}: {test}", tables.SECONDS, side, found[test])
            if "memory" in only:
                if "streams" not in only and "together" not in only:
                    asyncio.run(client.closed_loop(server.address, body, plan.slots, 1, plan.prompt_words, plan.tokens, seed + 1))
                self.add(model, "memory", f"peak memory, {plan.slots} at once", tables.BYTES, side, server.peak_rss())
            if "sigterm" in only:
                self.sigterm(model, side, server, body, seed)

    def sigterm(self, model, side, server, body, seed):
        async def with_one_in_flight():
            begun = asyncio.Event()
            order = {**body, "prompt": f"{seed} bottles", "max_tokens": self.plan.sigterm_tokens, "temperature": 0}
            flight = asyncio.create_task(client.complete(server.address, order, on_piece=lambda _: begun.set(), may_break=True))
            await asyncio.wait_for(begun.wait(), 60)
            ended = await asyncio.to_thread(server.end, self.plan.patience)
            return ended, (await flight).whole

        (seconds, code), whole = asyncio.run(with_one_in_flight())
        self.add(model, "sigterm", "SIGTERM to the end", tables.SECONDS, side, seconds)
        self.add(model, "sigterm", "request in flight was answered", tables.SHARE, side, float(whole))
        self.add(model, "sigterm", "ended by itself with exit code 0", tables.SHARE, side, float(code == 0))

    def long(self, model, side, file, seed):
        plan = self.plan
        if "replay" in self.options.only:
            with self.make[side](file, max(4, plan.conversations), plan.long_context) as server:
                body = server.body(self.options.stop_ids[model])
                counts = (plan.conversations, plan.turns, plan.prefix_words, plan.turn_words, plan.answer_tokens)
                firsts = asyncio.run(client.replay(server.address, body, *counts, seed))
                self.add(model, "replay", "turn 1: mean first token", tables.SECONDS, side, firsts[0])
                self.add(model, "replay", f"turn {plan.turns}: mean first token", tables.SECONDS, side, firsts[-1])
        if "intrusion" in self.options.only:
            with self.make[side](file, 2, plan.long_context) as server:
                body = server.body(self.options.stop_ids[model])
                found = asyncio.run(client.intrusion(server.address, body, plan.intruder_words, plan.running_tokens, seed))
                what = f"a prompt of {plan.intruder_words} words"
                self.add(model, "intrusion", f"worst gap of a stream while {what} is computed", tables.SECONDS, side, found["worst gap"])
                self.add(model, "intrusion", "usual gap of that stream", tables.SECONDS, side, found["usual gap"])
                self.add(model, "intrusion", f"first token of {what}", tables.SECONDS, side, found["long prompt's first token"])

    def round(self, number, model, file):
        sides = list(self.make)
        first = number % len(sides)
        for side in sides[first:] + sides[:first]:
            seed = 1000 * (number + 1)
            self.wide(model, side, file, seed)
            self.long(model, side, file, seed)


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, help="folder outside the repository for source, programs and results")
    parser.add_argument("--lapidary", type=pathlib.Path, default=ROOT / "build" / "lapidary")
    parser.add_argument("--llama-bin", type=pathlib.Path, help="folder with llama-server: nothing is fetched or built")
    parser.add_argument("--only", type=measure.names(ROWS), default=ROWS, metavar="ROWS")
    parser.add_argument("--models", type=measure.names(tuple(MODELS)), default=tuple(MODELS), metavar="NAMES", help=", ".join(MODELS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flags", default="", help="more flags of lapidary serve, as one argument; they are said in the tables")
    parser.add_argument("--update", type=pathlib.Path, help="document whose tables are replaced")
    parser.add_argument("--smoke", action="store_true", help="ours alone with a small made model, in seconds")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args(arguments)
    if not options.work and not options.self_test:
        parser.error("--work DIR is needed")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least one")
    options.stop_ids = dict(MODELS)
    return options


def ours(options):
    more = options.flags.split()
    return lambda file, parallel, context: servers.Ours(options.lapidary, file, parallel, context, options.threads, more)


def smoke(options):
    """Everything once; every number must be there."""
    sys.path.append(str(ROOT / "tests" / "clients"))
    import made_model

    options.stop_ids = {"made": made_model.STOP_IDS}
    comparison = Comparison(options, Smoke, {tables.OURS: ours(options)})
    comparison.round(0, "made", made_model.make(options.work / "made"))
    missing = set(options.only) - {row for _, row, _, _ in comparison.values}
    wrong = {key: sides for key, sides in comparison.values.items() if not all(value > 0 for value in sides[tables.OURS])}
    if missing or wrong:
        sys.exit(f"run: not measured: {sorted(missing)}; not right: {wrong}")


def compare(options):
    work = options.work.resolve()
    if work.is_relative_to(ROOT):
        raise measure.Failed(f"--work {work} lies in the repository: choose a folder outside")
    work.mkdir(parents=True, exist_ok=True)
    programs = options.llama_bin or llama_cpp.obtain(work)

    def theirs(file, parallel, context):
        return servers.Theirs(programs, file, parallel, context, options.threads)

    comparison = Comparison(options, Plan, {tables.OURS: ours(options), tables.THEIRS: theirs})
    results = work / "serve.json"
    for number in range(options.rounds):
        for model in options.models:
            file = json.loads(measure.run([options.lapidary, "inspect", model, "--json"]).out)["model"]
            comparison.round(number, model, file)
            facts = {"machine": measure.machine(), "versions": measure.versions(options.lapidary), "rounds": number + 1}
            facts |= {"peer_build": llama_cpp.build_text(programs), "threads": options.threads, "flags": options.flags}
            tables.save(results, facts, comparison.values)  # at every step: a broken run loses little
    text = tables.tables(*tables.load(results))
    print(text)
    if options.update:
        tables.update(options.update, "serve", text)


def main():
    options = parse_arguments(sys.argv[1:])
    if options.self_test:
        import self_test

        sys.exit(self_test.main())
    try:
        smoke(options) if options.smoke else compare(options)
    except (measure.Failed, servers.ServerFailed, client.RequestFailed, OSError, ValueError) as error:
        sys.exit(f"run: {error}")


if __name__ == "__main__":
    main()
