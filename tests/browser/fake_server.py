"""A server whose answers are made up, for what no small model can be made to say: thoughts, calls of tools, Markdown, attacks, errors.
The page itself comes from the real program. Answers follow the last message: its first word names what comes."""

import json
import math
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ATTACK = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script> [a](javascript:document.title='broken')"
MARKDOWN = (
    "# Title\n\nA paragraph with **bold**, *slanted*, `code` and [a link](https://example.com/a_b).\n\n- one\n- two\n  1. deeper\n\n"
    "| name | size |\n|:--|--:|\n| a | 1 |\n| b | 22 |\n\n```python\nprint('hello')\n```\n\n> quoted\n"
)
KEY = "right"


def words(text):
    out = []
    for word in text.split(" "):
        out.append(word if not out else " " + word)
    return out


def logprobs(word, share=0.6):
    one = lambda text, p: {"token": text, "logprob": math.log(p), "bytes": list(text.encode())}
    return {"content": [{**one(word, share), "top_logprobs": [one(word, share), one(" other", 0.3), one("\n", 0.05)]}], "refusal": None}


class FakeServer:
    """`state`: chat (has the model a template?), key (is one asked for?), requests (bodies, as they came), gone (peers that left)."""

    def __init__(self, page):
        self.state = {"chat": True, "key": False, "requests": [], "gone": 0, "fail_once": False, "hold": threading.Event()}
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, status, body, content_type="application/json", headers=()):
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in (("Content-Type", content_type), ("Content-Length", str(len(body))), *headers):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def refuse(self, status, code, message):
                self.answer(status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}})

            def do_GET(self):
                if self.path.startswith("/v1/"):
                    if not self.allowed():
                        return None
                    return self.answer(200, fake.models() if self.path == "/v1/models" else fake.kv())
                status, headers, body = page(self.path)
                kept = [(n, v) for n, v in headers if n.lower() in ("content-security-policy", "etag", "x-content-type-options", "cache-control")]
                return self.answer(status, body, dict((n.lower(), v) for n, v in headers).get("content-type", "text/plain"), kept)

            def allowed(self):
                if not fake.state["key"] or self.headers.get("Authorization") == f"Bearer {KEY}":
                    return True
                self.refuse(401, "invalid_api_key", "an API key is needed")
                return False

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not self.allowed():
                    return
                fake.state["requests"].append(body)
                if fake.state["fail_once"]:
                    fake.state["fail_once"] = False
                    self.refuse(503, "overloaded", "the server is busy <b>now</b>")
                elif self.path == "/v1/completions":
                    self.stream([{"text": w, "logprobs": fake.raw_logprobs(w) if "logprobs" in body else None} for w in words(" and so it went on")])
                elif not fake.state["chat"]:
                    self.refuse(400, "no_chat_template", "tiny has no chat template")
                else:
                    self.stream(fake.chat(body))

            def stream(self, pieces):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                try:
                    for piece in pieces:
                        if piece is None:
                            fake.state["hold"].wait(20)
                            continue
                        choice = {"index": 0, "finish_reason": None, **piece}
                        self.event({"id": "x", "object": "chunk", "choices": [choice], "usage": None})
                        time.sleep(0.02)
                    usage = {"prompt_tokens": 40, "completion_tokens": 6, "total_tokens": 46, "prompt_tokens_details": {"cached_tokens": 32}}
                    self.event({"id": "x", "object": "chunk", "choices": [], "usage": usage})
                    self.wfile.write(b"data: [DONE]\n\n")
                except OSError:
                    fake.state["gone"] += 1

            def event(self, value):
                self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
                self.wfile.flush()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self.state["hold"].set()
        self._server.shutdown()
        self._server.server_close()

    def models(self):
        one = {"id": "tiny", "object": "model", "chat": self.state["chat"], "tools": True, "reasoning": True, "max_model_len": 4096, "defaults": {"temperature": 0.7}}
        return {"object": "list", "data": [one]}

    def raw_logprobs(self, word):
        return {"tokens": [word], "token_logprobs": [-0.5], "top_logprobs": [{word: -0.5, " else": -1.5}], "text_offset": [0]}

    def chat(self, body):
        """The choices of the chunks; None: wait until the test lets go."""
        last = body["messages"][-1]
        text = last.get("content") or ""
        kind = text.split(" ")[0] if last["role"] == "user" else ""
        share = 0.01 if kind == "unsure" else 0.6
        say = lambda content: [{"delta": {"content": w}, "logprobs": logprobs(w, share) if body.get("logprobs") else None} for w in words(content)]
        end = [{"delta": {}, "finish_reason": "stop"}]
        if kind == "hold":
            return [*say("The first part"), None, *say(" and the second"), *end]
        if kind == "long":
            return [*say("A line.\n\n" * 60), None, *say(" more\n\n" * 40), *end]
        if kind == "endless":
            return ({"delta": {"content": f" {i}"}} for i in range(100000))
        if kind == "think":
            return [{"delta": {"reasoning_content": w}} for w in words("First I weigh it up")] + say("Then I answer") + end
        if kind == "tool":
            calls = [
                {"index": i, "id": f"call_{i}", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"place": place, "n": i})}}
                for i, place in enumerate(("Oslo", ATTACK))
            ]
            return [{"delta": {"tool_calls": [call]}} for call in calls] + [{"delta": {}, "finish_reason": "tool_calls"}]
        if last["role"] == "tool":
            return say(f"It is {text} there") + end
        if kind == "attack":
            return say(f"{ATTACK}\n\n```{ATTACK}\n{ATTACK}\n```\n\n| {ATTACK} | b |\n|--|--|\n| {ATTACK} | c |") + end
        if kind == "markdown":
            return [{"delta": {"content": part}} for part in MARKDOWN.split("\n\n") for part in (part, "\n\n")] + end
        if last["role"] == "assistant":
            return say(" and it goes on") + end
        return say("Hello there, reader") + end

    def kv(self):
        pool = lambda name, n: {"name": name, "page_bytes": 65536, "pages_in_use": n, "pages_shared": n // 5, "pages_cached": n // 4, "bytes_in_use": n * 65536}
        sequence = {
            "request": "req-1", "index": 0, "state": "decode", "prompt_tokens": 812, "cached_tokens": 640,
            "computed_tokens": 903, "generated_tokens": 92, "bytes": 23592960, "shared_bytes": 9437184,
        }  # fmt: skip
        return {
            "object": "lapidary.kv", "model": "tiny", "numeric_mode": "exact", "context": 4096, "running": 1, "queued": 2, "paused": 0,
            "room": {"total_bytes": 1 << 30, "used_bytes": 84934656, "free_bytes": (1 << 30) - 84934656},
            "pools": [pool("sliding", 480), pool("full", 816)],
            "sequences": [sequence, {**sequence, "request": "req-2", "state": "prefill", "computed_tokens": 100, "cached_tokens": 0, "generated_tokens": 0}],
            "cache": {"entries": [{"sequence": 3, "tokens": 640, "bytes": 4194304, "hits": 4, "idle_seconds": 12.5}], "bytes": 4194304, "evictions": 0,
                      "prompts": {}, "prompt_tokens": 9120, "cached_tokens": 5312},
            "totals": {"steps": 1, "prompt_rows": 9, "decode_rows": int(time.monotonic() * 40), "preemptions": 0, "busy_seconds": 31.25},
            "gaps": {"bounds_seconds": [], "counts": [0], "worst_seconds": 0.083},
        }  # fmt: skip


def page_of(url):
    """The page's files as another server gives them."""

    def get(path):
        with urllib.request.urlopen(url + path.lstrip("/"), timeout=20) as answer:
            return answer.status, answer.getheaders(), answer.read()

    return get
