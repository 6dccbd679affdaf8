"""Tests of the comparison on recorded output: no network, no other program than Python (run.py --self-test)."""

import json
import pathlib
import struct
import sys
import tempfile
import unittest

import llama_cpp
import measure
import plan
import report
import synthetic_gguf

BENCH = """[
  {"build_number": 1, "n_threads": 2, "flash_attn": "1", "n_prompt": 512, "n_gen": 0, "n_depth": 0,
   "avg_ns": 1886792452, "stddev_ns": 0, "avg_ts": 271.36, "stddev_ts": 0.0, "samples_ns": [1886792452], "samples_ts": [271.36]},
  {"build_number": 1, "n_threads": 2, "flash_attn": "1", "n_prompt": 0, "n_gen": 64, "n_depth": 4096,
   "avg_ns": 6037735849, "stddev_ns": 0, "avg_ts": 10.6, "stddev_ts": 0.0, "samples_ns": [6037735849], "samples_ts": [10.6]}
]
"""

BATCHED = """
main: n_kv_max = 1536, n_batch = 2048, n_ubatch = 512, flash_attn = 1, is_pp_shared = 0, n_gpu_layers = -1, n_threads = 2

{"n_kv_max": 1536, "n_batch": 2048, "n_ubatch": 512, "flash_attn": 1, "is_pp_shared": 0, "n_gpu_layers": -1, "n_threads": 2, \
"n_threads_batch": 2, "pp": 128, "tg": 64, "pl": 1, "n_kv": 192, "t_pp": 0.48, "speed_pp": 266.6, "t_tg": 1.02, "speed_tg": 62.7, \
"t": 1.5, "speed": 128.0}
{"n_kv_max": 1536, "n_batch": 2048, "n_ubatch": 512, "flash_attn": 1, "is_pp_shared": 0, "n_gpu_layers": -1, "n_threads": 2, \
"n_threads_batch": 2, "pp": 128, "tg": 64, "pl": 8, "n_kv": 1536, "t_pp": 3.9, "speed_pp": 262.5, "t_tg": 4.42, "speed_tg": 115.8, \
"t": 8.3, "speed": 185.0}
"""

PERPLEXITY = """
perplexity: calculating perplexity over 4 chunks, n_ctx=512, batch_size=512, n_seq=1
[1]11.1234,[2]9.8765,[3]10.0001,[4]9.9123,
Final estimate: PPL = 9.9123 +/- 0.61234
"""


class LlamaCppOutput(unittest.TestCase):
    def test_bench(self):
        self.assertEqual(llama_cpp.read_bench(BENCH), {"pp512": 271.36, "tg64 d4096": 10.6})

    def test_batched(self):
        self.assertEqual(llama_cpp.read_batched(BATCHED), {"tg64 d128": 62.7, "tg64 b8 d128": 115.8})

    def test_perplexity(self):
        self.assertEqual(llama_cpp.read_perplexity(PERPLEXITY), 9.9123)
        with self.assertRaisesRegex(ValueError, "no final estimate"):
            llama_cpp.read_perplexity("error: failed to load model")

    def test_rows_have_the_names_that_lapidary_gives_them(self):
        batch = next(row for row in plan.SPEED_ROWS if row.group == "batch")
        self.assertEqual(batch.depth, plan.BATCH_PROMPT)
        self.assertIn(f"tg{batch.generated[0]} b8 d{batch.depth}", llama_cpp.read_batched(BATCHED))

    def test_amx_is_left_out_where_the_compiler_breaks_it(self):
        gcc12 = "c++ (Debian 12.2.0-14) 12.2.0\nCopyright"
        clang = "Debian clang version 16.0.6 (15)\nTarget: x86_64-pc-linux-gnu"
        flags = ["avx2", "fma", "f16c", "bmi2", "avx_vnni", "amx_tile"]
        self.assertEqual(llama_cpp.cpu_options(flags, clang), ["-DGGML_NATIVE=ON"])
        self.assertEqual(llama_cpp.cpu_options(flags, "g++ (GCC) 14.1.0"), ["-DGGML_NATIVE=ON"])
        self.assertEqual(llama_cpp.cpu_options(flags[:-1], gcc12), ["-DGGML_NATIVE=ON"])
        without = llama_cpp.cpu_options(flags, gcc12)
        self.assertEqual(without[0], "-DGGML_NATIVE=OFF")
        self.assertIn("-DGGML_AVX_VNNI=ON", without)
        self.assertNotIn("-DGGML_AVX512=ON", without)

    def test_chunks_count_their_second_half(self):
        chunks, first = llama_cpp.perplexity_chunks(list(range(100, 125)), 10, None)
        self.assertEqual([chunk[0] for chunk in chunks], [100, 110])  # the rest of five is left out
        self.assertEqual(first, 6)
        chunks, _ = llama_cpp.perplexity_chunks([2, *range(101, 120)], 10, 2)
        self.assertEqual([chunk[:2] for chunk in chunks], [[2, 101], [2, 111]])


class Measuring(unittest.TestCase):
    def test_a_run_is_seen_from_outside(self):
        code = "import sys, time; print('a', flush=True); time.sleep(0.3); sys.stderr.write('warn'); b = bytearray(100 << 20)"
        run = measure.run([sys.executable, "-c", code])
        self.assertEqual((run.out, run.err), ("a\n", "warn"))
        self.assertLess(run.first_byte + 0.25, run.seconds)
        self.assertGreater(run.peak_rss, 100 << 20)

    def test_a_failure_says_what_failed_and_why(self):
        with self.assertRaisesRegex(measure.Failed, "(?s)exit code 3.*no such model"):
            measure.run([sys.executable, "-c", "import sys; sys.stderr.write('no such model'); sys.exit(3)"])

    def test_neighbours_end_with_the_block(self):
        with measure.busy_neighbours(2):
            pass

    def test_ratios_are_of_rounds(self):
        summary = measure.ratio_of_rounds([20.0, 10.0, 44.0], [10.0, 5.0, 20.0])
        self.assertEqual(summary.median, 2.0)
        self.assertAlmostEqual(summary.spread, 0.05)


class Reports(unittest.TestCase):
    FACTS = {
        "machine": {"cpus": 2, "cpu": "a CPU", "flags": ["avx2"]},
        "versions": {"lapidary": "0.1.0", "commit": "abc", "llama.cpp": "pinned"},
        "kv_dtype": "f32",
        "rounds": 2,
        "fifo": True,
        "peer_build": "built by a compiler",
        "isa": "avx512",
    }
    VALUES = {
        ("m", "decode", "tg64", report.RATE): {"a8": [20.0, 22.0], "a16": [15.0, 15.0], report.THEIRS: [10.0, 11.0]},
        ("m", "cold", "first token", report.SECONDS): {"a8": [0.5, 0.5], report.THEIRS: [1.0, 1.0]},
        ("m", "cold", "peak memory", report.BYTES): {"a8": [1e8, 1e8], report.THEIRS: [3e8, 3e8]},
    }

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name, "peers.json")

    def test_tables(self):
        text = report.tables(self.FACTS, self.VALUES)
        self.assertIn("| tg64 | 10.5 ±5 % | 15.0 ±0 % | 1.43 ±5 % | 21.0 ±5 % | 2.00 ±0 % |", text)
        self.assertIn("| first token | 1.00 s ±0 % |  |  | 0.50 s ±0 % | 2.00 ±0 % |", text)
        self.assertIn("| peak memory | 300 MB ±0 % |  |  | 100 MB ±0 % | 3.00 ±0 % |", text)
        self.assertIn("real-time priority", text)
        self.assertIn("instruction set avx512", text)
        self.assertIn("built by a compiler", text)

    def test_results_come_back_and_add_up(self):
        report.save(self.path, self.FACTS, self.VALUES)
        self.assertEqual(report.load(self.path), (self.FACTS, self.VALUES))
        other = {("n", "decode", "tg64", report.RATE): {report.THEIRS: [1.0]}}
        report.save(self.path, self.FACTS, other)
        self.assertEqual(report.load(self.path)[1], {**self.VALUES, **other})

    def test_documents_change_between_their_markers_only(self):
        document = pathlib.Path(self.folder.name, "doc.md")
        document.write_text(f"before\n<!-- s: begin -->\nold\n<!-- s: end -->\nafter\n", encoding="utf-8")
        report.update(document, "s", "new")
        self.assertEqual(document.read_text(encoding="utf-8"), f"before\n<!-- s: begin -->\nnew\n<!-- s: end -->\nafter\n")
        document.write_text("no markers", encoding="utf-8")
        with self.assertRaisesRegex(ValueError, "expected the markers"):
            report.update(document, "s", "new")

    def test_perplexity(self):
        self.assertAlmostEqual(report.perplexity([-1.0, -3.0]), 7.389, places=3)


class SyntheticModels(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def shape(self, name, kind, layers=None):
        config = json.loads((synthetic_gguf.CONFIGS / name / "config.json").read_text(encoding="utf-8"))
        return synthetic_gguf.Shape(config, kind, layers)

    def test_parameters_are_those_of_the_real_models(self):
        for name, billions in (("e2b", 4.628), ("e4b", 7.463), ("12b", 11.907), ("26b-a4b", 25.233), ("31b", 30.697)):
            matrices = sum(tensor.elements() for tensor in self.shape(name, "Q4_0").tensors() if len(tensor.shape) > 1)
            self.assertAlmostEqual(matrices / 1e9, billions, delta=0.001 * billions, msg=name)

    def test_every_block_format_has_the_deviation_it_was_asked_for(self):
        rng = synthetic_gguf.random.Random(3)
        decode = {
            "Q4_0": lambda b: [half_at(b, 0) * ((b[2 + i % 16] >> (i // 16 * 4) & 15) - 8) for i in range(32)],
            "Q8_0": lambda b: [half_at(b, 0) * v for v in struct.unpack("<32b", b[2:])],
            "Q4_K": lambda b: [
                half_at(b, 0) * 15 * (b[16 + i // 64 * 32 + i % 32] >> (i // 32 % 2 * 4) & 15) - half_at(b, 2) * 15 for i in range(256)
            ],
        }
        for kind, decoded in decode.items():
            form, weights = synthetic_gguf.FORMATS[kind], []
            blocks = bytes(form.blocks(200, 0.05, rng))
            for at in range(0, len(blocks), form.block_bytes):
                weights += decoded(blocks[at : at + form.block_bytes])
            mean = sum(weights) / len(weights)
            deviation = (sum((w - mean) ** 2 for w in weights) / len(weights)) ** 0.5
            self.assertAlmostEqual(deviation, 0.05, delta=0.004, msg=kind)
            self.assertAlmostEqual(mean, 0, delta=0.01, msg=kind)

    def test_shapes_that_cannot_be_cut_so_are_refused(self):
        with self.assertRaisesRegex(ValueError, "layers that borrow"):
            self.shape("e2b", "Q4_0", 20)
        with self.assertRaisesRegex(ValueError, "--layers 0"):
            self.shape("e2b", "Q4_0", 0)
        self.assertEqual(self.shape("26b-a4b", "Q4_K", 6).n_layers, 6)

    def test_a_file_has_its_tensors_where_its_header_says(self):
        root = pathlib.Path(self.folder.name)
        vocabulary = root / "vocabulary.gguf"
        entries = [
            synthetic_gguf.packed_entry("general.architecture", synthetic_gguf.STRING, "gemma4"),
            synthetic_gguf.packed_entry("tokenizer.ggml.model", synthetic_gguf.STRING, "gemma4"),
        ]
        vocabulary.write_bytes(synthetic_gguf.header(entries, []))
        shape = self.shape("26b-a4b", "Q4_K", 1)
        shape.config = {**shape.config, "vocab_size": 64, "num_experts": 2, "hidden_size": 256, "intermediate_size": 96}
        shape.config |= {"moe_intermediate_size": 32, "num_attention_heads": 2}
        tensors = list(shape.tensors())
        self.assertIn("Q5_0", {tensor.kind for tensor in tensors})
        path = root / "out.gguf"
        synthetic_gguf.write(path, shape, vocabulary, 1)
        padded = sum(tensor.bytes() + len(synthetic_gguf.padding(tensor.bytes())) for tensor in tensors)
        written = [synthetic_gguf.packed_entry(*entry) for entry in shape.metadata()]
        written += [
            synthetic_gguf.packed_entry("general.architecture", synthetic_gguf.STRING, "gemma4"),
            synthetic_gguf.packed_entry("general.name", synthetic_gguf.STRING, "synthetic"),
            entries[1],
        ]
        self.assertEqual(path.stat().st_size, len(synthetic_gguf.header(written, tensors)) + padded)
        self.assertEqual(synthetic_gguf.Reader(path).entries("tokenizer."), entries[1:])
        self.assertEqual(sorted(file.name for file in root.iterdir()), ["out.gguf", "vocabulary.gguf"])


def half_at(block, at):
    return struct.unpack_from("<e", block, at)[0]


def main():
    result = unittest.TextTestRunner(verbosity=1).run(unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__]))
    return 0 if result.wasSuccessful() else 1
