// SPDX-License-Identifier: Apache-2.0
// What a simulated request must deliver, computed without engine and caches, and a sink that compares.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/engine.h"
#include "runtime/fake_network.h"
#include "runtime/logprobs.h"
#include "runtime/request_check.h"
#include "runtime/sampler.h"

namespace rorqual::runtime {

inline constexpr int32_t kEos = 1;

/// Where a violation happened.
struct Place {
  uint64_t seed = 0;
  int64_t step = 0;
};

inline Place place;

inline void require(bool condition, const char* what, uint64_t id = 0) {
  if (condition) return;
  std::fprintf(stderr,
               "sim_engine: violated: %s (request %llu) at step %lld; repeat with --seed %llu --rounds 1\n",
               what, static_cast<unsigned long long>(id), static_cast<long long>(place.step),
               static_cast<unsigned long long>(place.seed));
  std::exit(1);
}

/// Allows about half of the ids, others at every position and after every token.
class SimConstraint final : public TokenConstraint {
 public:
  SimConstraint(uint64_t salt, int64_t vocab_size) : salt_(salt), vocab_size_(vocab_size) {}

  void mask(std::span<const int32_t> reply, std::span<uint32_t> mask) override {
    uint64_t hash = FakeNetwork::mix(salt_ + reply.size());
    for (const int32_t token : reply.last(std::min<size_t>(reply.size(), 2))) {
      hash = FakeNetwork::mix(hash ^ static_cast<uint64_t>(token));
    }
    for (size_t i = 0; i < mask.size(); ++i) mask[i] &= static_cast<uint32_t>(FakeNetwork::mix(hash + i));
    const uint64_t kept = hash % static_cast<uint64_t>(vocab_size_);
    mask[kept / 32] |= uint32_t{1} << (kept % 32);
  }

 private:
  uint64_t salt_;
  int64_t vocab_size_;
};

struct Expectation {
  std::vector<int32_t> tokens;
  std::vector<PositionLogprobs> rows, prompt_rows;
  FinishReason reason = FinishReason::length;
};

inline bool is_equal(const PositionLogprobs& a, const PositionLogprobs& b) {
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token == y.token && x.logprob == y.logprob && x.rank == y.rank;
  };
  return same(a.chosen, b.chosen) && std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(), same);
}

inline Expectation run_alone(const Request& request, const FakeNetwork& network, int64_t max_model_len) {
  const SamplingParams& params = request.sampling;
  Expectation out;
  const auto length = static_cast<int64_t>(request.prompt.size());
  FakeNetwork::State state = network.empty();
  std::vector<float> row(static_cast<size_t>(network.vocab_size));
  for (int64_t i = 0; i < length; ++i) {
    if (i >= params.prompt_logprobs_begin && params.prompt_logprobs >= 0) {
      LogprobRequest wanted;
      wanted.chosen = request.prompt[static_cast<size_t>(i)];
      wanted.top_k = params.prompt_logprobs;
      network.write_logits(state.output, row);
      out.prompt_rows.push_back(position_logprobs(row, wanted));
    }
    network.push(state, request.prompt[static_cast<size_t>(i)]);
  }
  Sampler sampler(network.vocab_size);
  TokenCounts counts(request.prompt);
  std::vector<int32_t> tokens = request.prompt;
  std::vector<uint32_t> mask;
  while (static_cast<int64_t>(out.tokens.size()) < params.max_tokens &&
         static_cast<int64_t>(tokens.size()) < max_model_len) {
    network.write_logits(state.output, row);
    const bool is_forced = !params.forced_tokens.empty();
    SampleInput input{params, counts, tokens, length, *params.seed, kEos, {}};
    if (params.constraint) {
      mask.assign(static_cast<size_t>((network.vocab_size + 31) / 32), ~uint32_t{0});
      params.constraint->mask(out.tokens, mask);
      input.allowed = mask;
    }
    const auto token =
        is_forced ? Result<int32_t>(params.forced_tokens[out.tokens.size()]) : sampler.sample(row, input);
    require(token.ok(), "the reference run draws a token");
    if (!is_forced && ends_reply(params, *token, kEos, static_cast<int64_t>(out.tokens.size()))) {
      out.reason = FinishReason::stop;
      break;
    }
    if (params.logprobs >= 0) out.rows.push_back(position_logprobs(row, {*token, params.logprobs, {}}));
    out.tokens.push_back(*token);
    tokens.push_back(*token);
    counts.add_output(*token);
    network.push(state, *token);
  }
  return out;
}

/// A sink that compares what arrives with what must arrive, token by token. Of requests with a replay trim
/// (lossy) only the form is checked.
class Checker final : public TokenSink {
 public:
  Checker(RequestId id, Request request, Expectation expected, int64_t arrived_ns)
      : id_(id), request_(std::move(request)), expected_(std::move(expected)), arrived_ns_(arrived_ns) {}

  void on_prompt_logprobs(std::vector<std::optional<PositionLogprobs>> rows) override {
    require(!is_cancelled && !has_prompt_rows_ && num_tokens_ == 0 && !is_finished_,
            "prompt rows come once and first", id_);
    require(request_.sampling.prompt_logprobs >= 0 && !request_.sampling.stream_prompt_rows,
            "prompt rows were asked for", id_);
    has_prompt_rows_ = true;
    require(rows.size() == request_.prompt.size() && !rows[0], "one row per prompt token, the first empty",
            id_);
    for (size_t i = 1; i < rows.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i) - request_.sampling.prompt_logprobs_begin;
      require(rows[i].has_value() == (at >= 0), "rows from the asked position on", id_);
      if (at >= 0) {
        require(is_equal(*rows[i], expected_.prompt_rows[static_cast<size_t>(at)]), "prompt rows as alone",
                id_);
      }
    }
  }

  void on_prompt_row(int64_t position, PositionLogprobs row, std::span<const float> logits) override {
    const SamplingParams& params = request_.sampling;
    require(params.stream_prompt_rows && params.prompt_logprobs >= 0, "streamed rows were asked for", id_);
    require(!is_cancelled && num_tokens_ == 0 && !is_finished_, "prompt rows come first", id_);
    require(position == params.prompt_logprobs_begin + static_cast<int64_t>(num_streamed_),
            "streamed rows come once and in order", id_);
    require(num_streamed_ < expected_.prompt_rows.size() &&
                is_equal(row, expected_.prompt_rows[num_streamed_]) && !logits.empty(),
            "streamed rows as alone", id_);
    ++num_streamed_;
  }

  void on_token(int32_t token, std::optional<PositionLogprobs> row) override {
    require(!is_finished_, "no token after the end", id_);
    require(!is_cancelled, "no token after a cancellation", id_);
    require(row.has_value() == (request_.sampling.logprobs >= 0), "rows as asked for", id_);
    if (is_exact()) {
      require(num_tokens_ < expected_.tokens.size() && token == expected_.tokens[num_tokens_],
              "tokens as alone", id_);
      if (row) require(is_equal(*row, expected_.rows[num_tokens_]), "rows as alone", id_);
    }
    ++num_tokens_;
  }

  void on_finish(const FinishInfo& info) override {
    require(!is_finished_, "a request ends once", id_);
    is_finished_ = true;
    info_ = info;
    require(info.prompt_tokens == prompt_length(), "prompt tokens are counted", id_);
    require(info.seed == request_.sampling.seed, "the seed is reported", id_);
    require(info.cached_tokens < info.prompt_tokens && info.disk_tokens <= info.cached_tokens,
            "a token of the prompt is always computed", id_);
    require(info.cached_tokens == 0 || (request_.reads_prefix_cache && request_.sampling.prompt_logprobs < 0),
            "the cache is read only by those who may", id_);
    require(info.accepted_tokens <= info.drafted_tokens, "accepted drafts were drafts", id_);
    require(!request_.drafts || *request_.drafts > 0 || info.drafted_tokens == 0, "no drafts unasked", id_);
    if (info.reason == FinishReason::error || info.reason == FinishReason::cancelled) return;
    require(!is_cancelled, "a cancelled request does not end otherwise", id_);
    if (!is_exact()) return;
    require(info.reason == expected_.reason, "the reason as alone", id_);
    require(num_tokens_ == expected_.tokens.size(), "no token is lost", id_);
    const bool is_streamed = request_.sampling.stream_prompt_rows;
    require(has_prompt_rows_ == (request_.sampling.prompt_logprobs >= 0 && !is_streamed),
            "prompt rows were delivered", id_);
    require(num_streamed_ == (is_streamed ? expected_.prompt_rows.size() : 0), "no streamed row is lost",
            id_);
  }

  RequestId id() const { return id_; }

  const Request& request() const { return request_; }

  const Expectation& expected() const { return expected_; }

  /// Of a request that has ended: long histories have many.
  void forget_expectation() {
    expected_ = {};
    request_.sampling = {};
  }

  int64_t prompt_length() const { return static_cast<int64_t>(request_.prompt.size()); }

  bool is_exact() const { return request_.replay_trim.value_or(0) == 0; }

  bool is_finished() const { return is_finished_; }

  const FinishInfo& info() const { return info_; }

  bool has_started() const { return num_tokens_ > 0 || (is_finished_ && info_.completion_tokens > 0); }

  double scheduled_s() const { return static_cast<double>(arrived_ns_) * 1e-9 + info_.queue_s; }

  bool is_cancelled = false;

 private:
  RequestId id_;
  Request request_;
  Expectation expected_;
  int64_t arrived_ns_;
  size_t num_tokens_ = 0, num_streamed_ = 0;
  bool has_prompt_rows_ = false, is_finished_ = false;
  FinishInfo info_;
};

}  // namespace rorqual::runtime
