// SPDX-License-Identifier: Apache-2.0
// kl agree.
#include <utility>

#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/model_options.h"
#include "cli/values.h"
#include "tools/kl_agree.h"

namespace rorqual::cli {
namespace {

Status kl_agree(const Values& values) {
  tools::KlAgreeOptions options;
  RORQUAL_TRY_ASSIGN(options.engine, engine_values(values));
  options.panel = values.text("panel");
  options.require = values.text("require");
  options.as_json = values.flag("json");
  return tools::run_kl_agree(options);
}

}  // namespace

CommandSpec kl_agree_command() {
  std::vector<OptionSpec> options = {
      {.name = "panel",
       .kind = OptionKind::path,
       .group = "arguments",
       .help = "panel that configuration A wrote with `kl panel`",
       .value_name = "PANEL.json",
       .is_positional = true,
       .is_required = true},
      {.name = "require",
       .group = "comparison",
       .help = "exit 1 unless all outputs are identical, or unless so many forced tokens agree (99.5%)",
       .value_name = "identical|N%",
       .is_common = true}};
  append(options, engine_options());
  return {.name = "kl agree",
          .summary = "does a configuration answer as another one did: outputs, forced tokens",
          .description =
              "Replays a panel with MODEL and the given options: share of identical outputs, and agreement "
              "of the best token while the panel's answers are forced through the decode path.",
          .example = "rorqual kl agree panel.json /models/DeepSeek-V4.1-Flash --lm-head fp8 --require 99%",
          .options = std::move(options),
          .run = kl_agree};
}

}  // namespace rorqual::cli
