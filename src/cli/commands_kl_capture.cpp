// SPDX-License-Identifier: Apache-2.0
// kl capture and kl panel.
#include <utility>

#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/model_options.h"
#include "cli/values.h"
#include "tools/kl_capture.h"
#include "tools/kl_panel.h"

namespace rorqual::cli {
namespace {

using Options = std::vector<OptionSpec>;

Options capture_options() {
  return {{.name = "corpus",
           .kind = OptionKind::path,
           .group = "capture",
           .help = "text to cut into windows; or a panel, a capture (.safetensors) or another program's "
                   "panel: its windows",
           .value_name = "FILE",
           .is_common = true,
           .is_required = true},
          {.name = "out",
           .kind = OptionKind::path,
           .group = "capture",
           .help = "the dump: .npz (public layout) or .safetensors",
           .value_name = "FILE",
           .letter = 'o',
           .is_common = true,
           .is_required = true},
          {.name = "context",
           .kind = OptionKind::size,
           .group = "capture",
           .help = "tokens of a window, BOS included; the second half is scored",
           .value_name = "TOKENS",
           .default_value = "4096",
           .min = 4,
           .max = 1 << 30,
           .is_common = true},
          {.name = "windows",
           .kind = OptionKind::integer,
           .group = "capture",
           .help = "at most so many windows, or cases of a panel; default: 24, all cases",
           .value_name = "N",
           .min = 1,
           .max = 1'000'000,
           .is_common = true},
          {.name = "top-k",
           .kind = OptionKind::integer,
           .group = "capture",
           .help = "best tokens kept per position, at most the vocabulary",
           .value_name = "K",
           .default_value = "512",
           .min = 1,
           .max = 10'000'000,
           .is_common = true},
          {.name = "logits",
           .kind = OptionKind::path,
           .group = "capture",
           .help = "also write the logits of the whole vocabulary there (.safetensors)",
           .value_name = "FILE"},
          {.name = "force",
           .kind = OptionKind::flag,
           .group = "capture",
           .help = "discard finished windows of another capture in <out>.part"}};
}

Status kl_capture(const Values& values) {
  constexpr int64_t kDefaultWindows = 24;
  constexpr int64_t kAllCases = 1'000'000;
  tools::KlCaptureOptions options;
  RORQUAL_TRY_ASSIGN(options.engine, engine_values(values));
  options.corpus = values.text("corpus");
  options.out = values.text("out");
  options.logits = values.text("logits");
  options.context = values.number("context").value_or(0);
  const bool is_panel =
      options.corpus.size() > 5 && options.corpus.rfind(".json") == options.corpus.size() - 5;
  options.windows = values.number("windows").value_or(is_panel ? kAllCases : kDefaultWindows);
  options.top_k = values.integer("top-k");
  options.force = values.flag("force");
  options.as_json = values.flag("json");
  return tools::run_kl_capture(options);
}

Options panel_options() {
  return {{.name = "out",
           .kind = OptionKind::path,
           .group = "panel",
           .help = "the panel, as JSON",
           .value_name = "FILE",
           .letter = 'o',
           .is_common = true,
           .is_required = true},
          {.name = "prompts",
           .kind = OptionKind::path,
           .group = "panel",
           .help = "a JSON list of strings, or one prompt per line; default: the 100 built-in prompts",
           .value_name = "FILE",
           .is_common = true},
          {.name = "num-prompts",
           .kind = OptionKind::integer,
           .group = "panel",
           .help = "only the first N prompts; 0 = all",
           .value_name = "N",
           .default_value = "0",
           .min = 0},
          {.name = "max-tokens",
           .kind = OptionKind::size,
           .group = "panel",
           .help = "most tokens of a continuation",
           .value_name = "N",
           .default_value = "64",
           .min = 1,
           .max = 1 << 20,
           .is_common = true}};
}

Status kl_panel(const Values& values) {
  tools::KlPanelOptions options;
  RORQUAL_TRY_ASSIGN(options.engine, engine_values(values));
  options.out = values.text("out");
  options.prompts = values.text("prompts");
  options.num_prompts = values.integer("num-prompts");
  options.max_tokens = values.number("max-tokens").value_or(0);
  RORQUAL_TRY_ASSIGN(options.prompt_compat, prompt_compat_value(values));
  options.as_json = values.flag("json");
  return tools::run_kl_panel(options);
}

}  // namespace

CommandSpec kl_capture_command() {
  auto options = capture_options();
  append(options, engine_options());
  return {.name = "kl capture",
          .summary = "log-probabilities of a corpus or panel into a dump",
          .description =
              "Scores the windows of a text, or the continuations of a panel, with MODEL or with a server "
              "behind --url, and writes a dump beside its run record. A killed capture goes on where it was.",
          .example = "rorqual kl capture /models/DeepSeek-V4.1-Flash --corpus neutral.txt --out neutral.npz",
          .options = std::move(options),
          .run = kl_capture};
}

CommandSpec kl_panel_command() {
  auto options = panel_options();
  options.push_back(prompt_compat_option());
  append(options, engine_options());
  return {
      .name = "kl panel",
      .summary = "chat prompts with a model's own greedy continuations",
      .description =
          "Renders the prompts with thinking disabled and lets MODEL continue each greedily. The panel is "
          "scored by `kl capture --corpus PANEL.json` and replayed by `kl agree`.",
      .example = "rorqual kl panel /models/DeepSeek-V4.1-Flash --out panel.json --streams 8",
      .options = std::move(options),
      .run = kl_panel};
}

}  // namespace rorqual::cli
