# SPDX-License-Identifier: Apache-2.0
"""Mutations of JSON bodies that know their structure: wrong types, extreme numbers, deep and wide values, repeated
keys, broken UTF-8, surrogates. All drawn from one random.Random, so that a seed gives the same bodies again."""

import copy
import json

CONTROL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "</think>", "<think>", "｜DSML｜",
           "<｜DSML｜ calls>", "<｜fim▁hole｜>", "<｜deepseek_image｜>"]
NUMBERS = [0, -0.0, -1, 1, 2, 7, 8, 16, 17, 127, 128, 255, 256, 1023, 1024, 65536, 2**31 - 1, 2**31, -2**31, 2**32, 2**53,
           2**63 - 1, 2**63, -2**63, 2**64 - 1, 2**64, 10**30, -10**30, 0.5, 1.5, 1e-30, 1e-45, 1e-320, 1e30, 1e38, 3.5e38,
           1e308, -1e308]
STRINGS = ["", " ", "\n", "a", "\0", "a\0b", "\x7f", "\u00e9", "\ud800", "\udc00\ud800", "\U0001f600", "\ufeff", "\u202e",
           "\ufffe", "e\u0301", "%s%n", "../../etc/passwd", "' OR 1=1", "${x}", "{{7*7}}", "null", "0", "-1", "1e999",
           "true", "required", "auto", "none", "json", *CONTROL]
WORDS = ["stream", "n", "logprobs", "top_logprobs", "prompt_logprobs", "prompt_logprobs_begin", "echo", "suffix", "stop",
         "stop_token_ids", "bad_words", "allowed_token_ids", "logprob_token_ids", "logit_bias", "min_tokens", "max_tokens",
         "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty",
         "frequency_penalty", "repetition_penalty", "seed", "ignore_eos", "include_stop_str_in_output", "tools",
         "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs", "guided_json", "guided_regex",
         "chat_template", "chat_template_kwargs", "thinking", "reasoning_effort", "reasoning", "continue_final_message",
         "add_generation_prompt", "return_token_ids", "return_token_strs", "return_tokens_as_token_ids", "priority",
         "request_id", "cache_salt", "skip_reading_prefix_cache", "speculative_tokens", "replay_trim", "stream_options",
         "add_special_tokens", "include_reasoning", "skip_special_tokens", "model", "prompt", "messages", "input",
         "instructions", "system", "prompt_embeds", "truncate_prompt_tokens", "role", "content", "tool_calls",
         "tool_call_id", "name", "prefix", "type", "text", "image_url", "function", "parameters", "strict", "user",
         "store", "metadata", "best_of", "use_beam_search", "best_of", "kv_transfer_params", "documents", "mm_processor_kwargs"]


def paths(value, prefix=()):
    """All places in a value, the root's children first."""
    found = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        found.append((*prefix, key))
        found += paths(child, (*prefix, key))
    return found


def parent_of(value, path):
    for key in path[:-1]:
        value = value[key]
    return value


class Mutator:
    def __init__(self, random):
        self.random = random

    def wild(self, depth=0):
        """A value of any kind."""
        kind = self.random.randrange(12)
        if kind < 3:
            return self.random.choice(NUMBERS)
        if kind < 6:
            return self.random.choice(STRINGS)
        if kind == 6:
            return self.random.choice([None, True, False])
        if kind == 7:
            return self.random.choice(STRINGS) * self.random.choice([3, 300, 30_000])
        if kind == 8:
            return [self.random.choice([0, -1, "a", None, [], {}, 2**31])] * self.random.choice([1, 17, 1025, 100_000])
        if kind == 9:
            return {str(i): self.random.choice([1, "a", None]) for i in range(self.random.choice([1, 20, 2000]))}
        if depth > 3:
            return []
        if kind == 10:
            return [self.wild(depth + 1) for _ in range(self.random.randrange(4))]
        return {self.random.choice(WORDS): self.wild(depth + 1) for _ in range(self.random.randrange(4))}

    def change(self, body):
        """One change of the tree."""
        places = paths(body)
        kind = self.random.randrange(7)
        if kind == 0 or not places:
            body[self.random.choice(WORDS)] = self.wild()
            return
        path = self.random.choice(places)
        holder, key = parent_of(body, path), path[-1]
        if kind <= 3:
            holder[key] = self.wild()
        elif kind == 4:
            del holder[key]
        elif kind == 5:
            other = self.random.choice(places)
            holder[key] = copy.deepcopy(parent_of(body, other)[other[-1]])
        elif isinstance(holder, list):
            holder.extend(copy.deepcopy(holder[:50]) * self.random.choice([1, 20]))
        else:
            holder[self.random.choice(WORDS)] = holder[key]

    def damage(self, data):
        """One change of the bytes."""
        at = self.random.randrange(len(data) + 1)
        kind = self.random.randrange(9)
        if kind == 0:
            return data[:at]
        if kind == 1:
            return data[:at] + bytes([self.random.randrange(256)]) + data[at + 1:]
        if kind == 2:
            insert = self.random.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80", b"\0",
                                         b"\\ud800", b"\\u0000", b'"', b"\\", b"}", b"]", b",", b"//"])
            return data[:at] + insert + data[at:]
        if kind == 3:
            depth = self.random.choice([120, 130, 10_000, 200_000])
            opening, closing = self.random.choice([(b"[", b"]"), (b'{"a":', b"}")])
            return data[:-1] + b',"x":' + opening * depth + b"0" + closing * depth + b"}"
        if kind == 4:
            key = self.random.choice(WORDS).encode()
            return data[:-1] + b"".join(b',"%s":%d' % (key, i) for i in range(self.random.choice([2, 3000]))) + b"}"
        if kind == 5:
            value = self.random.choice([b"NaN", b"-Infinity", b"1e999", b"01", b"+1", b"0x1", b"1" * 5000, b"1e-99999"])
            return data[:-1] + b',"%s":%s}' % (self.random.choice(WORDS).encode(), value)
        if kind == 6:
            end = self.random.randrange(at, len(data) + 1)
            return data[:at] + data[at:end] * 2 + data[end:]
        if kind == 7:
            return b"\xef\xbb\xbf" + data
        return data + self.random.choice([b"x", b"{}", b"\0", data])

    def body(self, valid):
        """Bytes of a mutated copy of a valid body."""
        body = copy.deepcopy(valid)
        for _ in range(self.random.choice([0, 1, 1, 1, 2, 4])):
            self.change(body)
        text = json.dumps(body, ensure_ascii=self.random.random() < 0.5)
        data = text.encode("utf-8", "surrogatepass")
        return self.damage(data) if self.random.random() < 0.35 else data
