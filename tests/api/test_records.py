# SPDX-License-Identifier: Apache-2.0
"""Reported failures of other engines (docs/compat.md), one test per report, over HTTP with a scripted engine."""

import json
import math
import re
import unittest

from harness import DSML, THINK_END, TOKENIZER, ApiTest, Program, Server, tool_block

EOS = "<｜end▁of▁sentence｜>"
THINKING = {"thinking": {"type": "enabled"}}
F = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}}}}}
G = {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}}


def byte_tokens():
    """The token of each single byte: the alphabet of byte-level BPE, in which printable bytes stand for themselves."""
    with open(TOKENIZER, encoding="utf-8") as file:
        vocabulary = json.load(file)["model"]["vocab"]
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return {byte: vocabulary[letter] for byte, letter in letters.items() if letter in vocabulary}


BYTES = byte_tokens()


def spelled(data):
    """Tokens of one byte each."""
    return [BYTES[byte] for byte in (data.encode() if isinstance(data, str) else data)]


def message_of(events):
    """The streamed message put together: content, reasoning and calls."""
    message = {"content": "", "reasoning_content": "", "calls": {}}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call in delta.get("tool_calls", []):
                kept = message["calls"].setdefault(call["index"], {"id": None, "name": None, "arguments": ""})
                kept["id"] = call.get("id") or kept["id"]
                kept["name"] = call["function"].get("name") or kept["name"]
                kept["arguments"] += call["function"].get("arguments") or ""
            message["finish_reason"] = choice["finish_reason"] or message.get("finish_reason")
    return message


class Case(ApiTest):
    """One answer of the model, whole and streamed."""

    def answers(self, tokens, **fields):
        """[whole, streamed] messages in one form; both must be equal but for the ids of calls."""
        server = Server([{"tokens": tokens} if isinstance(tokens, list) else {"text": tokens}])
        self.addCleanup(server.stop)
        body = server.chat(**fields)
        choice = server.post("/v1/chat/completions", body)["choices"][0]
        message = choice["message"]
        whole = {"content": message["content"] or "", "reasoning_content": message["reasoning_content"] or "",
                 "calls": {c["index"]: {"id": c["id"], **c["function"]} for c in message.get("tool_calls", [])},
                 "finish_reason": choice["finish_reason"]}
        streamed = message_of(server.events("/v1/chat/completions", body))
        for message in (whole, streamed):
            for call in message["calls"].values():
                self.assertTrue(call.pop("id"))
        self.assertEqual(whole, streamed)
        for name in ("content", "reasoning_content"):
            for marker in (EOS, THINK_END, "｜DSML｜"):
                self.assertNotIn(marker, whole[name])
        server.stop()
        return whole


class Api(Case):
    def test_api_01_thinking_that_never_closes(self):
        got = self.answers("Good morning", **THINKING)
        self.assertEqual((got["reasoning_content"], got["content"], got["finish_reason"]), ("Good morning", "", "stop"))

    def test_api_08_a_stop_string_over_any_cut(self):
        text, stop = "alpha beta gamma delta", "beta gamma"
        begin = text.index(stop)
        scripts = [{"tokens": spelled(text)}]
        helper = Server([{"text": "a"}])
        for cut in range(begin, begin + len(stop) + 1):
            ids = [helper.post("/tokenize", {"prompt": part})["tokens"] if part else [] for part in (text[:cut], text[cut:])]
            scripts.append({"tokens": ids[0] + ids[1]})
        helper.stop()
        server = Server([line for line in scripts for _ in range(2)])
        self.addCleanup(server.stop)
        for _ in scripts:
            body = server.chat(stop=[stop])
            choice = server.post("/v1/chat/completions", body)["choices"][0]
            self.assertEqual((choice["message"]["content"], choice["finish_reason"]), ("alpha ", "stop"))
            self.assertEqual(message_of(server.events("/v1/chat/completions", body))["content"], "alpha ")

    def test_stop_strings_wait_for_min_tokens(self):
        server = Server([{"tokens": spelled("a.b.c.d")}])
        self.addCleanup(server.stop)
        for min_tokens, text in ((0, "a"), (1, "a"), (2, "a.b"), (4, "a.b.c"), (6, "a.b.c.d")):
            fields = {"stop": ["."], "min_tokens": min_tokens, "max_tokens": 20}
            body = server.chat(**fields)
            got = server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
            streamed = message_of(server.events("/v1/chat/completions", body))["content"]
            body = {"model": body["model"], "prompt": "x", **fields}
            self.assertEqual([got, streamed, server.post("/v1/completions", body)["choices"][0]["text"]], [text] * 3, min_tokens)

    def test_api_13_more_closing_tags_are_never_shown(self):
        got = self.answers("a" + THINK_END + "b" + THINK_END + "c" + THINK_END, **THINKING)
        self.assertEqual(got["reasoning_content"], "a")
        self.assertEqual(got["content"].replace(" ", ""), "bc")

    def test_api_15_log_probabilities_are_those_of_the_model(self):
        program = Program("--served-model-name", "m", "--max-logprobs", "-1")
        self.addCleanup(program.stop)

        def post(path, fields):
            return json.loads(program.ask(path, fields))

        body = {"model": "m", "messages": [{"role": "user", "content": "What is 17 + 25?"}], "logprobs": True,
                "top_logprobs": 5, "temperature": 1, "seed": 3, "thinking": {"type": "disabled"}, "return_token_ids": True}
        choice = post("/v1/chat/completions", body)["choices"][0]
        entries = choice["logprobs"]["content"]
        self.assertGreater(len(entries), 0)
        for entry in entries:
            self.assertEqual(len(entry["top_logprobs"]), 5)
            self.assertLessEqual(sum(math.exp(top["logprob"]) for top in entry["top_logprobs"]), 1 + 1e-5)
            self.assertGreater(entry["logprob"], -9999)
        # Over the whole vocabulary they are those of a distribution, and each prompt token has the one it is given.
        ids = post("/tokenize", {"messages": body["messages"], "thinking": {"type": "disabled"}})["tokens"]
        whole = post("/v1/completions", {"model": "m", "prompt": ids, "max_tokens": 0, "prompt_logprobs": -1})
        for row in whole["choices"][0]["prompt_logprobs"][1:]:
            self.assertAlmostEqual(sum(math.exp(e["logprob"]) for e in row.values()), 1, delta=1e-3)

    def test_api_16_auto_is_as_if_omitted(self):
        server = self.server
        for thinking in ("enabled", "disabled"):
            body = {"messages": [{"role": "user", "content": "q"}], "tools": [F], "thinking": {"type": thinking}}
            plain = server.post("/tokenize", body)
            self.assertEqual(server.post("/tokenize", {**body, "tool_choice": "auto"}), plain)
            self.assertEqual(server.post("/v1/chat/completions", {**server.chat(**body), "tool_choice": "auto"})
                             ["usage"]["prompt_tokens"], plain["count"])


class Encoding(ApiTest):
    def text(self, messages, **fields):
        """The prompt as text, control tokens included."""
        tokens = self.server.post("/tokenize", {"messages": messages, "thinking": {"type": "disabled"}, **fields})["tokens"]
        return self.server.post("/detokenize", {"tokens": tokens})["prompt"]

    def test_encoding_01_the_cue_and_nothing_else_is_omitted(self):
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
        on, off = self.text(messages), self.text(messages, add_generation_prompt=False)
        self.assertTrue(on.startswith(off))
        self.assertIn("<｜Assistant｜>", on[len(off):])
        self.assertEqual(off.count("<｜Assistant｜>"), 1)
        self.assertTrue(off.endswith("hello" + EOS))

    def test_encoding_04_a_system_message_in_the_middle_keeps_its_place(self):
        got = self.text([{"role": "system", "content": "AAA"}, {"role": "user", "content": "BBB"},
                         {"role": "assistant", "content": "CCC"}, {"role": "system", "content": "DDD"},
                         {"role": "user", "content": "EEE"}])
        self.assertEqual(got.count("DDD"), 1)
        places = [got.index(word) for word in ("AAA", "BBB", "CCC", "DDD", "EEE")]
        self.assertEqual(places, sorted(places))
        self.assertIn("<｜", got[got.index("CCC"):got.index("DDD")])
        self.assertIn("<｜", got[got.index("DDD"):got.index("EEE")])

    def test_encoding_05_efforts_are_those_of_the_release(self):
        def prompt(effort):
            return self.text([{"role": "user", "content": "q"}], thinking={"type": "enabled"}, reasoning_effort=effort)

        for effort, number in (("low", 50), ("high", 75), ("xhigh", 75), ("max", 100)):
            self.assertEqual(re.findall(r"Reasoning Effort: (\d+) ", prompt(effort)), [str(number)], effort)

    def call(self, *ids):
        return {"role": "assistant", "content": "", "tool_calls": [
            {"id": i, "type": "function", "function": {"name": "f", "arguments": json.dumps({"city": f"for-{i}"})}} for i in ids]}

    def test_encoding_08_results_in_a_row_are_all_there(self):
        result = [{"role": "tool", "tool_call_id": i, "content": f"result-{i}"} for i in ("c0", "c1")]
        got = self.text([{"role": "user", "content": "q"}, self.call("c0", "c1"), *result], tools=[F])
        self.assertLess(got.index("result-c0"), got.index("result-c1"))
        # Whatever order they come in, they stand in the order of the calls.
        self.assertEqual(self.text([{"role": "user", "content": "q"}, self.call("c0", "c1"), *result[::-1]], tools=[F]), got)

    def test_encoding_10_a_result_without_its_call_is_refused(self):
        messages = [{"role": "user", "content": "q"}, self.call("c1"),
                    {"role": "tool", "tool_call_id": "c1", "content": "a"},
                    {"role": "tool", "tool_call_id": "c2", "content": "b"}]
        for path, body in (("/tokenize", {"messages": messages}), ("/v1/chat/completions", self.server.chat(messages=messages))):
            self.assertIn("must be a response to a preceding message", self.error(path, body)["message"])

    def test_encoding_11_a_result_and_the_users_words_share_a_turn(self):
        got = self.text([{"role": "user", "content": "q"}, self.call("c1"),
                         {"role": "tool", "tool_call_id": "c1", "content": "RRR"}, {"role": "user", "content": "and now?"}],
                        tools=[F])
        between = got[got.index("RRR"):got.index("and now?")]
        self.assertNotIn("<｜User｜>", between)
        self.assertNotIn("<｜Assistant｜>", between)

    def test_encoding_13_reasoning_stays_where_tools_are(self):
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "reasoning_content": "SENTINEL", "content": "a"},
                    {"role": "user", "content": "and?"}]
        for fields in ({"tools": [F]}, {}):
            got = self.text(messages, thinking={"type": "enabled"}, **fields)
            self.assertEqual("SENTINEL" in got, bool(fields))

    def test_encoding_14_the_schema_is_in_the_prompt(self):
        schema = {"type": "object", "properties": {"zz_probe": {"type": "string"}}}
        got = self.text([{"role": "system", "content": "SYS"}, {"role": "user", "content": "UUU"}],
                        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
        self.assertEqual(got.count("zz_probe"), 1)
        self.assertLess(got.index("SYS"), got.index("zz_probe"))
        self.assertLess(got.index("zz_probe"), got.index("UUU"))


class Tokenizer(Case):
    def test_tokenizer_01_and_05_characters_over_two_tokens(self):
        data = "A \U0001f600 世!".encode()
        self.assertEqual(self.answers(spelled(data))["content"], "A \U0001f600 世!")

    def test_tokenizer_01_no_piece_holds_half_a_character(self):
        server = Server([{"tokens": spelled("\U0001f600" * 20), "pause_ms": 1}])
        self.addCleanup(server.stop)
        for event in server.events("/v1/chat/completions", server.chat()):
            for choice in event["choices"]:
                self.assertNotIn("\ufffd", choice["delta"].get("content") or "")

    def test_tokenizer_03_nothing_is_sent_twice(self):
        for text in ("A 世ab", "世界世界", "a\u0301\u0302b", "\U0001f468\u200d\U0001f469\u200d\U0001f467 x"):
            self.assertEqual(self.answers(spelled(text))["content"], text)

    def test_tokenizer_06_a_byte_that_is_no_text_becomes_one_replacement(self):
        for data, text in ((b"\xff ok", "\ufffd ok"), (b"\xc3(", "\ufffd("), (b"\xf0\x9f\x98 x", "\ufffd x"),
                           (b"\xed\xa0\x80!", "\ufffd\ufffd\ufffd!"),
                           (b"ok\xe4\xb8", "ok")):  # half a character at the very end is dropped (docs/text.md)
            self.assertEqual(self.answers(spelled(data))["content"], text, data)

    def test_tokenizer_08_a_body_over_the_limit(self):
        self.assertEqual(self.server.request("POST", "/tokenize", b'{"prompt": "' + b"a" * (48 << 20) + b'"}')[0], 413)


class ToolParse(Case):
    def calls(self, text, tools=(F, G), **fields):
        got = self.answers(text, tools=list(tools), **fields)
        return got, [(c["name"], c["arguments"]) for _, c in sorted(got["calls"].items())]

    def test_tool_parse_01_and_14_any_cut_gives_the_same_arguments(self):
        text = tool_block("f", [("city", True, "Paris"), ("days", False, "3")])
        helper = Server([{"text": "a"}])

        def tokens(part):
            return helper.post("/tokenize", {"prompt": part})["tokens"] if part else []

        # A marker is one token; cut in two it is ordinary text by rule, so that cuts lie around it.
        inside = {m.start() + i for m in re.finditer(DSML, text) for i in range(1, len(DSML))}
        scripts = [{"tokens": tokens(text[:cut]) + tokens(text[cut:])} for cut in range(len(text) + 1) if cut not in inside]
        helper.stop()
        server = Server(scripts)
        self.addCleanup(server.stop)
        for _ in scripts:
            got = message_of(server.events("/v1/chat/completions", server.chat(tools=[F])))
            self.assertEqual(json.loads(got["calls"][0]["arguments"]), {"city": "Paris", "days": 3})
            self.assertEqual(got["content"], "")
            self.assertEqual(got["finish_reason"], "tool_calls")

    def test_tool_parse_02_a_damaged_wrapper_is_the_same_whole_and_streamed(self):
        text = tool_block("f", [("city", True, "Paris")])
        for damaged in (text.replace(f"<{DSML} calls>", f"<{DSML} call>"), text.replace(f"</{DSML} calls>", ""),
                        text.replace(f"<{DSML} calls>", ""), text.replace(f"</{DSML} invoke>", "")):
            got, calls = self.calls(damaged)
            self.assertEqual(got["finish_reason"], "tool_calls" if calls else "stop", damaged)

    def test_tool_parse_05_tags_of_both_versions(self):
        spaced = tool_block("f", [("city", True, "Oslo")])
        for text in (spaced, spaced.replace(f"{DSML} ", DSML)):
            _, calls = self.calls(text)
            self.assertEqual([(n, json.loads(a)) for n, a in calls], [("f", {"city": "Oslo"})], text)

    def test_tool_parse_11_an_answer_cut_inside_a_call(self):
        text = "Look." + tool_block("f", [("city", True, "Paris")]).replace(
            f"</{DSML} calls>", f'<{DSML} invoke name="g">\n</{DSML} invoke>\n</{DSML} calls>')
        server = Server([{"text": text}])
        self.addCleanup(server.stop)
        total = server.post("/v1/chat/completions", server.chat(tools=[F, G]))["usage"]["completion_tokens"]
        for limit in range(1, total + 1):
            body = server.chat(tools=[F, G], max_tokens=limit)
            choice = server.post("/v1/chat/completions", body)["choices"][0]
            streamed = message_of(server.events("/v1/chat/completions", body))
            self.assertNotIn("DSML", choice["message"]["content"])
            self.assertEqual(choice["message"]["content"], streamed["content"])
            self.assertEqual(choice["finish_reason"], streamed["finish_reason"])
            names = [c["function"]["name"] for c in choice["message"].get("tool_calls", [])]
            self.assertEqual(names, [c["name"] for c in streamed["calls"].values()])
            self.assertIn(names, ([], ["f"], ["f", "g"]))
            if limit < total - 1:
                self.assertEqual(choice["finish_reason"], "length", limit)

    def test_tool_parse_12_no_calls_where_none_were_offered(self):
        text = "Look." + tool_block("f", [("city", True, "Paris")])
        for fields in ({}, {"tools": [F], "tool_choice": "none"}):
            server = Server([{"text": text}])
            choice = server.post("/v1/chat/completions", server.chat(**fields))["choices"][0]
            streamed = message_of(server.events("/v1/chat/completions", server.chat(**fields)))
            server.stop()
            self.assertNotIn("tool_calls", choice["message"])
            self.assertEqual(streamed["calls"], {})
            self.assertEqual((choice["finish_reason"], streamed["finish_reason"]), ("stop", "stop"))
            self.assertEqual(choice["message"]["content"], streamed["content"])

    def test_tool_parse_16_all_calls_of_a_block(self):
        block = tool_block("f", [("city", True, "A")]).replace(
            f"</{DSML} calls>", f'<{DSML} invoke name="g">\n</{DSML} invoke>\n</{DSML} calls>')
        server = Server([{"text": block}])
        self.addCleanup(server.stop)
        for calls in (server.post("/v1/chat/completions", server.chat(tools=[F, G]))["choices"][0]["message"]["tool_calls"],):
            self.assertEqual([(c["index"], c["function"]["name"]) for c in calls], [(0, "f"), (1, "g")])
            self.assertNotEqual(calls[0]["id"], calls[1]["id"])
        streamed = message_of(server.events("/v1/chat/completions", server.chat(tools=[F, G])))["calls"]
        self.assertEqual([streamed[i]["name"] for i in sorted(streamed)], ["f", "g"])
        self.assertNotEqual(streamed[0]["id"], streamed[1]["id"])

    def test_tool_parse_18_arguments_are_json_whatever_bytes_they_hold(self):
        before, after = tool_block("f", [("city", True, "XX")]).split("XX")
        helper = Server([{"text": "a"}])
        head, tail = (helper.post("/tokenize", {"prompt": part})["tokens"] for part in (before, after))
        helper.stop()
        values = [bytes([b]) for b in range(256) if b in BYTES] + [b"\0\n\x1f", b"\xed\xa0\x80", b'"\\', b"\xc3"]
        server = Server([{"tokens": head + spelled(b"a" + v + b"z") + tail} for v in values])
        self.addCleanup(server.stop)
        for value in values:
            got = message_of(server.events("/v1/chat/completions", server.chat(tools=[F])))
            city = json.loads(got["calls"][0]["arguments"])["city"]
            self.assertEqual(city.encode(), ("a" + value.decode("utf-8", "replace") + "z").encode(), value)

    def test_tool_parse_21_types_in_a_list(self):
        for value in ("null", "3"):
            _, calls = self.calls(tool_block("f", [("days", False, value)]))
            self.assertEqual([json.loads(a) for _, a in calls], [{"days": json.loads(value)}])


if __name__ == "__main__":
    unittest.main()
