// SPDX-License-Identifier: Apache-2.0
#include "tools/kl_engine.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <span>
#include <utility>

#include "base/cpu_info.h"
#include "base/sha256.h"
#include "base/units.h"
#include "format/safetensors.h"
#include "tools/build_info.h"
#include "tools/checkpoint_encoder.h"
#include "tools/log.h"
#include "tools/progress_bar.h"
#include "tools/text_input.h"

namespace rorqual::tools {
namespace {

/// Of config.json and the index of the weights (their names, shards and sizes); a synthetic model's config
/// and name say the same.
std::string model_sha256(const OpenedSource& opened) {
  Sha256 hash;
  const auto add = [&](const std::string& text) {
    hash.update(std::as_bytes(std::span(text.data(), text.size())));
  };
  add(opened.name);
  for (const std::string& name : {std::string("config.json"), std::string(format::kIndexFileName)}) {
    if (auto text = opened.source->read_text(name); text.ok()) add(*text);
  }
  return hash.hex();
}

std::string machine_text() {
  const CpuInfo& cpu = cpu_info();
  return fmt::format("{}, {} usable CPUs, {}", cpu.model_name.empty() ? "unknown CPU" : cpu.model_name,
                     cpu.usable_cpus, format_bytes(memory_info().total_bytes));
}

Result<KlEngine> open_remote(const KlEngineOptions& options) {
  KlEngine result;
  RemoteOptions remote = options.remote;
  remote.connections = options.streams;
  RORQUAL_TRY_ASSIGN(result.remote, RemoteEngine::connect(remote));
  const RemoteServer& server = result.remote->server();
  result.record.version = server.version;
  result.record.commit = server.commit;
  result.record.engine = server.url;
  return result;
}

/// The context was derived from `option`, which is what the reader can change.
Error too_long(Error error, std::string_view option, int64_t needed_len) {
  return {error.code(), fmt::format("{} tokens are needed: {}", needed_len, error.message()),
          fmt::format("a smaller {}", option)};
}

Result<KlEngine> open_local(const KlEngineOptions& options, int64_t needed_len, std::string_view option) {
  KlEngine result;
  OpenOptions open = options.open;
  open.may_exceed_positions = open.max_model_len != 0;  // nobody has asked for it
  if (open.max_model_len == 0) open.max_model_len = needed_len;
  open.max_num_seqs = options.streams;
  runtime::EngineOptions engine;
  engine.max_num_seqs = options.streams;
  engine.max_num_batched_tokens = open.max_num_batched_tokens;
  engine.max_logprobs = -1;
  ProgressBar bar(ProgressBar::is_terminal());
  auto opened = open_engine(open, engine, [&](int64_t done, int64_t total) {
    if (ProgressBar::is_terminal()) bar.update(done, total);
  });
  bar.finish();
  if (!opened.ok()) {
    const bool is_too_long = opened.error().limit() == Limit::model_len;
    if (is_too_long && !option.empty()) return too_long(std::move(opened).error(), option, needed_len);
    return std::move(opened).error();
  }
  result.local = *std::move(opened);
  result.record.version = build_info().version;
  result.record.commit = fmt::format("{}{}", build_info().commit, build_info().dirty ? "-dirty" : "");
  result.record.engine = "local";
  if (const auto& tokenizer = result.local.opened.tokenizer)
    result.record.tokenizer_sha256 = tokenizer->sha256();
  result.record.checkpoint_encoder = checkpoint_encoder(open.model);
  result.record.model_sha256 = model_sha256(result.local.opened);
  result.record.machine = machine_text();
  result.record.threads = open.threads > 0 ? open.threads : default_compute_threads(cpu_info());
  return result;
}

}  // namespace

Result<KlEngine> open_kl_engine(KlEngineOptions options, int64_t needed_len, std::string_view option) {
  RORQUAL_TRY(set_up_log({.level = "warn"}));
  const bool is_remote = !options.remote.url.empty();
  auto result = is_remote ? open_remote(options) : open_local(options, needed_len, option);
  if (!result.ok()) return result;
  kl::RunRecord& record = result->record;
  const runtime::EngineInfo& info = result->engine().info();
  record.numerics = info.numerics;
  record.kernels = info.kernels;
  record.switches = info.switches;
  record.max_model_len = info.max_model_len;
  record.streams = options.streams;
  // Scoring requests neither draft nor read the prefix cache, in this program by construction, in vLLM by its
  // rule for prompt_logprobs; rows that a cache left out are found by their number.
  record.speculation = false;
  record.prefix_cache = false;
  return result;
}

Result<std::unique_ptr<text::Tokenizer>> open_kl_tokenizer(const KlEngineOptions& options) {
  if (options.remote.url.empty()) {
    RORQUAL_TRY_ASSIGN(OpenedSource opened, open_source(options.open));
    return std::move(opened.tokenizer);
  }
  if (options.open.tokenizer.empty()) return std::unique_ptr<text::Tokenizer>();
  RORQUAL_TRY_ASSIGN(auto tokenizer, load_tokenizer(options.open.tokenizer));
  return std::make_unique<text::Tokenizer>(std::move(tokenizer));
}

std::string utc_now() {
  const auto now = std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
}

}  // namespace rorqual::tools
