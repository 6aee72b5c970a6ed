// SPDX-License-Identifier: Apache-2.0
#include "cli/reuse_options.h"

#include <fmt/format.h>

#include "cli/model_options.h"

namespace rorqual::cli {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::vector<OptionSpec> prefix_options() {
  return {{.name = "enable-prefix-caching",
           .kind = OptionKind::flag,
           .group = "reuse",
           .help = "keep what prompts and answers left in the cache for later prompts that begin alike",
           .default_value = "on"},
          {.name = "prefix-cache-memory",
           .kind = OptionKind::size,
           .group = "reuse",
           .help = "memory for it; auto = a quarter of what is left, within limits; 0 = off",
           .value_name = "BYTES",
           .default_value = "auto",
           .choices = "auto",
           .min = 0,
           .is_common = true},
          {.name = "prefix-cache-dir",
           .kind = OptionKind::path,
           .group = "reuse",
           .help = "keep it on disk, too, in this directory: it survives restarts; default: memory only",
           .value_name = "DIR",
           .is_common = true},
          {.name = "prefix-cache-disk",
           .kind = OptionKind::size,
           .group = "reuse",
           .help = "most bytes of the files in --prefix-cache-dir",
           .value_name = "BYTES",
           .default_value = "16G",
           .min = 1 << 20},
          {.name = "prefix-snapshot-interval",
           .kind = OptionKind::size,
           .group = "reuse",
           .help = "tokens between places inside a prompt where others may continue, 0 = at its end only",
           .value_name = "TOKENS",
           .default_value = "4096",
           .min = 0,
           .max = 1 << 30}};
}

}  // namespace

std::vector<OptionSpec> swap_options() {
  return {{.name = "preemption-mode",
           .kind = OptionKind::choice,
           .group = "reuse",
           .help = "when the cache is full, requests lose what they computed, or it moves to --swap-space",
           .value_name = "MODE",
           .default_value = "recompute",
           .choices = "recompute|swap"},
          {.name = "swap-space",
           .kind = OptionKind::real,
           .group = "reuse",
           .help = "GiB of memory for preempted requests with --preemption-mode swap",
           .value_name = "GIB",
           .default_value = "4",
           .min = 0,
           .max = 65536}};
}

int64_t swap_bytes(const Values& values) {
  if (values.text("preemption-mode") != "swap") return 0;
  return static_cast<int64_t>(values.real("swap-space") * kGiB);
}

std::vector<OptionSpec> reuse_options() {
  std::vector<OptionSpec> options = prefix_options();
  options.push_back(
      {.name = "speculative-tokens",
       .kind = OptionKind::integer,
       .group = "reuse",
       .help = "tokens to draft per step, 0 = none; auto = as many as pay, up to 5, if the model has draft "
               "stages",
       .value_name = "N",
       .default_value = "auto",
       .choices = "auto",
       .min = 0,
       .max = runtime::kMaxDrafts,
       .is_common = true});
  append(options, swap_options());
  options.push_back(
      {.name = "skip-unread-rows",
       .kind = OptionKind::flag,
       .group = "reuse",
       .help = "leave out layers of prompt tokens that nothing reads; the bits are the same (for debugging)",
       .default_value = "on"});
  return options;
}

Result<tools::ReuseOptions> reuse_values(const Values& values, runtime::EngineOptions& engine) {
  tools::ReuseOptions reuse;
  if (values.flag("enable-prefix-caching")) {
    reuse.prefix_cache_bytes = values.number("prefix-cache-memory").value_or(-1);
  } else if (values.number("prefix-cache-memory").value_or(0) > 0) {
    return Error(Code::invalid_argument,
                 "--no-enable-prefix-caching and --prefix-cache-memory contradict each other",
                 "leave one of them out");
  }
  reuse.prefix_cache_dir = values.text("prefix-cache-dir");
  reuse.prefix_disk_bytes = values.number("prefix-cache-disk").value_or(reuse.prefix_disk_bytes);
  reuse.speculative_tokens = static_cast<int32_t>(values.number("speculative-tokens").value_or(-1));
  engine.prefix_snapshot_interval =
      values.number("prefix-snapshot-interval").value_or(engine.prefix_snapshot_interval);
  engine.swap_bytes = swap_bytes(values);
  engine.skips_unread_rows = values.flag("skip-unread-rows");
  return reuse;
}

}  // namespace rorqual::cli
