// SPDX-License-Identifier: Apache-2.0
// The narrow waist: what the server and the tools know of inference. Token ids in, token ids out.
// Three engines implement it: the local one (runtime/local_engine), a scripted one and a remote one (tests,
// measuring).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "prefix/miss.h"

namespace rorqual::runtime {

using RequestId = uint64_t;

/// What tokens may follow, position by position (a grammar, a schema). Any thread, one call at a time per
/// request. A pure function of the reply so far: nothing is remembered of rejected drafts.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// Clears the bits of ids that must not follow `reply`: id i is bit i % 32 of mask[i / 32], all set before.
  /// The tokens may be ones that were only drafted. At least one id must stay (else the request fails).
  virtual void mask(std::span<const int32_t> reply, std::span<uint32_t> mask) = 0;
};

/// Sampling of one choice. Ranges are checked by submit (invalid_argument names the field).
struct SamplingParams {
  float temperature = 1.0f;         // 0 = greedy
  int32_t top_k = 0;                // 0 = off
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  float presence_penalty = 0.0f;    // [-2, 2], over generated tokens
  float frequency_penalty = 0.0f;   // [-2, 2], over generated tokens
  float repetition_penalty = 1.0f;  // > 0, over prompt and generated tokens
  std::optional<uint64_t> seed;     // none: the engine draws one and reports it
  uint32_t choice_index = 0;        // second key of the random stream
  int64_t max_tokens = 16;          // 0 = prompt only (scoring)
  int64_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> allowed_token_ids;  // empty = all
  std::vector<std::vector<int32_t>> bad_token_sequences;
  int32_t logprobs = -1;         // -1 = none, k = the k best beside the sampled token, vocab_size = all
  int32_t prompt_logprobs = -1;  // likewise for prompt tokens; such requests never read the prefix cache
  int64_t prompt_logprobs_begin =
      1;                            // first prompt token to score: earlier entries are empty, cost no logits
  bool stream_prompt_rows = false;  // deliver them by on_prompt_row, one by one, instead of all at the end
  std::vector<int32_t> logprob_token_ids;  // also report these ids
  /// Emits these tokens instead of sampled ones, one decode step each, and ends with the last one: scores a
  /// given continuation on the path that decoding takes. Empty = off; else max_tokens must be their number,
  /// and nothing that changes the choice of tokens has an effect: stop tokens do not end it.
  std::vector<int32_t> forced_tokens;
  /// Applied with the other masks, at every position, drafted or not. Null = none.
  std::shared_ptr<TokenConstraint> constraint;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  int32_t rank = 0;  // 1 = most probable
};

/// Log-probabilities of one position, from the raw model distribution (before temperature, penalties and
/// bias).
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // descending
};

enum class FinishReason : uint8_t { stop, length, cancelled, error };

struct FinishInfo {
  FinishReason reason = FinishReason::stop;
  std::optional<int32_t> stop_token;  // EOS or a stop id that ended it (not delivered as a token)
  std::optional<Error> error;
  uint64_t seed = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  int64_t disk_tokens = 0;      // of cached_tokens, read from disk
  int64_t replayed_tokens = 0;  // rows computed again to rebuild windows, beside the uncached ones
  int64_t trim_rows = 0;        // replay trim that was in force, 0 = exact
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // of drafts that were verified
  int64_t preemptions = 0;
  prefix::MissReport prefix;  // why cached_tokens is not more
  double queue_s = 0, prefill_s = 0, decode_s = 0;
};

/// Receives a request's events in order, from the engine's thread: return fast, never block. After on_finish
/// nothing follows.
class TokenSink {
 public:
  virtual ~TokenSink() = default;

  /// Once, when the request begins to run: tokens of its prompt that came from the prefix cache. Engines that
  /// do not know it beforehand leave it out (remote).
  virtual void on_begin(int64_t /*cached_tokens*/) {}

  /// Once before the first token if asked for: one entry per prompt token, the first empty.
  virtual void on_prompt_logprobs(std::vector<std::optional<PositionLogprobs>> /*rows*/) {}

  /// With stream_prompt_rows: once per scored prompt token, ascending. `logits` is the raw row that predicts
  /// it [V], valid during the call; empty from engines that have none (remote, scripted).
  virtual void on_prompt_row(int64_t /*position*/, PositionLogprobs /*row*/,
                             std::span<const float> /*logits*/) {}

  virtual void on_token(int32_t token, std::optional<PositionLogprobs> logprobs) = 0;
  virtual void on_finish(const FinishInfo& info) = 0;
};

struct Request {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int32_t priority = 0;    // lower runs first
  std::string client_key;  // fairness class

  bool reads_prefix_cache = true;
  std::string cache_salt;            // requests of different salts share no cached pages
  std::vector<int64_t> breakpoints;  // prompt positions before which the windows are kept for later requests
  std::optional<int32_t> drafts;     // most drafts of a step; absent = the engine's choice, 0 = none
  std::optional<int64_t>
      replay_trim;  // lossy: rows after the last KV source, 0 = exact; absent = the engine's
};

struct EngineInfo {
  std::string model_name;
  std::string numerics;  // "reference" | "exact"
  std::string kernels;   // tier
  std::string switches;  // lossy switches that are on, "lm-head=fp8,…"; empty = none
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;
  int32_t eos_token_id = 1;
  int64_t max_drafts = 0;     // 0 = no speculation
  int64_t block_tokens = 64;  // of the cache, and of prefix reuse
};

inline constexpr int kMaxDrafts = 7;

/// Tokens of steps, by size: bounds of the buckets of iteration_tokens.
inline constexpr std::array<int64_t, 13> kIterationBuckets = {1,   8,    16,   32,   64,   128,  256,
                                                              512, 1024, 2048, 4096, 8192, 16384};

/// Prefix cache figures; tokens unless named otherwise.
struct PrefixStats {
  bool is_on = false, has_disk = false;
  int64_t queries = 0, query_tokens = 0, hit_tokens = 0, disk_hit_tokens = 0, replayed_tokens = 0;
  int64_t blocks = 0, windows = 0, bytes = 0, max_bytes = 0;  // pages held now
  int64_t evicted_blocks = 0, evicted_windows = 0, mismatches = 0;
  std::vector<int64_t> misses_by_reason;  // lookups, [prefix::MissReason]
  int64_t disk_pages = 0, disk_bytes = 0, disk_written_bytes = 0, disk_read_bytes = 0;
  int64_t disk_dropped_pages = 0, disk_damaged_pages = 0, disk_evicted_pages = 0;
  bool is_disk_failing = false;  // pages cannot be written to it now
};

struct SpeculationStats {
  int64_t drafts = 0;  // verifications
  int64_t draft_tokens = 0, accepted_tokens = 0;
  std::array<int64_t, kMaxDrafts> accepted_by_position{};
  double drafts_now = 0;  // mean length that the last steps chose
};

/// Counters since start and gauges now; the server turns them into metrics.
struct EngineStats {
  int64_t requests_running = 0, requests_waiting = 0;
  int64_t cache_blocks_total = 0,
          cache_blocks_used = 0;  // used: by running requests, not by the prefix cache
  int64_t prompt_tokens = 0, generation_tokens = 0, cached_tokens = 0;
  int64_t preemptions = 0, steps = 0;
  int64_t swapped_out = 0, swapped_in = 0;                               // of the preemptions
  std::array<int64_t, kIterationBuckets.size() + 1> iteration_tokens{};  // steps by rows, not cumulative
  int64_t iteration_tokens_sum = 0;
  PrefixStats prefix;
  SpeculationStats speculation;
  bool is_alive = true;
};

/// Any thread.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual const EngineInfo& info() const = 0;

  /// Queues a request. Errors: invalid_argument (empty or too long prompt, ids outside the vocabulary,
  /// ranges), unavailable (draining; queue full: then Error::limit says by what). The sink is kept until
  /// on_finish.
  virtual Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) = 0;

  /// Ends the request within one step: on_finish(cancelled) follows unless it finished meanwhile. Unknown ids
  /// are ignored.
  virtual void cancel(RequestId id) = 0;

  virtual EngineStats stats() const = 0;

  /// Refuses new requests; returns true when all running ones have finished, false after `timeout`.
  virtual bool drain(std::chrono::milliseconds timeout) = 0;
};

}  // namespace rorqual::runtime
