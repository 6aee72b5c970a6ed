# SPDX-License-Identifier: Apache-2.0
"""The program itself with the model inside it, asked by the official OpenAI client."""

import json
import unittest

import openai

from harness import Program

KEY = "test-key"
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {
        "location": {"type": "string", "description": "City name"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["location"]}}}
SUM = [{"role": "user", "content": "What is 17 + 25?"}]
OFF = {"thinking": {"type": "disabled"}}


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.program = Program("--max-logprobs", "512", environment={"RORQUAL_API_KEY": KEY})
        cls.url = cls.program.url
        cls.client = openai.OpenAI(base_url=cls.url + "/v1", api_key=KEY, max_retries=0, timeout=120)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        code = cls.program.stop()
        if code != 0 or cls.program.output:
            raise AssertionError(f"exit {code}, standard output {cls.program.output!r}")

    def chat(self, **fields):
        return self.client.chat.completions.create(
            **{"model": self.model, "messages": SUM, "temperature": 0, "max_tokens": 300, **fields})

    def test_streams_reasoning_then_the_answer(self):
        reasoning = content = ""
        usage = reason = None
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            if not chunk.choices:
                continue
            delta = chunk.choices[0].delta
            reasoning += getattr(delta, "reasoning_content", None) or ""
            content += delta.content or ""
            reason = chunk.choices[0].finish_reason or reason
        self.assertIn("42", content)
        self.assertTrue(reasoning)
        self.assertEqual(reason, "stop")
        self.assertGreater(usage.prompt_tokens, 0)
        self.assertGreater(usage.completion_tokens_details.reasoning_tokens, 0)

    def test_whole_answer_equals_the_streamed_one(self):
        whole = self.chat(extra_body=OFF).choices[0]
        pieces = [c.choices[0].delta.content or "" for c in self.chat(stream=True, extra_body=OFF) if c.choices]
        self.assertEqual("".join(pieces), whole.message.content)
        self.assertIn("42", whole.message.content)

    def test_calls_a_tool(self):
        answer = self.chat(messages=[{"role": "user", "content": "What's the weather like in Paris?"}],
                           tools=[WEATHER], extra_body=OFF).choices[0]
        self.assertEqual(answer.finish_reason, "tool_calls")
        call, = answer.message.tool_calls
        self.assertEqual(call.function.name, "get_weather")
        self.assertEqual(json.loads(call.function.arguments), {"location": "Paris"})
        # Its result goes back the way OpenAI's documentation shows.
        messages = [{"role": "user", "content": "What's the weather like in Paris?"},
                    answer.message.model_dump(exclude_none=True),
                    {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "condition": "sunny"}'}]
        final = self.chat(messages=messages, tools=[WEATHER], extra_body=OFF).choices[0]
        self.assertEqual(final.finish_reason, "stop")
        self.assertIn("21", final.message.content)

    def test_streams_a_tool_call(self):
        name = arguments = ""
        for chunk in self.chat(messages=[{"role": "user", "content": "What's the weather like in Paris?"}],
                               tools=[WEATHER], stream=True, extra_body=OFF):
            for part in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                name += part.function.name or ""
                arguments += part.function.arguments or ""
        self.assertEqual(name, "get_weather")
        self.assertEqual(json.loads(arguments), {"location": "Paris"})

    def test_logprobs_are_a_distribution(self):
        import math
        answer = self.chat(logprobs=True, top_logprobs=5, extra_body=OFF).choices[0]
        self.assertEqual("".join(t.token for t in answer.logprobs.content), answer.message.content)
        for entry in answer.logprobs.content:
            top = [t.logprob for t in entry.top_logprobs]
            self.assertEqual(len(top), 5)
            self.assertEqual(top, sorted(top, reverse=True))
            self.assertLessEqual(sum(math.exp(x) for x in top), 1 + 1e-5)
            self.assertEqual(entry.logprob, top[0])  # greedy

    def test_same_seed_same_text(self):
        texts = {self.chat(temperature=1, seed=7, extra_body=OFF).choices[0].message.content for _ in range(3)}
        self.assertEqual(len(texts), 1)

    def test_scores_a_prompt_of_token_ids(self):
        import urllib.request
        request = urllib.request.Request(self.url + "/tokenize", json.dumps({"prompt": "What is 17 + 25?"}).encode(),
                                         {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            ids = json.load(response)["tokens"]
        answer = self.client.completions.create(model=self.model, prompt=ids, max_tokens=1, temperature=0,
                                                extra_body={"prompt_logprobs": 512})
        rows = answer.choices[0].prompt_logprobs
        self.assertEqual(len(rows), len(ids))
        self.assertIsNone(rows[0])
        for token, row in zip(ids[1:], rows[1:]):
            self.assertIn(str(token), row)
            self.assertIn(len(row), (512, 513))
            ranks = sorted(e["rank"] for e in row.values())
            self.assertEqual(ranks[:512], list(range(1, 513)))

    def test_errors_arrive_as_the_clients_exceptions(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.chat(model="no-such-model")
        self.assertIn(self.model, str(caught.exception))
        with self.assertRaises(openai.BadRequestError):
            self.chat(temperature=5)
        with self.assertRaises(openai.BadRequestError):
            self.chat(max_tokens=10**6)
        with openai.OpenAI(base_url=self.url + "/v1", api_key="wrong", max_retries=0) as other:
            with self.assertRaises(openai.AuthenticationError):
                other.models.list()


if __name__ == "__main__":
    unittest.main()
