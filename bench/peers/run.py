#!/usr/bin/env python3
"""Measures Lapidary and llama.cpp side by side: the same files, threads, prompts and depths, in turns.

    bench/peers/run.py --work DIR                        everything: fetches and builds llama.cpp, makes the models; hours
    bench/peers/run.py --work DIR --only prefill,decode --models e2b-q4_0 --rounds 5 --fifo
    bench/peers/run.py --work DIR --llama-bin DIR/bin --only quality --update docs/benchmarks.md
    bench/peers/run.py --self-test                       reads recorded output; no network, no programs

Rows (--only): prefill, decode, threads, batch, depth (decode at 4096), deep (both at 16384), cold (first token of a new process, and
its memory), busy (two spinning neighbours), quality (perplexity of both on one text; real models only).
Every round runs each program once; a ratio is the median over rounds of ours over theirs of the same round.
Writes DIR/peers.json with every measurement, and prints tables; --update puts them between the markers of a document, those of
--section where it has several. LAPIDARY_ISA, when set, holds Lapidary to an instruction set, and is said in the tables.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import llama_cpp
import measure
import plan
import report
import synthetic_gguf

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Ours:
    """Commands of lapidary, in one arithmetic."""

    def __init__(self, program, arithmetic, kv_dtype):
        self.program, self.arithmetic = program, arithmetic
        self.mode = ["--arithmetic", arithmetic, *(["--kv-dtype", kv_dtype] if kv_dtype else [])]

    def bench(self, model, row):
        command = [self.program, "bench", model, "-t", row.threads, "-r", "1", "-d", row.depth, "--probe-mb", "0", "--output", "json"]
        for flag, values in (("-p", row.prompts or (0,)), ("-n", row.generated or (0,)), ("-b", row.batches)):
            command += [flag, ",".join(map(str, values))]
        return [*command, *self.mode]

    def complete(self, model, threads, prompt, tokens, context):
        command = [self.program, "run", model, prompt, "--raw", "-n", tokens, "--temp", "0", "--ignore-eos", "--show-special"]
        return [*command, "--threads", threads, "--context", context, *self.mode]

    def score(self, model, threads, ids, window):
        return [self.program, "score", model, "--ids", ids, "--window", window, "--threads", threads, "--json", *self.mode]


def read_our_bench(out):
    """{"pp512": tokens per second, ...} of lapidary bench --output json."""
    return {row["test"]: row["tokens_per_s"] for row in json.loads(out)["results"]}


class Comparison:
    def __init__(self, options, work, programs):
        self.options, self.work = options, work
        self.ours = {mode: Ours(options.lapidary, mode, options.kv_dtype) for mode in options.modes}
        self.theirs = llama_cpp.LlamaCpp(programs)
        self.values = {}  # (model, row, test, unit) → {side: [value of each round]}

    def add(self, model, row, test, unit, side, value):
        self.values.setdefault((model.name, row, test, unit), {}).setdefault(side, []).append(value)

    def say(self, text):
        print(text, file=sys.stderr, flush=True)

    def call(self, command, fifo=None):
        return measure.run(command, self.options.fifo if fifo is None else fifo)

    def sides(self, round_number):
        """All sides, another one first in each round."""
        sides = [*self.ours, report.THEIRS]
        first = round_number % len(sides)
        return sides[first:] + sides[:first]

    def rates(self, side, file, row, fifo=None):
        if side != report.THEIRS:
            return read_our_bench(self.call(self.ours[side].bench(file, row), fifo).out)
        if row.group == "batch":
            command = self.theirs.batched(file, row.threads, row.depth, row.generated[0], row.batches)
            return llama_cpp.read_batched(self.call(command, fifo).out)
        command = self.theirs.bench(file, row.threads, row.prompts, row.generated, row.depth)
        return llama_cpp.read_bench(self.call(command, fifo).out)

    def speed(self, model, file, row):
        for number in range(self.options.rounds):
            for side in self.sides(number):
                for test, rate in self.rates(side, file, row).items():
                    self.add(model, row.group, test, report.RATE, side, rate)
                    self.say(f"{model.name}  {row.threads} threads  {test}  round {number + 1}  {side}  {rate:.1f} tok/s")

    def cold(self, model, file):
        arguments = (file, 2, plan.COLD_PROMPT, plan.COLD_TOKENS, plan.COLD_CONTEXT)
        for number in range(self.options.rounds):
            for side in self.sides(number):
                program = self.theirs if side == report.THEIRS else self.ours[side]
                run = self.call(program.complete(*arguments))
                self.add(model, "cold", "first token", report.SECONDS, side, run.first_byte)
                self.add(model, "cold", "peak memory", report.BYTES, side, run.peak_rss)
                self.say(f"{model.name}  cold  round {number + 1}  {side}  {run.first_byte:.2f} s  {run.peak_rss / 1e6:.0f} MB")

    def busy(self, model, file):
        """Decode beside busy processes, as a share of decode on a quiet machine: never with real-time priority."""
        for number in range(self.options.rounds):
            for side in self.sides(number):
                (quiet,) = self.rates(side, file, plan.BUSY, fifo=False).values()
                with measure.busy_neighbours(plan.NEIGHBOURS):
                    (busy,) = self.rates(side, file, plan.BUSY, fifo=False).values()
                self.add(model, "busy", "decode beside two busy processes", report.RATE, side, busy)
                self.add(model, "busy", "share of quiet decode", report.SHARE, side, busy / quiet)
                self.say(f"{model.name}  busy  round {number + 1}  {side}  {busy:.1f} of {quiet:.1f} tok/s")

    def quality(self, model, file):
        """Both programs on the same chunks of the same text; deterministic, so once."""
        text = self.options.text
        theirs = self.call(self.theirs.perplexity(file, 2, text, plan.WINDOW))
        self.add(model, "quality", "perplexity", report.NUMBER, report.THEIRS, llama_cpp.read_perplexity(theirs.out + theirs.err))
        ids = json.loads(self.call([self.options.lapidary, "tokenize", file, text.read_text(encoding="utf-8"), "--json"]).out)["ids"]
        bos = json.loads(self.call([self.options.lapidary, "inspect", file, "--json"]).out)["text"]["bos_id"]
        chunks, first = llama_cpp.perplexity_chunks(ids, plan.WINDOW, bos if ids[0] == bos else None)
        for side, ours in self.ours.items():
            logprobs = []
            for chunk in chunks:
                chunk_file = self.work / "chunk.json"
                chunk_file.write_text(json.dumps(chunk), encoding="utf-8")
                scored = json.loads(self.call(ours.score(file, 2, chunk_file, plan.WINDOW)).out)["logprobs"]
                logprobs += scored[first - 1 :]  # the first token of a chunk has none
            self.add(model, "quality", "perplexity", report.NUMBER, side, report.perplexity(logprobs))
        self.say(f"{model.name}  perplexity of {len(chunks)} chunks of {plan.WINDOW} tokens")

    def model(self, model, file):
        groups = self.options.only
        for row in plan.rows_of(model, groups):
            self.speed(model, file, row)
        if "cold" in groups:
            self.cold(model, file)
        if "busy" in groups:
            self.busy(model, file)
        if "quality" in groups and not model.shape:
            self.quality(model, file)


def model_file(model, work, lapidary, vocabulary):
    """The file of a model: from the cache, or made below `work`."""
    if not model.shape:
        return pathlib.Path(json.loads(measure.run([lapidary, "inspect", model.name, "--json"]).out)["model"])
    path = work / "models" / model.file()
    if not path.exists():
        print(f"making {path}", file=sys.stderr)
        path.parent.mkdir(parents=True, exist_ok=True)
        synthetic_gguf.make(model.shape, model.kind, path, vocabulary, model.layers)
    return path


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known_models = tuple(model.name for model in plan.MODELS)
    modes = ("f32", "a16", "a8")
    parser.add_argument("--work", type=pathlib.Path, help="folder outside the repository for source, programs, models and results")
    parser.add_argument("--lapidary", type=pathlib.Path, default=ROOT / "build" / "lapidary")
    parser.add_argument("--llama-bin", type=pathlib.Path, help="folder with llama.cpp's programs: nothing is fetched or built")
    parser.add_argument("--vocabulary", type=pathlib.Path, help="with --llama-bin: the GGUF file whose tokenizer synthetic models get")
    parser.add_argument("--only", type=measure.names(plan.GROUPS), default=plan.GROUPS, metavar="ROWS")
    parser.add_argument("--models", type=measure.names(known_models), default=known_models, metavar="NAMES", help=", ".join(known_models))
    parser.add_argument("--modes", type=measure.names(modes), default=("a16", "a8"), help="our arithmetics (default a16,a8)")
    parser.add_argument("--kv-dtype", help="of our cache (default: lapidary's own; theirs is f16)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fifo", action="store_true", help="run both with real-time priority (root): other work does not count")
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "docs" / "numerics.md", help="of the perplexities")
    parser.add_argument("--update", type=pathlib.Path, help="document whose tables are replaced")
    parser.add_argument("--section", default="peers", help="whose markers the document has (default peers)")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args(arguments)
    if not options.self_test and options.work is None:
        parser.error("--work DIR is needed")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least one")
    return options


def compare(options):
    work = options.work.resolve()
    if work.is_relative_to(ROOT):
        raise measure.Failed(f"--work {work} lies in the repository: choose a folder outside")
    work.mkdir(parents=True, exist_ok=True)
    programs = options.llama_bin or llama_cpp.obtain(work)
    vocabulary = options.vocabulary or llama_cpp.vocabulary(work)
    comparison = Comparison(options, work, programs)
    results = work / "peers.json"
    for model in plan.MODELS:
        if model.name not in options.models:
            continue
        comparison.model(model, model_file(model, work, options.lapidary, vocabulary))
        facts = {"machine": measure.machine(), "versions": measure.versions(options.lapidary), "kv_dtype": options.kv_dtype or "by default"}
        facts |= {"rounds": options.rounds, "fifo": options.fifo, "peer_build": llama_cpp.build_text(programs)}
        facts |= {"isa": os.environ.get("LAPIDARY_ISA", "the best")}
        report.save(results, facts, comparison.values)  # after every model: a broken run loses little
    tables = report.tables(*report.load(results))
    print(tables)
    if options.update:
        report.update(options.update, options.section, tables)


def main():
    options = parse_arguments(sys.argv[1:])
    if options.self_test:
        import self_test

        sys.exit(self_test.main())
    try:
        compare(options)
    except (measure.Failed, OSError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"run: {error}")


if __name__ == "__main__":
    main()
