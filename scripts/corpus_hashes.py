#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the hashes of the corpora: builds all three and rewrites src/kl/corpus_recipe_hashes.inc.

usage: corpus_hashes.py PROGRAM ROOT     (ROOT as scripts/corpus_packages fills it)
Only after a change of the recipe or of the packages' versions; captures made before cannot be compared any more.
"""

import json
import pathlib
import re
import subprocess
import sys

TARGET = pathlib.Path(__file__).resolve().parents[1] / "src/kl/corpus_recipe_hashes.inc"


def main() -> None:
    program, root = sys.argv[1:]
    agentic_bytes = re.search(r"kAgenticBytes = (\d+);", TARGET.read_text()).group(1)
    texts, packages = [], []
    for kind in ("neutral", "code", "agentic"):
        run = subprocess.run([program, "kl", "corpus", kind, "--root", root, "--json"], check=True, capture_output=True)
        report = json.loads(run.stdout)
        texts.append(f'    {{CorpusKind::{kind}, "{report["sha256"]}"}},')
        packages += [f'    {{CorpusKind::{kind}, "{entry["package"]}",\n     "{entry["sha256"]}"}},' for entry in report["packages"]]
    TARGET.write_text("\n".join([
        "// Written by scripts/corpus_hashes.py; see docs/fidelity.md#corpora.",
        f"constexpr int64_t kAgenticBytes = {agentic_bytes};",
        "constexpr RecordedText kRecordedTexts[] = {", *texts, "};",
        "constexpr RecordedPackage kRecordedPackages[] = {", *packages, "};", ""]))
    print(f"recorded {len(texts)} texts and {len(packages)} package contents in {TARGET.name}")


if __name__ == "__main__":
    main()
