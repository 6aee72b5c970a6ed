# SPDX-License-Identifier: Apache-2.0
"""The program itself with the model inside it, asked by the official Anthropic client."""

import unittest

import anthropic

from harness import Program

KEY = "test-key"
WEATHER = {"name": "get_weather", "description": "Get the current weather for a location", "input_schema": {
    "type": "object", "properties": {
        "location": {"type": "string", "description": "City name"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["location"]}}
SUM = [{"role": "user", "content": "What is 17 + 25?"}]
OFF = {"type": "disabled"}


class AnthropicClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.program = Program("--served-model-name", "m", environment={"RORQUAL_API_KEY": KEY})
        cls.url = cls.program.url
        cls.client = anthropic.Anthropic(base_url=cls.url, api_key=KEY, max_retries=0, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        code = cls.program.stop()
        if code != 0 or cls.program.output:
            raise AssertionError(f"exit {code}, standard output {cls.program.output!r}")

    def ask(self, **fields):
        return self.client.messages.create(
            **{"model": "m", "messages": SUM, "max_tokens": 300, **greedy(), **fields})

    def test_thinks_and_answers(self):
        message = self.ask(thinking={"type": "enabled", "budget_tokens": 1024})
        self.assertEqual([b.type for b in message.content], ["thinking", "text"])
        self.assertTrue(message.content[0].thinking)
        self.assertEqual(message.content[0].signature, message.id)
        self.assertIn("42", message.content[1].text)
        self.assertEqual(message.stop_reason, "end_turn")
        self.assertGreater(message.usage.output_tokens, 0)

    def test_streams_the_same(self):
        whole = self.ask(thinking=OFF)
        with self.client.messages.stream(model="m", messages=SUM, max_tokens=300, thinking=OFF, **greedy()) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual([b.model_dump() for b in final.content], [b.model_dump() for b in whole.content])
        self.assertEqual(final.stop_reason, "end_turn")
        self.assertEqual(final.usage.input_tokens + final.usage.cache_read_input_tokens,
                         whole.usage.input_tokens + whole.usage.cache_read_input_tokens)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_streams_thinking(self):
        with self.client.messages.stream(model="m", messages=SUM, max_tokens=300, **greedy()) as stream:
            types = [e.type for e in stream]
            final = stream.get_final_message()
        self.assertIn("thinking", types)
        self.assertIn("signature", types)
        self.assertEqual([b.type for b in final.content], ["thinking", "text"])

    def test_calls_a_tool_and_takes_its_result(self):
        question = {"role": "user", "content": "What's the weather like in Paris?"}
        fields = {"tools": [WEATHER], "thinking": OFF}
        message = self.ask(messages=[question], **fields)
        self.assertEqual(message.stop_reason, "tool_use")
        call = message.content[-1]
        self.assertEqual((call.type, call.name, call.input), ("tool_use", "get_weather", {"location": "Paris"}))
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                               "content": '{"temperature": 21, "condition": "sunny"}'}]}
        turns = [question, {"role": "assistant", "content": message.content}, result]
        final = self.ask(messages=turns, **fields)
        self.assertIn("21", final.content[-1].text)
        with self.client.messages.stream(model="m", messages=[question], max_tokens=300, **greedy(), **fields) as stream:
            pieces = [e.partial_json for e in stream if e.type == "input_json"]
            streamed = stream.get_final_message()
        self.assertGreater(len(pieces), 1)
        self.assertEqual(streamed.content[-1].input, {"location": "Paris"})

    def test_stop_sequences_and_limits(self):
        self.assertEqual(self.ask(max_tokens=1, thinking=OFF).stop_reason, "max_tokens")
        answer = self.ask(thinking=OFF).content[0].text
        stopped = self.ask(thinking=OFF, stop_sequences=[answer[-2:]])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", answer[-2:]))

    def test_counts_tokens_before_and_after(self):
        counted = self.client.messages.count_tokens(model="m", messages=SUM, system="Be brief.").input_tokens
        usage = self.ask(system="Be brief.").usage
        self.assertEqual(counted, usage.input_tokens + usage.cache_read_input_tokens)

    def test_a_repeated_prompt_is_read_from_the_cache(self):
        long = [{"role": "user", "content": "word " * 200 + "What is 1 + 1?"}]
        first = self.ask(messages=long, thinking=OFF).usage
        again = self.ask(messages=long, thinking=OFF).usage
        self.assertEqual(first.cache_creation_input_tokens, 0)
        self.assertGreaterEqual(again.cache_read_input_tokens, 128)
        self.assertEqual(again.input_tokens + again.cache_read_input_tokens,
                         first.input_tokens + first.cache_read_input_tokens)
        with self.client.messages.stream(model="m", messages=long, max_tokens=9, thinking=OFF, **greedy()) as stream:
            start = next(e for e in stream if e.type == "message_start")
            self.assertEqual(start.message.usage.cache_read_input_tokens, again.cache_read_input_tokens)

    def test_errors_arrive_as_the_clients_exceptions(self):
        with self.assertRaises(anthropic.NotFoundError):
            self.ask(model="other")
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask(messages=[])
        self.assertIn("at least one message", caught.exception.message)
        with anthropic.Anthropic(base_url=self.url, api_key="wrong", max_retries=0) as other:
            with self.assertRaises(anthropic.AuthenticationError):
                other.messages.create(model="m", messages=SUM, max_tokens=5)


def greedy():
    """Fields of a repeatable answer."""
    return {"extra_body": {"temperature": 0}}


if __name__ == "__main__":
    unittest.main()
