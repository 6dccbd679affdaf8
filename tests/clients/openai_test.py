#!/usr/bin/env python3
"""The openai package for Python, unchanged, against SmolLM2 and Gemma-3-270M.

openai_test.py LAPIDARY [unittest's arguments]      run with the Python of tests/clients/setup
"""

import asyncio
import base64
import json
import math
import pathlib
import struct
import subprocess
import tempfile
import threading
import unittest
from typing import Literal

import openai
import pydantic
import served

QUESTION = [{"role": "user", "content": "Name three colours of the rainbow."}]
TURNS = [
    {"role": "system", "content": "You answer briefly."},
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "Hello! How can I help?"},
    {"role": "user", "content": "What is water made of?"},
]


class Verdict(pydantic.BaseModel):
    colour: Literal["red", "green", "blue"]
    certain: bool
    sizes: list[Literal["small", "large"]] = pydantic.Field(max_length=3)


def client_of(server, key="none", **more):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=300, **more)


class WithSmolLM2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(served.Server(LAPIDARY, served.SMOLLM2, "--context", 2048))
        cls.client = client_of(cls.server)
        cls.model = cls.client.models.list().data[0].id

    def chat(self, messages=None, **more):
        arguments = {"model": self.model, "messages": messages or QUESTION, "temperature": 0, "max_completion_tokens": 24, **more}
        return self.client.chat.completions.create(**arguments)

    def refused(self, kind, **more):
        with self.assertRaises(kind) as caught:
            self.chat(**more)
        return caught.exception


class Chat(WithSmolLM2):
    def test_models_are_listed_and_found(self):
        (listed,) = self.client.models.list().data
        self.assertEqual(self.client.models.retrieve(listed.id).id, listed.id)
        self.assertEqual(listed.object, "model")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("no-such-model")

    def test_an_answer_has_all_that_the_package_reads(self):
        answer = self.chat(TURNS)
        self.assertEqual((answer.object, answer.model), ("chat.completion", self.model))
        self.assertTrue(answer.id and answer.created > 1_600_000_000 and answer._request_id)
        choice = answer.choices[0]
        self.assertEqual((choice.index, choice.message.role), (0, "assistant"))
        self.assertTrue(choice.message.content.strip())
        self.assertIn(choice.finish_reason, ("stop", "length"))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertEqual(choice.finish_reason == "length", answer.usage.completion_tokens == 24)

    def test_streamed_pieces_make_the_same_answer(self):
        for sampling in ({"temperature": 0}, {"temperature": 0.8, "seed": 11, "top_p": 0.95}):
            whole = self.chat(TURNS, **sampling)
            chunks = list(self.chat(TURNS, stream=True, stream_options={"include_usage": True}, **sampling))
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            self.assertEqual(text, whole.choices[0].message.content)
            self.assertGreater(len(chunks), 5)
            self.assertEqual({c.id for c in chunks}, {chunks[0].id})
            self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
            self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], whole.choices[0].finish_reason)
            self.assertEqual(chunks[-1].choices, [])
            self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)

    def test_stream_helper_accumulates(self):
        arguments = {"model": self.model, "messages": TURNS, "temperature": 0, "max_completion_tokens": 24}
        with self.client.chat.completions.stream(**arguments) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        self.assertLessEqual({"chunk", "content.delta", "content.done"}, kinds)
        self.assertEqual(final.choices[0].message.content, self.chat(TURNS).choices[0].message.content)

    def test_async_clients_at_once_get_what_each_gets_alone(self):
        prompts = [[{"role": "user", "content": f"Count from {n} to {n + 5}."}] for n in range(8)]

        async def all_at_once():
            async with openai.AsyncOpenAI(base_url=f"{self.server.url}/v1", api_key="none", max_retries=0) as client:
                calls = [
                    client.chat.completions.create(
                        model=self.model, messages=p, temperature=1, seed=n, max_completion_tokens=16, logprobs=True, top_logprobs=2
                    )
                    for n, p in enumerate(prompts)
                ]
                return await asyncio.gather(*calls)

        together = asyncio.run(all_at_once())
        for n, prompt in enumerate(prompts):
            alone = self.chat(prompt, temperature=1, seed=n, max_completion_tokens=16, logprobs=True, top_logprobs=2)
            self.assertEqual(together[n].choices, alone.choices)

    def test_logprobs_belong_to_the_tokens_of_the_text(self):
        answer = self.chat(logprobs=True, top_logprobs=5)
        entries = answer.choices[0].logprobs.content
        self.assertEqual(b"".join(bytes(e.bytes) for e in entries).decode(), answer.choices[0].message.content)
        for entry in entries:
            self.assertEqual(len(entry.top_logprobs), 5)
            self.assertEqual(entry.logprob, entry.top_logprobs[0].logprob)  # greedy: the best one
            best = [t.logprob for t in entry.top_logprobs]
            self.assertEqual(best, sorted(best, reverse=True))
            self.assertLessEqual(sum(math.exp(p) for p in best), 1 + 1e-6)

    def test_n_texts_differ_and_come_again_with_the_seed(self):
        first, again = (self.chat(n=3, temperature=1.2, seed=5) for _ in range(2))
        self.assertEqual([c.index for c in first.choices], [0, 1, 2])
        texts = [c.message.content for c in first.choices]
        self.assertEqual(texts, [c.message.content for c in again.choices])
        self.assertEqual(len(set(texts)), 3)

    def test_stop_text_ends_and_is_left_out(self):
        whole = self.chat(max_completion_tokens=40).choices[0].message.content
        word = whole.split()[4]
        answer = self.chat(max_completion_tokens=40, stop=[word, "never seen"])
        self.assertEqual(answer.choices[0].message.content, whole[: whole.index(word)])
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_logit_bias_forces_a_token(self):
        (forced,) = self.server.post("/tokenize", {"prompt": " blue", "add_special_tokens": False}).json["tokens"]
        answer = self.chat(logit_bias={str(forced): 100}, max_completion_tokens=3)
        self.assertEqual(answer.choices[0].message.content, " blue blue blue")

    def test_an_assistant_message_at_the_end_is_gone_on_with(self):
        opened = [*QUESTION, {"role": "assistant", "content": "The three colours are red,"}]
        answer = self.chat(opened)
        self.assertTrue(answer.choices[0].message.content)
        closed = self.chat([*opened, {"role": "user", "content": "Go on."}])
        self.assertLess(answer.usage.prompt_tokens, closed.usage.prompt_tokens)

    def test_leaving_a_stream_frees_its_pages(self):
        stream = self.chat(stream=True, max_completion_tokens=1500, logit_bias={"2": -100})
        next(iter(stream))
        stream.close()
        self.assertEqual(self.server.wait_idle(10)["sequences"], [])

    def test_structured_output_parses(self):
        answer = self.client.chat.completions.parse(
            model=self.model, messages=QUESTION, response_format=Verdict, temperature=0, max_completion_tokens=200
        )
        self.assertIsInstance(answer.choices[0].message.parsed, Verdict)
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_json_object_is_json(self):
        answer = self.chat(
            [{"role": "user", "content": 'Say {"ok": true} as JSON.'}], response_format={"type": "json_object"}, max_completion_tokens=300
        )
        if answer.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)
        else:
            self.assertTrue(answer.choices[0].message.content.lstrip().startswith("{"))


class OtherEndpoints(WithSmolLM2):
    def test_responses(self):
        answer = self.client.responses.create(
            model=self.model, instructions="You answer briefly.", input="What is water made of?", temperature=0, max_output_tokens=24
        )
        self.assertTrue(answer.output_text.strip())
        self.assertIn(answer.status, ("completed", "incomplete"))
        self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)
        chat = self.chat([{"role": "system", "content": "You answer briefly."}, {"role": "user", "content": "What is water made of?"}])
        self.assertEqual(answer.output_text, chat.choices[0].message.content)

    def test_streamed_responses(self):
        arguments = {"model": self.model, "input": "Is the sky blue? Answer yes or no.", "temperature": 0, "max_output_tokens": 100}
        whole = self.client.responses.create(**arguments)
        with self.client.responses.stream(**arguments) as stream:
            events = list(stream)
            final = stream.get_final_response()
        kinds = [event.type for event in events]
        self.assertEqual(kinds[:2], ["response.created", "response.in_progress"])
        self.assertEqual(kinds[-1], "response.completed")
        numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
        self.assertEqual(numbers, sorted(numbers))
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"), whole.output_text)
        self.assertEqual(final.output_text, whole.output_text)
        cut = self.client.responses.create(**{**arguments, "max_output_tokens": 1}, stream=True)
        self.assertEqual([event.type for event in cut][-1], "response.incomplete")

    def test_parsed_responses(self):
        answer = self.client.responses.parse(
            model=self.model, input="Is the sky blue?", text_format=Verdict, temperature=0, max_output_tokens=200
        )
        self.assertIsInstance(answer.output_parsed, Verdict)

    def test_embeddings(self):
        texts = ["water", "a letter about rivers and bridges"]
        both = self.client.embeddings.create(model=self.model, input=texts)  # base64 on the wire: the package's default
        self.assertEqual([e.index for e in both.data], [0, 1])
        for text, entry in zip(texts, both.data):
            self.assertAlmostEqual(math.hypot(*entry.embedding), 1, places=5)
            alone = self.client.embeddings.create(model=self.model, input=text, encoding_format="float")
            floats = struct.unpack(f"{len(entry.embedding)}f", struct.pack(f"{len(entry.embedding)}f", *alone.data[0].embedding))
            self.assertEqual(list(entry.embedding), list(floats))
        raw = self.server.post("/v1/embeddings", {"model": self.model, "input": "water", "encoding_format": "base64"}).json
        self.assertEqual(len(base64.b64decode(raw["data"][0]["embedding"])), 4 * len(both.data[0].embedding))

    def test_completions_echo_with_logprobs(self):
        prompt = "The capital of France is"
        answer = self.client.completions.create(model=self.model, prompt=prompt, echo=True, logprobs=3, max_tokens=0)
        choice = answer.choices[0]
        self.assertEqual(choice.text, prompt)
        self.assertEqual("".join(choice.logprobs.tokens), prompt)
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertTrue(all(p <= 0 for p in choice.logprobs.token_logprobs[1:]))
        self.assertEqual([prompt[o:].startswith(t) for o, t in zip(choice.logprobs.text_offset, choice.logprobs.tokens)],
                         [True] * len(choice.logprobs.tokens))  # fmt: skip
        self.assertEqual(answer.usage.completion_tokens, 0)

    def test_completions_of_a_batch_equal_those_of_each(self):
        prompts = ["Once upon a time", "The sea is", "def main():"]
        batch = self.client.completions.create(model=self.model, prompt=prompts, max_tokens=8, temperature=0, logprobs=1)
        ids = [self.server.post("/tokenize", {"prompt": p}).json["tokens"] for p in prompts]
        of_ids = self.client.completions.create(model=self.model, prompt=ids, max_tokens=8, temperature=0, logprobs=1)
        for n, prompt in enumerate(prompts):
            alone = self.client.completions.create(model=self.model, prompt=prompt, max_tokens=8, temperature=0, logprobs=1).choices[0]
            for answer in (batch, of_ids):
                self.assertEqual((answer.choices[n].index, answer.choices[n].text), (n, alone.text))
                self.assertEqual(answer.choices[n].logprobs, alone.logprobs)

    def test_streamed_completions_and_best_of(self):
        arguments = {"model": self.model, "prompt": "The sea is", "max_tokens": 8, "temperature": 0}
        whole = self.client.completions.create(**arguments)
        pieces = list(self.client.completions.create(stream=True, **arguments))
        self.assertEqual("".join(p.choices[0].text for p in pieces if p.choices), whole.choices[0].text)
        best = self.client.completions.create(**{**arguments, "temperature": 1}, best_of=3, n=1, seed=3)
        self.assertEqual(len(best.choices), 1)
        with self.assertRaises(openai.BadRequestError):
            self.client.completions.create(**{**arguments, "temperature": 1}, best_of=2, n=3)


class Refusals(WithSmolLM2):
    def test_a_misspelt_field_is_a_bad_request_that_names_the_right_one(self):
        error = self.refused(openai.BadRequestError, extra_body={"temperatur": 0.5})
        self.assertEqual(error.param, "temperatur")
        self.assertIn("temperature", error.body["message"])
        self.assertEqual(error.type, "invalid_request_error")

    def test_values_out_of_range_name_their_field(self):
        for field, value in (("temperature", -1), ("top_p", 2), ("n", 0), ("top_logprobs", 500), ("max_completion_tokens", -3),
                             ("logit_bias", {"x": 1}), ("stop", [""]), ("seed", "seven"), ("messages", "hello")):  # fmt: skip
            with self.subTest(field=field):
                error = self.refused(openai.BadRequestError, **{field: value})
                self.assertTrue((error.param or "").startswith(field), error.body)
                self.assertNotIn("exception", error.body["message"].lower())

    def test_no_messages_and_a_prompt_too_long(self):
        self.assertEqual(self.refused(openai.BadRequestError, messages=[{"role": "user", "content": "word " * 5000}]).code,
                         "context_length_exceeded")  # fmt: skip
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(model=self.model, messages=[])

    def test_another_model_is_not_found(self):
        self.assertEqual(self.refused(openai.NotFoundError, model="gpt-4o").code, "model_not_found")

    def test_suffix_is_refused_by_name(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model=self.model, prompt="a", suffix="b", max_tokens=1)
        self.assertEqual(caught.exception.param, "suffix")


class Keys(unittest.TestCase):
    def test_keys_are_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder, "keys")
            keys.write_text("# a comment\nalice sk-alice-0123456789abcdef\n")
            keys.chmod(0o600)
            tiny = served.TINY_MODELS / "llama-tiny-F32.gguf"
            with served.Server(LAPIDARY, tiny, "--api-keys", keys) as server:
                for key in ("sk-wrong", "sk-alice-0123456789abcde", "alice"):
                    with self.assertRaises(openai.AuthenticationError):
                        client_of(server, key).models.list()
                client = client_of(server, "sk-alice-0123456789abcdef")
                model = client.models.list().data[0].id
                self.assertEqual(len(client.completions.create(model=model, prompt="a", max_tokens=2).choices), 1)
                self.assertNotIn("sk-alice", server.said(1 << 20))


class Overload(unittest.TestCase):
    def test_a_full_queue_is_a_rate_limit(self):
        tiny = served.TINY_MODELS / "llama-tiny-F32.gguf"
        with served.Server(LAPIDARY, tiny, "--parallel", 1, "--queue", 1) as server:
            client = client_of(server)
            model = client.models.list().data[0].id
            outcomes = []

            def ask(n):
                try:
                    client.completions.create(model=model, prompt=f"{n}", max_tokens=400, logit_bias={"1": -100}, n=2)
                    outcomes.append("answered")
                except openai.RateLimitError as error:
                    outcomes.append("limited" if error.response.headers.get("retry-after") else "limited without Retry-After")

            threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(len(outcomes), 12)
            self.assertLessEqual(set(outcomes), {"answered", "limited"})
            self.assertIn("limited", outcomes)


class Gemma3(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(served.Server(LAPIDARY, served.GEMMA3, "--context", 2048))
        cls.client = client_of(cls.server)
        cls.model = cls.client.models.list().data[0].id

    def test_completions_are_those_of_the_command_line(self):
        prompt = "The capital of France is"
        answer = self.client.completions.create(model=self.model, prompt=prompt, max_tokens=12, temperature=0)
        command = [LAPIDARY, "run", served.GEMMA3, prompt, "--raw", "-n", "12", "--temp", "0", "--context", "2048"]
        alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.assertEqual(alone.strip(), answer.choices[0].text.strip())

    def test_echo_and_batches(self):
        prompts = ["Water is made of", "Paris is"]
        batch = self.client.completions.create(model=self.model, prompt=prompts, echo=True, logprobs=1, max_tokens=1, temperature=0)
        for n, prompt in enumerate(prompts):
            choice = batch.choices[n]
            self.assertTrue(choice.text.startswith(prompt))
            alone = self.client.completions.create(model=self.model, prompt=prompt, echo=True, logprobs=1, max_tokens=1, temperature=0)
            self.assertEqual(choice.logprobs, alone.choices[0].logprobs)

    def test_chat_is_refused_by_name(self):
        calls = (
            lambda: self.client.chat.completions.create(model=self.model, messages=QUESTION),
            lambda: self.client.responses.create(model=self.model, input="Hello"),
        )
        for call in calls:
            with self.assertRaises(openai.BadRequestError) as caught:
                call()
            self.assertEqual(caught.exception.code, "no_chat_template")
            self.assertIn("/v1/completions", caught.exception.body["message"])

    def test_embeddings_have_length_one(self):
        entry = self.client.embeddings.create(model=self.model, input="water").data[0]
        self.assertAlmostEqual(math.hypot(*entry.embedding), 1, places=5)


if __name__ == "__main__":
    served.main(globals())
