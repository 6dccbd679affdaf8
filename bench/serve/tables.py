"""Measurements of servers to tables, on what the tables of bench/peers are made with."""

from measure import Summary, ratio_of_rounds
from report import BYTES, RATE, SECONDS, SHARE, THEIRS, line, load, number, save, update

__all__ = ["BYTES", "GOALS", "OURS", "RATE", "SECONDS", "SHARE", "THEIRS", "cell", "load", "ratio", "save", "tables", "update"]

OURS = "lapidary"
# (model or None for all, beginning of the test's name): what the ratio of ours over theirs should be.
GOALS = {
    ("smollm2-135m-instruct", "16 clients: tokens"): "≥ 4",
    ("gemma3-270m", "16 clients: tokens"): "≥ 3",
    (None, "16 at once: mean first token"): "≤ 0.15",
    ("gemma3-270m", "turn 10: mean first token"): "≤ 0.2",
    (None, "worst gap of a stream"): "≤ 0.25",
    (None, "peak memory"): "≤ 0.7",
}


def short(value, unit):
    """As bench/peers says numbers, but small times in milliseconds."""
    return f"{1000 * value:.0f} ms" if unit == SECONDS and value < 10 else number(value, unit)


def cell(values, unit):
    summary = Summary.of(values)
    spread = f" ±{100 * summary.spread:.0f} %" if len(values) > 1 and unit != SHARE else ""
    return short(summary.median, unit) + spread


def ratio(ours, theirs):
    """Ours over theirs, round by round: more is better for rates, less for all else."""
    if not all(theirs):
        return ""
    summary = ratio_of_rounds(ours, theirs)
    spread = f" ±{100 * summary.spread:.0f} %" if len(ours) > 1 else ""
    return f"{summary.median:.2f}{spread}"


def goal(model, test):
    return next((text for (of, name), text in GOALS.items() if of in (None, model) and test.startswith(name)), "")


def model_table(model, rows):
    out = [line(["", "llama-server", "lapidary serve", "ours / theirs", "goal"]), line(["---", "--:", "--:", "--:", "--:"])]
    for (_, test, unit), sides in rows.items():
        between = ratio(sides[OURS], sides[THEIRS]) if unit != SHARE else ""
        out.append(line([test, cell(sides[THEIRS], unit), cell(sides[OURS], unit), between, goal(model, test)]))
    return "\n".join(out)


def tables(facts, values):
    by_model = {}
    for (model, row, test, unit), sides in values.items():
        if sides.keys() == {OURS, THEIRS}:
            by_model.setdefault(model, {})[row, test, unit] = sides
    machine, versions = facts["machine"], facts["versions"]
    flags = f" with {facts['flags']}" if facts["flags"] else ""
    out = [
        f"{machine['cpus']} CPUs {machine['cpu']} ({', '.join(machine['flags'])}), {facts['threads']} threads. Lapidary"
        f" {versions['lapidary']} ({versions['commit']}){flags}; llama-server of {versions['llama.cpp']}, {facts['peer_build']},"
        f" KV f16 on both sides. {facts['rounds']} rounds."
    ]
    for model, rows in by_model.items():
        out += [f"### {model}", model_table(model, rows)]
    return "\n\n".join(out)
