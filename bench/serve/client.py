"""A client that loads a server and looks at its clock: completions streamed over HTTP/1.1, many at once. Standard library only."""

import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass, field

# Plain words: a token or two each in any vocabulary.
WORDS = """year people way day man thing woman life child world school state family student group country problem hand part place case week
company system program question work government number night point home water room mother area money story fact month lot right study book
eye job word business issue side kind head house service friend father power hour game line end member law car city community name president
team minute idea kid body information back parent face others level office door health person art war history party result change morning
reason research girl guy moment air teacher force education""".split()


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


class RequestFailed(Exception):
    """Another status than 200, an error in the stream, or a stream that broke off."""


@dataclass
class Timing:
    """Seconds since the request was sent."""

    pieces: list = field(default_factory=list)  # when each piece of text came
    text: str = ""
    end: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    finish: str = ""
    whole: bool = False  # ended by [DONE]

    @property
    def first(self):
        return self.pieces[0]

    @property
    def gaps(self):
        return [after - before for before, after in zip(self.pieces, self.pieces[1:])]


async def _lines(reader, chunked, length):
    """Lines of a body, whichever way it is sent, each as soon as it is whole."""
    pending, left = b"", length
    while True:
        if chunked:
            size = int((await reader.readline()).split(b";")[0] or b"0", 16)
            data = await reader.readexactly(size)
            await reader.readline()
            if not size:
                break
        elif left is not None:
            if not left:
                break
            data = await reader.read(min(left, 1 << 16))
            left -= len(data)
        else:
            data = await reader.read(1 << 16)
        if not data:
            break
        pending += data
        *whole, pending = pending.split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")
    if pending:
        yield pending


async def complete(address, body, timeout=900, on_piece=None, may_break=False):
    """One streamed completion. on_piece(timing) is called at every piece of text."""
    host, port = address
    payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    timing = Timing()

    async def talk():
        reader, writer = await asyncio.open_connection(host, port)
        start = time.perf_counter()
        try:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
            await writer.drain()
            status = (await reader.readline()).decode("latin-1").split(" ", 2)
            headers = {}
            while line := (await reader.readline()).decode("latin-1").strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            length = int(headers["content-length"]) if "content-length" in headers else None
            body_lines = _lines(reader, headers.get("transfer-encoding", "").lower() == "chunked", length)
            if len(status) < 2 or status[1] != "200":
                said = b"\n".join([line async for line in body_lines])
                raise RequestFailed(f"{' '.join(status).strip()}: {said[:400].decode('utf-8', 'replace')}")
            async for line in body_lines:
                if not line.startswith(b"data:"):
                    continue
                now = time.perf_counter() - start
                data = line[5:].strip()
                if data == b"[DONE]":
                    timing.whole = True
                    break
                _take(timing, json.loads(data), now, on_piece)
        finally:
            timing.end = time.perf_counter() - start
            writer.close()

    try:
        await asyncio.wait_for(talk(), timeout)
    except (OSError, asyncio.IncompleteReadError) as error:
        if not may_break:
            raise RequestFailed(f"{type(error).__name__}: {error}") from error
    except asyncio.TimeoutError:
        raise RequestFailed(f"no end after {timeout} s") from None
    if not timing.whole and not may_break:
        raise RequestFailed("the stream ended without [DONE]")
    return timing


def _take(timing, event, now, on_piece):
    if "error" in event:
        raise RequestFailed(json.dumps(event["error"])[:400])
    usage = event.get("usage")
    if usage:
        timing.prompt_tokens, timing.tokens = usage["prompt_tokens"], usage["completion_tokens"]
    for choice in event.get("choices", []):
        timing.finish = choice.get("finish_reason") or timing.finish
        if choice.get("text"):
            timing.pieces.append(now)
            timing.text += choice["text"]
            if on_piece:
                on_piece(timing)


def quantile(values, share):
    """The value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# What is measured. `body` is what the server needs for texts of full length; prompts differ by seed, so that nothing is held of them.


async def closed_loop(address, body, streams, requests, prompt_words, tokens, seed):
    """`streams` clients, each with one request after the other; {name: value} in tokens a second and seconds."""
    rng = random.Random(seed)
    prompts = [[words(rng, prompt_words) for _ in range(requests)] for _ in range(streams)]

    async def stream(mine):
        return [await complete(address, {**body, "prompt": prompt, "max_tokens": tokens, "temperature": 0}) for prompt in mine]

    start = time.perf_counter()
    timings = [t for mine in await asyncio.gather(*map(stream, prompts)) for t in mine]
    wall = time.perf_counter() - start
    return {**summary(timings), "tokens per second": sum(t.tokens for t in timings) / wall,
            "mean first token": statistics.mean(t.first for t in timings)}  # fmt: skip


def summary(timings):
    firsts, gaps = [t.first for t in timings], [gap for t in timings for gap in t.gaps]
    return {"first token p50": quantile(firsts, 0.5), "first token p95": quantile(firsts, 0.95), "gap p50": quantile(gaps, 0.5),
            "gap p95": quantile(gaps, 0.95), "gap p99": quantile(gaps, 0.99)}  # fmt: skip


async def replay(address, body, conversations, turns, prefix_words, turn_words, tokens, seed):
    """Conversations in turns, all with one long beginning, one request at a time; mean seconds to the first token of each turn."""
    rng = random.Random(seed)
    prefix = words(rng, prefix_words)
    texts = [f"{prefix}\n\n{words(rng, 8)}" for _ in range(conversations)]
    means = []
    for _ in range(turns):
        firsts = []
        for n in range(conversations):
            texts[n] += f"\nQ: {words(rng, turn_words)}\nA:"
            timing = await complete(address, {**body, "prompt": texts[n], "max_tokens": tokens, "temperature": 0})
            texts[n] += timing.text
            firsts.append(timing.first)
        means.append(statistics.mean(firsts))
    return means


async def intrusion(address, body, intruder_words, tokens, seed):
    """The worst gap of a running stream from the arrival of a long prompt to its first token; and that first token's time."""
    rng = random.Random(seed)
    begun, seen = asyncio.Event(), []

    def on_piece(timing):
        seen[:] = [timing]
        if len(timing.pieces) == 16:
            begun.set()

    start = time.perf_counter()
    running = asyncio.create_task(
        complete(address, {**body, "prompt": words(rng, 20), "max_tokens": tokens, "temperature": 0}, on_piece=on_piece)
    )
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not begun.is_set():
        waiting.cancel()
        await running  # its error, if it has one
        raise RequestFailed("the running stream was over before the long prompt came")
    arrived = time.perf_counter() - start
    intruder = await complete(address, {**body, "prompt": words(rng, intruder_words), "max_tokens": 4, "temperature": 0})
    if running.done():
        await running
        raise RequestFailed("the running stream was over before the long prompt was computed")
    running.cancel()  # hangs up
    await asyncio.wait({running})
    first, pieces = arrived + intruder.first, [*seen[0].pieces, time.perf_counter() - start]
    pairs = list(zip(pieces, pieces[1:]))
    overlapping = [after - before for before, after in pairs if after > arrived and before < first]
    quiet = [after - before for before, after in pairs if after <= arrived]
    return {"worst gap": max(overlapping), "long prompt's first token": intruder.first, "usual gap": statistics.median(quiet)}
