// SPDX-License-Identifier: Apache-2.0
#include "tools/serve.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "base/affinity.h"
#include "base/cpu_info.h"
#include "base/units.h"
#include "plan/plan_text.h"
#include "tools/build_info.h"
#include "tools/checkpoint_encoder.h"
#include "tools/other_engine.h"
#include "tools/progress_bar.h"
#include "tools/signal_wait.h"
#include "tools/version.h"

namespace rorqual::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAlivePoll{500};

/// What the signal thread and the main thread share.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_serving = false;
  int signals = 0;
  server::Server* server = nullptr;
};

/// Runs on the signal thread. Loading cannot be cut short in an orderly way and holds nothing to save: the
/// process ends.
void on_signal(Shared& shared, int count, int number) {
  const std::lock_guard lock(shared.mutex);
  shared.signals = count;
  if (!shared.is_serving || count > 2) {
    release_log();
    fmt::print(stderr, "\n");
    spdlog::warn("stop   interrupted{}", shared.is_serving ? "" : " while loading");
    _exit(128 + number);
  }
  if (count == 1) {
    spdlog::info(
        "stop   draining: new requests are refused, running ones finish; a second signal cancels them");
  } else {
    spdlog::warn("stop   second signal: cancelling running requests");
    if (shared.server != nullptr) shared.server->stop_now();
  }
  shared.changed.notify_all();
}

void print_banner(const ServeOptions& options) {
  const auto& cpu = cpu_info();
  const auto memory = memory_info();
  spdlog::info("start  {}", version_line());
  if (!options.given_options.empty()) {
    spdlog::info("start  options {} (full list: --print-config)", options.given_options);
  }
  spdlog::info("start  {}; {} compute threads of {} usable CPUs; {} of {} memory available",
               cpu.model_name.empty() ? "unknown CPU" : cpu.model_name,
               options.open.threads > 0 ? options.open.threads : default_compute_threads(cpu),
               cpu.usable_cpus, format_bytes(memory.available_bytes), format_bytes(memory.total_bytes));
}

void print_plan(const plan::Plan& plan) {
  for (const std::string& line : plan::start_lines(plan)) spdlog::info("plan   {}", line);
}

/// Keeps this thread, and all that it makes, off the cores that are left to the compute threads.
void isolate_cpus(OpenOptions& open) {
  const int threads = open.threads > 0 ? open.threads : default_compute_threads(cpu_info());
  CpuDivision division = divide_cpus(thread_cpu_places(), threads);
  if (division.compute.empty() || !set_thread_cpus(division.rest)) {
    spdlog::warn("start  --cpu-isolation: no core beside those of {} compute threads; see --threads",
                 threads);
    return;
  }
  spdlog::info("start  {} compute threads on cores of their own, {} CPUs for the rest", threads,
               division.rest.size());
  open.compute_cpus = std::move(division.compute);
}

Result<OpenedEngine> open_chosen_engine(const ServeOptions& options, const model::LoadProgress& progress) {
  if (options.engine_name == "local") {
    return open_engine(options.open, options.engine, progress, print_plan, options.reuse);
  }
  return open_other_engine({.name = options.engine_name,
                            .api_key = options.upstream_api_key,
                            .upstream_model = options.upstream_model,
                            .connections = options.open.max_num_seqs,
                            .max_num_queued_reqs = options.engine.max_num_queued_reqs,
                            .max_logprobs = options.engine.max_logprobs},
                           options.open);
}

void print_reuse(const OpenedEngine& opened, const ReuseOptions& reuse) {
  const auto& info = opened.engine->info();
  std::string line = opened.prefix_cache_bytes > 0
                         ? fmt::format("prefix cache {}", format_bytes(opened.prefix_cache_bytes))
                         : std::string("prefix cache off");
  if (opened.prefix_cache_bytes > 0 && !reuse.prefix_cache_dir.empty()) {
    line += fmt::format(" and {} in {}", format_bytes(reuse.prefix_disk_bytes), reuse.prefix_cache_dir);
  }
  line += info.max_drafts > 0 ? fmt::format(", up to {} drafts a step{}", info.max_drafts,
                                            reuse.speculative_tokens < 0 ? " while they pay" : "")
                              : std::string(", no drafts");
  spdlog::info("load   {}", line);
}

void print_model(const OpenedEngine& opened, double seconds) {
  const auto& info = opened.engine->info();
  spdlog::info(
      "load   model {}: {} in memory, {} numerics, {} kernels, context {} tokens, cache {} tokens, {:.1f} s",
      info.model_name, format_bytes(opened.host_bytes), info.numerics, info.kernels,
      format_count(info.max_model_len), format_count(opened.cache_tokens), seconds);
  spdlog::info("load   lossy switches: {}", info.switches.empty() ? "none" : info.switches);
  if (opened.opened.is_embedded) {
    spdlog::info("load   this is the small model inside the program: a demonstration, not an assistant");
  }
}

void print_ready(const server::Server& server, const std::string& model, bool has_key) {
  const auto url = server.url();
  spdlog::info("ready  {}   API /v1   chat /   metrics /metrics", url);
  spdlog::info(
      R"(ready  try: curl {}/v1/chat/completions -H 'Content-Type: application/json'{} -d '{{"model": "{}", "messages": [{{"role": "user", "content": "What is 17 + 25?"}}]}}')",
      url, has_key ? " -H \"Authorization: Bearer $KEY\"" : "", model);
}

/// Blocks until a signal comes; false if the engine dies first. A dead engine has ended all its requests; one
/// whose step takes too long still has them: that is said, and left to who watches /health.
bool wait_for_end(Shared& shared, const runtime::Engine& engine) {
  std::unique_lock lock(shared.mutex);
  bool is_stuck = false;
  while (shared.signals == 0) {
    shared.changed.wait_for(lock, kAlivePoll);
    const runtime::EngineStats stats = engine.stats();
    if (!stats.is_alive && stats.requests_running + stats.requests_waiting == 0) return false;
    if (stats.is_alive == is_stuck) {
      is_stuck = !is_stuck;
      spdlog::error("sched  {}", is_stuck ? "a step takes longer than --step-timeout: /health says 503"
                                          : "the step that took too long has ended");
    }
  }
  return true;
}

}  // namespace

Status run_serve(const ServeOptions& chosen) {
  ServeOptions options = chosen;
  LogOptions log = options.log;
  log.is_held = options.as_json && log.file.empty();
  RORQUAL_TRY(set_up_log(log));
  if (options.isolates_cpus) isolate_cpus(options.open);
  Shared shared;
  SignalWait* waiting = nullptr;
  SignalWait signals(
      [&](int count) { on_signal(shared, count, waiting == nullptr ? 15 : waiting->received()); });
  waiting = &signals;
  const auto started = Clock::now();
  print_banner(options);

  auto server_options = options.server;
  server_options.version = build_info().version;
  server_options.commit = build_info().commit;
  server_options.is_demonstration = options.open.model.empty();
  OpenedEngine opened;  // outlives the server, which is declared after it
  RORQUAL_TRY_ASSIGN(const auto server, server::Server::start(server_options));
  ProgressBar bar(ProgressBar::is_terminal() && !log.is_held && options.log.format == "text" &&
                  options.log.file.empty());
  const auto show_progress = [&](int64_t done, int64_t total) {
    bar.update(done, total);
    server->set_load_progress(total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0);
  };
  auto loaded = open_chosen_engine(options, show_progress);
  bar.finish();
  if (!loaded.ok()) return std::move(loaded).error();
  opened = *std::move(loaded);
  release_log();
  for (const std::string& warning : opened.warnings) spdlog::warn("load   {}", warning);
  if (options.engine_name == "local") {
    print_model(opened, std::chrono::duration<double>(Clock::now() - started).count());
    print_reuse(opened, options.reuse);
  } else {
    spdlog::info("load   model {} of {}, context {} tokens", opened.engine->info().model_name,
                 opened.engine->info().kernels, format_count(opened.engine->info().max_model_len));
  }
  const std::string compat = text::prompt_compat_names(options.server.prompt_compat);
  if (!compat.empty()) spdlog::info("load   prompt switches: {}", compat);
  server->attach(*opened.engine, *opened.opened.tokenizer, checkpoint_encoder(options.open.model));
  {
    const std::lock_guard lock(shared.mutex);
    shared.is_serving = true;
    shared.server = server.get();
  }
  const auto& names = options.server.served_model_names;
  print_ready(*server, names.empty() ? opened.engine->info().model_name : names.front(),
              !options.server.api_keys.empty());

  const bool is_alive = wait_for_end(shared, *opened.engine);
  const bool all_finished = server->stop();
  {
    const std::lock_guard lock(shared.mutex);
    shared.server = nullptr;
  }
  if (!is_alive)
    return Error(Code::internal, "the engine stopped working", "the log above says why; please report it");
  spdlog::info("stop   {}", all_finished ? "all requests finished" : "some requests were cancelled");
  if (shared.signals > 1) return Error(Code::cancelled, "stopped by a second signal");
  return Ok();
}

}  // namespace rorqual::tools
