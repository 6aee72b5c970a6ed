#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of the house that a compiler does not check. docs/testing.md#tidy lists them.

usage: tidy.py source              rules on the tracked files
       tidy.py objects BUILD_DIR   AVX2 objects define no weak symbols
       tidy.py docs PROGRAM        docs/cli.md, docs/switches.md and docs/limits.md equal the program's own text
"""

import ast
import fnmatch
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cpp_functions import functions  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_FILE_LINES = 900
MAX_FUNCTION_LINES = 70
MAX_PARAMETERS = 5
CPP = (".cpp", ".h")
COMMENTED = CPP + (".py", ".cmake", ".js", ".css")
CHANGELOG_HEADINGS = {"Correctness and fidelity", "Speed and memory", "Features", "Internals"}
DRAWERS = {"utils", "util", "common", "helpers", "misc"}
# Split so that this file does not contain them.
BANNED = ["/wo" + "rk/", "/wo" + "rk ", "/tmp/bash" + "_jobs", "../sha" + "red", "/opt/ref" + "env", "pypi" + ".org",
          "python" + "hosted", "deb.deb" + "ian.org", "arti" + "factory", "proxy.go" + "lang"]


def tracked_files() -> list[str]:
    """Paths under version control; without a repository every file outside build folders."""
    git = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files"], capture_output=True, text=True)
    if git.returncode == 0:
        return [path for path in git.stdout.splitlines() if (ROOT / path).is_file()]
    skipped = {"build", ".venv", ".cache", "__pycache__"}
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [str(path) for path in paths if not skipped & set(path.parts)]


class Tidy:
    def __init__(self) -> None:
        self.faults: list[str] = []
        tracked = tracked_files()
        self.vendored = self.check_vendored(tracked)
        self.files = [path for path in tracked if path not in self.vendored]
        self.exempt: dict[tuple[str, str], str] = {}
        self.used: set[tuple[str, str]] = set()
        for line in (ROOT / "tests/tidy/exempt.txt").read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                rule, where, reason = (line.split(maxsplit=2) + ["", ""])[:3]
                if not reason:
                    self.fault("tests/tidy/exempt.txt", f"'{line}' has no reason")
                self.exempt[rule, where] = reason

    def check_vendored(self, tracked: list[str]) -> set[str]:
        """Files of others: those that a third_party/*/sources.sha256 lists. They are unchanged; no other rule is theirs."""
        vendored = set()
        for path in tracked:
            if not (path.startswith("third_party/") and path.endswith("/sources.sha256")):
                continue
            for line in (ROOT / path).read_text().splitlines():
                digest, name = line.split(maxsplit=1)
                file = ROOT / path.rsplit("/", 1)[0] / name
                vendored.add(str(file.relative_to(ROOT)))
                if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != digest:
                    self.fault(path, f"{name} is not as it was published")
        return vendored

    def fault(self, where: str, text: str) -> None:
        self.faults.append(f"{where}: {text}")

    def allowed(self, rule: str, where: str) -> bool:
        for entry in self.exempt:
            if entry[0] == rule and fnmatch.fnmatchcase(where, entry[1]):
                self.used.add(entry)
                return True
        return False

    def check_text(self, path: str, text: str) -> None:
        """Rules for every text file."""
        for word in BANNED:
            if word in text:
                self.fault(path, f"line {text[:text.index(word)].count(chr(10)) + 1} refers to '{word.strip()}'")
        if DRAWERS & {part.split(".")[0] for part in path.split("/")} and not self.allowed("drawer", path):
            self.fault(path, "a drawer without a subject; name what the file is about")
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(r"\b(FIX" + r"ME|XX" + r"X|HA" + r"CK)\b", line):
                self.fault(f"{path}:{number}", "use TODO(#issue)")
            if re.search(r"\bTO" + r"DO\b(?!\(#)", line):
                self.fault(f"{path}:{number}", "name the issue in brackets, as in (#12)")

    def check_source(self, path: str, text: str) -> None:
        """Licence line, purpose comment, lengths."""
        lines = text.splitlines()
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
            self.fault(path, "no SPDX line at the top")
        if path.endswith(".h") and (len(lines) < 2 or not lines[1].startswith("//")):
            self.fault(path, "no purpose comment after the SPDX line")
        if len(lines) > MAX_FILE_LINES and not self.allowed("file-length", path):
            self.fault(path, f"{len(lines)} lines, at most {MAX_FILE_LINES}")
        if path.endswith(CPP):
            self.check_cpp_functions(path, text)
        elif path.endswith(".py") and path.startswith(("scripts/", "tests/")):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    self.check_length(path, node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)

    def check_length(self, path: str, name: str, first: int, count: int) -> None:
        if count > MAX_FUNCTION_LINES and not self.allowed("function-length", f"{path}:{name}"):
            self.fault(f"{path}:{first}", f"function {name} has {count} lines, at most {MAX_FUNCTION_LINES}")

    def check_cpp_functions(self, path: str, text: str) -> None:
        for name, first, count, parameters in functions(text):
            if name == "TEST" or name.startswith("TEST_"):
                name = f"{name}@{first}"
            self.check_length(path, name, first, count)
            if parameters > MAX_PARAMETERS and not self.allowed("parameters", f"{path}:{name}"):
                self.fault(f"{path}:{first}", f"function {name} has {parameters} parameters, at most {MAX_PARAMETERS}")

    def check_layers(self) -> None:
        """Includes follow the layer table of cmake/rorqual_library.cmake. Tests beside sources may use more."""
        table = {}
        for name, allowed in re.findall(r'^set\(RORQUAL_LAYER_(\w+)\s+"([^"]*)"\)',
                                        (ROOT / "cmake/rorqual_library.cmake").read_text(), re.M):
            table[name] = set(filter(None, allowed.split(";"))) | {name}
        if len(table) < 10:
            self.fault("cmake/rorqual_library.cmake", "layer table not found")
        for path in self.files:
            parts = path.split("/")
            if parts[0] != "src" or not path.endswith(CPP) or path.endswith("_test.cpp"):
                continue
            for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
                match = re.match(r'\s*#include "([^"]+)"', line)
                if not match or match.group(1).endswith(".inc"):
                    continue
                target = match.group(1).split("/")
                if len(target) < 2 or not (ROOT / "src" / match.group(1)).is_file():
                    self.fault(f"{path}:{number}", f"include \"{match.group(1)}\" is no file under src/")
                elif target[0] not in table[parts[1]]:
                    self.fault(f"{path}:{number}", f"layer rule: {parts[1]} must not use {target[0]}")

    def check_dead_files(self) -> None:
        """Every source is built, every header used, every page and script mentioned somewhere."""
        texts = {path: (ROOT / path).read_text(errors="replace") for path in self.files
                 if path.endswith(COMMENTED + (".txt", ".md", ".inc", "Makefile", "setup", "run"))
                 and not path.startswith("tests/golden")}
        includes = set(re.findall(r'#include "([^"]+)"', "\n".join(texts.values())))
        for path in self.files:
            name = path.rsplit("/", 1)[-1]
            if path.startswith("src/") and path.endswith(".h") and path[4:] not in includes:
                self.fault(path, "header is included nowhere")
            if path.startswith("src/") and path.endswith(".cpp") and not name.endswith("_test.cpp"):
                folder = texts.get("/".join(path.split("/")[:2]) + "/CMakeLists.txt", "")
                if re.search(r"(?<![\w])" + re.escape(path.split("/", 2)[2]) + r"(?!\w)", folder) is None:
                    self.fault(path, "source is not in its folder's CMakeLists.txt")
            if path.startswith("docs/") and path.endswith(".md") and path != "docs/index.md":
                if path[5:] not in texts.get("docs/index.md", ""):
                    self.fault(path, "page is not linked from docs/index.md")
            if path.startswith("scripts/") or (path.startswith("tests/") and path.endswith(".py") and "golden" not in path):
                stem = name.removesuffix(".py")
                if not any(stem in text for other, text in texts.items() if other != path):
                    self.fault(path, "script is mentioned nowhere")

    def check_links(self) -> None:
        """Relative links of Markdown pages lead to files."""
        for path in self.files:
            if not path.endswith(".md"):
                continue
            text = re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / path).read_text(), flags=re.S)
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
                if not target.startswith(("http://", "https://", "mailto:")) and not (ROOT / path).parent.joinpath(target).exists():
                    self.fault(path, f"link to {target}, which does not exist")

    def check_named_tests(self) -> None:
        """Tests that docs/compat.md names exist: a case is no proof when its test was renamed or left."""
        sources = "".join((ROOT / path).read_text() for path in self.files
                          if path.startswith(("src/", "tests/")) and path.endswith((".py", "_test.cpp")))
        page = (ROOT / "docs/compat.md").read_text()
        names = re.findall(r"\btest_[a-z0-9_]+", page)
        names += [name.split(".")[-1] for name in re.findall(r"_test` ([A-Z][A-Za-z0-9.]+)", page)]
        for name in sorted(set(names)):
            if name not in sources:
                self.fault("docs/compat.md", f"names the test {name}, which does not exist")

    def check_format(self) -> None:
        tool = shutil.which("clang-format-14") or shutil.which("clang-format")
        if tool is None:
            self.fault(".clang-format", "clang-format 14 is not installed (scripts/setup --test)")
            return
        sources = [path for path in self.files if path.endswith(CPP)]
        found = subprocess.run([tool, "--dry-run", "--ferror-limit=1", *sources], cwd=ROOT, capture_output=True, text=True)
        for path in sorted(set(re.findall(r"^([^\s:]+):\d+:\d+: (?:error|warning)", found.stderr, re.M))):
            self.fault(path, f"not formatted: clang-format-14 -i {path}")

    def check_changelog(self) -> None:
        text = (ROOT / "CHANGELOG.md").read_text()
        if not text.startswith("# Changelog\n"):
            self.fault("CHANGELOG.md", "starts with '# Changelog'")
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("## ") and not re.fullmatch(r"## (Unreleased|\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\))", line):
                self.fault(f"CHANGELOG.md:{number}", "a release is '## 1.2.3 (2026-01-31)' or '## Unreleased'")
            if line.startswith("### ") and line[4:] not in CHANGELOG_HEADINGS:
                self.fault(f"CHANGELOG.md:{number}", f"headings are {', '.join(sorted(CHANGELOG_HEADINGS))}")

    def run_source_rules(self) -> None:
        for path in self.files:
            if path.startswith(("tests/golden/", "tests/models/", "models/")) and not path.endswith((".md", ".py")):
                continue
            try:
                text = (ROOT / path).read_text()
            except UnicodeDecodeError:
                continue
            self.check_text(path, text)
            is_source = path.endswith(COMMENTED) or path.startswith("scripts/")
            if is_source and not path.startswith("tests/golden/"):
                self.check_source(path, text)
        self.check_layers()
        self.check_dead_files()
        self.check_links()
        self.check_named_tests()
        self.check_format()
        self.check_changelog()
        for rule, where in self.exempt.keys() - self.used:
            self.fault("tests/tidy/exempt.txt", f"'{rule} {where}' is not needed any more")

    def run_object_rules(self, build: pathlib.Path) -> None:
        """A weak symbol from an object built with -mavx2 could replace the baseline copy in the whole program."""
        objects = sorted(build.glob("src/kernels/CMakeFiles/rorqual_kernels.dir/cpu/avx2/*.o"))
        if not objects:
            self.fault(str(build), "no AVX2 objects found")
        for path in objects:
            for line in subprocess.run(["nm", "-C", str(path)], capture_output=True, text=True, check=True).stdout.splitlines():
                match = re.match(r"[0-9a-f]+ ([WVu]) (.*)", line)
                if match and match.group(2) != "DW.ref.__gxx_personality_v0":
                    self.fault(path.name, f"weak symbol {match.group(2)}")

    def run_docs_rule(self, program: str) -> None:
        for words, page in (("--help=markdown", "docs/cli.md"), ("--help=switches", "docs/switches.md"),
                            ("serve --limits", "docs/limits.md")):
            text = subprocess.run([program, *words.split()], capture_output=True, text=True, check=True).stdout
            if text != (ROOT / page).read_text():
                self.fault(page, f"differs from the program: rorqual {words} > {page}")


def main() -> int:
    tidy = Tidy()
    mode = sys.argv[1] if len(sys.argv) > 1 else "source"
    if mode == "source":
        tidy.run_source_rules()
    elif mode == "objects":
        tidy.run_object_rules(pathlib.Path(sys.argv[2]))
    elif mode == "docs":
        tidy.run_docs_rule(sys.argv[2])
    else:
        print(__doc__)
        return 2
    for fault in tidy.faults:
        print(fault)
    print(f"{len(tidy.faults)} faults in {len(tidy.files)} files")
    return 1 if tidy.faults else 0


if __name__ == "__main__":
    sys.exit(main())
