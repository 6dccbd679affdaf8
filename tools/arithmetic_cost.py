#!/usr/bin/env python3
"""What each arithmetic costs a model: the engine's logits at every position of a text against those of the float64 reference.

`lapidary score --dump` gives both sides' logits (make reference, for libtorch). Needs NumPy and, in the temporary folder, room for two
dumps of [tokens, vocabulary] floats. A model without a tokenizer, or with --random, is fed random ids.

  tools/arithmetic_cost.py build/lapidary smollm2-135m-instruct --text tests/data/gguf/real/constitution.txt --tokens 1024
  tools/arithmetic_cost.py build/lapidary tests/data/gguf/models/*.gguf --random --tokens 256
"""
import argparse
import json
import pathlib
import random
import tempfile

from quantisation_cost import compare, logits, run

MODES = ["f32", "a16", "a8"]


def token_ids(arguments, model):
    if not arguments.random:
        with open(arguments.text, "rb") as text:
            return run(arguments.lapidary, "tokenize", model, "--json", stdin=text)["ids"][: arguments.tokens]
    vocabulary = run(arguments.lapidary, "inspect", model, "--json")["vocab_size"]
    draw = random.Random(1)
    return [draw.randrange(vocabulary) for _ in range(arguments.tokens)]


def rows_of(arguments, model, folder):
    """A row of the table for each mode and KV type."""
    ids = token_ids(arguments, model)
    ids_file, truth_file, dump = (folder / name for name in ("ids.json", "truth", "dump"))
    ids_file.write_text(json.dumps(ids))
    score = [arguments.lapidary, "score", model, "--ids", ids_file, "--json"]
    run(*score, "--executor", "reference", "--dtype", "f64", "--dump", truth_file)
    truth = logits(truth_file)
    loss_free = compare(truth, truth, ids)["perplexity"]
    for kv in arguments.kv.split(","):
        for mode in MODES:
            run(*score, "--arithmetic", mode, "--kv-dtype", kv, "--dump", dump)
            got = compare(truth, logits(dump), ids)
            yield mode, kv, got, 100 * (got["perplexity"] / loss_free - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lapidary")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--text", help="a text file; its first tokens are fed")
    parser.add_argument("--random", action="store_true", help="random ids in place of a text")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--kv", default="f32", help="KV types, with commas between them")
    parser.add_argument("--folder", help="where the dumps go (default: a temporary folder)")
    arguments = parser.parse_args()
    if arguments.random == bool(arguments.text):
        parser.error("give one of --text and --random")
    print(f"{arguments.tokens} tokens{'' if arguments.random else ' of ' + pathlib.Path(arguments.text).name}; truth: float64\n")
    print("| model | mode | KV | max | RMS | mean KL | same top token | perplexity |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for model in arguments.models:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            for mode, kv, got, change in rows_of(arguments, model, pathlib.Path(folder)):
                print(
                    f"| {pathlib.Path(model).stem} | {mode} | {kv} | {got['max']:.2g} | {got['rms']:.2g} | {got['kl']:.1e} "
                    f"| {100 * got['top1']:.1f} % | {got['perplexity']:.6g} ({change:+.4f} %) |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
