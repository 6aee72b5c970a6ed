# SPDX-License-Identifier: Apache-2.0
"""The gate from end to end: captures of the small model, of three broken copies of it, and a noisy pair."""

import array
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = os.environ["RORQUAL"]
MODEL = ROOT / "models/mini"
TEXT = ROOT / "python/reference/oracle.py"  # any text; the small model has not seen it
SEED = 20261130
# Every fault must move the mean by far more than the 3 % that the gate allows, or a small change of the text above
# could turn this test around.
FAULTS = {
    "int3": ["--experts", "int3"],
    "int2": ["--experts", "int2"],
    "scale": ["--transpose-scale", "layers.2.attn.wo_b.scale"],
}


def perturbed(source: pathlib.Path, target: pathlib.Path, seed: int) -> None:
    """A dump as a noisy machine would give: each row's log-probabilities times a factor near one (the order stays)."""
    data = bytearray(source.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    rows = header["tok_lp"]["shape"][0]
    generator = random.Random(seed)
    factors = [generator.uniform(0.7, 1.3) for _ in range(rows)]
    for name in ("top_lps", "tok_lp"):
        begin, end = (8 + length + offset for offset in header[name]["data_offsets"])
        values = array.array("f", bytes(data[begin:end]))
        columns = len(values) // rows
        for at, value in enumerate(values):
            values[at] = value * factors[at // columns]
        data[begin:end] = values.tobytes()
    target.write_bytes(data)


class GateOnModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        cls.capture("reference", MODEL, "--numerics", "exact")
        cls.capture("old", MODEL)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    @classmethod
    def dump(cls, name: str) -> pathlib.Path:
        return cls.path / f"{name}.safetensors"

    @classmethod
    def capture(cls, name: str, model: pathlib.Path, *options: str) -> None:
        subprocess.run([PROGRAM, "kl", "capture", str(model), "--corpus", str(TEXT), "--context", "384", "--windows", "3",
                        "--out", str(cls.dump(name)), *options], check=True, capture_output=True)

    def gate(self, new: str, *options: str) -> tuple[int, dict]:
        run = subprocess.run([PROGRAM, "kl", "gate", "--reference", str(self.dump("reference")), "--old",
                              str(self.dump("old")), "--new", str(self.dump(new)), "--json", *options], capture_output=True)
        return run.returncode, json.loads(run.stdout.splitlines()[0])

    def test_the_same_function_again_passes_with_identical_files(self) -> None:
        self.capture("again", MODEL, "--streams", "3", "--threads", "1")
        self.assertEqual(self.dump("old").read_bytes(), self.dump("again").read_bytes())
        code, result = self.gate("again")
        self.assertEqual((code, result["verdict"]), (0, "passed"))
        self.assertEqual(result["corpora"][0]["relative_change"], 0)

    def test_broken_models_fail(self) -> None:
        changes = {}
        for name, fault in FAULTS.items():
            model = self.path / f"model-{name}"
            subprocess.run([sys.executable, "-B", str(ROOT / "tests/models/degrade.py"), str(MODEL), str(model), *fault],
                           check=True, capture_output=True)
            self.capture(name, model)
            code, result = self.gate(name)
            self.assertEqual((code, result["verdict"]), (1, "failed"), name)
            changes[name] = result["corpora"][0]["relative_change"]
        print("relative change of the mean KL:", {name: round(change, 3) for name, change in changes.items()})
        self.assertGreater(changes["scale"], 0.10)
        self.assertGreater(changes["int3"], changes["scale"])
        self.assertGreater(changes["int2"], changes["int3"])

    def test_a_noisy_old_side_leaves_it_undecided(self) -> None:
        print("seed", SEED)
        perturbed(self.dump("old"), self.dump("noisy"), SEED)
        code, result = self.gate("old", "--old-again", str(self.dump("noisy")), "--force-pair")
        self.assertEqual((code, result["verdict"]), (1, "undecided"))


if __name__ == "__main__":
    unittest.main()
