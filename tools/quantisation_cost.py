#!/usr/bin/env python3
"""What each number format costs a model: logits of every position of a text against those of the float weights.

The model is first decoded to F32 (`lapidary convert`), that file is converted to each type, and `lapidary score --dump` gives the
logits, in float arithmetic (what others cost: tools/arithmetic_cost.py). Needs NumPy and, in the temporary folder, room for the models
and for two dumps of [tokens, vocabulary] floats.

  tools/quantisation_cost.py build/lapidary smollm2-135m-instruct tests/data/gguf/real/constitution.txt --tokens 1024
"""
import argparse
import json
import mmap
import pathlib
import struct
import subprocess
import tempfile

import numpy as np

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_K_S", "Q4_0"]


def run(*command, **options):
    return json.loads(subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, **options).stdout)


def logits(path):
    """The tensor "logits" of a safetensors file, mapped."""
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8 : 8 + length])["logits"]
    rows, columns = entry["shape"][-2:]
    return np.frombuffer(data, "<f4", rows * columns, 8 + length + entry["data_offsets"][0]).reshape(rows, columns)


def compare(reference, other, ids):
    """Largest and RMS difference, mean KL, share of equal best tokens, perplexity of `other`."""
    worst = squares = kl = loss = 0.0
    same = 0
    for i in range(len(reference)):
        a, b = reference[i].astype(np.float64), other[i].astype(np.float64)
        worst = max(worst, float(np.abs(a - b).max()))
        squares += float(((a - b) ** 2).mean())
        log_p = a - a.max() - np.log(np.exp(a - a.max()).sum())
        log_q = b - b.max() - np.log(np.exp(b - b.max()).sum())
        kl += float((np.exp(log_p) * (log_p - log_q)).sum())
        same += int(a.argmax() == b.argmax())
        if i + 1 < len(ids):
            loss -= float(log_q[ids[i + 1]])
    n = len(reference)
    return {"max": worst, "rms": (squares / n) ** 0.5, "kl": kl / n, "top1": same / n, "perplexity": float(np.exp(loss / (n - 1)))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lapidary")
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--also", nargs="*", default=[], help="files of the same model that others quantised, to stand in the table")
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="keep the converted models")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = pathlib.Path(arguments.folder if arguments.keep and arguments.folder else temporary)
        ids_file, reference_dump, dump = (pathlib.Path(temporary) / n for n in ("ids.json", "reference", "dump"))
        source = folder / "float.gguf"
        run(arguments.lapidary, "convert", arguments.model, source, "--type", "F32", "--force", "--json")
        ids = run(arguments.lapidary, "score", source, arguments.text, "--json")["input_ids"][: arguments.tokens]
        ids_file.write_text(json.dumps(ids))
        run(arguments.lapidary, "score", source, "--ids", ids_file, "--dump", reference_dump, "--json")
        reference = logits(reference_dump)
        print(f"{arguments.model}, {len(ids)} tokens of {pathlib.Path(arguments.text).name}\n")
        print("| type | file | bits per weight | max | RMS | mean KL | same top token | perplexity |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        def row(name, path, size, bits):
            run(arguments.lapidary, "score", path, "--arithmetic", "f32", "--ids", ids_file, "--dump", dump, "--json")
            got = compare(reference, logits(dump), ids)
            print(
                f"| {name} | {size / 1e6:.1f} MB | {bits} | {got['max']:.3g} | {got['rms']:.3g} "
                f"| {got['kl']:.2e} | {100 * got['top1']:.1f} % | {got['perplexity']:.4f} |",
                flush=True,
            )

        for name in filter(None, arguments.types.split(",")):
            made = folder / f"{name}.gguf"
            report = run(arguments.lapidary, "convert", source, made, "--type", name, "--force", "--json")
            row(name, made, report["bytes"], f"{report['bits_per_weight']:.2f}")
            if not arguments.keep:
                made.unlink()
        for other in map(pathlib.Path, arguments.also):
            row(other.name, other, other.stat().st_size, "")


if __name__ == "__main__":
    main()
