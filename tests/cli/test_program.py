#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exit codes, error lines and output forms of the commands, without loading foreign models."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import program
from program import ProgramTest, run

sys.path.insert(0, str(program.ROOT / "tests" / "api"))
import harness  # noqa: E402


class Usage(ProgramTest):
    def test_no_command_prints_the_help_and_is_an_error(self):
        result = run()
        self.assertEqual(result.returncode, 2)
        self.assertIn("usage: rorqual COMMAND", result.stderr)

    def test_help_lists_every_command_and_exit_code(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        for command in ("serve", "chat", "convert", "inspect", "tokenize", "render", "parse", "check", "doctor",
                        "completion", "version"):
            self.assertIn(f"  {command} ", result.stdout)
            self.assertEqual(run(command, "--help").returncode, 0)
            self.assertIn("rorqual " + command, run(command, "--help=all").stdout)
        for code in ("0 ", "2 ", "70 ", "130 "):
            self.assertIn(f"\n  {code}", result.stdout)

    def test_help_of_a_command_has_two_spellings(self):
        self.assertEqual(run("help", "serve").stdout, run("serve", "--help").stdout)
        self.assertEqual(run("help").stdout, run("--help").stdout)
        self.assert_error(run("help", "serv"), 2, "unknown command 'serv'", "'serve'")

    def test_messages_name_only_commands_and_options_that_exist(self):
        reference = run("--help=markdown").stdout
        options = set(re.findall(r"--[a-z][a-z-]*", reference)) | {"--version"}
        options |= {"--test", "--no-install-recommends", "--local-dir"}  # of scripts/setup, apt-get, hf
        commands = set(re.findall(r"^## rorqual ([a-z ]+)$", reference, re.MULTILINE))
        groups = {command.split()[0] for command in commands if " " in command}
        for path in sorted((program.ROOT / "src").rglob("*.cpp")):
            # What scripted agents of a corpus type is not a message of ours.
            if path.name.endswith("_test.cpp") or path.name.startswith("agentic_text"):
                continue
            for literal in re.findall(r'"(?:[^"\\\n]|\\.)*"', path.read_text(encoding="utf-8")):
                for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", literal):
                    self.assertIn(option, options, f"{path}: {literal}")
                for first, second in re.findall(r"`rorqual ([a-z]+)(?: ([a-z]+))?", literal):
                    command = f"{first} {second}" if first in groups else first
                    self.assertIn(command, commands, f"{path}: {literal}")

    def test_unknown_commands_and_options_name_the_nearest(self):
        self.assert_error(run("serv"), 2, "unknown command 'serv'", "'serve'")
        self.assert_error(run("serve", "--max-model-length", "5"), 2, "'--max-model-length'", "'--max-model-len'")
        self.assert_error(run("serve", "--nonsense"), 2, "unknown option '--nonsense'")

    def test_bad_values_say_what_is_expected(self):
        self.assert_error(run("serve", "--port", "99999"), 2, "--port: got '99999', expected an integer from 0 to 65535")
        self.assert_error(run("serve", "--numerics", "fast"), 2, "one of reference, exact")
        self.assert_error(run("check", "nothing", "x"), 2, "KIND: got 'nothing'", "encoding")
        self.assert_error(run("serve", "--port"), 2, "option '--port' needs a value")
        self.assert_error(run("serve", "a", "b"), 2, "unexpected argument 'b'")
        self.assert_error(run("chat", "-p", ""), 2, "--prompt: got an empty text")
        self.assert_error(run("chat", "some-model", "--url", "http://127.0.0.1:1"), 2, "exclude each other")

    def test_bad_environment_and_config_name_their_place(self):
        self.assert_error(run("serve", env={"RORQUAL_PORT": "x"}), 2, "RORQUAL_PORT")
        self.assert_error(run("serve", "--config", "/nonexistent.yaml"), 3, "/nonexistent.yaml")
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("port: 8000\nprot: 1\n")
            file.flush()
            self.assert_error(run("serve", "--config", file.name), 2, f"{file.name}:2", "'prot'", "'port'")

    def test_unknown_variables_of_ours_warn(self):
        result = run("version", env={"RORQUAL_MAX_MODEL_LENGTH": "5"})
        self.assertEqual(result.returncode, 0)
        self.assertIn("warning: unknown environment variable 'RORQUAL_MAX_MODEL_LENGTH'", result.stderr)
        self.assertIn("RORQUAL_MAX_MODEL_LEN'", result.stderr)

    def test_print_config_shows_values_with_origin(self):
        result = run("serve", "--port", "8001", "--print-config", "--json", env={"RORQUAL_MAX_NUM_SEQS": "4"})
        options = json.loads(result.stdout)["options"]
        self.assertEqual(options["port"], {"value": 8001, "origin": "command line"})
        self.assertEqual(options["max-num-seqs"], {"value": 4, "origin": "environment"})
        self.assertEqual(options["host"]["origin"], "built-in default")

    def test_json_errors_are_one_object(self):
        result = run("serve", "--port", "x", "--json")
        self.assertEqual(result.returncode, 2)
        error = json.loads(result.stderr)["error"]
        self.assertEqual((error["code"], error["param"], error["exit"]), ("invalid_argument", "port", 2))

    def test_a_vector_file_of_another_kind_is_corrupt_data(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for row in ('{"width": 3}', '{"width": "a", "height": 3, "image_tokens": 1}', '[1]', '{'):
                file.seek(0)
                file.truncate()
                file.write(row + "\n")
                file.flush()
                self.assert_error(run("check", "image-tokens", file.name), 4, f"{file.name}:1: not a")
                self.assert_error(run("check", "encoder-ext", file.name), 4, f"{file.name}:1: not a")

    def test_vector_files_must_be_files(self):
        self.assert_error(run("check", "image-tokens", "/nonexistent"), 3, "'/nonexistent'")
        self.assert_error(run("check", "image-tokens", "/tmp"), 2, "it is a folder")
        self.assert_error(run("check", "image-tokens", "/dev/zero", timeout=10), 2, "it is a device")
        self.assert_error(run("check", "encoding", "--tokenizer", "/nonexistent", "x"), 3, "'/nonexistent'")

    def test_json_results_are_one_object(self):
        keys = ("--layers", "1", "--experts", "8", "--hidden", "256", "--heads", "8", "--vocab", "4096")
        result = run("convert", "--synthesize", "v41", *keys, "--dry-run", "--json", "/nonexistent/model")
        document = json.loads(result.stdout)
        self.assertEqual((document["schema"], document["written"], document["shards"]), ("rorqual.convert/1", False, 1))
        result = run("check", "ops", program.ROOT / "tests/golden/ops/hashing.safetensors", "--json")
        document = json.loads(result.stdout)
        self.assertEqual((document["schema"], document["failed"]), ("rorqual.check/1", 0))
        self.assertGreater(document["passed"], 0)

    def test_a_full_disk_is_an_error_and_a_closed_pipe_is_not(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([program.PROGRAM, "version"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, 7)
        self.assertIn("cannot write to standard output", result.stderr)
        shell = subprocess.run(["bash", "-c", f"set -o pipefail; '{program.PROGRAM}' --help=markdown | head -n 1"],
                               capture_output=True, text=True)
        self.assertEqual((shell.returncode, shell.stderr), (0, ""))

    def test_completion_scripts_are_valid_shell(self):
        script = run("completion", "bash").stdout
        self.assertEqual(subprocess.run(["bash", "-n"], input=script, text=True).returncode, 0)
        probe = script + '\nCOMP_WORDS=(rorqual serve --numerics ""); COMP_CWORD=3; _rorqual; echo "${COMPREPLY[@]}"'
        result = subprocess.run(["bash"], input=probe, capture_output=True, text=True)
        self.assertEqual(result.stdout.strip(), "reference exact")
        self.assert_error(run("completion", "tcsh"), 2, "bash, zsh, fish")


class Reports(ProgramTest):
    def test_version_says_what_the_program_was_built_from(self):
        document = json.loads(run("version", "--json").stdout)
        for key in ("version", "commit", "commit_date", "dirty", "compiler", "flags", "libraries", "kernels", "program_sha256"):
            self.assertIn(key, document)
        digest = subprocess.run(["sha256sum", program.PROGRAM], capture_output=True, text=True).stdout.split()[0]
        self.assertEqual(document["program_sha256"], digest)
        self.assertIn(document["commit"][:9], run("--version").stdout)

    def test_doctor_passes_its_self_test(self):
        result = run("doctor", "--json", "--no-measure")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual(document["schema"], "rorqual.doctor/1")
        self.assertIn(document["kernels"]["chosen"], document["kernels"]["available"])
        self.assertTrue(all(row["equal_bits"] for row in document["self_test"]))
        self.assertGreater(document["memory"]["total_bytes"], 0)

    def test_the_kernel_tier_can_be_forced(self):
        document = json.loads(run("doctor", "--json", "--no-measure", env={"RORQUAL_CPU_ISA": "ref"}).stdout)
        self.assertEqual(document["kernels"]["chosen"], "ref")

    def test_an_unknown_kernel_tier_is_named(self):
        self.assert_error(run("chat", "-p", "Hi", env={"RORQUAL_CPU_ISA": "avx1024"}), 5, "kernel tier 'avx1024'")


class Text(ProgramTest):
    def test_tokenize_and_back(self):
        text = "Grüße, 17 + 25!\n"
        ids = json.loads(run("tokenize", "--json", stdin=text).stdout)["ids"]
        self.assertGreater(len(ids), 3)
        back = json.loads(run("tokenize", "--decode", "--json", stdin=json.dumps(ids)).stdout)
        self.assertEqual(back["text"], text)
        self.assert_error(run("tokenize", "--decode", "1 2 x"), 2, "token 2: got 'x'")
        self.assert_error(run("tokenize", "--decode", "99999999"), 2, "expected an id from 0 to")
        self.assert_error(run("tokenize", "hi", "--tokenizer", "/nonexistent"), 3, "/nonexistent")

    def test_render_keeps_control_tokens_out_of_message_text(self):
        plain = json.loads(run("render", "--json", '[{"role": "user", "content": "Hi"}]').stdout)
        tricky = json.loads(run("render", "--json", '[{"role": "user", "content": "Hi<｜User｜>"}]').stdout)
        self.assertEqual(len(plain["special_ranges"]), len(tricky["special_ranges"]))
        self.assert_error(run("render", "{"), 2, "not valid JSON")
        self.assert_error(run("render", "[]"), 2)

    def test_parse_splits_reasoning_and_content(self):
        document = json.loads(run("parse", "--stage", "reasoning", "Easy.</think>It is 4.").stdout)
        self.assertEqual(document["message"]["reasoning_content"], "Easy.")
        self.assertEqual(document["message"]["content"], "It is 4.")
        self.assertEqual(document["finish_reason"], "stop")


class Serving(ProgramTest):
    def start(self, *arguments):
        serving = harness.Program(*arguments, program=program.PROGRAM)
        self.addCleanup(serving.stop)
        return serving

    def test_serves_chats_and_ends_on_sigterm(self):
        serving = self.start()
        result = run("chat", "--url", serving.url, "-p", "What is 17 + 25?", "--json", "--temperature", "0")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertIn("42", document["content"])
        self.assertEqual(document["finish_reason"], "stop")
        self.assertGreater(document["usage"]["completion_tokens"], 0)
        self.assertEqual(serving.stop(), 0)
        self.assertEqual(serving.output, "")

    def test_a_port_in_use_is_one_clear_error(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            result = run("serve", "--port", str(port), "--log-level", "off")
        self.assert_error(result, 7, str(port))

    def test_json_log_lines_are_objects(self):
        serving = self.start("--log-format", "json")
        self.assertEqual(serving.stop(signal.SIGINT), 0)
        lines = [json.loads(line) for line in serving.lines]
        self.assertTrue(all({"time", "level", "message"} <= line.keys() for line in lines))

    def test_chat_without_options_answers_from_the_embedded_model(self):
        result = run("chat", "-p", "What is 17 + 25?", "--temperature", "0")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("42", result.stdout)
        dialogue = run("chat", "--temperature", "0", stdin="What is 2 + 3?\n/new\nWhat is 17 + 25?\n")
        self.assertEqual(dialogue.returncode, 0, dialogue.stderr)
        self.assertIn("5", dialogue.stdout)
        self.assertIn("42", dialogue.stdout)

    def test_chat_without_a_server_says_so(self):
        self.assert_error(run("chat", "--url", "http://127.0.0.1:1", "-p", "x"), 8, "no server at http://127.0.0.1:1")
        self.assert_error(run("chat", "--url", "ftp://x", "-p", "x"), 2, "expected http://host:port")

    def test_a_key_file_guards_the_api(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys")
            with open(path, "w") as file:
                file.write("secret-key\n")
            url = self.start("--api-key-file", path).url
            self.assertEqual(run("chat", "--url", url, "-p", "x").returncode, 2)
            allowed = run("chat", "--url", url, "-p", "What is 2 + 3?", env={"RORQUAL_API_KEY": "secret-key"})
            self.assertEqual(allowed.returncode, 0, allowed.stderr)


if __name__ == "__main__":
    program.main()
