#!/usr/bin/env python3
"""Writes the binary seeds of corpus/{safetensors,gguf,import_gguf,kv_state,artifact}: small files that are right, so that fuzzing starts behind the magic."""

import json
import math
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"


def safetensors(tensors, metadata=None, pad=0):
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode() + b" " * pad
    return struct.pack("<Q", len(text)) + text + data


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def value(kind, content):
    return text(content) if kind == 8 else struct.pack("<" + SCALARS[kind], content)


def array(kind, contents):
    return struct.pack("<IQ", kind, len(contents)) + b"".join(value(kind, content) for content in contents)


def gguf(version, metadata, tensors, alignment=32):
    """metadata: (key, kind, content), an array as (key, 9, (kind, contents)); tensors: (name, shape, ggml type, bytes)."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, kind, content in metadata:
        out += text(key) + struct.pack("<I", kind) + (array(*content) if kind == 9 else value(kind, content))
    data = b""
    for name, shape, dtype, content in tensors:
        data += b"\0" * (-len(data) % alignment)
        out += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", dtype, len(data))
        data += content
    return out + b"\0" * (-len(out) % alignment) + data


VOCABULARY = [
    ("general.architecture", 8, "llama"),
    ("tokenizer.ggml.model", 8, "gpt2"),
    ("tokenizer.ggml.pre", 8, "smollm"),
    ("tokenizer.ggml.tokens", 9, (8, ["a", "b", "ab", "<|im_end|>"])),
    ("tokenizer.ggml.token_type", 9, (5, [1, 1, 1, 3])),
    ("tokenizer.ggml.scores", 9, (6, [0.0, -1.0, -2.0, 0.0])),
    ("tokenizer.ggml.merges", 9, (8, ["a b"])),
    ("tokenizer.ggml.bos_token_id", 4, 3),
    ("tokenizer.ggml.add_bos_token", 7, False),
    ("tokenizer.chat_template", 8, "{{ messages[0].content }}"),
]
LLAMA = [
    ("llama.block_count", 4, 1),
    ("llama.context_length", 4, 64),
    ("llama.embedding_length", 4, 8),
    ("llama.feed_forward_length", 4, 16),
    ("llama.attention.head_count", 4, 2),
    ("llama.attention.head_count_kv", 4, 1),
    ("llama.attention.layer_norm_rms_epsilon", 6, 1e-5),
    ("llama.rope.freq_base", 6, 10000.0),
]


def model(family, keys, shapes):
    """A whole model of zeros: `keys` behind the family's name, `shapes` with the row length first."""
    metadata = [("general.architecture", 8, family)] + [(f"{family}.{key}", kind, content) for key, kind, content in keys]
    names = {name if name.endswith(".scale") else name + ".weight": shape for name, shape in shapes.items()}
    zeros = {name: b"\0" * 4 * math.prod(shape) for name, shape in names.items()}
    if "rope_freqs.weight" in zeros:
        zeros["rope_freqs.weight"] = struct.pack(f"<{names['rope_freqs.weight'][0]}f", *[1.0] * names["rope_freqs.weight"][0])
    return gguf(3, metadata + [("tokenizer.ggml.tokens", 9, (8, ["a", "b", "c", "d"]))],
                [(name, shape, 0, zeros[name]) for name, shape in names.items()])


def whole_llama():
    shapes = {"token_embd": [8, 4], "output_norm": [8], "output": [8, 4]}
    for layer in range(2):
        part = {"attn_norm": [8], "attn_q": [8, 8], "attn_k": [8, 4], "attn_v": [8, 4], "attn_output": [8, 8], "ffn_norm": [8],
                "ffn_gate": [8, 16], "ffn_up": [8, 16], "ffn_down": [16, 8]}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in part.items()}
    keys = [(key.removeprefix("llama."), kind, 2 if key == "llama.block_count" else content) for key, kind, content in LLAMA]
    return model("llama", keys, shapes)


def whole_gemma4():
    """Sliding, global, and a sliding borrower; per-layer embeddings of 2, k_eq_v, two experts in separate tensors."""
    shapes = {"token_embd": [4, 4], "output_norm": [4], "rope_freqs": [2], "per_layer_token_embd": [6, 4],
              "per_layer_model_proj": [4, 6], "per_layer_proj_norm": [2]}
    for layer, head in enumerate([2, 4, 2]):
        part = {"attn_norm": [4], "attn_q": [4, 2 * head], "attn_k": [4, head], "attn_v": [4, head], "attn_q_norm": [head],
                "attn_k_norm": [head], "attn_output": [2 * head, 4], "post_attention_norm": [4], "ffn_norm": [4], "ffn_gate": [4, 4],
                "ffn_up": [4, 4], "ffn_down": [4, 4], "post_ffw_norm": [4], "post_ffw_norm_1": [4], "post_ffw_norm_2": [4],
                "pre_ffw_norm_2": [4], "ffn_gate_inp": [4, 2], "ffn_gate_inp.scale": [4], "ffn_gate_exps": [4, 2, 2],
                "ffn_up_exps": [4, 2, 2], "ffn_down_exps": [2, 4, 2], "ffn_down_exps.scale": [2], "inp_gate": [4, 2],
                "proj": [2, 4], "post_norm": [4], "layer_output_scale": [1]}
        if layer == 1:
            del part["attn_v"]
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in part.items()}
    keys = [("block_count", 4, 3), ("context_length", 4, 16), ("embedding_length", 4, 4), ("feed_forward_length", 4, 4),
            ("attention.head_count", 4, 2), ("attention.head_count_kv", 9, (5, [1, 1, 1])), ("attention.key_length", 4, 4),
            ("attention.key_length_swa", 4, 2), ("attention.sliding_window", 4, 3), ("attention.shared_kv_layers", 4, 1),
            ("attention.sliding_window_pattern", 9, (7, [True, False, True])), ("attention.layer_norm_rms_epsilon", 6, 1e-6),
            ("rope.freq_base", 6, 1e6), ("rope.freq_base_swa", 6, 1e4), ("embedding_length_per_layer_input", 4, 2),
            ("expert_count", 4, 2), ("expert_used_count", 4, 1), ("expert_feed_forward_length", 4, 2),
            ("final_logit_softcapping", 6, 30.0)]
    return model("gemma4", keys, shapes)


def whole_gemma3():
    shapes = {"token_embd": [4, 4], "output_norm": [4]}
    part = {"attn_norm": [4], "attn_qkv": [4, 8], "attn_q_norm": [2], "attn_k_norm": [2], "attn_output": [4, 4],
            "post_attention_norm": [4], "ffn_norm": [4], "ffn_gate": [4, 4], "ffn_up": [4, 4], "ffn_down": [4, 4],
            "post_ffw_norm": [4]}
    shapes |= {f"blk.0.{name}": shape for name, shape in part.items()}
    keys = [("block_count", 4, 1), ("context_length", 4, 16), ("embedding_length", 4, 4), ("feed_forward_length", 4, 4),
            ("attention.head_count", 4, 2), ("attention.head_count_kv", 4, 1), ("attention.key_length", 4, 2),
            ("attention.sliding_window", 4, 3), ("attention.layer_norm_rms_epsilon", 6, 1e-6), ("rope.freq_base", 6, 1e6)]
    return model("gemma3", keys, shapes)


def kv_state(length, first, attachment=b"", block=32, **fields):
    """The saved state of the model in kv_state_fuzz.cc; its checksums are left to the target (first byte 1)."""
    header = {"magic": b"LAPIDKV\0", "version": 2, "order": 0x01020304, "mode": b"fuzz", "restart": first + 4 if first else 0} | fields
    out = struct.pack("<8s2I16x48s6I3Q48x", header["magic"], header["version"], header["order"], header["mode"], 0, 0, block, 4, 16, 0,
                      length, header["restart"], len(attachment))
    # kind (1 owner, 2 borrower), owner, KV heads, head_dim, window, theta, first position held
    layers = [(1, 0, 2, 2, 5, 1e4, first), (1, 1, 1, 4, 0, 1e4, 0), (2, 0, 2, 2, 5, 1e4, 0), (0, 0, 0, 0, 0, 0.0, 0)]
    for index, (kind, owner, heads, dim, window, theta, start) in enumerate(layers):
        out += struct.pack("<6IQdQ16x", index, kind, owner, heads, dim, 0, window, theta, start)
    out += struct.pack(f"<{length}i", *(position % 16 for position in range(length))) + attachment
    for kind, _, heads, dim, _, _, start in layers:
        for begin in range(start, length if kind == 1 else 0, block):
            positions = min(block, length - begin)
            out += struct.pack(f"<{2 * heads * dim * positions}f", *range(2 * heads * dim * positions)) + b"\0" * 16
    return b"\1" + out


def model_spec(layers):
    """As spec_to_json() writes it: every field is there."""
    rope = {"kind": "plain", "theta": 10000.0, "partial_rotary_factor": 1.0, "factor": 1.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position": 0, "divisors": []}
    attention = {"n_heads": 1, "n_kv_heads": 1, "head_dim": 4, "window": 0, "rope": rope, "scale": 1.0, "q_norm": False,
                 "k_norm": False, "v_norm": False, "k_eq_v": False}
    ffn = {"d_ff": 4, "activation": "gelu_tanh", "moe": None}
    layer = {"post_attention_norm": False, "post_ffn_norm": False, "ple": False, "layer_scalar": False, "residual": "add"}
    return json.dumps({"version": 1, "vocab_size": 6, "d_model": 4, "max_position": 8, "norm_eps": 1e-6, "embed_scale": 1.0,
                       "logit_softcap": 0.0, "tied_head": True, "ple_dim": 0,
                       "layers": [{"attention": attention | {"kv_owner": index}, "ffn": ffn} | layer for index in range(layers)]})


def packed_model(layers=1, texts=()):
    """A packed model of zeros; its checksums are left to the target (first byte 1)."""
    sections, out = [], struct.pack("<8s2I48x", b"LAPIPACK", 1, 0x01020304)

    def section(name, kind, content, **more):
        nonlocal out
        out += b"\0" * (-len(out) % (4096 if len(content) >= 4096 else 64))
        sections.append({"name": name, "kind": kind} | more | {"offset": len(out), "length": len(content), "hash": "0" * 32})
        out += content

    section("text.spec", "text", model_spec(layers).encode())
    for name, content in texts:
        section(name, "text", content)
    tensors = [("token_embedding", [6, 4]), ("output_norm", [4])]
    vectors, matrices = ("attention_norm", "ffn_norm"), ("query", "key", "value", "attention_output", "gate", "up", "down")
    tensors += [(f"layers.{layer}.{name}", [4]) for layer in range(layers) for name in vectors]
    for name, shape in tensors:
        section(name, "plain", b"\0" * 4 * math.prod(shape), dtype="f32", shape=shape)
    for name, shape in [("output_head", [6, 4])] + [(f"layers.{layer}.{name}", [4, 4]) for layer in range(layers) for name in matrices]:
        section(name, "packed", b"\0" * 4 * math.prod(shape), dtype="f32", shape=shape, layout="any")
    index = json.dumps({"family": "llama", "source": "m.gguf", "source_format": "gguf v3", "model_hash": "0" * 32, "bos_id": 1,
                        "eos_id": None, "pad_id": None, "stop_ids": [2], "chat_template_source": "", "sections": sections}).encode()
    end = struct.pack("<3q16x16x8s", len(out), len(index), len(out) + len(index) + 64, b"LAPIEND\0")
    return b"\1" + out + index + end


SEEDS = {
    "safetensors/one_f32": safetensors({"w": ("F32", [2, 3], struct.pack("<6f", *range(6)))}),
    "safetensors/types": safetensors({
        "a": ("BF16", [2], b"\x80\x3f\x00\x40"), "b": ("F16", [1, 2], b"\x00\x3c\x00\x40"), "c": ("I64", [1], b"\1" + b"\0" * 7),
        "d": ("BOOL", [3], b"\1\0\1"), "e": ("F64", [], b"\0" * 8)}),
    "safetensors/metadata_padded": safetensors({"w": ("U8", [4], b"abcd")}, {"format": "pt", "note": "é \" \\"}, pad=5),
    "safetensors/empty": safetensors({}),
    "safetensors/zero_size": safetensors({"z": ("F32", [0, 7], b""), "w": ("F32", [1], b"\0" * 4)}),
    "gguf/empty": gguf(3, [], []),
    "gguf/scalars_v2": gguf(2, [(f"k{kind}", kind, 1) for kind in SCALARS] + [("text", 8, "é")], []),
    "gguf/arrays": gguf(3, [(f"a{kind}", 9, (kind, [1, 0])) for kind in SCALARS] + [("texts", 9, (8, ["x", ""])), ("none", 9, (4, []))], []),
    "gguf/vocabulary": gguf(3, VOCABULARY, []),
    "gguf/tensors": gguf(3, [("general.alignment", 4, 64)], [
        ("f32", [4, 2], 0, b"\0" * 32), ("f16", [3], 1, b"\0" * 6), ("q8_0", [32, 2], 8, b"\0" * 68), ("q4_k", [256], 12, b"\0" * 144)], 64),
    "gguf/model": gguf(3, VOCABULARY + LLAMA, [("token_embd.weight", [8, 4], 0, b"\0" * 128), ("output_norm.weight", [8], 0, b"\0" * 32)]),
    "gguf/split": gguf(3, [("split.no", 2, 0), ("split.count", 2, 2), ("split.tensors.count", 5, 1)], []),
    "import_gguf/llama": whole_llama(),
    "import_gguf/gemma3": whole_gemma3(),
    "import_gguf/gemma4": whole_gemma4(),
    "artifact/one_layer": packed_model(),
    "artifact/two_layers": packed_model(2),
    "artifact/texts": packed_model(1, [("text.tokenizer_json", b"{}"), ("text.chat_template", b"{{ messages }}")]),
    "artifact/vocabulary": packed_model(1, [("text.vocabulary", gguf(3, VOCABULARY, [])), ("text.merges", b"\0" * 12)]),
    "kv_state/empty": kv_state(0, 0),
    "kv_state/short": kv_state(3, 0, b"attached"),
    "kv_state/behind_the_window": kv_state(50, 32),
    "kv_state/all_kept": kv_state(70, 0),
    "kv_state/window_gone": kv_state(40, 64),
}

if __name__ == "__main__":
    for path, content in SEEDS.items():
        target = CORPUS / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
