// SPDX-License-Identifier: Apache-2.0
// The local engine without its thread: requests in, ends out. The step itself is in engine_step.cpp.
#include "runtime/engine_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "base/check.h"
#include "runtime/philox.h"

namespace rorqual::runtime {

namespace {

constexpr uint64_t kSeedMask = (uint64_t{1} << 53) - 1;  // exact in JSON numbers

template <class T>
Error bad_option(const char* name, T got, const char* expected) {
  return Error(Code::invalid_argument, fmt::format("{} is {}, expected {}", name, got, expected),
               fmt::format("correct {}", name));
}

Status check_options(const EngineOptions& o) {
  if (o.max_num_seqs < 1) return bad_option("max_num_seqs", o.max_num_seqs, "1 or more");
  if (o.max_num_batched_tokens < 1)
    return bad_option("max_num_batched_tokens", o.max_num_batched_tokens, "1 or more");
  if (o.long_prefill_token_threshold < -1) {
    return bad_option("long_prefill_token_threshold", o.long_prefill_token_threshold,
                      "-1 (automatic), 0 (off) or more");
  }
  if (o.max_num_queued_reqs < 0)
    return bad_option("max_num_queued_reqs", o.max_num_queued_reqs, "0 (off) or more");
  if (o.max_num_queued_tokens < 0) {
    return bad_option("max_num_queued_tokens", o.max_num_queued_tokens, "0 (off) or more");
  }
  if (o.max_logprobs < -1) return bad_option("max_logprobs", o.max_logprobs, "-1 (no limit) or more");
  if (o.max_logit_rows < 1) return bad_option("max_logit_rows", o.max_logit_rows, "1 or more");
  if (o.max_prompt_logprob_entries < 0) {
    return bad_option("max_prompt_logprob_entries", o.max_prompt_logprob_entries, "0 (off) or more");
  }
  if (o.max_queue_wait_s < 0) return bad_option("max_queue_wait_s", o.max_queue_wait_s, "0 (off) or more");
  if (o.drafts < 0 || o.drafts > kMaxDrafts) {
    return bad_option("drafts", o.drafts, "0 (off) to 7");
  }
  if (o.prefix_cache_bytes < 0) {
    return bad_option("prefix_cache_bytes", o.prefix_cache_bytes, "0 (off) or more");
  }
  if (o.prefix_snapshot_interval < 0) {
    return bad_option("prefix_snapshot_interval", o.prefix_snapshot_interval, "0 (off) or more");
  }
  if (o.prefix_fetch_bytes < 1) return bad_option("prefix_fetch_bytes", o.prefix_fetch_bytes, "1 or more");
  if (o.swap_bytes < 0) return bad_option("swap_bytes", o.swap_bytes, "0 (off) or more");
  if (o.replay_trim < 0) return bad_option("replay_trim", o.replay_trim, "0 (exact) or more rows");
  return Ok{};
}

uint64_t draw_seed(const std::optional<uint64_t>& source, uint64_t count) {
  if (source) {
    const auto x = philox4x32({static_cast<uint32_t>(count), static_cast<uint32_t>(count >> 32), 0, 1},
                              {static_cast<uint32_t>(*source), static_cast<uint32_t>(*source >> 32)});
    return (uint64_t{x[1]} << 32 | x[0]) & kSeedMask;
  }
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) & kSeedMask;
}

double seconds_between(int64_t begin_ns, int64_t end_ns) {
  return begin_ns == 0 || end_ns == 0 ? 0.0 : static_cast<double>(end_ns - begin_ns) * 1e-9;
}

PrefixUseOptions prefix_options(const EngineOptions& options) {
  PrefixUseOptions prefix;
  prefix.model_identity = options.model_identity;
  prefix.max_bytes = options.prefix_cache_bytes;
  prefix.disk = options.prefix_disk;
  prefix.snapshot_interval = options.prefix_snapshot_interval;
  return prefix;
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::create(std::unique_ptr<model::Runner> runner, EngineInfo info,
                                                       EngineOptions options,
                                                       std::unique_ptr<StepExecutor> executor) {
  RORQUAL_CHECK(runner != nullptr);
  RORQUAL_TRY(check_options(options));
  if (!options.clock) options.clock = std::make_shared<SteadyClock>();
  if (!executor) executor = std::make_unique<InlineExecutor>();
  const int64_t rows = std::min(options.max_num_batched_tokens, runner->max_step_rows());
  SchedulerLimits limits;
  limits.max_num_seqs = std::min(options.max_num_seqs, rows);
  limits.max_step_tokens = rows;
  limits.max_logit_rows = std::max(options.max_logit_rows, limits.max_num_seqs);
  limits.drill_preemptions = options.drill_preemptions;
  limits.long_prefill_token_threshold = options.long_prefill_token_threshold >= 0
                                            ? options.long_prefill_token_threshold
                                            : std::max<int64_t>(rows * 3 / 4, 1);
  const int64_t cache_tokens =
      runner->pages().pages_total(model::PageKind::block) * runner->pages().page_tokens();
  info.vocab_size = runner->vocab_size();
  info.max_model_len = info.max_model_len > 0 ? std::min(info.max_model_len, runner->max_model_len())
                                              : runner->max_model_len();
  info.max_model_len = std::min(info.max_model_len, cache_tokens);
  if (info.max_model_len < 1) {
    return Error(Code::invalid_argument,
                 fmt::format("the cache holds {} tokens, expected 1 or more", cache_tokens),
                 "enlarge the cache");
  }
  limits.max_model_len = info.max_model_len;
  limits.fetch_bytes = options.prefix_fetch_bytes;
  limits.skips_unread_rows = options.skips_unread_rows;
  info.block_tokens = runner->pages().page_tokens();
  info.max_drafts = std::min<int64_t>(options.drafts, runner->max_drafts());
  const int64_t max_rows = std::numeric_limits<int64_t>::max() / 8 / info.vocab_size;
  if (limits.max_logit_rows > max_rows)
    return bad_option("max_logit_rows", limits.max_logit_rows, "far less");
  try {
    return std::unique_ptr<EngineCore>(
        new EngineCore(std::move(runner), std::move(info), std::move(options), limits, std::move(executor)));
  } catch (const std::bad_alloc&) {
    return Error(Code::out_of_memory, fmt::format("no memory for {} rows of logits", limits.max_logit_rows),
                 "lower max_num_seqs or max_logit_rows");
  }
}

EngineCore::EngineCore(std::unique_ptr<model::Runner> runner, EngineInfo info, EngineOptions options,
                       SchedulerLimits limits, std::unique_ptr<StepExecutor> executor)
    : info_(std::move(info)),
      options_(std::move(options)),
      runner_(std::move(runner)),
      executor_(std::move(executor)),
      prefix_(*runner_, prefix_options(options_)),
      swap_(options_.swap_bytes),
      draft_length_(static_cast<int32_t>(info_.max_drafts), options_.are_drafts_adaptive),
      scheduler_(limits, {*runner_, prefix_, swap_, draft_length_}),
      sampler_(info_, runner_->num_threads()),
      logits_(new float[static_cast<size_t>(limits.max_logit_rows * info_.vocab_size)]) {
  figures_.blocks_total = runner_->pages().pages_total(model::PageKind::block);
  publish();
}

EngineCore::~EngineCore() {
  executor_->wait();  // a step that was left by an exception
}

void EngineCore::expect(const Request& request) {
  figures_.pending_prompt_tokens += static_cast<int64_t>(request.prompt.size());
  ++figures_.unfinished;
}

void EngineCore::add(RequestId id, Request request, std::shared_ptr<TokenSink> sink, int64_t queued_ns) {
  auto state = std::make_unique<RequestState>();
  state->id = id;
  state->sampling = std::move(request.sampling);
  state->client_key = std::move(request.client_key);
  state->order.priority = request.priority;
  state->delivery = std::make_shared<Delivery>();
  state->delivery->id = id;
  state->delivery->sink = std::move(sink);
  state->seed = state->sampling.seed ? *state->sampling.seed : draw_seed(options_.seed, num_seeds_drawn_++);
  state->tokens = std::move(request.prompt);
  state->num_prompt_tokens = state->num_tokens();
  if (has_penalties(state->sampling)) state->counts = TokenCounts(state->tokens);
  if (state->needs_prompt_scores()) {
    state->num_scored = std::max<int64_t>(1, state->sampling.prompt_logprobs_begin);
    if (!state->sampling.stream_prompt_rows) {
      state->prompt_logprobs.resize(
          static_cast<size_t>(std::min(state->num_scored, state->num_prompt_tokens)));
    }
  } else {
    state->trim_rows = request.replay_trim.value_or(options_.replay_trim);
  }
  const auto most = static_cast<int32_t>(info_.max_drafts);
  state->max_drafts = std::clamp(request.drafts.value_or(most), 0, most);
  state->breakpoints = std::move(request.breakpoints);
  state->prefix.reads = request.reads_prefix_cache;
  state->prefix.salt = std::move(request.cache_salt);
  state->queued_ns = queued_ns;
  prefix_.begin(*state);
  scheduler_.add(std::move(state));
}

void EngineCore::refuse(int64_t num_prompt_tokens, TokenSink& sink, FinishReason reason,
                        const std::optional<Error>& error) {
  figures_.pending_prompt_tokens -= num_prompt_tokens;
  --figures_.unfinished;
  FinishInfo info;
  info.reason = reason;
  info.error = error;
  info.prompt_tokens = num_prompt_tokens;
  try {
    sink.on_finish(info);
  } catch (...) {  // it has nothing more to lose
  }
}

void EngineCore::cancel(RequestId id) {
  RequestState* request = scheduler_.find(id);
  if (request == nullptr) return;
  if (is_computing_ && request->sequence) {
    request->delivery->is_closed = true;
    doomed_.push_back({id, FinishReason::cancelled, {}});
    return;
  }
  if (is_computing_) {
    end(id, FinishReason::cancelled);
    return;
  }
  flush();
  end(id, FinishReason::cancelled);  // its sink may have thrown meanwhile: then it is gone
  publish();
  flush();
}

/// Requests that nobody has begun for too long.
void EngineCore::expire_waiting() {
  if (options_.max_queue_wait_s <= 0) return;
  const auto limit_ns = static_cast<int64_t>(options_.max_queue_wait_s * 1e9);
  for (const RequestId id : scheduler_.waiting_since_before(options_.clock->now_ns() - limit_ns)) {
    end(id, FinishReason::error, {},
        Error(Code::unavailable,
              fmt::format("the request waited {} s for its first step, the limit of the queue",
                          options_.max_queue_wait_s),
              "try again later"));
  }
}

FinishInfo EngineCore::finish_info(const RequestState& request) const {
  FinishInfo info;
  info.seed = request.seed;
  info.prompt_tokens = request.num_prompt_tokens;
  info.cached_tokens = std::min(request.cached_tokens, request.num_prompt_tokens);
  info.disk_tokens = std::min(request.disk_tokens, info.cached_tokens);
  info.completion_tokens = request.num_output();
  info.replayed_tokens = request.replayed_tokens;
  info.trim_rows = request.trim_rows;
  info.drafted_tokens = request.drafted_tokens;
  info.accepted_tokens = request.accepted_tokens;
  info.preemptions = request.num_preemptions;
  info.prefix = request.prefix.first_report;
  const int64_t scheduled = request.scheduled_ns == 0 ? options_.clock->now_ns() : request.scheduled_ns;
  info.queue_s = seconds_between(request.queued_ns, scheduled);
  info.prefill_s = seconds_between(request.scheduled_ns, request.first_token_ns);
  info.decode_s = seconds_between(request.first_token_ns, request.last_token_ns);
  return info;
}

void EngineCore::end(RequestId id, FinishReason reason, std::optional<int32_t> stop_token,
                     std::optional<Error> error) {
  const bool is_sound = reason != FinishReason::error;
  const std::unique_ptr<RequestState> request = scheduler_.remove(id, is_sound);
  if (!request) return;
  if (!request->is_prompt_counted) figures_.pending_prompt_tokens -= request->num_prompt_tokens;
  --figures_.unfinished;
  FinishInfo info = finish_info(*request);
  info.reason = reason;
  info.stop_token = stop_token;
  info.error = std::move(error);
  events_.push(request->delivery, std::move(info));
}

void EngineCore::fail_all(const Error& error) {
  doomed_.clear();
  for (const RequestId id : scheduler_.ids()) end(id, FinishReason::error, {}, error);
  figures_.step_began_ns = 0;
  publish();
  flush();
}

void EngineCore::cancel_all() {
  for (const RequestId id : scheduler_.ids()) end(id, FinishReason::cancelled);
  publish();
  flush();
}

void EngineCore::publish() {
  figures_.running = scheduler_.num_running();
  figures_.preemptions = scheduler_.num_preemptions();
  figures_.blocks_used = scheduler_.count_blocks_used();
  figures_.swapped_out = swap_.num_out();
  figures_.swapped_in = swap_.num_in();
  PrefixStats prefix = prefix_.stats();
  const std::lock_guard lock(stats_mutex_);
  prefix_stats_ = std::move(prefix);
}

EngineStats EngineCore::stats() const {
  EngineStats stats;
  stats.requests_running = figures_.running;
  stats.requests_waiting = std::max<int64_t>(figures_.unfinished - stats.requests_running, 0);
  stats.cache_blocks_total = figures_.blocks_total;
  stats.cache_blocks_used = figures_.blocks_used;
  stats.prompt_tokens = figures_.prompt_tokens;
  stats.generation_tokens = figures_.generation_tokens;
  stats.cached_tokens = figures_.cached_tokens;
  stats.preemptions = figures_.preemptions;
  stats.steps = figures_.steps;
  stats.swapped_out = figures_.swapped_out;
  stats.swapped_in = figures_.swapped_in;
  {
    const std::lock_guard lock(stats_mutex_);
    stats.prefix = prefix_stats_;
    stats.speculation = speculation_;
    stats.iteration_tokens = iteration_tokens_;
    stats.iteration_tokens_sum = iteration_tokens_sum_;
  }
  if (stats.prefix.is_on && options_.prefix_disk) {
    const prefix::DiskTierStats disk = options_.prefix_disk->stats();
    stats.prefix.disk_pages = disk.pages;
    stats.prefix.disk_bytes = disk.bytes;
    stats.prefix.disk_written_bytes = disk.written_bytes;
    stats.prefix.disk_read_bytes = disk.read_bytes;
    stats.prefix.disk_dropped_pages = disk.dropped_pages;
    stats.prefix.disk_damaged_pages = disk.damaged_pages;
    stats.prefix.disk_evicted_pages = disk.evicted_pages;
    stats.prefix.is_disk_failing = disk.is_failing;
  }
  return stats;
}

}  // namespace rorqual::runtime
