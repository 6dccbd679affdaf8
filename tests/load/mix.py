"""Requests of many kinds, the same for the same seed, and what of their answers must never change."""

import json
import math
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
import served  # noqa: E402

SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue", "yellow"]},
        "sizes": {"type": "array", "items": {"enum": ["small", "large"]}, "maxItems": 4},
        "certain": {"type": "boolean"},
    },
    "required": ["colour", "sizes", "certain"],
    "additionalProperties": False,
}
WORDS = """the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you were all
her she there would their we him been has when who will no more if out so up said what its about than into them can only other time new
water light stone river paper garden window music winter bridge letter engine copper silver market island""".split()


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


class Request:
    """kind: what it is for; path and body: what is sent; leave_after: hang up after so many tokens."""

    def __init__(self, number, kind, path, body, leave_after=None):
        self.number, self.kind, self.path, self.body, self.leave_after = number, kind, path, body, leave_after

    def __repr__(self):
        return f"request {self.number} ({self.kind})"


def sampling(rng):
    return rng.choice(
        (
            {"temperature": 0},
            {"temperature": 1, "seed": rng.randrange(1 << 30)},
            {"temperature": 0.7, "top_p": 0.9, "seed": rng.randrange(1 << 30)},
            {"temperature": 1.3, "top_k": 40, "min_p": 0.02, "seed": rng.randrange(1 << 30)},
            {"temperature": 0.8, "frequency_penalty": 0.5, "presence_penalty": 0.3, "seed": rng.randrange(1 << 30)},
        )
    )


KINDS = ("completion", "completion", "ids", "echo", "chat", "chat", "several", "schema", "turns", "stream", "left", "embedding", "batch")


def make(count, seed, model, longest, most_tokens, stop_ids, chat=True):
    """`count` requests with prompts of 1 to about `longest` words, lengths even on a logarithmic scale."""
    rng = random.Random(seed)
    shared = [words(rng, longest // 3) for _ in range(3)]  # beginnings that several prompts have in common
    requests = []
    kinds = [kind for kind in KINDS if chat or kind not in ("chat", "several", "schema", "turns")]
    order = [kinds[n % len(kinds)] for n in range(count)]
    rng.shuffle(order)
    for number, kind in enumerate(order):
        length = max(1, round(math.exp(rng.uniform(0, math.log(longest)))))
        text = words(rng, length)
        if rng.random() < 0.3:
            text = f"{rng.choice(shared)} {words(rng, max(1, length // 8))}"
        body = {"model": model, "max_tokens": rng.randrange(1, most_tokens), **sampling(rng)}
        path = "/v1/completions"
        leave = None
        if kind in ("completion", "stream"):
            body |= {"prompt": text, "logprobs": rng.choice((0, 1, 5)), "stream": kind == "stream"}
        elif kind == "ids":
            body |= {"prompt": [rng.randrange(260, 300) for _ in range(length)], "logprobs": 1}
        elif kind == "batch":
            body |= {"prompt": [text, words(rng, 5), words(rng, 1)], "logprobs": 2}
        elif kind == "echo":
            body |= {"prompt": words(rng, min(length, longest // 4)), "echo": True, "logprobs": 2, "max_tokens": rng.choice((0, 1, 6))}
        elif kind == "left":
            leave = rng.randrange(1, 8)
            body |= {"prompt": text, "logprobs": 1, "stream": True, "max_tokens": 200, "logit_bias": {str(i): -100 for i in stop_ids}}
        elif kind == "embedding":
            path, body = "/v1/embeddings", {"model": model, "input": [text, words(rng, 3)]}
        else:
            path = "/v1/chat/completions"
            messages = [{"role": "user", "content": text}]
            if kind == "turns":
                messages = [{"role": "system", "content": shared[0]}, {"role": "user", "content": words(rng, 8)},
                            {"role": "assistant", "content": words(rng, 8)}, {"role": "user", "content": words(rng, 8)}]  # fmt: skip
            body |= {"messages": messages, "logprobs": True, "top_logprobs": rng.choice((0, 3))}
            if kind == "several":
                body["n"] = 3
            if kind == "schema":
                body["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}
                body["max_tokens"] = 80
        requests.append(Request(number, kind, path, body, leave))
    return requests


class Refused(Exception):
    def __init__(self, answer):
        super().__init__(repr(answer))
        self.answer = answer


def _without_ids(choices):
    for choice in choices:
        for call in choice.get("message", {}).get("tool_calls") or []:
            call["id"] = ""
    return choices


def ask(http, request):
    """(what must never change, tokens that were held); Refused when the server says no."""
    if request.body.get("stream"):
        return _streamed(http, request)
    answer = http.post(request.path, request.body)
    if answer.status != 200:
        raise Refused(answer)
    said = answer.json
    usage = said["usage"]
    held = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    if request.path == "/v1/embeddings":
        return {"data": said["data"], "prompt_tokens": usage["prompt_tokens"]}, held
    return {"choices": _without_ids(said["choices"]), "prompt_tokens": usage["prompt_tokens"], "completion_tokens": usage["completion_tokens"],
            "system_fingerprint": said.get("system_fingerprint")}, held  # fmt: skip


def _streamed(http, request):
    """Pieces put together, so that where the pieces are cut does not matter."""
    stream = http.stream(request.path, request.body)
    if not isinstance(stream, served.Stream):
        raise Refused(stream)
    out = {"text": "", "tokens": [], "token_logprobs": [], "top_logprobs": [], "finish_reason": None}
    try:
        for event in stream:
            if "error" in event:
                raise AssertionError(f"{request}: {json.dumps(event)}")
            for choice in event["choices"]:
                out["text"] += choice["text"]
                out["finish_reason"] = choice.get("finish_reason") or out["finish_reason"]
                for name in ("tokens", "token_logprobs", "top_logprobs"):
                    out[name] += (choice.get("logprobs") or {}).get(name) or []
            if request.leave_after and len(out["tokens"]) >= request.leave_after:
                return {name: out[name][: request.leave_after] for name in ("tokens", "token_logprobs", "top_logprobs")}, 0
        if not stream.done:
            raise AssertionError(f"{request}: the stream ended without [DONE]")
    finally:
        stream.close()
    return out, 0


def difference(expected, got, path=""):
    """Where two answers differ first, in words; nothing when they do not."""
    if type(expected) is not type(got):
        return f"{path}: {expected!r} became {got!r}"
    if isinstance(expected, dict):
        if expected.keys() != got.keys():
            return f"{path}: fields {sorted(expected)} became {sorted(got)}"
        pairs = ((f"{path}.{key}", expected[key], got[key]) for key in expected)
    elif isinstance(expected, list):
        if len(expected) != len(got):
            return f"{path}: {len(expected)} entries became {len(got)}"
        pairs = ((f"{path}[{n}]", a, b) for n, (a, b) in enumerate(zip(expected, got)))
    else:
        return None if expected == got else f"{path}: {expected!r} became {got!r}"
    return next((found for name, a, b in pairs if (found := difference(a, b, name))), None)
