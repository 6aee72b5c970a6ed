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

    def test_the_stream_helper_collects_the_same_answer(self):
        fields = {"model": self.model, "messages": SUM, "temperature": 0, "max_tokens": 300, "extra_body": OFF}
        with self.client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
            text = "".join(e.delta for e in stream if e.type == "content.delta")
            final = stream.get_final_completion()
        self.assertEqual(text, final.choices[0].message.content)
        self.assertEqual(text, self.chat(extra_body=OFF).choices[0].message.content)
        self.assertGreater(final.usage.completion_tokens, 0)

    def test_the_stream_helper_collects_calls(self):
        fields = {"model": self.model, "temperature": 0, "max_tokens": 300, "extra_body": OFF, "tools": [WEATHER],
                  "messages": [{"role": "user", "content": "What's the weather like in Paris?"}]}
        with self.client.chat.completions.stream(**fields) as stream:
            done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
            final = stream.get_final_completion()
        self.assertEqual([json.loads(e.arguments) for e in done], [{"location": "Paris"}])
        self.assertEqual(final.choices[0].message.tool_calls[0].function.name, "get_weather")
        self.assertEqual(final.choices[0].finish_reason, "tool_calls")

    def test_completions_and_their_streams(self):
        fields = {"model": self.model, "prompt": "What is 17 + 25?", "max_tokens": 12, "temperature": 0}
        whole = self.client.completions.create(**fields, logprobs=2)
        self.assertEqual("".join(whole.choices[0].logprobs.tokens), whole.choices[0].text)
        text = "".join(c.choices[0].text for c in self.client.completions.create(**fields, stream=True))
        self.assertEqual(text, whole.choices[0].text)

    def test_several_answers_differ_by_seed_and_repeat(self):
        def texts():
            answer = self.chat(n=3, temperature=1.5, seed=5, max_tokens=20, extra_body=OFF)
            return [c.message.content for c in answer.choices]
        self.assertEqual(texts(), texts())

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

    def test_logprobs_of_given_ids_come_instead_of_the_best(self):
        extra = {"logprob_token_ids": [400, 300], "return_tokens_as_token_ids": True, **OFF}
        answer = self.chat(logprobs=True, top_logprobs=3, extra_body=extra).choices[0]
        for entry in answer.logprobs.content:
            self.assertEqual({t.token for t in entry.top_logprobs}, {"token_id:400", "token_id:300"})
        body = {"model": self.model, "prompt": "What", "max_tokens": 2, "logprobs": 3, "temperature": 0}
        lists = self.client.completions.create(**body, extra_body=extra).choices[0].logprobs
        for chosen, top in zip(lists.tokens, lists.top_logprobs):
            self.assertEqual(set(top), {chosen, "token_id:400", "token_id:300"})

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

    def test_thinking_stops_at_its_budget_exactly(self):
        free = self.chat()
        thought = free.usage.completion_tokens_details.reasoning_tokens
        self.assertGreater(thought, 3)
        for budget in (0, 1, 3):
            for drafts in (0, 5):
                extra = {"thinking_token_budget": budget, "speculative_tokens": drafts, "return_token_ids": True}
                answer = self.chat(extra_body=extra)
                self.assertEqual(answer.usage.completion_tokens_details.reasoning_tokens, budget)
                self.assertTrue(answer.choices[0].message.content)
                free_ids = self.chat(extra_body={"return_token_ids": True}).choices[0].token_ids
                self.assertEqual(answer.choices[0].token_ids[:budget], free_ids[:budget])
        roomy = self.chat(extra_body={"thinking_token_budget": 1000})
        self.assertEqual(roomy.choices[0].message.content, free.choices[0].message.content)

    def test_responses_whole_streamed_and_back(self):
        fields = {"model": self.model, "input": "What is 17 + 25?", "temperature": 0, "max_output_tokens": 300}
        whole = self.client.responses.create(**fields)
        self.assertEqual(whole.status, "completed")
        self.assertIn("42", whole.output_text)
        self.assertEqual([i.type for i in whole.output], ["reasoning", "message"])
        self.assertGreater(whole.usage.output_tokens_details.reasoning_tokens, 0)
        with self.client.responses.stream(**fields) as stream:
            types = [e.type for e in stream]
            final = stream.get_final_response()
        self.assertEqual(types[0], "response.created")
        self.assertEqual(types[-1], "response.completed")
        self.assertEqual(final.output_text, whole.output_text)
        self.assertEqual(final.output[0].content[0].text, whole.output[0].content[0].text)
        turns = [{"role": "user", "content": fields["input"]}, *[i.model_dump(exclude_none=True) for i in whole.output],
                 {"role": "user", "content": "What is 1 + 1?"}]
        self.assertTrue(self.client.responses.create(**{**fields, "input": turns}).output_text)
        cut = self.client.responses.create(**{**fields, "max_output_tokens": 2})
        self.assertEqual((cut.status, cut.incomplete_details.reason), ("incomplete", "max_output_tokens"))

    def test_responses_call_a_tool_and_take_its_result(self):
        tool = {"type": "function", **WEATHER["function"], "strict": False}
        question = {"role": "user", "content": "What's the weather like in Paris?"}
        fields = {"model": self.model, "tools": [tool], "temperature": 0, "reasoning": {"effort": "none"}}
        with self.client.responses.stream(**fields, input=[question]) as stream:
            arguments = "".join(e.delta for e in stream if e.type == "response.function_call_arguments.delta")
            call = stream.get_final_response().output[-1]
        self.assertEqual((call.type, call.name), ("function_call", "get_weather"))
        self.assertEqual(json.loads(arguments), {"location": "Paris"})
        self.assertEqual(call.arguments, arguments)
        result = {"type": "function_call_output", "call_id": call.call_id,
                  "output": '{"temperature": 21, "condition": "sunny"}'}
        final = self.client.responses.create(**fields, input=[question, call.model_dump(exclude_none=True), result])
        self.assertIn("21", final.output_text)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve("resp_x")

    def test_errors_arrive_as_the_clients_exceptions(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.chat(model="no-such-model")
        self.assertIn(self.model, str(caught.exception))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=5)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError):
            self.chat(max_tokens=10**6)
        with openai.OpenAI(base_url=self.url + "/v1", api_key="wrong", max_retries=0) as other:
            with self.assertRaises(openai.AuthenticationError):
                other.models.list()


if __name__ == "__main__":
    unittest.main()
