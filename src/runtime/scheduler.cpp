// SPDX-License-Identifier: Apache-2.0
// The token-budget scheduler; the rules are in scheduler.h.
#include "runtime/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace rorqual::runtime {

namespace {

/// Rows of logits that the slice [begin, begin + num_tokens) of the request needs: the row at i scores token
/// i + 1.
int64_t num_logit_rows(const RequestState& request, int64_t begin, int64_t num_tokens) {
  int64_t rows = 0;
  if (request.needs_prompt_scores()) {
    const int64_t first = std::max(begin, request.num_scored - 1);
    const int64_t last = std::min(begin + num_tokens, request.num_prompt_tokens - 1);
    rows += std::max<int64_t>(last - first, 0);
  }
  const bool does_sample = begin + num_tokens == request.num_tokens() && request.sampling.max_tokens > 0;
  return rows + (does_sample ? 1 : 0);
}

}  // namespace

Scheduler::Scheduler(SchedulerLimits limits, model::Runner& runner) : limits_(limits), runner_(runner) {
  RORQUAL_CHECK(limits_.max_num_seqs > 0 && limits_.max_step_tokens >= limits_.max_num_seqs &&
                limits_.max_logit_rows >= limits_.max_num_seqs && limits_.long_prefill_token_threshold >= 0);
}

Scheduler::~Scheduler() {
  for (const auto& [order, request] : running_) runner_.close_sequence(*request->sequence);
}

void Scheduler::add(std::unique_ptr<RequestState> request) {
  Client& client = clients_[request->client_key];
  client.last_turn = std::max(client.last_turn + 1, current_turn_);
  ++client.num_unfinished;
  request->order.turn = client.last_turn;
  request->order.arrival = num_arrivals_++;
  orders_.emplace(request->id, request->order);
  waiting_.emplace(request->order, std::move(request));
}

std::unique_ptr<RequestState> Scheduler::remove(RequestId id) {
  const auto found = orders_.find(id);
  if (found == orders_.end()) return nullptr;
  const ServiceOrder order = found->second;
  orders_.erase(found);
  auto node = running_.extract(order);
  if (node.empty()) node = waiting_.extract(order);
  RORQUAL_CHECK(!node.empty());
  std::unique_ptr<RequestState> request = std::move(node.mapped());
  if (request->sequence) runner_.close_sequence(*request->sequence);
  request->sequence.reset();
  const auto client = clients_.find(request->client_key);
  if (--client->second.num_unfinished == 0) clients_.erase(client);
  return request;
}

std::vector<RequestId> Scheduler::ids() const {
  std::vector<RequestId> ids;
  ids.reserve(orders_.size());
  for (const auto& [order, request] : running_) ids.push_back(request->id);
  for (const auto& [order, request] : waiting_) ids.push_back(request->id);
  return ids;
}

StepPlan Scheduler::schedule() {
  StepPlan plan;
  const int64_t preemptions_before = num_preemptions_;
  schedule_running(true, plan);
  schedule_running(false, plan);
  if (num_preemptions_ == preemptions_before && plan.impossible.empty()) admit_waiting(plan);
  RORQUAL_CHECK(!plan.slices.empty() || !plan.impossible.empty() || !has_requests());
  return plan;
}

int64_t Scheduler::chunk_size(const RequestState& request, const StepPlan& plan) const {
  int64_t size = std::min(request.num_remaining(), limits_.max_step_tokens - plan.num_tokens);
  const bool is_alone = running_.size() + waiting_.size() == 1;
  if (limits_.long_prefill_token_threshold > 0 && !is_alone) {
    size = std::min(size, limits_.long_prefill_token_threshold);
  }
  const int64_t rows_left = limits_.max_logit_rows - plan.num_logit_rows;
  // Each token needs at most one row, so the excess is the least number of tokens to leave for a later step.
  while (size > 0) {
    const int64_t excess = num_logit_rows(request, request.num_computed, size) - rows_left;
    if (excess <= 0) break;
    size -= excess;
  }
  return size;
}

void Scheduler::add_slice(RequestState& request, int64_t num_tokens, StepPlan& plan) const {
  ScheduledSlice slice{&request, request.num_computed, num_tokens, {}, false};
  const int64_t end = slice.begin + num_tokens;
  slice.does_sample = end == request.num_tokens() && request.sampling.max_tokens > 0;
  const int64_t rows = num_logit_rows(request, slice.begin, num_tokens);
  const int64_t scoring_rows = rows - (slice.does_sample ? 1 : 0);
  slice.logit_offsets.reserve(static_cast<size_t>(rows));
  const int64_t scoring_end = std::min(end, request.num_prompt_tokens - 1) - slice.begin;
  for (int64_t i = scoring_end - scoring_rows; i < scoring_end; ++i) {
    slice.logit_offsets.push_back(static_cast<int32_t>(i));
  }
  if (slice.does_sample) slice.logit_offsets.push_back(static_cast<int32_t>(num_tokens - 1));
  plan.num_tokens += num_tokens;
  plan.num_logit_rows += rows;
  plan.slices.push_back(std::move(slice));
}

void Scheduler::preempt_last(const StepPlan& plan) {
  auto node = running_.extract(std::prev(running_.end()));
  RequestState& victim = *node.mapped();
  // Only decode rows ask for blocks (prompts got theirs at admission), in order: the last one comes after the
  // asker.
  RORQUAL_CHECK(std::none_of(plan.slices.begin(), plan.slices.end(),
                             [&](const ScheduledSlice& slice) { return slice.request == &victim; }));
  runner_.close_sequence(*victim.sequence);
  victim.sequence.reset();
  victim.num_computed = 0;
  ++victim.num_preemptions;
  ++num_preemptions_;
  waiting_.insert(std::move(node));
}

/// Room for the next `num_tokens` of a running request, by preemption if need be. False: the request itself
/// was preempted, or it cannot be held at all.
bool Scheduler::reserve(RequestState& request, int64_t num_tokens, StepPlan& plan) {
  while (!runner_.reserve(*request.sequence, request.num_computed + num_tokens)) {
    if (running_.size() == 1) {
      plan.impossible.emplace_back(
          request.id, Error(Code::out_of_memory,
                            fmt::format("the cache of {} blocks cannot hold {} tokens of one request",
                                        runner_.pages().pages_total(model::PageKind::block),
                                        request.num_computed + num_tokens),
                            "shorten the request or enlarge the cache"));
      return false;
    }
    const bool is_self = std::prev(running_.end())->second.get() == &request;
    preempt_last(plan);
    if (is_self) return false;
  }
  return true;
}

void Scheduler::schedule_running(bool is_decode_pass, StepPlan& plan) {
  for (auto it = running_.begin(); it != running_.end();) {
    RequestState& request = *it->second;
    const ServiceOrder order = it->first;
    if (request.is_decoding() == is_decode_pass) {
      const int64_t size = chunk_size(request, plan);
      if (size > 0 && reserve(request, size, plan)) add_slice(request, size, plan);
    }
    it = running_.upper_bound(order);  // preemption removes requests from the end, perhaps this one
  }
}

bool Scheduler::has_blocks_for(int64_t num_tokens) const {
  const int64_t blocks = (num_tokens + runner_.pages().page_tokens() - 1) / runner_.pages().page_tokens();
  return blocks + num_running() <= runner_.pages().pages_free(model::PageKind::block);
}

void Scheduler::admit_waiting(StepPlan& plan) {
  while (!waiting_.empty() && num_running() < limits_.max_num_seqs &&
         plan.num_tokens < limits_.max_step_tokens) {
    if (!admit_first(plan)) return;
  }
}

bool Scheduler::admit_first(StepPlan& plan) {
  RequestState& request = *waiting_.begin()->second;
  const int64_t size = chunk_size(request, plan);
  if (size <= 0) return false;
  const bool is_alone = running_.empty();
  if (!is_alone && !has_blocks_for(request.num_tokens())) return false;
  Result<model::SequenceId> sequence = runner_.open_sequence();
  if (!sequence.ok()) {
    if (is_alone) plan.impossible.emplace_back(request.id, std::move(sequence).error().at("open a sequence"));
    return false;
  }
  if (!runner_.reserve(*sequence, request.num_tokens())) {
    runner_.close_sequence(*sequence);
    if (is_alone) {
      plan.impossible.emplace_back(
          request.id,
          Error(Code::out_of_memory,
                fmt::format("the cache of {} blocks ({} free) cannot hold a request of {} tokens",
                            runner_.pages().pages_total(model::PageKind::block),
                            runner_.pages().pages_free(model::PageKind::block), request.num_tokens()),
                "shorten the request or enlarge the cache"));
    }
    return false;
  }
  request.sequence = *sequence;
  request.num_computed = 0;
  current_turn_ = std::max(current_turn_, request.order.turn);
  running_.insert(waiting_.extract(waiting_.begin()));
  add_slice(request, size, plan);
  return true;
}

}  // namespace rorqual::runtime
