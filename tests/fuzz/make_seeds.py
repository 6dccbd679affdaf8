#!/usr/bin/env python3
"""Writes the binary seeds of corpus/safetensors and corpus/gguf: small files that are right, so that fuzzing starts behind the magic."""

import json
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
}

if __name__ == "__main__":
    for path, content in SEEDS.items():
        target = CORPUS / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
