# SPDX-License-Identifier: Apache-2.0
"""mini-swe-agent, a coding agent, unmodified: tool calls of 20 turns against the scripted engine (its commands run in a shell)
and against the model inside the program (its commands do not run)."""
import json
import logging
import os
import tempfile
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no download of prices
os.environ["MSWEA_SILENT_STARTUP"] = "1"

import yaml  # noqa: E402
from minisweagent.agents.default import DefaultAgent  # noqa: E402
from minisweagent.config import builtin_config_dir  # noqa: E402
from minisweagent.environments.local import LocalEnvironment  # noqa: E402
from minisweagent.models.litellm_model import LitellmModel  # noqa: E402

from harness import Program, tool_block  # noqa: E402

TURNS = 20
CONFIG = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text())
SETTINGS = {key: CONFIG["agent"][key] for key in ("system_template", "instance_template")}
logging.disable(logging.CRITICAL)


def command_of(turn):
    if turn == TURNS:
        return "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat log"
    return f"echo 'turn {turn} <b>&\"é\" 数' | tee -a log"


class DeafEnvironment(LocalEnvironment):
    """Runs nothing: what a small model writes is not for a shell."""

    def __init__(self):
        super().__init__()
        self.commands = []

    def execute(self, action, cwd="", *, timeout=None):
        self.commands.append(action["command"])
        return {"output": "command not found\n", "returncode": 127, "exception_info": ""}


def agent_of(program, environment, model_kwargs, **settings):
    model = LitellmModel(model_name="openai/mini", cost_tracking="ignore_errors",
                         observation_template=CONFIG["model"]["observation_template"],
                         format_error_template=CONFIG["model"]["format_error_template"],
                         model_kwargs={"api_base": program.url + "/v1", "api_key": "none", **model_kwargs})
    return DefaultAgent(model, environment, cost_limit=0, **{**SETTINGS, **settings})


class Agent(unittest.TestCase):
    def test_twenty_turns_on_the_scripted_engine(self):
        with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w", suffix=".jsonl") as script:
            for turn in range(1, TURNS + 1):
                text = f"Step {turn}.</think>" + tool_block("bash", [("command", True, command_of(turn))])
                script.write(json.dumps({"text": text, "step_tokens": 1 + turn % 3}, ensure_ascii=False) + "\n")
            script.flush()
            program = Program("--engine", f"script:{script.name}", "--served-model-name", "mini", "--no-access-log")
            try:
                agent = agent_of(program, LocalEnvironment(cwd=folder), {})
                end = agent.run("Write twenty lines.")
            finally:
                self.assertEqual(program.stop(), 0)
        self.assertEqual(end["exit_status"], "Submitted")
        self.assertEqual(agent.n_calls, TURNS)
        self.assertEqual(end["submission"].splitlines(), [f'turn {turn} <b>&"é" 数' for turn in range(1, TURNS)])
        calls = [call["function"] for message in agent.messages for call in message.get("tool_calls") or []]
        self.assertEqual([json.loads(call["arguments"]) for call in calls],
                         [{"command": command_of(turn)} for turn in range(1, TURNS + 1)])

    def test_twenty_turns_on_the_model(self):
        """Whatever the small model says, `required` makes it a call that the agent can read, turn after turn."""
        program = Program("--served-model-name", "mini", "--no-access-log", "--max-model-len", "16384")
        environment = DeafEnvironment()
        try:
            agent = agent_of(program, environment,
                             {"tool_choice": "required", "max_tokens": 512, "temperature": 0,
                              "extra_body": {"thinking": {"type": "disabled"}}}, step_limit=TURNS)
            end = agent.run("List the files of this folder.")
        finally:
            self.assertEqual(program.stop(), 0)
        self.assertEqual(end["exit_status"], "LimitsExceeded")
        self.assertEqual(agent.n_calls, TURNS)
        answers = [message["extra"]["response"] for message in agent.messages if message["role"] == "assistant"]
        self.assertEqual([answer["choices"][0]["finish_reason"] for answer in answers], ["tool_calls"] * TURNS)
        calls = [call["function"] for message in agent.messages for call in message.get("tool_calls") or []]
        self.assertGreaterEqual(len(calls), TURNS)
        self.assertEqual({call["name"] for call in calls}, {"bash"})
        commands = [json.loads(call["arguments"])["command"] for call in calls]
        self.assertEqual(commands, environment.commands)
        # Each turn finds all of the turn before in the cache: cached tokens grow with the prompt.
        usage = [answer["usage"] for answer in answers]
        for before, after in zip(usage, usage[1:]):
            self.assertGreaterEqual(after["prompt_cache_hit_tokens"], before["prompt_cache_hit_tokens"])
        self.assertGreater(usage[-1]["prompt_cache_hit_tokens"], usage[0]["prompt_tokens"])


if __name__ == "__main__":
    unittest.main()
