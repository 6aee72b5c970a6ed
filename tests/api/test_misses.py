# SPDX-License-Identifier: Apache-2.0
"""The prefix-miss explainer from outside: twenty-four staged misses, the cause of each in usage. What agents do to their
prompts, asked of the real program; positions and texts come from /tokenize of the two prompts."""

import copy
import json
import unittest

from harness import Program

PAGE = 64
OFF = {"thinking": {"type": "disabled"}}


def tool(name, description="Reads a file", kind="string"):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": {"path": {"type": kind}}, "required": ["path"]}}}


TOOLS = [tool("read"), tool("list", "Lists a folder")]
SYSTEM = "Today is Monday. " + " ".join(f"Rule {i}: answer briefly and say nothing that is not asked for." for i in range(12))
BASE = [{"role": "system", "content": SYSTEM},
        {"role": "user", "content": "What is 17 + 25?"},
        {"role": "assistant", "content": "It is 42.", "reasoning_content": "17 and 25 are 42."},
        {"role": "user", "content": "And 18 + 25? " + " ".join(["Say it in words, please."] * 20)}]


def edited(index, old, new):
    messages = copy.deepcopy(BASE)
    assert old in messages[index]["content"], old
    messages[index]["content"] = messages[index]["content"].replace(old, new, 1)
    return {"messages": messages}


# Name, fields of the first request, fields of the second: the same prompt up to the staged difference.
DIFFERENCES = [
    ("a date at the start", {}, edited(0, "Monday", "Tuesday")),
    ("a word in the middle of the system text", {}, edited(0, "Rule 7", "Rule 9")),
    ("a sign at the end of the system text", {}, edited(0, "Rule 11: answer briefly and", "Rule 11: answer briefly, and")),
    ("white space", {}, edited(0, "Rule 3: ", "Rule 3:  ")),
    ("an earlier question", {}, edited(1, "17", "16")),
    ("an earlier answer", {}, edited(2, "42", "43")),
    ("the last question, before its end", {}, edited(3, "18", "19")),
    ("a message left out", {}, {"messages": BASE[:1] + BASE[3:]}),
    ("a message put in", {}, {"messages": BASE[:1] + [{"role": "user", "content": "Hello."}] + BASE[1:]}),
    ("no system text", {}, {"messages": BASE[1:]}),
    ("tools added", {}, {"tools": TOOLS}),
    ("a tool taken away", {"tools": TOOLS}, {"tools": TOOLS[:1]}),
    ("tools in another order", {"tools": TOOLS}, {"tools": TOOLS[::-1]}),
    ("another description of a tool", {"tools": TOOLS}, {"tools": [TOOLS[0], tool("list", "Lists a directory")]}),
    ("another type of a tool's parameter", {"tools": TOOLS}, {"tools": [TOOLS[0], tool("list", "Lists a folder", "number")]}),
    ("more effort", {"thinking": {"type": "enabled"}},
     {"thinking": {"type": "enabled"}, "reasoning_effort": "max"}),
    ("a response format", {}, {"response_format": {"type": "json_object"}}),
]


class Misses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.program = Program("--served-model-name", "m", "--no-access-log")

    @classmethod
    def tearDownClass(cls):
        if cls.program.stop() != 0:
            raise AssertionError("the program failed: " + "".join(cls.program.lines))

    def ask(self, salt, program=None, **fields):
        body = {"model": "m", "messages": BASE, "max_tokens": 1, "temperature": 0, "cache_salt": salt, **OFF, **fields}
        return json.loads((program or self.program).ask("/v1/chat/completions", body))["usage"]["rorqual"]["prefix"]

    def ids(self, **fields):
        return json.loads(self.program.ask("/tokenize", {"model": "m", "messages": BASE, **OFF, **fields}))["tokens"]

    def text(self, token):
        return json.loads(self.program.ask("/detokenize", {"tokens": [token]}))["prompt"]

    def test_names_the_first_token_that_differs(self):
        for name, first, second in DIFFERENCES:
            if "response_format" in second:
                first = {"messages": edited(3, "in words", "as JSON")["messages"], **first}
                second = {"messages": first["messages"], **second}
            with self.subTest(name):
                a, b = self.ids(**first), self.ids(**second)
                common = next(i for i, (x, y) in enumerate(zip(a, b)) if x != y)
                self.assertLess(common, len(a) // PAGE * PAGE, "the stage has to differ within a whole page")
                self.ask(name, **first)
                prefix = self.ask(name, **second)
                expected = {"reason": "tokens_differ", "position": common, "common_tokens": common,
                            "token_text": self.text(b[common]), "kept_token_text": self.text(a[common])}
                if common < 8:  # nothing alike is kept
                    expected = {"reason": "first_seen", "position": common, "common_tokens": common}
                self.assertEqual({key: prefix["miss"][key] for key in expected}, expected)
                self.assertLessEqual(prefix["cached"], common // PAGE * PAGE)  # less where no windows were kept

    def test_names_other_causes(self):
        self.ask("others")
        longer = BASE + [{"role": "assistant", "content": "It is 43."}, {"role": "user", "content": "And then? " * 60}]
        kept = len(self.ids()) // PAGE * PAGE
        self.assertEqual(self.ask("others")["miss"], None, "a control: nothing is missed")
        for name, fields, reason, cached in [
                ("the conversation goes on", {"messages": longer}, "extends", kept),
                ("another salt", {"cache_salt": "a third party"}, "first_seen", 0),
                ("less than a page", {"messages": [{"role": "user", "content": "Hello"}]}, "too_short", 0),
                ("scores of the prompt", {"prompt_logprobs": 1}, "bypassed", 0),
                ("asked not to read", {"skip_reading_prefix_cache": True}, "bypassed", 0)]:
            with self.subTest(name):
                prefix = self.ask("others", **fields)
                self.assertEqual((prefix["miss"]["reason"], prefix["cached"]), (reason, cached))

    def test_names_what_a_small_cache_and_none_do(self):
        small = Program("--served-model-name", "m", "--no-access-log", "--prefix-cache-memory", "4M")
        self.addCleanup(small.stop)
        self.ask("x", small)
        for i in range(40):
            self.ask(f"other {i}", small)
        self.assertEqual(self.ask("x", small)["miss"]["reason"], "evicted")
        none = Program("--served-model-name", "m", "--no-access-log", "--no-enable-prefix-caching")
        self.addCleanup(none.stop)
        self.ask("x", none)
        self.assertEqual(self.ask("x", none)["miss"]["reason"], "off")


if __name__ == "__main__":
    unittest.main()
