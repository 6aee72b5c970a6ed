// SPDX-License-Identifier: Apache-2.0
// What the runtime sees of a model: sequences with caches, and steps over them. Implemented by model::Model,
// and by a fake in the scheduler's tests.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"

namespace rorqual::model {

using SequenceId = int32_t;

/// The next tokens of one sequence in a step.
struct StepSlice {
  SequenceId sequence = 0;
  std::span<const int32_t> tokens;         // at least one
  std::span<const uint8_t> is_image;       // empty = no image rows; else one flag per token
  std::span<const int32_t> logit_offsets;  // which of `tokens` produce a row of logits, ascending
};

/// One thread (the engine's step thread).
class Runner {
 public:
  virtual ~Runner() = default;

  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_model_len() const = 0;
  virtual int64_t max_step_rows() const = 0;  // rows of one step, all slices together

  /// Cache capacity in blocks of block_tokens() tokens, shared by all sequences.
  virtual int64_t block_tokens() const = 0;
  virtual int64_t blocks_total() const = 0;
  virtual int64_t blocks_free() const = 0;

  /// A new empty sequence. unavailable when max_sequences are open.
  virtual Result<SequenceId> open_sequence() = 0;
  virtual void close_sequence(SequenceId sequence) = 0;
  virtual int64_t sequence_length(SequenceId sequence) const = 0;

  /// Makes room for `num_tokens` in all. False (nothing changed) when the pool is exhausted.
  virtual bool reserve(SequenceId sequence, int64_t num_tokens) = 0;

  /// Forgets everything from position `length` on (rejected drafts, cancelled rows); length <=
  /// sequence_length and at most the window slack back.
  virtual void truncate(SequenceId sequence, int64_t length) = 0;

  /// Runs the slices as one step. logits [sum of logit_offsets, vocab_size] F32, in slice order.
  /// Each sequence at most once per step; room reserved before.
  virtual Status forward(std::span<const StepSlice> slices, std::span<float> logits) = 0;
};

}  // namespace rorqual::model
