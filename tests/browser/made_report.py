"""Data of a report as `lapidary kv report` embeds it, of any size: what the page is tried with where no model here is large enough.

Every number is made up but for the accounting, which holds: positions, bytes and pages are those of a cache of this shape.
"""

import hashlib
import random

from made_parts import made_offload, made_plan, made_recompute, made_roofline

PAGE = 32  # positions


class Shape:
    """Layers as (window, n_kv_heads, head_dim, owner or None)."""

    def __init__(self, model, layers, n_heads, context):
        self.model, self.layers, self.n_heads, self.context = model, layers, n_heads, context

    def owner(self, layer):
        return layer if self.layers[layer][3] is None else self.layers[layer][3]

    def position_bytes(self, layer):
        _, heads, dim, owner = self.layers[layer]
        return 0 if owner is not None else 2 * heads * dim * 2


def uniform(n_layers=30, context=8192):
    return Shape("smollm2-135m", [(0, 3, 64, None)] * n_layers, 9, context)


def hybrid(n_layers=35, window=512, owners=15, context=131072):
    layers = []
    for i in range(n_layers):
        full = i % 5 == 4
        layers.append((0 if full else window, 1, 512 if full else 256, None if i < owners else (14 if full else 13)))
    return Shape("e2b-like", layers, 8, context)


def digest(*parts):
    return hashlib.md5(repr(parts).encode()).hexdigest()


def make(shape, prompt, n, seed=1, chunk=256, recompute=True, hostile=""):
    rng = random.Random(seed)
    words = [" Paris", ".", " is", " a", " major", " city", " in", " France", ",", " known", " for", "\n", " the", " of"]
    length = prompt + n
    repro = {
        "command": f"lapidary kv report {shape.model} -n {n} -o report",
        "version": "0.1.0",
        "model": shape.model,
        "model_hash": digest(shape.model),
        "numeric_mode": "exact, a16, f32 accumulation, kv f16; avx2",
        "cpu": "a CPU",
        "threads": 2,
    }
    frame = lambda name: {"schema": f"lapidary.kv.{name}", "schema_version": 1, "repro": repro}
    indices = range(len(shape.layers))
    token = lambda: (lambda i: {"id": 500 + i, "piece": words[i]})(rng.randrange(len(words)))
    tokens = [token() for _ in range(prompt)]
    if hostile:
        tokens[0] = {"id": 7, "piece": hostile}

    def held(layer, positions, before=0):
        window = shape.layers[layer][0]
        first = 0 if not window else max(0, (positions - window) // PAGE * PAGE)
        pages = -(-positions // PAGE) - first // PAGE
        return {"first": first, "end": positions, "pages": pages, "bytes": pages * PAGE * shape.position_bytes(layer)}

    def call(index, kind, fed, before):
        after = before + len(fed)
        layers = []
        for i in indices:
            window, heads, dim, owner = shape.layers[i]
            rows, owns = len(fed), owner is None
            seen = min(after, window) if window else after
            layers.append(
                {
                    "layer": i,
                    "x": [1, rows, 576],
                    "q": [1, rows, shape.n_heads * dim],
                    "k": [1, rows, heads * dim] if owns else None,
                    "v": [1, rows, heads * dim] if owns else None,
                    "stored_k": None,
                    "stored_v": None,
                    "cache_before": held(shape.owner(i), before),
                    "cache_after": held(shape.owner(i), after),
                    "query_position": after - 1,
                    "first_in_sight": after - seen,
                    "keys_attended": seen,
                    "passes": 1 if rows == 1 else None,
                    "kv_written_bytes": rows * shape.position_bytes(i),
                    "kv_read_bytes": seen * shape.position_bytes(shape.owner(i)),
                }
            )
        ahead = {"id": 3, "piece": " the", "logit": 15.5}
        gap = abs(rng.gauss(0, 2)) + 0.01
        return {
            "index": index,
            "kind": kind,
            "first_position": before,
            "fed": fed,
            "before": before,
            "after": after,
            "picked": {**token(), "logit": 15.5 + gap, "runner_up": ahead, "gap": gap, "gap_ulps": int(gap * 2**20)},
            "logits_xxh3": digest(index),
            "seconds": 0.012 + 0.001 * rng.random(),
            "watched_seconds": 0.02,
            "kv_written_bytes": sum(l["kv_written_bytes"] for l in layers),
            "kv_read_bytes": sum(l["kv_read_bytes"] for l in layers),
            "weights_read_bytes": 98_000_000,
            "table_rows_read_bytes": 1152 * len(fed),
            "kv_held_bytes": sum((l["cache_after"]["end"] - l["cache_after"]["first"]) * shape.position_bytes(l["layer"]) for l in layers),
            "kv_page_bytes": sum(l["cache_after"]["bytes"] for l in layers if shape.layers[l["layer"]][3] is None),
            "layers": layers,
        }

    calls, at = [], 0
    while at < prompt:
        calls.append(call(len(calls), "prefill", tokens[at : at + chunk], at))
        at += chunk
        if at < prompt:
            calls[-1]["picked"] = calls[-1]["logits_xxh3"] = None
    for i in range(n):
        picked = calls[-1]["picked"]
        calls.append(call(len(calls), "decode", [{"id": picked["id"], "piece": picked["piece"]}], prompt + i))
    pages, offsets = [], {"sliding": 0, "global": 0}
    for i in indices:
        if shape.layers[i][3] is not None:
            continue
        pool, end = "sliding" if shape.layers[i][0] else "global", held(i, length)
        for first in range(end["first"], length, PAGE):
            positions = min(PAGE, length - first)
            size = PAGE * shape.position_bytes(i)
            pages.append(
                {
                    "layer": i,
                    "first": first,
                    "positions": positions,
                    "room": PAGE,
                    "bytes": size,
                    "live_bytes": positions * shape.position_bytes(i),
                    "pool": pool,
                    "pool_offset": offsets[pool],
                    "pool_bytes": size,
                    "xxh3": digest(i, first),
                }
            )
            offsets[pool] += size
    sees = lambda i, k: min(k, shape.layers[i][0] or k)
    stored = lambda k: sum(sees(i, k) * shape.position_bytes(i) for i in indices)
    read = lambda k: sum(sees(i, k) * shape.position_bytes(shape.owner(i)) for i in indices)
    per_token = sum(shape.position_bytes(i) for i in indices)
    picks = [c["picked"] for c in calls if c["picked"]]
    trace = {
        **frame("trace"),
        "kv_dtype": "f16",
        "chunk": chunk,
        "context": shape.context,
        "position_bytes": per_token,
        "prompt": {"mode": "raw", "tokens": tokens},
        "layers": [
            {
                "layer": i,
                "role": "owner" if shape.layers[i][3] is None else "borrower",
                "owner": shape.owner(i),
                "window": shape.layers[i][0],
                "n_heads": shape.n_heads,
                "n_kv_heads": shape.layers[i][1],
                "head_dim": shape.layers[i][2],
                "k_eq_v": False,
                "position_bytes": shape.position_bytes(i),
            }
            for i in indices
        ],
        "calls": calls,
        "pages": pages,
        "sight": [
            {
                "layer": i,
                "window": shape.layers[i][0],
                "length": length,
                "in_sight": sees(i, length),
                "behind": length - sees(i, length),
                "evicted": held(i, length)["first"],
            }
            for i in indices
            if shape.layers[i][3] is None
        ],
        "summary": {
            "prompt_tokens": prompt,
            "prefill_calls": sum(c["kind"] == "prefill" for c in calls),
            "decode_calls": n,
            "picked_tokens": n + 1,
            "cached_positions": length,
            "stopped_by": "-n",
            "stop_token": None,
            "text": "",
            "ids": [p["id"] for p in picks],
            "kv_written_bytes": per_token * length,
        },
        "checks": [
            {"name": "cache length", "passed": True, "detail": f"{prompt} + {n} = {length}"},
            {"name": "bytes written = formula", "passed": True, "detail": f"{per_token * length} B"},
        ],
    }
    data = {"schema": "lapidary.kv.report", "schema_version": 1, "repro": repro, "trace": trace}
    lengths = sorted({256, 512, 544, 576, 1024, 2048} | {length})
    data["bytes"] = {
        **frame("bytes"),
        "model": {"n_layers": len(shape.layers), "owners": 15, "borrowers": 20, "max_position": shape.context, "windows": [512]},
        "kv_dtype": {"keys": "f16", "values": "f16"},
        "page_positions": PAGE,
        "keep_behind": 0,
        "lengths": [
            {
                "length": k,
                "where": "past the window",
                "needed_bytes": stored(k),
                "stored_bytes": sum((held(i, k)["end"] - held(i, k)["first"]) * shape.position_bytes(i) for i in indices),
                "page_rounding_bytes": 0,
                "allocated_bytes": sum(held(i, k)["bytes"] for i in indices),
                "pool_bytes": 0,
                "touched_bytes": read(k),
                "touched_once_bytes": read(k),
                "written_bytes": per_token,
                "weights_read_bytes": 1,
                "table_rows_read_bytes": 1,
                "layers": [
                    {
                        "layer": i,
                        "kind": "sliding" if shape.layers[i][0] else "global",
                        "role": "owner" if shape.layers[i][3] is None else "borrower",
                        "owner": shape.owner(i),
                        "window": shape.layers[i][0],
                        "position_bytes": shape.position_bytes(i),
                        "visible_positions": sees(i, k),
                        "first_stored": 0,
                        "stored_positions": held(i, k)["end"] - held(i, k)["first"],
                        "pages": held(i, k)["pages"],
                        "needed_bytes": sees(i, k) * shape.position_bytes(i),
                        "stored_bytes": 0,
                        "allocated_bytes": held(i, k)["bytes"],
                        "pool_bytes": 0,
                        "touched_bytes": 0,
                        "touched_formula_bytes": 0,
                        "passes": 1,
                        "written_bytes": 0,
                    }
                    for i in indices
                ],
            }
            for k in lengths
        ],
        "slopes": [
            {
                "from": 544,
                "to": 576,
                "stored_bytes": 1,
                "touched_bytes": 1,
                "stored_bytes_per_token": (stored(576) - stored(544)) / 32,
                "touched_bytes_per_token": (read(576) - read(544)) / 32,
            }
        ],
        "checks": [{"name": "stored = formula", "comparisons": 105, "passed": True, "failure": ""}],
        "ok": True,
    }
    if recompute:
        data["recompute"] = {**frame("recompute"), **made_recompute(rng, shape, trace, tokens, picks, prompt, length, n)}
    data["roofline"] = {**frame("roofline"), **made_roofline(rng, read)}
    data["offload"] = {**frame("offload"), **made_offload(per_token, prompt)}
    data["plan"] = {**frame("plan"), **made_plan(shape, stored, read)}
    data["checks"] = [{"part": "trace", "name": "cache length", "passed": True, "detail": f"{prompt} + {n} = {length}"}]
    return data
