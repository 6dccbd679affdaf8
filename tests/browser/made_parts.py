"""What other parts of a report than the trace hold, made up (made_report.py)."""

import math

PAGE = 32  # positions


def made_recompute(rng, shape, trace, tokens, picks, prompt, length, n):
    owners = [i for i in range(len(shape.layers)) if shape.layers[i][3] is None]

    def kv(share, ulps):
        elements = 172800
        return {
            "elements": elements,
            "equal": int(elements * share),
            "equal_percent": 100.0 * share if share < 1 else 100.0,
            "max_abs_diff_k": 0 if share == 1 else 0.125,
            "max_abs_diff_v": 0 if share == 1 else 0.0625,
            "max_ulps": ulps,
            "ulps_histogram": [elements, 0, 0, 0],
        }

    def again(name, bad):
        share = lambda row, c: (
            1.0 if not bad or row < 2 else max(0.02, 1 - row / len(owners) * (0.5 + 0.5 * rng.random()) - (0.1 if c >= prompt else 0))
        )
        equal = [[100 * share(row, c) for c in range(length)] for row in range(len(owners))]
        ulps = [[0 if e == 100 else int(2 ** rng.uniform(0, 5 * (100 - e) / 100)) for e in line] for line in equal]
        flips = [
            {
                "index": k,
                "position": prompt + k - 1,
                "cached_id": 1,
                "cached_piece": " a",
                "recomputed_id": 2,
                "recomputed_piece": " the",
                "cached_gap": 0.0,
                "cached_gap_ulps": 0,
                "recomputed_gap": 0.125,
                "recomputed_gap_ulps": 1,
            }
            for k in (5, 6)
            if bad and k <= n
        ]
        return {
            "name": name,
            "chunk": 0,
            "threads": 1,
            "steps": 1,
            "kv": kv(0.508 if bad else 1, 31 if bad else 0),
            "prompt": kv(0.6 if bad else 1, 9 if bad else 0),
            "decode": kv(0.45 if bad else 1, 31 if bad else 0),
            "hidden": {"elements": 1, "equal": 1, "equal_percent": 100.0, "max_abs_diff": 0},
            "logits": {"rows": length, "equal_rows": length, "max_abs_diff": 0},
            "first_divergence": {"layer": 2, "op": "attended", "position": 3} if bad else None,
            "layers": [
                {
                    "layer": i,
                    "kv": kv(0.5 if bad and i > 1 else 1, 3 if bad and i > 1 else 0),
                    "prompt": kv(1, 0),
                    "decode": kv(1, 0),
                    "hidden": {},
                }
                for i in owners
            ],
            "map": {"equal_percent": equal, "max_ulps": ulps},
            "flips": flips,
            "error": None,
        }

    generated = [
        {
            "index": i + 1,
            "position": prompt + i - 1,
            "id": p["id"],
            "piece": p["piece"],
            "second_id": 3,
            "second_piece": " the",
            "logit": p["logit"],
            "second_logit": p["runner_up"]["logit"],
            "gap": p["gap"],
            "gap_ulps": p["gap_ulps"],
        }
        for i, p in enumerate(picks)
    ]
    run = lambda name, promised, list_, text: {
        "name": name,
        "executor": "engine",
        "numeric_mode": name,
        "key_type": "f16",
        "value_type": "f16",
        "logit_type": "f32",
        "promised_exact": promised,
        "tokens": [],
        "pieces": [],
        "generated": generated,
        "cached_error": {
            "max_error_k": 1e-3,
            "max_error_v": 1e-3,
            "rms_error_kv": 1e-4,
            "max_error_hidden": 1e-2,
            "max_error_logits": 2e-2,
        },
        "recomputations": list_,
        "verdict": text,
    }
    return {
        "prompt_tokens": prompt,
        "decode_calls": n,
        "positions": length,
        "owner_layers": owners,
        "kv_elements": 172800,
        "reference": {"dtype": "f64", "missing": ""},
        "passed": True,
        "runs": [
            run(
                "exact",
                True,
                [again("one prefill", False), again("single tokens", False)],
                "exact: 100.0 % of 172,800 K/V elements have the same bits in 2 recomputations",
            ),
            run(
                "fast",
                False,
                [again("one prefill", True), again("chunks of 7", True)],
                "fast: 50.8 % of 172,800 K/V elements have the same bits",
            ),
        ],
    }


def made_roofline(rng, read):
    lengths, weights, bandwidth = [512, 1024, 2048, 4096, 8192], 98e6, 2.0e10
    rows = []
    for k in lengths:
        kv = read(k)
        total = (weights + kv) / bandwidth
        measured = total * 1.06 + 0.0006 + rng.gauss(0, 5e-5)
        rows.append(
            {
                "length": k,
                "steps": 50,
                "median_seconds": measured,
                "p10_seconds": measured * 0.97,
                "p90_seconds": measured * 1.05,
                "kv_bytes_total": kv * 50,
                "kv_bytes_per_step": float(kv),
                "weight_bytes_per_step": weights,
                "head_bytes_per_step": 17694720.0,
                "working_set_bytes": weights + kv,
                "in_last_level_cache": kv < 1e8,
                "bandwidth_bytes_per_s": {"working_set": bandwidth, "memory": 1.2e10},
                "predicted_seconds": {"weights": 0.004, "head": 0.0009, "kv": kv / bandwidth, "total": total},
                "predicted_from_memory_seconds": {"weights": 0.0067, "head": 0.0015, "kv": kv / 1.2e10, "total": total * 1.6},
                "measured_seconds": {"attention": kv / bandwidth, "head": 0.001, "rest": 0.0043},
                "overhead_seconds": 0.0006,
                "predicted_to_measured": total / measured,
                "fitted_seconds": total * 1.06 + 0.0006,
                "residual_seconds": measured - total * 1.06 - 0.0006,
                "logits_xxh3": "0123",
            }
        )
    slope = 1.06 / bandwidth
    ablation = lambda name, passes: {
        "name": name,
        "expected_passes": passes,
        "counted_passes": passes,
        "measured_passes": passes * 0.97,
        "slope_ratio": passes * 0.95,
        "logits_equal": True,
        "intercept_seconds": 0.006,
        "slope_seconds_per_byte": slope * passes,
        "r2": 0.99,
        "lengths": [
            {
                "length": r["length"],
                "median_seconds": r["median_seconds"] + slope * (passes - 1) * r["kv_bytes_per_step"],
                "p10_seconds": r["p10_seconds"] + slope * (passes - 1) * r["kv_bytes_per_step"],
                "p90_seconds": r["p90_seconds"] + slope * (passes - 1) * r["kv_bytes_per_step"],
                "engine_kv_bytes_per_step": 1.0,
                "copied_read_bytes_per_step": 1.0,
                "copied_written_bytes_per_step": 1.0,
            }
            for r in rows
        ],
    }
    run = lambda threads: {
        "threads": threads,
        "lengths": rows,
        "fit": {
            "intercept_seconds": weights * slope + 0.0006,
            "slope_seconds_per_byte": slope,
            "effective_bytes_per_s": 1 / slope,
            "passes": 1.06,
            "passes_from_memory": 0.61,
            "r2": 0.9987,
            "weights_seconds": 0.0049,
            "overhead_seconds": 0.0006,
            "bandwidth_bytes_per_s": bandwidth,
        },
        "drift": {"length": 512, "first_seconds": 0.0061, "again_seconds": 0.0062, "change": 0.016, "warning": False},
        "verdict": {
            "crossover_tokens": 4253,
            "crossover_bf16_tokens": 11677,
            "measured_crossover_tokens": 4700,
            "bound_from_tokens": 512,
            "sentences": [
                "Bandwidth-bound from about 512 tokens: bytes explain at least 80 % of the time.",
                "The cache outweighs the weights from 4,253 tokens on.",
            ],
        },
        "ablations": [ablation("expand-gqa", 7.0), ablation("concat-append", 3.0)],
    }
    sweep = lambda t: [
        {
            "bytes": 2**k,
            "median_bytes_per_s": t * (1.1e10 + 8e10 / (1 + math.exp((k - 23) * 1.2))),
            "best_bytes_per_s": t * (1.2e10 + 8e10 / (1 + math.exp((k - 23) * 1.2))),
        }
        for k in range(18, 31)
    ]
    return {
        "model": {"layers": 30, "max_position": 8192, "kv_dtype": "f16", "weight_bytes_per_step": 98000000},
        "plan": {
            "lengths": lengths,
            "left_out": [{"length": 16384, "why": "16,384 positions are more than the 8,192 that the model was made for"}],
            "steps": 50,
            "warm_up": 5,
            "component_steps": 10,
            "seed": 1,
        },
        "machine": {
            "caches": [],
            "last_level_bytes": 33554432,
            "probe_bytes": 1258291200,
            "probe_note": "",
            "bandwidth": [{"threads": t, "sweep": sweep(t)} for t in (1, 2)],
        },
        "runs": [run(1), run(2)],
        "checks": [{"name": "counters equal the formula", "passed": True, "detail": "5 lengths"}],
        "passed": True,
    }


def made_offload(per_token, prompt):
    tiers = ["ram", "disk", "disk, cold", "zstd"]
    speed = {"ram": 6.0, "disk": 2.1, "disk, cold": 0.4, "zstd": 0.7}
    curve = [
        {
            "length": k,
            "state_bytes": k * per_token,
            "recompute_seconds": k / 700,
            "suffix_seconds": 0.03,
            "fork_seconds": 1e-5,
            "reload": [
                {
                    "way": w,
                    "seconds": 0.004 * (w != "ram") + k * per_token / speed[w] / 1e9,
                    "speed_up": 3.0,
                    "ttft_seconds": 0.03,
                    "ttft_speed_up": 2.0,
                }
                for w in tiers
            ],
        }
        for k in (8, 32, 128, 512, 2048)
    ]
    return {
        "passed": True,
        "kv_dtype": "f16",
        "prompt_tokens": prompt,
        "suffix_tokens": 16,
        "repeats": 3,
        "state": {"kv_bytes": per_token * prompt, "expected_kv_bytes": per_token * prompt},
        "checks": [
            {"name": "pages equal after restore", "way": w, "passed": True, "detail": "48 of 48 pages, keys and values"} for w in tiers
        ],
        "poison": {"kv_bytes": 1, "outcome": "error", "message": "layer 0: not a number"},
        "tiers": [
            {
                "way": w,
                "stored_bytes": per_token * prompt + 800,
                "kv_bytes_restored": per_token * prompt,
                "save_gb_per_s": speed[w] / 2,
                "restore_gb_per_s": speed[w],
                "what": "a file, flushed (fsync) before it takes its name",
            }
            for w in tiers
        ],
        "tokens": [1, 2],
        "decode": {},
        "mutations": [
            {
                "group": "flip a byte",
                "name": "header, magic",
                "at_byte": 0,
                "verdict": "caught",
                "expected": "magic",
                "error_code": "data",
                "message": "state.kv: magic: expected LAPIDKV",
            }
        ],
        "mutation_counts": {"tried": 60, "changed_nothing": 0, "caught": 60, "missed": 0, "misnamed": 0},
        "curve": curve,
        "break_even": [{"way": "disk", "length": 11.5, "verdict": "crosses"}, {"way": "disk, cold", "length": 37.5, "verdict": "crosses"}],
        "claim": [
            {"fact": "a", "title": "The baseline", "lines": ["No prefix cache at all: every position is computed again."], "numbers": {}}
        ],
    }


def made_plan(shape, stored, read):
    lengths = [k for k in (1024, 4096, 16384, 65536, 131072) if k <= shape.context] or [shape.context]
    views = lambda k, names: [{"name": name, "bytes": int(stored(k) * f), "factor": f} for name, f in names]
    return {
        "model": {
            "family": "made",
            "n_layers": len(shape.layers),
            "owners": 15,
            "borrowers": 20,
            "max_position": shape.context,
            "windows": [512],
        },
        "kv_dtype": {"keys": "f16", "values": "f16", "runs_here": True},
        "sequences": 1,
        "page_positions": PAGE,
        "keep_behind": 0,
        "weights": {"source": "file", "resident_bytes": 269030016, "touched_bytes_per_token": 269030016},
        "kv_per_token": {
            "stored_below_window_bytes": stored(1),
            "stored_past_window_bytes": stored(9999) - stored(9998),
            "read_below_window_bytes": read(1),
            "read_past_window_bytes": read(9999) - read(9998),
        },
        "layers": [
            {
                "layers": list(range(len(shape.layers))),
                "kind": "global",
                "window": 0,
                "role": "owner",
                "n_heads": 9,
                "n_kv_heads": 3,
                "head_dim": 64,
                "position_bytes": 768,
                "page_bytes": 24576,
            }
        ],
        "lengths": [
            {
                "length": k,
                "needed_bytes": stored(k),
                "read_bytes": read(k),
                "engine_read_bytes": read(k),
                "positions_kept": k,
                "views": views(
                    k, [("needed", 1.0), ("this_engine", 1.004), ("unified_pages", 1.9), ("no_window", 3.02), ("no_sharing", 2.3)]
                ),
                "formulas": views(
                    k,
                    [
                        ("hidden_over_heads", 1.0),
                        ("every_query_head", 3.0),
                        ("every_layer_global", 3.02),
                        ("every_layer_owns", 2.3),
                        ("flat", 9.06),
                    ],
                ),
            }
            for k in lengths
        ],
        "crossover": {"stored_length": 11677, "read_length": 11677, "stored_past_max_position": True, "read_past_max_position": True},
    }
