#!/usr/bin/env python3
"""Tools and thinking through the openai and langchain-openai packages, against a made model with Gemma 4's vocabulary and template.

openai_tools_test.py LAPIDARY [unittest's arguments]      run with the Python of tests/clients/setup

The model's own words are noise: what a grammar makes of it (a demanded call, a schema) is well formed, and that is what is looked at.
"""

import json
import tempfile
import unittest
from typing import Literal

import langchain_core.tools
import langchain_openai
import made_model
import openai
import pydantic
import served

THOUGHT_CLOSE = 101  # <channel|>
WEATHER = {
    "type": "function",
    "function": {
        "name": "get-weather.now",
        "description": "The weather of a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Paris", 'a "quoted" {city}', "Zürich"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city", "days", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "strict": True,
        "parameters": {"type": "object", "properties": {"utc": {"type": "boolean"}}, "required": ["utc"], "additionalProperties": False},
    },
}
QUESTION = [{"role": "user", "content": "What is the weather?"}]


class Verdict(pydantic.BaseModel):
    colour: Literal["red", "green", "blue"]
    certain: bool


class WithMadeModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.server = cls.enterClassContext(served.Server(LAPIDARY, made_model.make(f"{folder}/made"), "--name", "made"))
        cls.client = openai.OpenAI(base_url=f"{cls.server.url}/v1", api_key="none", max_retries=0, timeout=120)

    def chat(self, **more):
        arguments = {"model": "made", "messages": QUESTION, "temperature": 0, "max_completion_tokens": 120, **more}
        return self.client.chat.completions.create(**arguments)

    def check_weather(self, call):
        self.assertEqual((call.type, call.function.name), ("function", "get-weather.now"))
        arguments = json.loads(call.function.arguments)
        self.assertEqual(set(arguments), {"city", "days", "unit"})
        self.assertIn(arguments["city"], WEATHER["function"]["parameters"]["properties"]["city"]["enum"])
        self.assertIn(arguments["days"], range(1, 10))
        self.assertIn(arguments["unit"], ("C", "F"))


class Tools(WithMadeModel):
    def test_a_demanded_call_keeps_to_the_schema_of_its_tool(self):
        named = {"type": "function", "function": {"name": "get-weather.now"}}
        for choice in ("required", named):
            answer = self.chat(tools=[WEATHER] if choice == "required" else [TIME, WEATHER], tool_choice=choice, parallel_tool_calls=False)
            message = answer.choices[0].message
            self.assertEqual(len(message.tool_calls), 1)
            self.check_weather(message.tool_calls[0])
            self.assertIn(answer.choices[0].finish_reason, ("tool_calls", "stop"))

    def test_streamed_calls_add_up_to_the_same_call(self):
        for seed in range(3):
            arguments = {"tools": [WEATHER, TIME], "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1, "seed": seed}
            whole = self.chat(**arguments).choices[0]
            names, pieces, ids, finish = "", "", set(), None
            for chunk in self.chat(stream=True, **arguments):
                for choice in chunk.choices:
                    finish = choice.finish_reason or finish
                    for call in choice.delta.tool_calls or []:
                        self.assertEqual(call.index, 0)
                        ids |= {call.id} if call.id else set()
                        names += call.function.name or ""
                        pieces += call.function.arguments or ""
            expected = whole.message.tool_calls[0].function
            self.assertEqual((names, pieces, finish), (expected.name, expected.arguments, whole.finish_reason))
            self.assertEqual(len(ids), 1)

    def test_the_whole_round_of_a_tool_call(self):
        call = self.chat(tools=[WEATHER], tool_choice="required").choices[0].message
        result = [{"role": "tool", "tool_call_id": c.id, "content": '{"sky": "blue \\"<|turn>\\""}'} for c in call.tool_calls]
        messages = [*QUESTION, call.model_dump(exclude_none=True), *result]
        after = self.chat(messages=messages, tools=[WEATHER], tool_choice="none", max_completion_tokens=8)
        self.assertIsNone(after.choices[0].message.tool_calls)
        rendered = self.server.post("/apply-template", {"messages": messages, "tools": [WEATHER]}).json["prompt"]
        self.assertEqual(rendered.count("<|turn>model"), 1)  # the result stands in the model's turn, which goes on
        with self.assertRaises(openai.BadRequestError):  # a result of no call
            self.chat(messages=[*QUESTION, {"role": "tool", "tool_call_id": "call_of_nobody", "content": "x"}], tools=[WEATHER])

    def test_no_tools_no_calls(self):
        for more in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
            answer = self.chat(temperature=1, seed=1, **more).choices[0]
            self.assertIsNone(answer.message.tool_calls)
            self.assertNotIn(answer.finish_reason, ("tool_calls",))
            for mark in ("<|tool_call>", "<|channel>", "<turn|>", "<|turn>"):
                self.assertNotIn(mark, answer.message.content or "")

    def test_bad_tools_name_their_place(self):
        for tools, place in (
            ([{"type": "function", "function": {"name": "no spaces allowed"}}], "tools[0].function.name"),
            ([{"type": "retrieval"}], "tools[0].type"),
            ([WEATHER, {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "objekt"}}}], "tools"),
        ):
            with self.subTest(place=place), self.assertRaises(openai.BadRequestError) as caught:
                self.chat(tools=tools, tool_choice="required")
            self.assertTrue((caught.exception.param or "").startswith(place), caught.exception.body)
        with self.assertRaises(openai.BadRequestError):
            self.chat(tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "another"}})

    def test_parsed_tool_calls(self):
        class Weather(pydantic.BaseModel):
            unit: Literal["C", "F"]
            metric: bool

        answer = self.client.chat.completions.parse(
            model="made", messages=QUESTION, tools=[openai.pydantic_function_tool(Weather)], tool_choice="required", temperature=0,
            max_completion_tokens=120,
        )  # fmt: skip
        self.assertIsInstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)

    def test_responses_with_a_tool(self):
        tool = {"type": "function", **WEATHER["function"]}
        arguments = {"model": "made", "input": "Weather?", "tools": [tool], "tool_choice": "required", "temperature": 0}
        answer = self.client.responses.create(**arguments, max_output_tokens=120)
        calls = [item for item in answer.output if item.type == "function_call"]
        self.assertGreaterEqual(len(calls), 1)
        self.assertIn(json.loads(calls[0].arguments)["unit"], ("C", "F"))
        with self.client.responses.stream(**arguments, max_output_tokens=120) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertIn("response.function_call_arguments.delta", kinds)
        self.assertEqual([i.arguments for i in final.output if i.type == "function_call"], [c.arguments for c in calls])
        history = [{"role": "user", "content": "Weather?"}, calls[0].model_dump(exclude_none=True),
                   {"type": "function_call_output", "call_id": calls[0].call_id, "output": "sunny"}]  # fmt: skip
        after = self.client.responses.create(model="made", input=history, tools=[tool], tool_choice="none", max_output_tokens=8)
        self.assertIn(after.status, ("completed", "incomplete"))


class Thinking(WithMadeModel):
    def test_a_schema_binds_what_follows_the_thought(self):
        answer = self.client.chat.completions.parse(
            model="made", messages=QUESTION, response_format=Verdict, reasoning_effort="high", temperature=0,
            max_completion_tokens=200, logit_bias={str(THOUGHT_CLOSE): 25},
        )  # fmt: skip
        self.assertIsInstance(answer.choices[0].message.parsed, Verdict)

    def test_thoughts_are_apart_from_the_answer(self):
        arguments = {"reasoning_effort": "high", "temperature": 0, "max_completion_tokens": 24}
        message = self.chat(**arguments).choices[0].message
        both = (message.content or "") + (message.model_extra.get("reasoning_content") or "")
        self.assertTrue(both)
        for mark in ("<|channel>", "<channel|>", "<|think|>"):
            self.assertNotIn(mark, both)
        pieces = {"content": "", "reasoning_content": ""}
        for chunk in self.chat(stream=True, **arguments):
            for choice in chunk.choices:
                for part in pieces:
                    pieces[part] += getattr(choice.delta, part, None) or ""
        self.assertEqual(pieces, {"content": message.content or "", "reasoning_content": message.model_extra.get("reasoning_content") or ""})

    def test_effort_none_means_no_thought(self):
        answer = self.chat(reasoning_effort="none", max_completion_tokens=16)
        self.assertFalse(answer.choices[0].message.model_extra.get("reasoning_content"))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(reasoning_effort="hihg")
        self.assertEqual(caught.exception.param, "reasoning_effort")
        self.assertIn("high", caught.exception.body["message"])


class LangChain(WithMadeModel):
    def model(self, **more):
        arguments = {"temperature": 0, "max_retries": 0, "max_tokens": 120, **more}
        return langchain_openai.ChatOpenAI(model="made", base_url=f"{self.server.url}/v1", api_key="none", **arguments)

    def test_invoke_and_stream(self):
        whole = self.model(max_tokens=12).invoke("Hello!")
        self.assertGreater(whole.usage_metadata["output_tokens"], 0)
        pieces = list(self.model(max_tokens=12, stream_usage=True).stream("Hello!"))
        self.assertEqual("".join(p.content for p in pieces), whole.content)

    def test_bound_tools(self):
        @langchain_core.tools.tool
        def pick(colour: Literal["red", "green"], certain: bool) -> str:
            """Picks a colour."""
            return f"{colour} {certain}"

        answer = self.model().bind_tools([pick], tool_choice="any", strict=True).invoke("Pick one.")
        self.assertEqual(answer.tool_calls[0]["name"], "pick")
        self.assertIn(pick.invoke(answer.tool_calls[0]["args"]).split()[0], ("red", "green"))

    def test_structured_output(self):
        for method in ("json_schema", "function_calling"):
            self.assertIsInstance(self.model().with_structured_output(Verdict, method=method, strict=True).invoke("Decide."), Verdict)

    def test_completions_and_embeddings(self):
        text = langchain_openai.OpenAI(model="made", base_url=f"{self.server.url}/v1", api_key="none", max_tokens=6, temperature=0)
        self.assertIsInstance(text.invoke("Once"), str)
        vectors = langchain_openai.OpenAIEmbeddings(
            model="made", base_url=f"{self.server.url}/v1", api_key="none", check_embedding_ctx_length=False
        ).embed_documents(["water", "stone"])
        self.assertEqual(len(vectors), 2)
        self.assertNotEqual(vectors[0], vectors[1])


if __name__ == "__main__":
    served.main(globals())
