// SPDX-License-Identifier: Apache-2.0
// Decides what each step computes: a token budget shared by decoding requests and chunks of prompts,
// admission in order, preemption when the cache is full. Deterministic: no clock, no thread, no randomness.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/runner.h"
#include "runtime/draft_length.h"
#include "runtime/prefix_use.h"
#include "runtime/request_state.h"
#include "runtime/swap_space.h"

namespace rorqual::runtime {

struct SchedulerLimits {
  int64_t max_num_seqs = 1;
  int64_t max_step_tokens = 1;               // at least max_num_seqs
  int64_t max_logit_rows = 1;                // at least max_num_seqs
  int64_t long_prefill_token_threshold = 0;  // 0 = off
  int64_t max_model_len = 1;
  int64_t fetch_bytes = 0;  // read from disk for waiting requests in one step
  bool skips_unread_rows = true;
  int32_t drill_preemptions = 0;  // of every request, see EngineOptions
};

/// What the scheduler decides about, and with.
struct SchedulerParts {
  model::Runner& runner;
  PrefixUse& prefix;
  SwapSpace& swap;
  DraftLength& drafts;
};

/// One request's part of a step: the next `num_tokens` tokens from position `begin`, the last `num_drafts` of
/// which are drafted when the step begins.
struct ScheduledSlice {
  RequestState* request = nullptr;
  int64_t begin = 0;
  int64_t num_tokens = 0;
  int32_t num_drafts = 0;
  std::vector<int32_t> logit_offsets;  // into the slice
  bool does_sample = false;            // the last 1 + num_drafts rows of logits draw tokens
  bool is_replay = false;
};

struct StepPlan {
  std::vector<ScheduledSlice> slices;
  int64_t num_tokens = 0, num_logit_rows = 0;
  bool is_decode_only = true;
  bool has_fetched = false;  // nothing to compute, but a waiting request came nearer
  /// Requests that the cache cannot hold although nothing else runs: to be ended with the error.
  std::vector<std::pair<RequestId, Error>> impossible;
};

/// Owns the unfinished requests and their open sequences. One thread.
///
/// Order of service: priority (lower first), then the client's turn, then arrival. A client's turn is a round
/// counter: its k-th waiting request is served after every other client's (k-1)-th, so that one client cannot
/// fill the queue.
///
/// A step: 1. every running request that decodes gets one row; 2. drafts get rows as far as they pay, at most
/// half of what is left when prompts want rows too; 3. running prompts get chunks, in order; 4. if nothing
/// was preempted, waiting requests are admitted in order while sequences, blocks (the whole prompt net of
/// what the prefix cache holds of it, and one block more for each running request) and budget last. A request
/// whose pages come from disk lets up to kMaxFetching others pass until they are there; the first that does
/// not fit stops admission, so none is overtaken for ever.
///
/// When a block is missing, pages of the prefix cache give way, then lookups of waiting requests, then
/// drafts. Then the running request last in order is preempted: its sequence is saved in the swap space, or
/// closed and its prompt and reply computed again, from what the prefix cache still has of them.
class Scheduler {
 public:
  static constexpr int kMaxFetching = 8;

  Scheduler(SchedulerLimits limits, SchedulerParts parts);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Queues a request; its order.priority is used, turn and arrival are assigned here.
  void add(std::unique_ptr<RequestState> request);

  /// The next step. Room is reserved for every slice. Empty only if there is no request, `impossible` is not
  /// empty, or every waiting request waits for the disk.
  StepPlan schedule();

  /// Looks the next waiting requests up and reads from disk for them, fetch_bytes at most. While a step runs.
  /// True when there is more to read.
  bool prepare_waiting();

  /// Closes the request's sequence and hands the request out; null if unknown. `keeps_end`: offers its last
  /// windows to the prefix cache before.
  std::unique_ptr<RequestState> remove(RequestId id, bool keeps_end = false);

  RequestState* find(RequestId id);

  const RequestState* find(RequestId id) const { return const_cast<Scheduler*>(this)->find(id); }

  bool has_requests() const { return !running_.empty() || !waiting_.empty(); }

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }

  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }

  int64_t num_preemptions() const { return num_preemptions_; }

  std::vector<RequestId> ids() const;  // in order of service, running first

  /// Requests that were never scheduled and have waited since before `queued_ns`.
  std::vector<RequestId> waiting_since_before(int64_t queued_ns) const;

  /// Blocks that running sequences hold, each counted once.
  int64_t count_blocks_used();

 private:
  using Queue = std::map<ServiceOrder, std::unique_ptr<RequestState>>;

  struct Client {
    uint64_t last_turn = 0;
    int64_t num_unfinished = 0;
  };

  int64_t chunk_size(const RequestState& request, const StepPlan& plan) const;
  void add_slice(RequestState& request, int64_t num_tokens, StepPlan& plan) const;
  bool reserve(RequestState& request, int64_t num_tokens, StepPlan& plan);
  bool make_room(const RequestState& asker, int64_t num_blocks);
  void preempt_last(const StepPlan& plan);
  void preempt(Queue::iterator running);
  void drill();
  void schedule_running(bool is_decode_pass, StepPlan& plan);
  void schedule_drafts(StepPlan& plan);
  int64_t rows_for_drafts(const StepPlan& plan) const;
  int32_t draft_limit(const RequestState& request) const;
  void admit_waiting(StepPlan& plan);
  bool is_prepared(RequestState& request, StepPlan& plan);
  bool has_room_for(const RequestState& request);
  bool admit(Queue::iterator waiting, StepPlan& plan);
  Result<model::SequenceId> open(RequestState& request);
  Error too_large(const RequestState& request, int64_t num_tokens) const;
  void close(RequestState& request);
  void release_blocks(RequestState& request);
  void sync_blocks(RequestState& request);

  int64_t blocks_for(int64_t num_tokens) const { return (num_tokens + page_tokens_ - 1) / page_tokens_; }

  SchedulerLimits limits_;
  SchedulerParts parts_;
  int64_t page_tokens_;
  Queue running_, waiting_;
  std::unordered_map<RequestId, ServiceOrder> orders_;
  std::unordered_map<std::string, Client> clients_;  // of unfinished requests only
  uint64_t num_arrivals_ = 0;
  uint64_t current_turn_ = 1;  // of the latest admission
  int64_t num_preemptions_ = 0;
  std::vector<int32_t> block_users_;  // running sequences that hold a block, by page
  int64_t num_blocks_used_ = 0;
};

}  // namespace rorqual::runtime
