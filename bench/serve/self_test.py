"""Tests of the comparison's own parts: a small server with known gaps, tables of known numbers (run.py --self-test)."""

import asyncio
import contextlib
import json
import pathlib
import random
import sys
import tempfile
import unittest

import client
import tables

FACTS = {
    "machine": {"cpus": 2, "cpu": "a CPU", "flags": ["avx2"]},
    "versions": {"lapidary": "0.1.0", "commit": "abc", "llama.cpp": "pinned"},
    "rounds": 2, "peer_build": "built by a compiler", "threads": 2, "flags": "",
}  # fmt: skip


@contextlib.asynccontextmanager
async def fake_server(answer):
    """answer(body, write): write(text) sends a piece at once."""

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length"))
            body = json.loads(await reader.readexactly(length))

            async def write(data, split=None):
                for piece in (data[:split], data[split:]) if split else (data,):
                    writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                    await writer.drain()

            await answer(body, write, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()


def event(text=None, **more):
    choices = [{"index": 0, "text": text, "finish_reason": None}] if text is not None else []
    return f"data: {json.dumps({'choices': choices, **more})}\n\n".encode()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def three_words(body, write, writer):
    writer.write(HEAD)
    await write(event("one "), split=7)  # a line cut in two chunks
    await asyncio.sleep(0.05)
    await write(event("two ") + event("three"))
    await write(event(usage={"prompt_tokens": 5, "completion_tokens": 3}) + b"data: [DONE]\n\n")
    await write(b"")


def ask(answer, **more):
    async def run():
        async with fake_server(answer) as address:
            return await client.complete(address, {"prompt": "x"}, **more)

    return asyncio.run(run())


class Client(unittest.TestCase):
    def test_pieces_and_times(self):
        timing = ask(three_words)
        self.assertEqual((timing.text, timing.tokens, timing.prompt_tokens, timing.whole), ("one two three", 3, 5, True))
        self.assertEqual(len(timing.pieces), 3)
        self.assertGreaterEqual(timing.gaps[0], 0.04)
        self.assertLess(timing.first, timing.end)

    def test_refusals_and_broken_streams_are_failures(self):
        async def refuse(body, write, writer):
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 6\r\n\r\nbecaus")

        async def break_off(body, write, writer):
            writer.write(HEAD)
            await write(event("one"))

        async def error(body, write, writer):
            writer.write(HEAD)
            await write(b'data: {"error": {"message": "no"}}\n\n')

        for answer, said in ((refuse, "400 Bad Request: becaus"), (break_off, "IncompleteReadError|without"), (error, "no")):
            with self.assertRaisesRegex(client.RequestFailed, said):
                ask(answer)
        self.assertFalse(ask(break_off, may_break=True).whole)

    def test_closed_loop_counts_all_tokens(self):
        async def run():
            async with fake_server(three_words) as address:
                return await client.closed_loop(address, {}, streams=4, requests=2, prompt_words=3, tokens=3, seed=1)

        found = asyncio.run(run())
        self.assertGreater(found["tokens per second"], 0)
        self.assertLess(found["tokens per second"], 24 / 0.1)
        self.assertGreaterEqual(found["gap p99"], found["gap p50"])

    def test_replay_carries_the_text_on(self):
        prompts = []

        async def answer(body, write, writer):
            prompts.append(body["prompt"])
            await three_words(body, write, writer)

        async def run():
            async with fake_server(answer) as address:
                return await client.replay(address, {}, 2, 3, 10, 4, 3, seed=1)

        self.assertEqual(len(asyncio.run(run())), 3)
        for n in (0, 1):
            self.assertTrue(prompts[2 + n].startswith(prompts[n] + "one two three\nQ:"))

    def test_the_gap_that_a_long_prompt_makes_is_found(self):
        stall = asyncio.Event()

        async def answer(body, write, writer):
            writer.write(HEAD)
            if body["max_tokens"] == 4:  # the long prompt
                stall.set()
                await asyncio.sleep(0.3)
                await write(event("late", usage={"prompt_tokens": 100, "completion_tokens": 1}) + b"data: [DONE]\n\n")
                return await write(b"")
            for n in range(1000):
                if stall.is_set():
                    stall.clear()
                    await asyncio.sleep(0.2)
                await write(event(f"{n} "))
                await asyncio.sleep(0.002)

        async def run():
            async with fake_server(answer) as address:
                return await client.intrusion(address, {}, 50, 1000, seed=1)

        found = asyncio.run(run())
        self.assertGreater(found["worst gap"], 0.15)
        self.assertLess(found["usual gap"], 0.1)

    def test_quantiles(self):
        self.assertEqual([client.quantile(range(1, 101), share) for share in (0.5, 0.95, 0.99)], [51, 96, 100])
        self.assertEqual(client.quantile([3.0], 0.99), 3.0)

    def test_prompts_differ_by_seed(self):
        self.assertNotEqual(client.words(random.Random(1), 20), client.words(random.Random(2), 20))


class Tables(unittest.TestCase):
    VALUES = {
        ("gemma3-270m", "streams", "16 clients: tokens", tables.RATE): {tables.OURS: [300.0, 330.0], tables.THEIRS: [100.0, 110.0]},
        ("gemma3-270m", "together", "16 at once: mean first token", tables.SECONDS): {tables.OURS: [0.5, 0.4], tables.THEIRS: [4.0, 4.0]},
        ("gemma3-270m", "memory", "peak memory, 16 at once", tables.BYTES): {tables.OURS: [4e8, 4e8]},
        ("gemma3-270m", "sigterm", "request in flight was answered", tables.SHARE): {tables.OURS: [1, 1], tables.THEIRS: [0.0, 0.0]},
    }

    def test_ratios_are_ours_over_theirs_with_their_goals(self):
        text = tables.tables(FACTS, self.VALUES)
        self.assertIn("| 16 clients: tokens | 105 ±5 % | 315 ±5 % | 3.00 ±0 % | ≥ 3 |", text)
        self.assertIn("| 16 at once: mean first token | 4000 ms ±0 % | 450 ms ±11 % | 0.11 ±11 % | ≤ 0.15 |", text)
        self.assertIn("| request in flight was answered | 0 % | 100 % |  |  |", text)
        self.assertNotIn("peak memory", text)  # theirs is missing

    def test_document_keeps_what_is_around_the_tables(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "doc.md")
            path.write_text("a\n<!-- serve: begin -->\nold\n<!-- serve: end -->\nz\n", encoding="utf-8")
            tables.update(path, "serve", "new")
            self.assertEqual(path.read_text(encoding="utf-8"), "a\n<!-- serve: begin -->\nnew\n<!-- serve: end -->\nz\n")

    def test_measurements_survive_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "serve.json")
            tables.save(path, FACTS, self.VALUES)
            self.assertEqual(tables.load(path), (FACTS, self.VALUES))


def main():
    result = unittest.TextTestRunner(stream=sys.stderr).run(unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__]))
    return 0 if result.wasSuccessful() and result.testsRun else 1
