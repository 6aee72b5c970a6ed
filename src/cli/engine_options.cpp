// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_options.h"

#include <utility>

#include "cli/model_options.h"

namespace rorqual::cli {
namespace {

std::vector<OptionSpec> url_options() {
  return {{.name = "streams",
           .kind = OptionKind::integer,
           .group = "engine",
           .help = "requests in flight; the result does not depend on it",
           .value_name = "N",
           .default_value = "1",
           .min = 1,
           .max = 4096,
           .is_common = true},
          {.name = "url",
           .group = "engine",
           .help = "ask this server (http://host:port) instead of loading a model",
           .value_name = "URL",
           .is_common = true},
          {.name = "api-key",
           .group = "engine",
           .help = "key for --url; better given as RORQUAL_API_KEY",
           .value_name = "KEY"},
          {.name = "served-model-name",
           .group = "engine",
           .help = "model to ask --url for; default: the first that it lists",
           .value_name = "NAME"},
          {.name = "timeout",
           .kind = OptionKind::real,
           .group = "engine",
           .help = "seconds without an answer of --url before giving up, 0 = never",
           .value_name = "SECONDS",
           .default_value = "3600",
           .min = 0},
          {.name = "vocab-size",
           .kind = OptionKind::integer,
           .group = "engine",
           .help = "vocabulary of a server that does not tell it",
           .value_name = "N",
           .default_value = "129280",
           .min = 1,
           .max = 1 << 30}};
}

}  // namespace

std::vector<OptionSpec> engine_options() {
  auto options = model_options();
  append(options, {kernels_option(), max_model_len_option()});
  append(options, url_options());
  return options;
}

Result<tools::KlEngineOptions> engine_values(const Values& values) {
  tools::KlEngineOptions options;
  options.streams = values.integer("streams");
  options.remote.url = values.text("url");
  if (!options.remote.url.empty() && values.has("model")) {
    return Error(Code::invalid_argument, "MODEL and --url exclude each other", "leave one of them out");
  }
  options.remote.api_key = values.text("api-key");
  options.remote.model = values.text("served-model-name");
  options.remote.timeout_s = values.real("timeout");
  options.remote.vocab_size = values.integer("vocab-size");
  RORQUAL_TRY_ASSIGN(options.open, open_options(values));
  return options;
}

}  // namespace rorqual::cli
