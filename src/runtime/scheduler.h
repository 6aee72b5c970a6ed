// SPDX-License-Identifier: Apache-2.0
// Decides what each step computes: a token budget shared by decoding requests and chunks of prompts,
// admission in order, preemption when the cache is full. Deterministic: no clock, no thread, no randomness.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "model/runner.h"
#include "runtime/request_state.h"

namespace rorqual::runtime {

struct SchedulerLimits {
  int64_t max_num_seqs = 1;
  int64_t max_step_tokens = 1;               // at least max_num_seqs
  int64_t max_logit_rows = 1;                // at least max_num_seqs
  int64_t long_prefill_token_threshold = 0;  // 0 = off
};

/// One request's part of a step: the next `num_tokens` tokens from position `begin`.
struct ScheduledSlice {
  RequestState* request = nullptr;
  int64_t begin = 0;
  int64_t num_tokens = 0;
  std::vector<int32_t> logit_offsets;  // into the slice
  bool does_sample = false;            // the last row of logits draws a token
};

struct StepPlan {
  std::vector<ScheduledSlice> slices;
  int64_t num_tokens = 0, num_logit_rows = 0;
  /// Requests that the cache cannot hold although nothing else runs: to be ended with the error.
  std::vector<std::pair<RequestId, Error>> impossible;
};

/// Owns the unfinished requests and their open sequences. One thread.
///
/// Order of service: priority (lower first), then the client's turn, then arrival. A client's turn is a round
/// counter: its k-th waiting request is served after every other client's (k-1)-th, so that one client cannot
/// fill the queue.
///
/// A step: 1. every running request that decodes gets one row; 2. running prompts get chunks, in order; 3. if
/// nothing was preempted, waiting requests are admitted in order while sequences, blocks (the whole prompt is
/// reserved, and one block more for each running request) and budget last; the first that does not fit stops
/// admission, so none is overtaken for ever. When a block for a decode row is missing the running request
/// last in order is preempted: its sequence is closed, and its prompt and reply are computed again after a
/// later admission.
class Scheduler {
 public:
  Scheduler(SchedulerLimits limits, model::Runner& runner);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Queues a request; its order.priority is used, turn and arrival are assigned here.
  void add(std::unique_ptr<RequestState> request);

  /// The next step. Room is reserved for every slice. Empty only if there is no request, or `impossible` is
  /// not empty.
  StepPlan schedule();

  /// The slice is in the cache now. Call for every slice after a successful forward.
  static void mark_computed(const ScheduledSlice& slice) { slice.request->num_computed += slice.num_tokens; }

  /// Closes the request's sequence and hands the request out; null if unknown.
  std::unique_ptr<RequestState> remove(RequestId id);

  bool has_requests() const { return !running_.empty() || !waiting_.empty(); }

  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }

  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }

  int64_t num_preemptions() const { return num_preemptions_; }

  std::vector<RequestId> ids() const;  // in order of service, running first

 private:
  using Queue = std::map<ServiceOrder, std::unique_ptr<RequestState>>;

  struct Client {
    uint64_t last_turn = 0;
    int64_t num_unfinished = 0;
  };

  int64_t chunk_size(const RequestState& request, const StepPlan& plan) const;
  void add_slice(RequestState& request, int64_t num_tokens, StepPlan& plan) const;
  bool reserve(RequestState& request, int64_t num_tokens, StepPlan& plan);
  void preempt_last(const StepPlan& plan);
  void schedule_running(bool is_decode_pass, StepPlan& plan);
  void admit_waiting(StepPlan& plan);
  bool admit_first(StepPlan& plan);
  bool has_blocks_for(int64_t num_tokens) const;

  SchedulerLimits limits_;
  model::Runner& runner_;
  Queue running_, waiting_;
  std::unordered_map<RequestId, ServiceOrder> orders_;
  std::unordered_map<std::string, Client> clients_;  // of unfinished requests only
  uint64_t num_arrivals_ = 0;
  uint64_t current_turn_ = 1;  // of the latest admission
  int64_t num_preemptions_ = 0;
};

}  // namespace rorqual::runtime
