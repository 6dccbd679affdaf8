#!/usr/bin/env python3
"""Writes a GGUF file with the full shape of a Gemma 4 model and random weights: speed depends on shapes and formats, not on what
the numbers say, and the real files are gigabytes to fetch.

    synthetic_gguf.py SHAPE TYPE OUT.gguf --vocabulary FILE.gguf [--layers N] [--seed N]

SHAPE is a folder of tests/data/configs (e2b, e4b, 12b, 26b-a4b, 31b), TYPE is Q4_0, Q8_0 or Q4_K; the tables of embeddings are Q6_K in
files of four bits, as llama-quantize makes them. --layers keeps the first N layers, for models that would not fit. The tokenizer is
copied from --vocabulary: llama.cpp brings one along in models/ggml-vocab-gemma-4.gguf.
"""

import argparse
import json
import os
import pathlib
import random
import struct
import sys

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "configs"
ALIGNMENT = 32
MAGIC = b"GGUF"
# Types of metadata values, as GGUF numbers them.
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def half(value):
    return struct.pack("<e", value)


def random_halves(value, count, rng):
    """`count` half-precision numbers of this size, of either sign: the mean of the weights is zero."""
    low, high = half(value)
    signs = rng.randbytes(count).translate(bytes([high] * 128 + [high | 0x80] * 128))
    return bytes([low]) * count, signs


class Format:
    """A block format: how many elements and bytes a block has, and random blocks whose weights have the deviation 1 times `scale`."""

    def __init__(self, number, elements, block_bytes, deviation, scale_at):
        self.number, self.elements, self.block_bytes = number, elements, block_bytes
        self.deviation = deviation  # of the integers that random bytes mean
        self.scale_at = scale_at

    def blocks(self, count, deviation, rng):
        out = bytearray(rng.randbytes(count * self.block_bytes))
        low, high = random_halves(deviation / self.deviation, count, rng)
        out[self.scale_at :: self.block_bytes] = low
        out[self.scale_at + 1 :: self.block_bytes] = high
        return out


class Q4K(Format):
    """Eight groups of 32 under scales and minima of 6 bits, all of them 15: w = 15 d q - 15 m, with m = 7.5 d."""

    def blocks(self, count, deviation, rng):
        out = super().blocks(count, deviation, rng)
        out[2 :: self.block_bytes], _ = random_halves(7.5 * deviation / self.deviation, count, rng)
        size = half(7.5 * deviation / self.deviation)[1]
        signs = bytes(out[1 :: self.block_bytes])
        out[3 :: self.block_bytes] = bytes(size | (sign & 0x80) for sign in signs)
        for i in range(12):
            out[4 + i :: self.block_bytes] = bytes([15 if i < 8 else 0xFF]) * count
        return out


class Q6K(Format):
    """Sixteen groups of 16 under signed scales of 8 bits: 16 or -16 here."""

    def blocks(self, count, deviation, rng):
        out = super().blocks(count, deviation, rng)
        for i in range(16):
            out[192 + i :: self.block_bytes] = rng.randbytes(count).translate(bytes([16] * 128 + [256 - 16] * 128))
        return out


# Deviations: sqrt((n^2 - 1) / 12) of n equally likely integers, times the scales within the block.
FORMATS = {
    "Q4_0": Format(2, 32, 18, 4.61, 0),
    "Q5_0": Format(6, 32, 22, 9.23, 0),
    "Q8_0": Format(8, 32, 34, 73.9, 0),
    "Q4_K": Q4K(12, 256, 144, 4.61 * 15, 0),
    "Q6_K": Q6K(14, 256, 210, 18.5 * 16, 208),
}


class Tensor:
    def __init__(self, name, shape, kind, values=None, deviation=0.0):
        self.name, self.shape, self.kind = name, shape, kind  # shape: innermost first, as GGUF has it
        self.values, self.deviation = values, deviation

    def elements(self):
        count = 1
        for size in self.shape:
            count *= size
        return count

    def bytes(self):
        if self.kind == "F32":
            return 4 * self.elements()
        return self.elements() // FORMATS[self.kind].elements * FORMATS[self.kind].block_bytes


class Shape:
    """A configuration as Hugging Face words it, and the list of tensors that it means."""

    def __init__(self, config, kind, layers=None):
        # The unified models leave out what they do not have.
        self.config = {"hidden_size_per_layer_input": 0, "enable_moe_block": False, **config.get("text_config", config)}
        self.kind = kind
        self.n_layers = self.config["num_hidden_layers"]
        self.shared = self.config["num_kv_shared_layers"]
        if layers is not None and not 1 <= layers <= self.n_layers:
            raise ValueError(f"--layers {layers}: {self.n_layers} layers there are, and 1 at least")
        if layers is not None and layers < self.n_layers:
            if self.shared and layers > self.n_layers - self.shared:
                raise ValueError(f"--layers {layers}: layers that borrow keys and values start at {self.n_layers - self.shared}")
            self.n_layers, self.shared = layers, 0

    def full(self, layer):
        return self.config["layer_types"][layer] == "full_attention"

    def owns_kv(self, layer):
        return layer < self.n_layers - self.shared

    def head_dim(self, layer):
        return self.config["global_head_dim"] if self.full(layer) else self.config["head_dim"]

    def k_eq_v(self, layer):
        return self.config["attention_k_eq_v"] and self.full(layer)

    def kv_heads(self, layer):
        return self.config["num_global_key_value_heads"] if self.k_eq_v(layer) else self.config["num_key_value_heads"]

    def d_ff(self, layer):
        return self.config["intermediate_size"] * (2 if self.config["use_double_wide_mlp"] and not self.owns_kv(layer) else 1)

    def metadata(self):
        """(key, type, value) of the architecture; a list is an array of the type."""
        c, every = self.config, range(self.n_layers)
        rope = c["rope_parameters"]
        out = [
            ("block_count", U32, self.n_layers),
            ("context_length", U32, c["max_position_embeddings"]),
            ("embedding_length", U32, c["hidden_size"]),
            ("vocab_size", U32, c["vocab_size"]),
            ("attention.layer_norm_rms_epsilon", F32, c["rms_norm_eps"]),
            ("attention.head_count", U32, c["num_attention_heads"]),
            ("attention.head_count_kv", U32, [self.kv_heads(i) for i in every]),
            ("feed_forward_length", U32, [self.d_ff(i) for i in every]),
            ("attention.sliding_window", U32, c["sliding_window"]),
            ("attention.sliding_window_pattern", BOOL, [not self.full(i) for i in every]),
            ("attention.shared_kv_layers", U32, self.shared),
            ("embedding_length_per_layer_input", U32, c["hidden_size_per_layer_input"]),
            ("final_logit_softcapping", F32, c["final_logit_softcapping"]),
            ("rope.freq_base", F32, rope["full_attention"]["rope_theta"]),
            ("rope.freq_base_swa", F32, rope["sliding_attention"]["rope_theta"]),
        ]
        for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            out += [(key, U32, c["global_head_dim"]), (key + "_swa", U32, c["head_dim"])]
        if c["enable_moe_block"]:
            out += [
                ("expert_count", U32, c["num_experts"]),
                ("expert_used_count", U32, c["top_k_experts"]),
                ("expert_feed_forward_length", U32, c["moe_intermediate_size"]),
            ]
        return [("gemma4." + key, kind, value) for key, kind, value in out]

    def matrix(self, name, inputs, *outputs, deviation=None, table=False):
        """Weights that keep the size of what they are multiplied with."""
        kind = "Q6_K" if table and self.kind != "Q8_0" else self.kind
        if inputs % FORMATS[kind].elements:
            kind = "Q5_0"  # rows that are no multiple of a long block
        return Tensor(f"{name}.weight", (inputs, *outputs), kind, deviation=deviation or inputs**-0.5)

    def ones(self, name, size):
        return Tensor(name, (size,), "F32", values=[1.0] * size)

    def tensors(self):
        c = self.config
        d, vocabulary, per_layer = c["hidden_size"], c["vocab_size"], c["hidden_size_per_layer_input"]
        turning = int(c["rope_parameters"]["full_attention"]["partial_rotary_factor"] * c["global_head_dim"] / 2)
        pairs = c["global_head_dim"] // 2
        yield self.matrix("token_embd", d, vocabulary, deviation=4 * d**-0.5, table=True)  # logits of spread 4
        yield Tensor("rope_freqs.weight", (pairs,), "F32", values=[1.0] * turning + [1e30] * (pairs - turning))
        if per_layer:
            width = per_layer * self.n_layers
            yield self.matrix("per_layer_token_embd", width, vocabulary, deviation=per_layer**-0.5, table=True)
            yield self.matrix("per_layer_model_proj", d, width)
            yield self.ones("per_layer_proj_norm.weight", per_layer)
        for i in range(self.n_layers):
            yield from self.attention(f"blk.{i}.", i, d)
            yield from self.ffn(f"blk.{i}.", i, d)
            if per_layer:
                yield self.matrix(f"blk.{i}.inp_gate", d, per_layer)
                yield self.matrix(f"blk.{i}.proj", per_layer, d)
                yield self.ones(f"blk.{i}.post_norm.weight", d)
            yield self.ones(f"blk.{i}.layer_output_scale.weight", 1)
        yield self.ones("output_norm.weight", d)

    def attention(self, at, layer, d):
        head_dim = self.head_dim(layer)
        queries, keys = self.config["num_attention_heads"] * head_dim, self.kv_heads(layer) * head_dim
        yield self.ones(at + "attn_norm.weight", d)
        yield self.matrix(at + "attn_q", d, queries)
        yield self.ones(at + "attn_q_norm.weight", head_dim)
        if self.owns_kv(layer):
            yield self.matrix(at + "attn_k", d, keys)
            if not self.k_eq_v(layer):
                yield self.matrix(at + "attn_v", d, keys)
            yield self.ones(at + "attn_k_norm.weight", head_dim)
        yield self.matrix(at + "attn_output", queries, d)
        yield self.ones(at + "post_attention_norm.weight", d)

    def ffn(self, at, layer, d):
        c, width = self.config, self.d_ff(layer)
        yield self.ones(at + "ffn_norm.weight", d)
        yield self.matrix(at + "ffn_gate", d, width)
        yield self.matrix(at + "ffn_up", d, width)
        yield self.matrix(at + "ffn_down", width, d)
        yield self.ones(at + "post_ffw_norm.weight", d)
        if not c["enable_moe_block"]:
            return
        experts, small = c["num_experts"], c["moe_intermediate_size"]
        yield Tensor(at + "ffn_gate_inp.weight", (d, experts), "F32", deviation=d**-0.5)
        yield self.ones(at + "ffn_gate_inp.scale", d)
        for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
            yield self.ones(f"{at}{name}.weight", d)
        yield self.matrix(at + "ffn_gate_up_exps", d, 2 * small, experts)
        yield self.matrix(at + "ffn_down_exps", small, d, experts)
        yield self.ones(at + "ffn_down_exps.scale", experts)


class Reader:
    """The metadata of a GGUF file as bytes: enough to copy some of it."""

    def __init__(self, path):
        self.data = pathlib.Path(path).read_bytes()
        self.at = 4
        if self.data[:4] != MAGIC or self.number("<I") != 3:
            raise ValueError(f"{path}: expected a GGUF file of version 3")
        self.number("<Q")
        self.count = self.number("<Q")

    def number(self, form):
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self):
        size = self.number("<Q")
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8", "replace")

    def skip(self, kind):
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            element, count = self.number("<I"), self.number("<Q")
            if element in SCALAR_BYTES:
                self.at += SCALAR_BYTES[element] * count
            else:
                for _ in range(count):
                    self.skip(element)
        else:
            self.at += SCALAR_BYTES[kind]

    def entries(self, prefix):
        """Keys that begin so, with all that belongs to them, as they stand in the file."""
        out = []
        for _ in range(self.count):
            start = self.at
            key = self.text()
            self.skip(self.number("<I"))
            if key.startswith(prefix):
                out.append(self.data[start : self.at])
        return out


def packed_text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def packed_value(kind, value):
    form = {U32: "<I", F32: "<f", BOOL: "<?"}
    if isinstance(value, list):
        return struct.pack("<IQ", kind, len(value)) + b"".join(struct.pack(form[kind], v) for v in value)
    return packed_text(value) if kind == STRING else struct.pack(form[kind], value)


def packed_entry(key, kind, value):
    return packed_text(key) + struct.pack("<I", ARRAY if isinstance(value, list) else kind) + packed_value(kind, value)


def padding(size):
    return bytes(-size % ALIGNMENT)


def header(entries, tensors):
    out = [MAGIC, struct.pack("<IQQ", 3, len(tensors), len(entries)), *entries]
    offset = 0
    for tensor in tensors:
        number = 0 if tensor.kind == "F32" else FORMATS[tensor.kind].number
        out.append(packed_text(tensor.name) + struct.pack("<I", len(tensor.shape)))
        out.append(struct.pack(f"<{len(tensor.shape)}QIQ", *tensor.shape, number, offset))
        offset += tensor.bytes() + len(padding(tensor.bytes()))
    data = b"".join(out)
    return data + padding(len(data))


class Pools:
    """Random blocks are made once for each format and deviation, and copied from random places: the time goes into writing."""

    BLOCK_BYTES = 8 << 20

    def __init__(self, rng):
        self.rng, self.pools = rng, {}

    def pieces(self, tensor):
        form = FORMATS[tensor.kind]
        key = (tensor.kind, tensor.deviation)
        count = self.BLOCK_BYTES // form.block_bytes
        if key not in self.pools:
            self.pools[key] = form.blocks(count, tensor.deviation, self.rng)
        pool, left = memoryview(self.pools[key]), tensor.bytes()
        while left:
            first = self.rng.randrange(count) * form.block_bytes
            piece = pool[first : first + left]
            left -= len(piece)
            yield piece


def write(path, shape, vocabulary, seed):
    rng = random.Random(seed)
    pools, tensors = Pools(rng), list(shape.tensors())
    entries = [packed_entry("general.architecture", STRING, "gemma4"), packed_entry("general.name", STRING, "synthetic")]
    entries += [packed_entry(*entry) for entry in shape.metadata()]
    entries += Reader(vocabulary).entries("tokenizer.")
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "wb") as out:
            out.write(header(entries, tensors))
            for tensor in tensors:
                if tensor.kind != "F32":
                    out.writelines(pools.pieces(tensor))
                else:
                    values = tensor.values or [rng.gauss(0, tensor.deviation) for _ in range(tensor.elements())]
                    out.write(struct.pack(f"<{len(values)}f", *values))
                out.write(padding(tensor.bytes()))
        os.replace(temporary, path)  # whole or not at all
    finally:
        pathlib.Path(temporary).unlink(missing_ok=True)


def make(name, kind, path, vocabulary, layers=None, seed=1):
    config = json.loads((CONFIGS / name / "config.json").read_text(encoding="utf-8"))
    write(path, Shape(config, kind, layers), vocabulary, seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=["e2b", "e4b", "12b", "26b-a4b", "31b"])
    parser.add_argument("type", choices=["Q4_0", "Q8_0", "Q4_K"])
    parser.add_argument("out")
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        make(options.shape, options.type, options.out, options.vocabulary, options.layers, options.seed)
    except (OSError, ValueError) as error:
        sys.exit(f"synthetic_gguf: {error}")


if __name__ == "__main__":
    main()
