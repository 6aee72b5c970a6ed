# SPDX-License-Identifier: Apache-2.0
"""Runs the program under test: its path is the first argument of the test script."""

import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ""


def run(*arguments, env=None, stdin="", timeout=120):
    """The finished process, with text output and a clean RORQUAL_* environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RORQUAL_")}
    return subprocess.run([PROGRAM, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=timeout,
                          env={**clean, **(env or {})})


class ProgramTest(unittest.TestCase):
    """Assertions about exit codes and the form of errors."""

    def assert_error(self, result, code: int, *parts: str) -> None:
        """Exit code, nothing on standard output, one `error:` line with all `parts`, and no trace of an exception."""
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(lines), 1, result.stderr)
        for part in parts:
            self.assertIn(part, lines[0])
        self.assertNotIn("terminate", result.stderr)
        self.assertNotIn("what():", result.stderr)


def main() -> None:
    global PROGRAM
    if len(sys.argv) < 2:
        sys.exit("usage: test_….py PROGRAM [unittest options]")
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
