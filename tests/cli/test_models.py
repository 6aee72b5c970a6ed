#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Damaged model folders: one clear line and the documented exit code, before anything is loaded."""

import json
import pathlib
import shutil
import struct
import tempfile
import time

import program
from program import ROOT, ProgramTest, run

SHARD = "model-00002-of-00003.safetensors"


class DamagedModels(ProgramTest):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rorqual-cli-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = self.folder / "tiny"
        shutil.copytree(ROOT / "tests/models/tiny-a", self.model)
        for path in self.model.iterdir():
            path.chmod(0o644)

    def serve(self):
        start = time.monotonic()
        result = run("serve", self.model, "--port", "0", "--log-level", "off")
        self.assertLess(time.monotonic() - start, 30)
        return result

    def header(self, path):
        """Length and JSON of a safetensors header."""
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        return json.loads(data[8:8 + length]), data[8 + length:]

    def write_shard(self, path, header, body):
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + body)

    def test_a_wrong_path_is_not_found(self):
        self.assert_error(run("serve", "--port", "0", "/nonexistent/model", "--log-level", "off"), 3, "/nonexistent/model")
        self.assert_error(run("inspect", "/nonexistent/model"), 3, "/nonexistent/model")

    def test_a_truncated_shard_names_file_and_missing_bytes(self):
        for cut in (1, 1000):
            path = self.model / SHARD
            shutil.copy(ROOT / "tests/models/tiny-a" / SHARD, path)
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-cut])
            self.assert_error(self.serve(), 4, SHARD, str(cut))
        path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
        self.assert_error(self.serve(), 4, SHARD)

    def test_missing_shards_are_all_listed(self):
        for number in (1, 3):
            (self.model / f"model-0000{number}-of-00003.safetensors").unlink()
        result = self.serve()
        self.assertEqual(result.returncode, 3, result.stderr)
        for number in (1, 3):
            self.assertIn(f"model-0000{number}-of-00003.safetensors", result.stderr)

    def test_a_wrong_shape_names_tensor_got_and_expected(self):
        path = self.model / SHARD
        header, body = self.header(path)
        name = next(key for key, value in header.items()
                    if key != "__metadata__" and len(value["shape"]) == 2 and value["shape"][0] != value["shape"][1])
        shape = header[name]["shape"]
        header[name]["shape"] = shape[::-1]
        self.write_shard(path, header, body)
        self.assert_error(self.serve(), 4, name)

    def test_a_draft_tensor_of_another_name_is_listed_with_the_missing_one(self):
        name = "mtp.0.attn.wq_a.weight"
        wrong = name.replace("wq_a", "wq_z")
        index = self.model / "model.safetensors.index.json"
        path = self.model / json.loads(index.read_text())["weight_map"][name]
        index.write_text(index.read_text().replace(f'"{name}"', f'"{wrong}"'))
        header, body = self.header(path)
        header[wrong] = header.pop(name)
        self.write_shard(path, header, body)
        result = self.serve()
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertIn(name, result.stderr)
        self.assertIn(wrong, result.stderr)

    def test_a_model_that_cannot_compute_is_never_ready(self):
        path = self.model / SHARD
        header, body = self.header(path)
        begin, end = header["norm.weight"]["data_offsets"]
        self.write_shard(path, header, body[:begin] + b"\xc0\x7f" * ((end - begin) // 2) + body[end:])  # NaN
        self.assert_error(self.serve(), 4, "first step", "not finite")

    def test_a_config_of_another_size_is_a_mismatch(self):
        path = self.model / "config.json"
        path.write_text(path.read_text().replace('"vocab_size"', '"vocab_size_before"', 1))
        result = self.serve()
        self.assertIn(result.returncode, (4, 5), result.stderr)

    def test_another_architecture_is_named(self):
        path = self.model / "config.json"
        config = json.loads(path.read_text())
        config["architectures"] = ["LlamaForCausalLM"]
        config["model_type"] = "llama"
        path.write_text(json.dumps(config))
        self.assert_error(self.serve(), 5, "LlamaForCausalLM")

    def test_a_missing_tokenizer_is_named(self):
        (self.model / "tokenizer.json").unlink()
        self.assert_error(self.serve(), 3, "tokenizer")

    def test_missing_and_broken_config(self):
        (self.model / "config.json").write_text("{")
        self.assert_error(self.serve(), 4, "config.json")
        (self.model / "config.json").unlink()
        self.assert_error(self.serve(), 3, "config.json")

    def test_an_empty_folder_is_no_model(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.assertIn(run("serve", empty, "--port", "0", "--log-level", "off").returncode, (3, 4))

    def test_a_pickle_in_the_folder_is_ignored(self):
        (self.model / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
        self.assertEqual(run("inspect", self.model).returncode, 0)

    def test_an_intact_copy_is_fine(self):
        result = run("inspect", self.model, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        json.loads(result.stdout)


if __name__ == "__main__":
    program.main()
