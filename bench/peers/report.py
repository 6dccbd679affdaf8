"""Measurements to JSON and to tables."""

import json
import math
import os
import pathlib

from measure import Summary, ratio_of_rounds

THEIRS = "llama.cpp"
RATE, SECONDS, BYTES, SHARE, NUMBER = "tok/s", "s", "MB", "share", "number"
LESS_IS_BETTER = (SECONDS, BYTES, NUMBER)


def perplexity(logprobs):
    return math.exp(-sum(logprobs) / len(logprobs))


def save(path, facts, values):
    """Adds to what the file holds already: other models and rows stay."""
    old = load(path)[1] if path.exists() else {}
    merged = {**old, **values}
    rows = [
        {"model": model, "row": row, "test": test, "unit": unit, "values": sides} for (model, row, test, unit), sides in merged.items()
    ]
    temporary = pathlib.Path(f"{path}.new")
    temporary.write_text(json.dumps({**facts, "results": rows}, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def load(path):
    """(facts, values) as save() had them."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    rows = facts.pop("results")
    return facts, {(row["model"], row["row"], row["test"], row["unit"]): row["values"] for row in rows}


def number(value, unit):
    if unit == RATE:
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    if unit == BYTES:
        return f"{value / 1e6:.0f} MB"
    return {SECONDS: f"{value:.2f} s", SHARE: f"{100 * value:.0f} %", NUMBER: f"{value:.4f}"}[unit]


def cell(values, unit):
    summary = Summary.of(values)
    spread = f" ±{100 * summary.spread:.0f} %" if len(values) > 1 else ""
    return number(summary.median, unit) + spread


def ratio(ours, theirs, unit):
    """How many times better ours is; a mark of times for rates, plain for what is better when it is less."""
    if unit in LESS_IS_BETTER:
        ours, theirs = theirs, ours
    summary = ratio_of_rounds(ours, theirs)
    spread = f" ±{100 * summary.spread:.0f} %" if len(ours) > 1 else ""
    return f"{summary.median:.2f}{spread}"


def line(cells):
    return "| " + " | ".join(cells) + " |"


def model_table(values):
    """Rows of one model: {(row, test, unit): {side: values}}."""
    modes = [side for side in dict.fromkeys(side for sides in values.values() for side in sides) if side != THEIRS]
    modes.sort(key=("f32", "a16", "a8").index)
    heads = ["row", "llama.cpp"] + [head for mode in modes for head in (f"ours, {mode}", "times")]
    out = [line(heads), line(["---"] + ["--:"] * (len(heads) - 1))]
    for (row, test, unit), sides in values.items():
        name = f"{test}, 1 thread" if row == "threads" else test
        cells = [name, cell(sides[THEIRS], unit)]
        for mode in modes:
            if mode in sides:
                cells += [cell(sides[mode], unit), ratio(sides[mode], sides[THEIRS], unit)]
            else:
                cells += ["", ""]
        out.append(line(cells))
    return "\n".join(out)


def tables(facts, values):
    by_model = {}
    for (model, row, test, unit), sides in values.items():
        if THEIRS in sides:
            by_model.setdefault(model, {})[row, test, unit] = sides
    machine, versions = facts["machine"], facts["versions"]
    out = [
        f"{machine['cpus']} CPUs {machine['cpu']} ({', '.join(machine['flags'])}). Lapidary {versions['lapidary']} ({versions['commit']}),"
        f" instruction set {facts['isa']}, KV {facts['kv_dtype']}; llama.cpp of {versions['llama.cpp']}, {facts['peer_build']},"
        f" KV f16. {facts['rounds']} rounds"
        f"{', real-time priority' if facts['fifo'] else ''}."
    ]
    for model, rows in by_model.items():
        out += [f"### {model}", model_table(rows)]
    return "\n\n".join(out)


def update(path, section, text):
    """Puts the tables between the markers that a document has for the section."""
    first, last = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    document = path.read_text(encoding="utf-8")
    begin, end = document.find(first), document.find(last)
    if begin < 0 or end < begin:
        raise ValueError(f"{path}: expected the markers {first} and {last}")
    path.write_text(f"{document[: begin + len(first)]}\n{text}\n{document[end:]}", encoding="utf-8")
