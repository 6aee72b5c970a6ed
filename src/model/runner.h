// SPDX-License-Identifier: Apache-2.0
// What the runtime sees of a model: sequences with caches, and steps over them. Implemented by model::Model,
// and by a fake in the scheduler's tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "model/pages.h"

namespace rorqual::model {

using SequenceId = int32_t;

/// The next tokens of one sequence in a step.
struct StepSlice {
  SequenceId sequence = 0;
  std::span<const int32_t> tokens;         // at least one
  std::span<const uint8_t> is_image;       // empty = no image rows; else one flag per token
  std::span<const int32_t> logit_offsets;  // which of `tokens` produce a row of logits, ascending

  /// Positions, ascending and above the slice's first, before which the windows must be complete once the
  /// sequence has grown to them (also beyond this slice): the prompt's end, ends of pages to be kept. Rows
  /// that neither these nor the logits depend on skip the layers past the last KV source: the same bits for
  /// all that is read later. Empty = every row runs through every layer, and the windows are complete
  /// everywhere. After the step, until the sequence's next one, the window pages before each target that was
  /// reached are held by the sequence.
  std::span<const int64_t> window_targets;

  /// Exact replay: the compressed entries and index keys of these rows are in the blocks already and are not
  /// written; only windows are rebuilt, complete at window_targets (not empty, no target beyond the end of
  /// the blocks that the sequence was opened with).
  bool is_replay = false;
};

/// How a sequence begins: empty, or with whole pages that another sequence computed.
struct SequenceStart {
  std::span<const int32_t> tokens;    // of the prefix, 64 per block (Engram history)
  std::span<const uint8_t> is_image;  // empty = none
  std::span<const PageId> blocks;     // of the prefix from its first page on; retained by the sequence
  /// The last window pages before `length`, ascending, at least enough for the window. Empty: length is 0, or
  /// the steps up to the end of the blocks are replay slices.
  std::span<const PageId> windows;
  int64_t length = 0;  // where the next slice begins; 64 * blocks unless a replay follows
  /// Lossy replay trim: layers past the last KV source run the last `trim_rows` rows before each window
  /// target only. 0 = exact.
  int64_t trim_rows = 0;
};

/// One row of a draft pass: the token just produced at position sequence_length, not in the cache yet.
struct DraftSlice {
  SequenceId sequence = 0;
  int32_t token = 0;
};

/// One thread at a time; the page store may be used beside it.
class Runner {
 public:
  virtual ~Runner() = default;

  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_model_len() const = 0;
  virtual int64_t max_step_rows() const = 0;  // rows of one step, all slices together

  /// Blocks and window pages; shared with the prefix cache.
  virtual PageStore& pages() = 0;
  virtual const PageStore& pages() const = 0;

  /// Whole window pages that a continuation needs before its first position.
  virtual int64_t window_pages() const = 0;

  /// Rows of an exact replay before a position, and what it costs in rows that run through all layers.
  virtual int64_t replay_rows() const = 0;
  virtual int64_t replay_cost() const = 0;

  /// Most drafts that one verification may reject (and `draft` may be asked for); 0 = no draft stages.
  virtual int64_t max_drafts() const = 0;

  /// Errors: unavailable when max_sequences are open.
  virtual Result<SequenceId> open_sequence(const SequenceStart& start = {}) = 0;
  virtual void close_sequence(SequenceId sequence) = 0;
  virtual int64_t sequence_length(SequenceId sequence) const = 0;

  /// Page number `index` (tokens 64·index …) of the sequence; kNoPage if it is not held.
  virtual PageId page_at(SequenceId sequence, PageKind kind, int64_t index) const = 0;

  /// Takes blocks for `num_tokens` in all. False (nothing changed) when the pool is exhausted. Window pages
  /// need no reservation: the pool always has those that max_sequences running sequences need.
  virtual bool reserve(SequenceId sequence, int64_t num_tokens) = 0;

  /// Forgets everything from position `length` on (rejected drafts, cancelled rows); length <=
  /// sequence_length and at most max(8, max_drafts) back.
  virtual void truncate(SequenceId sequence, int64_t length) = 0;

  /// Everything that a continuation of the sequence needs, for preemption by swapping: save fills
  /// [image_bytes], open_image makes a sequence of it that goes on with the same bits. Errors: unavailable
  /// (no sequence or no blocks free; nothing changed).
  virtual int64_t image_bytes(SequenceId sequence) const = 0;
  virtual void save_image(SequenceId sequence, std::span<std::byte> image) const = 0;
  virtual Result<SequenceId> open_image(std::span<const std::byte> image) = 0;

  /// Runs the slices as one step. logits [sum of logit_offsets, vocab_size] F32, in slice order.
  /// Each sequence at most once per step; room reserved before.
  virtual Status forward(std::span<const StepSlice> slices, std::span<float> logits) = 0;

  /// Drafts `count` (1..max_drafts) tokens after each slice's token, greedily, all slices in one pass.
  /// tokens: out [slices, count]; confidence: out [slices, count] raw logits of acceptance.
  virtual Status draft(std::span<const DraftSlice> slices, int64_t count, std::span<int32_t> tokens,
                       std::span<float> confidence) = 0;

  /// Compute threads, for work between steps (sampling): f(item, thread) for every item in [0, count).
  virtual int num_threads() const = 0;
  virtual void parallel_for(int64_t count, const std::function<void(int64_t, int)>& f) = 0;
};

}  // namespace rorqual::model
