# SPDX-License-Identifier: Apache-2.0
"""`rorqual serve` with the model inside it, as a whole: reuse, clients that leave, scheduling, drafts, counters.

Each test names the report about another engine that it keeps away (docs/compat.md). Standard library only."""

import contextlib
import json
import os
import random
import re
import tempfile
import threading
import unittest

from harness import ROOT, Program

PAGE = 64  # tokens of a page, and the smallest hit
WINDOW = 64  # of the model inside the program
FIRST_ID, LAST_ID = 100, 3900  # ordinary tokens
SAMPLE = r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)'  # Prometheus text format
QUESTION = "What is 17 + 25?"
TOOLS = [{"type": "function", "function": {
    "name": "add_to_list", "description": "Add items to the shopping list", "parameters": {
        "type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}},
        "required": ["items"]}}}]


def pages(count):
    return count // PAGE * PAGE


def tokens(count, seed):
    numbers = random.Random(seed)
    return [numbers.randint(FIRST_ID, LAST_ID) for _ in range(count)]


def bits(answer):
    """Token ids and log-probabilities (printed so that equal text is equal bits) of all choices."""
    return [(c["token_ids"], c["logprobs"]["token_logprobs"]) for c in answer["choices"]]


def reuse(answer):
    return answer["usage"]["rorqual"]["prefix"]


class Engine(Program):
    """The program with what these tests ask it."""

    def __init__(self, *options):
        super().__init__("--served-model-name", "m", "--seed", "1", *options)

    def body(self, prompt, max_tokens, **fields):
        return {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": 1,
                "ignore_eos": True, "return_token_ids": True, **fields}

    def complete(self, prompt, max_tokens=4, **fields):
        return json.loads(self.ask("/v1/completions", self.body(prompt, max_tokens, **fields)))

    def cold(self, prompt, max_tokens=4, **fields):
        """The same without reading the prefix cache."""
        answer = self.complete(prompt, max_tokens, skip_reading_prefix_cache=True, **fields)
        assert reuse(answer)["cached"] == 0, answer["usage"]
        return answer

    def chat(self, messages, **fields):
        return json.loads(self.ask("/v1/chat/completions", {
            "model": "m", "messages": messages, "temperature": 0, "max_tokens": 64, **fields}))

    def wait_idle(self):
        """Nothing runs or waits, and no page is held by a request."""
        self.wait(lambda: self.unfinished() == 0, "no request is left")
        assert self.metric("vllm:kv_cache_usage_perc") == 0, "blocks are held by nobody"

    def unfinished(self):
        samples = self.metrics()
        return sum(v for k, v in samples.items() if re.match(r"vllm:num_requests_(running|waiting)\{", k))


class EngineTest(unittest.TestCase):
    """Tests over one program per class."""

    options = ()

    @classmethod
    def setUpClass(cls):
        cls.program = Engine("--no-access-log", *cls.options)
        cls.addClassCleanup(cls.program.stop)


class Reuse(EngineTest):
    options = ("--max-model-len", "8K", "--prefix-cache-memory", "128M", "--max-num-seqs", "4")

    def test_a_repeat_after_another_request_has_the_bits_of_the_cold_answer(self):  # E-prefix-cache-01
        prompt = tokens(3 * WINDOW + 20, "a")
        cold = self.program.complete(prompt, 12)
        self.assertEqual(reuse(cold)["cached"], 0)
        self.program.complete(tokens(700, "another one"), 12)
        again = self.program.complete(prompt, 12)
        self.assertEqual(reuse(again)["cached"], 3 * WINDOW)
        self.assertEqual(bits(again), bits(cold))

    def test_short_and_long_prompts_are_reused_in_pages_of_64(self):  # E-prefix-cache-03
        for count in (65, 100, 500, 2000):
            prompt = tokens(count, f"repeated {count}")
            answers = [self.program.complete(prompt) for _ in range(2)]
            self.assertEqual([reuse(a)["cached"] for a in answers], [0, pages(count - 1)], count)
            self.assertEqual(answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"], pages(count - 1))
            self.assertEqual(bits(answers[0]), bits(answers[1]))

    def test_hits_around_the_window_compute_what_the_window_needs(self):  # E-prefix-cache-05
        kept = tokens(12 * WINDOW, "kept")
        for length in (WINDOW - 1, WINDOW, WINDOW + 1, 5 * WINDOW, 12 * WINDOW - 1):
            salt = {"cache_salt": str(length)}
            self.program.complete(kept, 1, **salt)
            prompt = kept[:length] + tokens(20, length)
            before = self.program.metric("rorqual:iteration_tokens_total_sum")
            warm = self.program.complete(prompt, 1, speculative_tokens=0, **salt)
            computed = self.program.metric("rorqual:iteration_tokens_total_sum") - before
            found = reuse(warm)
            self.assertEqual(computed, len(prompt) - found["cached"] + found["replayed"], length)
            if length <= WINDOW + 1:  # not worth it: the window is as long as the hit
                self.assertEqual(found["cached"], 0, length)
            elif length == 5 * WINDOW:
                self.assertEqual((found["cached"], found["replayed"]), (length, length), "no window: rows run again")
            else:
                self.assertEqual((found["cached"], found["replayed"]), (11 * WINDOW, 0), "kept with its window")
            again = self.program.complete(prompt, 10, **salt)
            self.assertEqual(bits(again), bits(self.program.cold(prompt, 10)), length)

    def test_drafts_and_reuse_go_together(self):  # E-prefix-cache-06
        prompt = tokens(400, "drafts")
        expected = bits(self.program.complete(prompt, 24, speculative_tokens=0))
        for drafts in (0, 1, 5):
            again = self.program.complete(prompt, 24, speculative_tokens=drafts)
            self.assertEqual(reuse(again)["cached"], 384, drafts)
            self.assertEqual(bits(again), expected, drafts)

    def test_a_turn_behind_an_end_token_has_the_logits_of_a_cold_run(self):  # E-prefix-cache-08
        messages = [{"role": "system", "content": "Answer briefly and correctly. " * 12},
                    {"role": "user", "content": QUESTION}]
        for turn in range(3):
            answer = self.program.chat(messages, thinking={"type": "disabled"}, return_token_ids=True, max_tokens=100)
            choice = answer["choices"][0]
            self.assertEqual(choice["finish_reason"], "stop", "the answer has to end with an end token")
            messages += [{"role": "assistant", "content": choice["message"]["content"]},
                         {"role": "user", "content": f"And {turn + 2} + 25?"}]
            ask = {"thinking": {"type": "disabled"}, "logprobs": True, "top_logprobs": 5, "return_token_ids": True}
            cold = self.program.chat(messages, skip_reading_prefix_cache=True, **ask)
            warm = self.program.chat(messages, **ask)
            self.assertGreaterEqual(reuse(warm)["cached"], pages(answer["usage"]["prompt_tokens"]))
            for part in ("token_ids", "logprobs"):
                self.assertEqual(warm["choices"][0][part], cold["choices"][0][part])

    def test_prompt_logprobs_are_whole_and_the_same_each_time(self):  # E-prefix-cache-15
        for count in (33, 65, 129):
            prompt = tokens(count, f"scored {count}")
            self.program.complete(prompt)
            answers = [self.program.complete(prompt, 1, prompt_logprobs=1) for _ in range(2)]
            rows = [a["choices"][0]["prompt_logprobs"] for a in answers]
            self.assertEqual(rows[0], rows[1])
            self.assertEqual(len(rows[0]), count)
            self.assertIsNone(rows[0][0])
            self.assertTrue(all(str(prompt[i]) in rows[0][i] for i in range(1, count)))
            self.assertEqual(reuse(answers[1])["miss"]["reason"], "bypassed")

    def test_prompt_logprobs_hold_nothing_of_other_requests(self):  # E-prefix-cache-16
        prompt = tokens(300, "scored")
        other = prompt[:150] + tokens(150, "the other half")
        first = self.program.complete(prompt, 1, prompt_logprobs=2)
        self.program.complete(other, 1, prompt_logprobs=2)
        self.program.complete(other, 8)
        again = self.program.complete(prompt, 1, prompt_logprobs=2)
        self.assertEqual(again["choices"][0]["prompt_logprobs"], first["choices"][0]["prompt_logprobs"])
        self.assertEqual(bits(again), bits(first))

    def test_a_shorter_edited_prompt_computes_little(self):  # E-prefix-cache-18
        live = tokens(5557, "live")
        self.program.complete(live)
        edited = live[:5523] + tokens(10, "edited")
        before = self.program.metric("rorqual:iteration_tokens_total_sum")
        warm = self.program.complete(edited, 1, speculative_tokens=0)
        computed = self.program.metric("rorqual:iteration_tokens_total_sum") - before
        self.assertLessEqual(computed, 10 + WINDOW + PAGE)
        self.assertEqual(reuse(warm)["cached"], pages(5523))
        self.assertEqual(bits(self.program.complete(edited, 6)), bits(self.program.cold(edited, 6)))

    def test_a_replay_trim_is_told_and_leaves_nothing(self):  # E-attention-15
        prompt = tokens(900, "trimmed")
        trimmed = self.program.complete(prompt, 8, replay_trim=64)
        self.assertEqual(trimmed["usage"]["rorqual"]["replay_trim"], 64)
        exact = self.program.complete(prompt, 8)
        self.assertEqual(exact["usage"]["rorqual"]["replay_trim"], 0)
        self.assertEqual(bits(exact), bits(self.program.cold(prompt, 8)))
        self.assertNotEqual(bits(trimmed), bits(exact), "nothing was trimmed")

    def test_an_immediate_repeat_is_a_hit_every_time(self):  # E-prefix-cache-21
        connection = self.program.connect()
        for i in range(100):
            prompt = tokens(70, f"repeat {i}")
            cached = []
            for _ in range(2):
                connection.request("POST", "/v1/completions", json.dumps(self.program.body(prompt, 1)),
                                   {"Content-Type": "application/json"})
                cached.append(reuse(json.loads(connection.getresponse().read()))["cached"])
            self.assertEqual(cached, [0, 64], i)
        connection.close()


class SmallBudget(EngineTest):
    """The prefix cache holds about one conversation."""

    options = ("--max-model-len", "4K", "--prefix-cache-memory", "2M", "--max-num-seqs", "2")

    def test_the_end_of_an_answer_does_not_drive_out_the_end_of_the_prompt(self):  # E-prefix-cache-07
        messages = [{"role": "system", "content": "You are a careful assistant. " * 20},
                    {"role": "user", "content": "Add milk and bread to my shopping list."}]
        before = 0
        for turn in range(4):
            answer = self.program.chat(messages, tools=TOOLS, max_tokens=200)
            usage, message = answer["usage"], answer["choices"][0]["message"]
            self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], pages(max(before - 1, 0)), turn)
            before = usage["prompt_tokens"]
            messages.append({k: message[k] for k in ("role", "content", "tool_calls") if message.get(k)})
            if message.get("tool_calls"):
                messages += [{"role": "tool", "tool_call_id": call["id"], "content": "done"}
                             for call in message["tool_calls"]]
            else:
                messages.append({"role": "user", "content": f"Add {('tea', 'rice', 'salt')[turn % 3]}, too."})
        self.assertGreater(before, 300)

    def test_conversations_that_alternate_find_their_beginning_each_time(self):  # E-prefix-cache-11
        # About one and a half of them fit.
        prompts = [tokens(1500, "first"), tokens(1500, "second")]
        for prompt in prompts:
            self.program.complete(prompt, 1)
        self.assertGreater(self.program.metric("rorqual:prefix_cache_evicted_pages_total"), 0)
        for turn in range(6):
            prompt = prompts[turn % 2]
            prompt += tokens(10, turn)
            self.assertGreater(reuse(self.program.complete(prompt, 1))["cached"], 0, turn)


class ToolLoop(EngineTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.options = ("--prefix-cache-dir", cls.folder.name, "--prefix-cache-disk", "64M", "--max-model-len", "4K",
                       "--speculative-tokens", "4", "--max-num-seqs", "2")
        super().setUpClass()

    def test_calls_that_come_back_in_another_form_keep_the_prompt(self):  # E-prefix-cache-13
        messages = [{"role": "system", "content": "Use the tools. " * 30},
                    {"role": "user", "content": "Add milk and bread to my shopping list."}]
        before = 0
        for turn in range(3):
            answer = self.program.chat(messages, tools=TOOLS, thinking={"type": "disabled"})
            usage = answer["usage"]
            self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], pages(max(before - 1, 0)), turn)
            before = usage["prompt_tokens"]
            # Not what the model wrote: other separators, another spelling of the arguments.
            messages += [{"role": "assistant", "content": f"I do so.\n \n{turn}\n", "tool_calls": [
                            {"id": f"call_{turn}", "type": "function", "function": {
                                "name": "add_to_list", "arguments": f'{{ "items" :[ "milk{turn}","bread" ] }}'}}]},
                         {"role": "tool", "tool_call_id": f"call_{turn}", "content": "done"}]
        self.assertGreater(before, 300)

    def test_a_loop_with_drafts_and_disk_restores_every_page_whole(self):  # E-prefix-cache-20
        messages = [{"role": "system", "content": "Answer briefly and correctly. " * 25},
                    {"role": "user", "content": "Add eggs to my shopping list."}]
        known = 0
        for turn in range(4):
            answer = self.program.chat(messages, tools=TOOLS, thinking={"type": "disabled"})
            usage = answer["usage"]
            self.assertGreaterEqual(usage["rorqual"]["prefix"]["cached"], pages(max(known - 1, 0)), turn)
            self.assertEqual(usage["rorqual"]["prefix"]["replayed"], 0, "every kept end has its windows")
            known = usage["prompt_tokens"]
            message = answer["choices"][0]["message"]
            messages.append({k: message[k] for k in ("role", "content", "tool_calls") if message.get(k)})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": "done"}
                         for call in message.get("tool_calls") or ()]
            messages.append({"role": "user", "content": "Add bread to my shopping list."})
        samples = self.program.metrics()
        for name in ("prefix_cache_mismatches_total", "prefix_disk_lost_pages_total"):
            values = [v for k, v in samples.items() if k.split("{")[0] == f"rorqual:{name}"]
            self.assertTrue(values and not any(values), name)
        self.assertGreater(self.program.metric("rorqual:prefix_disk_pages"), 0)


class Leaving(EngineTest):
    options = ("--max-model-len", "8K", "--max-num-batched-tokens", "64", "--prefix-cache-memory", "64M")

    def test_a_silent_client_that_hangs_up_ends_its_request(self):  # E-scheduler-03
        aborts = self.program.metric("vllm:request_success_total", '"abort"')
        connection = self.program.send("/v1/completions", self.program.body(tokens(50, "hang up"), 8000))
        self.program.wait(lambda: self.program.metric("vllm:generation_tokens_total") > 0 and
                          self.program.metric("vllm:num_requests_running") == 1, "the answer has begun")
        connection.close()
        self.program.wait_idle()
        self.assertEqual(self.program.metric("vllm:request_success_total", '"abort"'), aborts + 1)
        generated = self.program.metric("vllm:generation_tokens_total")
        self.assertLess(generated, 8000)
        self.assertEqual(self.program.metric("vllm:generation_tokens_total"), generated, "nothing goes on")

    def test_a_chat_that_goes_on_after_a_disconnect_is_right(self):  # E-scheduler-05
        prompt = tokens(200, "goes on")
        answer = self.program.cold(prompt, 40)["choices"][0]["token_ids"]
        extended = prompt + answer + tokens(30, "next turn")
        expected = bits(self.program.cold(extended, 3))
        for i in range(50):
            connection = self.program.send("/v1/completions", self.program.body(prompt, 4000, stream=True))
            response = connection.getresponse()
            for _ in range(1 + i % 4):
                response.readline()
            response.close()
            connection.close()
            self.assertEqual(bits(self.program.complete(extended, 3)), expected, i)
        self.program.wait_idle()

    def test_a_prefill_that_nobody_waits_for_stops_and_its_pages_are_kept(self):  # E-scheduler-06
        prompt = tokens(7000, "long prefill")
        steps = self.program.metric("rorqual:engine_steps_total")
        connection = self.program.send("/v1/completions", self.program.body(prompt, 1))
        self.program.wait(lambda: self.program.metric("rorqual:engine_steps_total") >= steps + 5, "five chunks")
        connection.close()
        self.program.wait_idle()
        done = self.program.metric("rorqual:engine_steps_total") - steps
        self.assertLess(done, 7000 // 64, "the prefill went on to its end")
        self.assertEqual(self.program.metric("rorqual:engine_steps_total") - steps, done, "nothing goes on")
        warm = self.program.complete(prompt[:1000] + tokens(5, "retry"), 2)
        self.assertGreaterEqual(reuse(warm)["cached"], min(pages(int(done - 2) * 64), pages(1000)))
        self.assertGreater(reuse(warm)["cached"], 0)


class Mixed(unittest.TestCase):
    def test_every_request_ends_once(self):  # E-scheduler-10
        program = Engine("--max-model-len", "2K", "--max-num-seqs", "6", "--log-level", "info")
        self.addCleanup(program.stop)
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        counts = {"whole": 0, "left": 0, "perhaps": 0}
        lock = threading.Lock()
        numbers = iter(range(200))

        def client():
            while True:
                with lock:
                    i = next(numbers, None)
                if i is None:
                    return
                chance = random.Random(seed + i)
                kind = chance.choice(("whole", "whole", "left", "perhaps"))
                count = chance.randint(1, 24) if kind == "whole" else 1500
                body = program.body(tokens(chance.randint(1, 150), i), count, stream=kind == "left",
                                    temperature=chance.choice((0, 1)))
                connection = program.send("/v1/completions", body, f"mixed-{i}")
                if kind != "perhaps":  # the head of a stream comes when the request is accepted
                    response = connection.getresponse()
                    assert response.status == 200, response.status
                    for _ in range(chance.randint(0, 3)):
                        if kind == "left":
                            response.readline()
                    if kind == "whole":
                        response.read()
                    response.close()
                connection.close()
                with lock:
                    counts[kind] += 1

        threads = [threading.Thread(target=client) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sum(counts.values()), 200)
        program.wait_idle()

        def logged():
            return [m.group(1) for m in re.finditer(r"http +id=(mixed-\d+) ", "".join(program.lines))]

        program.wait(lambda: len(logged()) >= 200, "a log line for each")
        self.assertEqual(sorted(logged()), sorted(f"mixed-{i}" for i in range(200)))
        ends = {reason: program.metric("vllm:request_success_total", f'"{reason}"')
                for reason in ("stop", "length", "abort", "error")}
        self.assertEqual(ends["error"], 0)
        self.assertEqual(ends["stop"] + ends["length"], counts["whole"])
        # Who hung up without reading may have left before it was a request.
        self.assertGreaterEqual(ends["abort"], counts["left"])
        self.assertLessEqual(ends["abort"], counts["left"] + counts["perhaps"])


class Busy(EngineTest):
    options = ("--max-model-len", "16K", "--max-num-batched-tokens", "256", "--max-num-seqs", "16",
               "--no-enable-prefix-caching")

    def test_short_requests_are_served_beside_a_long_prompt(self):  # E-scheduler-08
        steps = lambda: self.program.metric("rorqual:engine_steps_total")  # noqa: E731
        prompt = tokens(12000, "long")
        begin = steps()
        connection = self.program.send("/v1/completions", self.program.body(prompt, 1))
        self.program.wait(lambda: steps() > begin, "the long prompt is being computed")
        answers, lock = [], threading.Lock()

        def ask(i):
            at = steps()
            answer = self.program.complete(tokens(20, i), 1)
            with lock:
                answers.append((answer, steps() - at))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = steps() - begin
        self.assertEqual(self.program.unfinished(), 1, "the long prompt was computed first")
        connection.close()
        self.assertEqual(len(answers), 10)
        # 64 of 256 rows are left beside it: four steps serve all ten, the rest is their way through the server.
        self.assertLess(took, 12000 / 192 * 2 / 3)
        self.program.wait_idle()


class StuckStep(EngineTest):
    options = ("--max-model-len", "8K", "--max-num-batched-tokens", "4K", "--step-timeout", "0.05")

    def status(self, path):
        connection = self.program.send(path, None)
        status = connection.getresponse().status
        connection.close()
        return status

    def test_a_step_that_does_not_end_is_told_by_health(self):  # E-scheduler-01, E-scheduler-11
        self.assertEqual(self.status("/health"), 200)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(self.program.complete(tokens(4000, "one step"), 1)))
        thread.start()
        self.program.wait(lambda: self.status("/health") == 503, "the step is too long")
        self.assertEqual(self.program.metric("rorqual:engine_alive"), 0)
        thread.join()
        self.program.wait(lambda: self.status("/ready") == 200, "it has ended")
        self.assertEqual(answers[0]["usage"]["completion_tokens"], 1)
        self.assertIsNone(self.program.process.poll(), "a slow step is no reason to end")


class Isolation(unittest.TestCase):
    def test_compute_threads_have_cpus_that_nothing_else_uses(self):
        program = Program("--threads", 1, "--cpu-isolation")
        self.addCleanup(program.stop)
        if any("no core beside" in line for line in program.lines):
            self.skipTest("this machine has one core only")
        program.ask("/v1/completions", {"model": "rorqual-mini", "prompt": "a", "max_tokens": 2})
        masks = [os.sched_getaffinity(int(task)) for task in os.listdir(f"/proc/{program.process.pid}/task")]
        rest = max(masks, key=masks.count)
        compute = [mask for mask in masks if mask != rest]
        self.assertEqual(len(compute), 1, masks)  # the thread that runs the steps
        self.assertEqual(len(compute[0]), 1)
        self.assertFalse(compute[0] & rest)


class QueuedTokens(EngineTest):
    options = ("--max-model-len", "8K", "--max-num-seqs", "1", "--max-num-queued-tokens", "10000",
               "--no-enable-prefix-caching")

    def test_a_few_giant_prompts_do_not_fill_the_queue(self):  # E-scheduler-15
        with contextlib.ExitStack() as stack:
            def send(prompt, max_tokens, **fields):
                connection = self.program.send("/v1/completions", self.program.body(prompt, max_tokens, **fields))
                stack.callback(connection.close)

            send(tokens(10, "runs"), 8000)  # keeps the only place
            self.program.wait(lambda: self.program.metric("vllm:num_requests_running") == 1, "one runs")
            send(tokens(5000, "giant"), 1, n=2)  # counts twice
            self.program.wait(lambda: self.program.metric("vllm:num_requests_waiting") == 2, "two wait")
            refused = json.loads(self.program.ask("/v1/completions", self.program.body(tokens(5000, "third"), 1), 429))
            self.assertEqual(refused["error"]["code"], "queue_full")
            self.assertEqual(self.program.metric("vllm:admission_rejections_total", "max_num_queued_tokens"), 1)
        self.program.wait_idle()


class TightCache(unittest.TestCase):
    def blocks(self, program):
        name = next(k for k in program.metrics() if k.startswith("vllm:cache_config_info"))
        return int(re.search(r'num_gpu_blocks="(\d+)"', name).group(1))

    def test_blocks_that_were_used_before_hold_nothing_of_it(self):  # E-scheduler-16
        program = Engine("--max-model-len", "2K", "--max-num-seqs", "2", "--kv-cache-memory-bytes", "600K",
                          "--no-enable-prefix-caching", "--no-access-log")
        self.addCleanup(program.stop)
        room = self.blocks(program) * PAGE
        self.assertLessEqual(room, 1100, "the pool is about as large as the request")
        prompt = tokens(room - 50, "long")
        expected = bits(program.complete(prompt, 40))
        for i in range(9):
            if i % 3 == 0:
                program.complete(tokens(room - 10, i), 1)
            self.assertEqual(bits(program.complete(prompt, 40)), expected, i)

    def test_preemptions_are_a_counter_of_what_requests_report(self):  # E-metrics-06
        program = Engine("--max-model-len", "512", "--max-num-seqs", "4", "--kv-cache-memory-bytes", "350K",
                          "--no-enable-prefix-caching", "--no-access-log")
        self.addCleanup(program.stop)
        prompts = [tokens(100, i) for i in range(4)]
        alone = [bits(program.complete(prompt, 150)) for prompt in prompts]
        self.assertEqual(program.metric("vllm:num_preemptions_total"), 0)
        answers = [None] * 4

        def ask(i):
            answers[i] = program.complete(prompts[i], 150)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([bits(answer) for answer in answers], alone)
        reported = sum(answer["usage"]["rorqual"]["preemptions"] for answer in answers)
        self.assertGreater(reported, 0)
        self.assertEqual(program.metric("vllm:num_preemptions_total"), reported)
        self.assertIn("# TYPE vllm:num_preemptions_total counter\n", program.ask("/metrics"))
        self.assertEqual(program.metric("vllm:request_num_preemptions_sum"), reported)


class Drafts(EngineTest):
    options = ("--max-model-len", "8K", "--speculative-tokens", "7", "--no-enable-prefix-caching")

    def prompts(self, kind):
        lines = (ROOT / "bench" / "prompts" / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["prompt"] for line in lines]

    def test_greedy_text_is_the_same_with_drafts(self):  # E-spec-decode-01
        drafted = 0
        for prompt in self.prompts("code")[:12]:
            plain = self.program.complete(prompt, 48, speculative_tokens=0)
            fast = self.program.complete(prompt, 48)
            self.assertEqual(bits(fast), bits(plain), prompt)
            drafted += fast["usage"]["rorqual"]["drafts"]["accepted"]
        self.assertGreater(drafted, 12 * 20)

    def test_every_draft_length_gives_the_same_answer(self):  # E-spec-decode-02
        prompts = self.prompts("code")[:2] + self.prompts("tool")[:1] + [tokens(90, "noise")]
        for prompt in prompts:
            for sampling in ({}, {"temperature": 0.8, "seed": 5}):
                expected = bits(self.program.complete(prompt, 40, speculative_tokens=0, **sampling))
                for count in range(1, 8):
                    answer = self.program.complete(prompt, 40, speculative_tokens=count, **sampling)
                    self.assertEqual(bits(answer), expected, (count, sampling))
                    self.assertGreater(answer["usage"]["rorqual"]["drafts"]["drafted"], 0)

    def test_long_prompts_with_drafts(self):  # E-spec-decode-05
        for count in (1000, 5000):
            prompt = tokens(count, count)
            expected = bits(self.program.complete(prompt, 16, speculative_tokens=0))
            self.assertEqual(bits(self.program.complete(prompt, 16)), expected, count)


class UselessDrafts(EngineTest):
    options = ("--max-model-len", "4K", "--no-enable-prefix-caching")  # drafts while they pay

    def test_drafts_that_are_never_accepted_stop(self):  # E-spec-decode-11
        answer = self.program.complete(tokens(20, "hot"), 1500, temperature=2, seed=7)
        drafts = answer["usage"]["rorqual"]["drafts"]
        self.assertGreater(drafts["drafted"], 0, "they were tried")
        self.assertLess(drafts["accepted"], drafts["drafted"] / 2)
        self.assertLess(drafts["drafted"], 1500 / 4, "they were not given up")
        samples = self.program.metrics()
        for name, value in (("num_draft_tokens", drafts["drafted"]), ("num_accepted_tokens", drafts["accepted"])):
            self.assertEqual(samples[f'vllm:spec_decode_{name}_total{{engine="0",model_name="m"}}'], value)
        self.assertEqual(self.program.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total"), drafts["accepted"])


class Counters(unittest.TestCase):
    def setUp(self):
        self.program = Engine("--max-model-len", "2K", "--no-access-log", "--prefix-cache-memory", "32M")
        self.addCleanup(self.program.stop)

    def test_prompt_tokens_are_computed_or_cached_ones(self):  # E-metrics-01
        total = cached = 0
        for count, choices, expected in ((58, 4, None), (58, 4, 0), (200, 4, None), (200, 4, 192), (200, 1, 192)):
            answer = self.program.complete(tokens(count, count), 2, n=choices, temperature=1, seed=3)
            self.assertEqual(answer["usage"]["prompt_tokens"], count)
            total += count * choices
            if expected is not None:
                self.assertEqual(reuse(answer)["cached"], expected)
            samples = self.program.metrics()
            value = lambda name, labels="": samples[  # noqa: E731
                f'vllm:{name}{{engine="0",model_name="m"{labels}}}']
            self.assertEqual(value("prompt_tokens_total"), total)
            before, cached = cached, value("prompt_tokens_cached_total")
            if expected is not None:
                self.assertEqual(cached - before, expected * choices)
            computed = value("prompt_tokens_by_source_total", ',source="local_compute"')
            self.assertEqual(computed + value("prompt_tokens_by_source_total", ',source="local_cache_hit"'), total)
            self.assertEqual(value("prompt_tokens_by_source_total", ',source="local_cache_hit"'), cached)
            self.assertEqual(value("request_prefill_kv_computed_tokens_sum"), computed)
            self.assertEqual(value("request_prompt_tokens_sum"), total)

    def test_the_prefix_cache_counts_tokens(self):  # E-metrics-02
        trunk = tokens(512, "trunk")
        found = asked = 0
        for i in range(4):
            answer = self.program.complete(trunk + tokens(512, i), 1)
            asked += 1024
            found += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual(found, 3 * 512)
        self.assertEqual(self.program.metric("vllm:prefix_cache_queries_total"), asked)
        self.assertEqual(self.program.metric("vllm:prefix_cache_hits_total"), found)

    def documented(self):
        """(name, type, is repeated under vllm:) of docs/metrics.md."""
        for line in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) == 6 and cells[1].startswith("`"):
                for name in re.findall(r"`([a-z0-9_]+)", cells[1]):
                    yield name, cells[2], cells[3] == "●"

    def test_names_and_types_are_the_documented_ones(self):  # E-metrics-04
        expected = {}
        for name, kind, is_shared in self.documented():
            if name.startswith("process_"):
                expected[name] = None
                continue
            expected[f"rorqual:{name}"] = kind
            if is_shared:
                expected[f"vllm:{name}"] = kind
        self.assertGreater(len(expected), 80)
        self.program.complete(tokens(70, 1), 3)
        types, helps, families = {}, set(), {}
        for line in self.program.ask("/metrics").splitlines():
            if line.startswith("# TYPE "):
                name, kind = line[7:].split(" ")
                self.assertNotIn(name, types)
                types[name] = kind
            elif line.startswith("# HELP "):
                helps.add(line[7:].split(" ", 1)[0])
            else:
                sample = re.fullmatch(SAMPLE, line)
                self.assertIsNotNone(sample, line)
                float(sample.group(3))
                base = re.sub(r"_(bucket|sum|count)$", "", sample.group(1))
                family = base if types.get(base) == "histogram" else sample.group(1)
                self.assertIn(family, types, "a sample before its TYPE")
                families.setdefault(family, set()).add(sample.group(1))
        self.assertEqual(helps, set(types))
        http_names = {name for name in types if name.startswith("rorqual:http_requests_total")}
        self.assertEqual(set(types) | http_names, set(expected))
        for name, kind in types.items():
            if expected[name] is not None:
                self.assertEqual(kind, expected[name], name)
            if kind == "counter":
                self.assertTrue(name.endswith("_total"), name)
            if kind == "histogram":
                self.assertEqual(families[name], {f"{name}_bucket", f"{name}_sum", f"{name}_count"})


if __name__ == "__main__":
    unittest.main()
