// SPDX-License-Identifier: Apache-2.0
// Shared state of the routes.
#include "server/service.h"

#include <malloc.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "server/error_body.h"
#include "server/usage.h"

namespace rorqual::server {

namespace {

/// Under load the pieces of many streams go out together, this often; a lone stream never waits for it.
constexpr std::chrono::microseconds kDeliveryInterval{1500};

constexpr size_t kLargeBody_bytes = 1u << 20;
constexpr size_t kTrimmedBody_bytes = 8u << 20;  // beyond it freed memory goes back to the system at once

void log_exception(const char* what) {
  spdlog::error("http  a request failed with an exception: {}", what);
}

}  // namespace

int64_t unix_time_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Backend::Backend(runtime::Engine& e, const text::Tokenizer& t, const ServerOptions& options)
    : engine(e),
      tokenizer(t),
      prompts(std::make_unique<text::PromptEncoder>(t, options.prompt_memo_bytes)),
      model_names(options.served_model_names) {
  const runtime::EngineInfo& info = engine.info();
  max_model_len = info.max_model_len;
  if (model_names.empty()) model_names.push_back(info.model_name);
  policy.model_names = model_names;
  policy.prompt_compat = options.prompt_compat;
  policy.max_choices = options.max_choices;
  policy.force_tools_in_thinking = !options.official_tool_choice;
  constraints = std::make_unique<grammar::ConstraintCompiler>(tokenizer, info.vocab_size, info.eos_token_id);
  policy.max_logprobs = options.max_logprobs;
  policy.max_top_logprobs =
      options.max_logprobs < 0 ? static_cast<int32_t>(info.vocab_size) : options.max_logprobs;
  fingerprint = "rorqual-" + (options.version.empty() ? std::string("dev") : options.version);
  if (!options.commit.empty()) fingerprint += "-" + options.commit.substr(0, 7);
  fingerprint += "-" + info.numerics + "-" + info.kernels;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    token_bytes_max = std::max(token_bytes_max, static_cast<int64_t>(tokenizer.token_bytes(id).size()));
  }
}

Service::Service(ServerOptions o)
    : options(std::move(o)),
      started_at_s(unix_time_s()),
      large_pool(1, log_exception),
      prepare_pool(std::max<size_t>(1, options.text_threads), log_exception),
      delivery({.interval = kDeliveryInterval,
                .before = begin_write_batch,
                .after = end_write_batch,
                .on_exception = log_exception}) {}

void Service::attach(runtime::Engine& engine, const text::Tokenizer& tokenizer,
                     const std::string& checkpoint_encoder) {
  RORQUAL_CHECK(!owned_backend_);
  owned_backend_ = std::make_unique<Backend>(engine, tokenizer, options);
  owned_backend_->checkpoint_encoder = checkpoint_encoder;
  const runtime::EngineInfo& info = engine.info();
  metrics_ = std::make_unique<Metrics>(MetricsLabels{.model_name = owned_backend_->model_names.front(),
                                                     .version = options.version,
                                                     .commit = options.commit,
                                                     .numerics = info.numerics,
                                                     .kernels = info.kernels,
                                                     .max_model_len = info.max_model_len,
                                                     .max_drafts = info.max_drafts,
                                                     .block_tokens = info.block_tokens});
  backend_.store(owned_backend_.get());
}

void Service::prepare(std::shared_ptr<Exchange> exchange, TextWork work) {
  const size_t body_bytes = exchange->request().body.size();
  WorkerPool& pool = body_bytes > kLargeBody_bytes ? large_pool : prepare_pool;
  pool.post([body_bytes, exchange = std::move(exchange), work = std::move(work)] {
    work(exchange);
    exchange->drop_body();
    // The trees of such bodies are millions of small pieces, which the allocator would keep.
    if (body_bytes > kTrimmedBody_bytes) malloc_trim(0);
  });
}

bool Service::refuse_if_full(Exchange& exchange) {
  const int64_t limit = options.max_num_queued_reqs;
  if (limit > 0) {
    const runtime::EngineStats stats = backend().engine.stats();
    const int64_t unfinished = stats.requests_running + stats.requests_waiting + num_preparing_;
    if (unfinished >= limit && !is_draining) {
      const auto error = Error(Code::unavailable,
                               "the queue is full: " + std::to_string(unfinished) +
                                   " unfinished requests, limit " + std::to_string(limit),
                               "try again later, or start the server with a larger --max-queued-requests")
                             .by(Limit::queued_reqs);
      metrics().count_rejection(error.limit());
      exchange.respond(error_response(http_error(error), exchange.request()));
      return true;
    }
  }
  ++num_preparing_;
  return false;
}

void Service::log_miss(const std::string& request_id, const runtime::FinishInfo& info) {
  const bool is_loud = is_notable(info.prefix, info.cached_tokens);
  if (!is_loud && !spdlog::should_log(spdlog::level::debug)) return;
  const std::string line = miss_line(info.prefix, info.cached_tokens, backend().tokenizer);
  if (line.empty()) return;
  if (!is_loud) {
    spdlog::debug("{} id={}", line, request_id);
    return;
  }
  const int64_t now_s = unix_time_s();
  int64_t last_s = last_miss_log_s_;
  if (now_s == last_s || !last_miss_log_s_.compare_exchange_strong(last_s, now_s)) {
    ++num_unlogged_misses_;
    return;
  }
  const int64_t unlogged = num_unlogged_misses_.exchange(0);
  spdlog::info("{} id={}{}", line, request_id,
               unlogged > 0 ? " (and " + std::to_string(unlogged) + " more, not shown)" : "");
}

void Service::add(const std::shared_ptr<Generation>& generation) {
  const std::lock_guard lock(mutex_);
  if (generations_.size() >= prune_at_) {
    std::erase_if(generations_, [](const auto& weak) { return weak.expired(); });
    prune_at_ = std::max<size_t>(64, generations_.size() * 2);
  }
  generations_.push_back(generation);
}

std::vector<std::shared_ptr<Generation>> Service::live_generations() {
  std::vector<std::shared_ptr<Generation>> live;
  const std::lock_guard lock(mutex_);
  for (const auto& weak : generations_) {
    if (auto generation = weak.lock()) live.push_back(std::move(generation));
  }
  return live;
}

}  // namespace rorqual::server
