// SPDX-License-Identifier: Apache-2.0
// kl corpus.
#include "cli/commands.h"
#include "cli/values.h"
#include "tools/kl_corpus.h"

namespace rorqual::cli {
namespace {

Status kl_corpus(const Values& values) {
  return tools::run_kl_corpus({.kind = values.text("corpus"),
                               .out = values.text("out"),
                               .root = values.text("root"),
                               .bytes = values.integer("bytes"),
                               .tokenizers = values.list("tokenizer"),
                               .list = values.flag("list"),
                               .as_json = values.flag("json")});
}

}  // namespace

CommandSpec kl_corpus_command() {
  return {
      .name = "kl corpus",
      .summary = "texts to measure on, from Debian packages",
      .description =
          "Builds one of three texts from the files of Debian 12 packages, the same bytes everywhere, and "
          "says "
          "whether it is the recorded one. neutral: prose in 37 languages; code: programs in 16 languages; "
          "agentic: transcripts of scripted agents that work on that code.",
      .example = "rorqual kl corpus neutral --out neutral.txt",
      .options = {{.name = "corpus",
                   .kind = OptionKind::choice,
                   .group = "arguments",
                   .help = "which text",
                   .value_name = "CORPUS",
                   .choices = "neutral|code|agentic",
                   .is_positional = true},
                  {.name = "out",
                   .kind = OptionKind::path,
                   .group = "corpus",
                   .help = "file to write; without it the text is only built, checked and counted",
                   .value_name = "FILE",
                   .is_common = true},
                  {.name = "root",
                   .kind = OptionKind::path,
                   .group = "corpus",
                   .help = "folder with the packages' files, as scripts/corpus_packages fills it",
                   .value_name = "DIR",
                   .default_value = "/",
                   .is_common = true},
                  {.name = "bytes",
                   .kind = OptionKind::size,
                   .group = "corpus",
                   .help = "another size, about; 0 = the recorded one (24 windows of 4096 and a little more)",
                   .value_name = "N",
                   .default_value = "0",
                   .min = 0,
                   .max = 1e9},
                  {.name = "tokenizer",
                   .kind = OptionKind::path,
                   .group = "corpus",
                   .help = "also count tokens with this tokenizer.json or the one of this model folder",
                   .value_name = "PATH",
                   .is_list = true},
                  {.name = "list",
                   .kind = OptionKind::flag,
                   .group = "corpus",
                   .help = "print packages, recorded versions and licences; build nothing",
                   .is_common = true}},
      .run = kl_corpus};
}

}  // namespace rorqual::cli
