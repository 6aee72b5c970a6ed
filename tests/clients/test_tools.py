# SPDX-License-Identifier: Apache-2.0
"""GuideLLM, LiteLLM and lm-eval, unmodified, against the program with the model inside it."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no download of prices
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import litellm  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402

from harness import ROOT, Program  # noqa: E402

MODEL = ROOT / "models" / "mini"
SUM = [{"role": "user", "content": "What is 17 + 25?"}]
PAIRS = [("What is 17 + 25? The answer is", " 42"), ("What is 17 + 25? The answer is", " 7"), ("def f(x):\n    return", " x")]


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.program = Program("--served-model-name", "mini", "--no-access-log")

    @classmethod
    def tearDownClass(cls):
        if cls.program.stop() != 0:
            raise AssertionError("the program failed: " + "".join(cls.program.lines))

    def test_litellm_completes_whole_and_streamed(self):
        ask = {"model": "openai/mini", "api_base": self.program.url + "/v1", "api_key": "none", "messages": SUM,
               "temperature": 0, "max_tokens": 300}
        whole = litellm.completion(**ask)
        self.assertEqual(whole.choices[0].message.content, "17 + 25 = 42")
        self.assertEqual(whole.choices[0].finish_reason, "stop")
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(stream=True, **ask) if chunk.choices]
        self.assertEqual("".join(pieces), "17 + 25 = 42")
        self.assertGreater(len(pieces), 2)

    def test_lm_eval_scores_by_echo_and_logprobs(self):
        asker = LocalCompletionsAPI(model="mini", base_url=self.program.url + "/v1/completions", max_retries=1, batch_size=2,
                                    tokenizer_backend="huggingface", tokenizer=str(MODEL))
        results = asker.loglikelihood([Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=i)
                                       for i, pair in enumerate(PAIRS)], disable_tqdm=True)
        self.assertEqual(len(results), len(PAIRS))
        for (context, continuation), (logprob, is_greedy) in zip(PAIRS, results):
            count = json.loads(self.program.ask("/tokenize", {"prompt": continuation}))["count"]
            body = {"model": "mini", "prompt": context + continuation, "max_tokens": 0, "echo": True, "logprobs": 1}
            rows = json.loads(self.program.ask("/v1/completions", body))["choices"][0]["logprobs"]
            self.assertAlmostEqual(logprob, sum(rows["token_logprobs"][-count:]), places=5, msg=continuation)
            best = all(max(top.values()) <= own for top, own in zip(rows["top_logprobs"][-count:], rows["token_logprobs"][-count:]))
            self.assertEqual(is_greedy, best, continuation)

    def test_guidellm_runs_without_an_error(self):
        command = [sys.executable, "-B", ROOT / "scripts" / "guidellm_agreement", "--program", os.environ["RORQUAL"], "--guidellm",
                   pathlib.Path(sys.executable).parent / "guidellm", "--streams", "4", "--seconds", "20", "--warm-up", "2",
                   "--bound", "1"]  # rates are for docs/load.md: this machine may be busy
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        (result,) = json.loads(done.stdout)["results"]
        self.assertEqual(result["guidellm_version"], "0.8.1")
        self.assertEqual(result["requests"]["errored"], 0)
        self.assertGreater(result["requests"]["successful"], 4)


if __name__ == "__main__":
    unittest.main()
