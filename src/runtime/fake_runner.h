// SPDX-License-Identifier: Apache-2.0
// Test double of a model: logits are a hash of the token prefix, the cache is a pool of counted blocks. It
// checks the contract of model::Runner on every call, so a scheduler that breaks it fails loudly. Not part of
// the program.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/check.h"
#include "model/runner.h"

namespace rorqual::runtime {

struct FakeRunnerOptions {
  int64_t vocab_size = 61;
  int64_t max_model_len = 4096;
  int64_t max_step_rows = 4096;
  int64_t block_tokens = 4;
  int64_t blocks_total = 1024;
  int64_t max_sequences = 1024;
  uint64_t salt = 0;  // another model
};

class FakeRunner final : public model::Runner {
 public:
  explicit FakeRunner(FakeRunnerOptions options) : options_(options) {}

  int64_t vocab_size() const override { return options_.vocab_size; }

  int64_t max_model_len() const override { return options_.max_model_len; }

  int64_t max_step_rows() const override { return options_.max_step_rows; }

  int64_t block_tokens() const override { return options_.block_tokens; }

  int64_t blocks_total() const override { return options_.blocks_total; }

  int64_t blocks_free() const override { return options_.blocks_total - blocks_used_; }

  Result<model::SequenceId> open_sequence() override {
    if (static_cast<int64_t>(sequences_.size()) >= options_.max_sequences) {
      return Error(Code::unavailable, "all sequences are open");
    }
    sequences_.emplace(next_id_, Sequence{});
    return next_id_++;
  }

  void close_sequence(model::SequenceId sequence) override {
    const auto found = sequences_.find(sequence);
    RORQUAL_CHECK(found != sequences_.end());
    blocks_used_ -= found->second.blocks;
    sequences_.erase(found);
  }

  int64_t sequence_length(model::SequenceId sequence) const override {
    return sequences_.at(sequence).length;
  }

  bool reserve(model::SequenceId sequence, int64_t num_tokens) override {
    Sequence& s = sequences_.at(sequence);
    const int64_t blocks = (num_tokens + options_.block_tokens - 1) / options_.block_tokens;
    const int64_t more = std::max<int64_t>(blocks - s.blocks, 0);
    if (more > blocks_free()) return false;
    s.blocks += more;
    blocks_used_ += more;
    return true;
  }

  void truncate(model::SequenceId, int64_t) override {
    RORQUAL_CHECK_NOTE(false, "not used by the scheduler");
  }

  Status forward(std::span<const model::StepSlice> slices, std::span<float> logits) override {
    ++num_steps;
    if (before_forward) RORQUAL_TRY(before_forward(slices));
    std::set<model::SequenceId> seen;
    int64_t rows = 0;
    size_t out = 0;
    for (const model::StepSlice& slice : slices) {
      RORQUAL_CHECK_NOTE(seen.insert(slice.sequence).second, "a sequence twice in one step");
      RORQUAL_CHECK_NOTE(!slice.tokens.empty(), "an empty slice");
      Sequence& s = sequences_.at(slice.sequence);
      rows += static_cast<int64_t>(slice.tokens.size());
      size_t next_logit = 0;
      for (size_t i = 0; i < slice.tokens.size(); ++i) {
        s.hash = mix(s.hash ^ (static_cast<uint64_t>(slice.tokens[i]) + 1));
        ++s.length;
        if (next_logit == slice.logit_offsets.size() ||
            slice.logit_offsets[next_logit] != static_cast<int32_t>(i)) {
          continue;
        }
        ++next_logit;
        const auto width = static_cast<size_t>(options_.vocab_size);
        RORQUAL_CHECK(out + width <= logits.size());
        write_logits(s.hash, logits.subspan(out, width));
        out += width;
      }
      RORQUAL_CHECK_NOTE(next_logit == slice.logit_offsets.size(),
                         "logit offsets not ascending or out of the slice");
      RORQUAL_CHECK_NOTE(s.length <= s.blocks * options_.block_tokens, "room was not reserved");
      RORQUAL_CHECK(s.length <= options_.max_model_len);
    }
    RORQUAL_CHECK_NOTE(rows > 0 && rows <= options_.max_step_rows, "rows of the step");
    RORQUAL_CHECK_NOTE(out == logits.size(), "logits of the wrong size");
    return Ok{};
  }

  /// The logits after `prefix`, for comparison.
  std::vector<float> logits_after(std::span<const int32_t> prefix) const {
    uint64_t hash = 0;
    for (const int32_t token : prefix) hash = mix(hash ^ (static_cast<uint64_t>(token) + 1));
    std::vector<float> row(static_cast<size_t>(options_.vocab_size));
    write_logits(hash, row);
    return row;
  }

  /// Blocks that the open sequences hold, counted one by one.
  int64_t blocks_held() const {
    int64_t blocks = 0;
    for (const auto& [id, sequence] : sequences_) blocks += sequence.blocks;
    return blocks;
  }

  int64_t num_open() const { return static_cast<int64_t>(sequences_.size()); }

  int64_t num_steps = 0;
  /// Called first in every forward: may fail or throw in its place, or move a virtual clock.
  std::function<Status(std::span<const model::StepSlice>)> before_forward;

 private:
  struct Sequence {
    uint64_t hash = 0;
    int64_t length = 0, blocks = 0;
  };

  static uint64_t mix(uint64_t x) {  // finaliser of splitmix64
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

  void write_logits(uint64_t hash, std::span<float> row) const {
    for (size_t i = 0; i < row.size(); ++i) {
      const auto bits = static_cast<int32_t>(mix(hash ^ options_.salt ^ (uint64_t{i} << 40)) >> 48);
      row[i] = static_cast<float>(bits - 32768) * 0x1p-13f;  // [-4, 4)
    }
  }

  FakeRunnerOptions options_;
  std::map<model::SequenceId, Sequence> sequences_;
  model::SequenceId next_id_ = 1;
  int64_t blocks_used_ = 0;
};

}  // namespace rorqual::runtime
