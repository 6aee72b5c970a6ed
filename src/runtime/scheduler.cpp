// SPDX-License-Identifier: Apache-2.0
// The token-budget scheduler; the rules are in scheduler.h.
#include "runtime/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace rorqual::runtime {

using model::PageKind;

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

Scheduler::Scheduler(SchedulerLimits limits, SchedulerParts parts)
    : limits_(limits), parts_(parts), page_tokens_(parts.runner.pages().page_tokens()) {
  RORQUAL_CHECK(limits_.max_num_seqs > 0 && limits_.max_step_tokens >= limits_.max_num_seqs &&
                limits_.max_logit_rows >= limits_.max_num_seqs && limits_.long_prefill_token_threshold >= 0);
  block_users_.resize(static_cast<size_t>(parts_.runner.pages().pages_total(PageKind::block)));
}

Scheduler::~Scheduler() {
  for (const auto& [order, request] : running_) parts_.runner.close_sequence(*request->sequence);
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

RequestState* Scheduler::find(RequestId id) {
  const auto order = orders_.find(id);
  if (order == orders_.end()) return nullptr;
  const auto running = running_.find(order->second);
  return running != running_.end() ? running->second.get() : waiting_.find(order->second)->second.get();
}

std::unique_ptr<RequestState> Scheduler::remove(RequestId id, bool keeps_end) {
  const auto found = orders_.find(id);
  if (found == orders_.end()) return nullptr;
  const ServiceOrder order = found->second;
  orders_.erase(found);
  auto node = running_.extract(order);
  if (node.empty()) node = waiting_.extract(order);
  RORQUAL_CHECK(!node.empty());
  std::unique_ptr<RequestState> request = std::move(node.mapped());
  if (request->sequence && keeps_end) parts_.prefix.keep_end(*request);
  if (request->sequence) close(*request);
  parts_.swap.forget(*request);
  PrefixUse::forget(*request);
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

std::vector<RequestId> Scheduler::waiting_since_before(int64_t queued_ns) const {
  std::vector<RequestId> ids;
  for (const auto& [order, request] : waiting_) {
    if (request->scheduled_ns == 0 && request->queued_ns < queued_ns) ids.push_back(request->id);
  }
  return ids;
}

StepPlan Scheduler::schedule() {
  StepPlan plan;
  if (limits_.drill_preemptions > 0) drill();
  const int64_t preemptions_before = num_preemptions_;
  schedule_running(true, plan);
  if (plan.impossible.empty()) schedule_drafts(plan);
  schedule_running(false, plan);
  if (num_preemptions_ == preemptions_before && plan.impossible.empty()) admit_waiting(plan);
  RORQUAL_CHECK(!plan.slices.empty() || !plan.impossible.empty() || plan.has_fetched || !has_requests());
  return plan;
}

int64_t Scheduler::chunk_size(const RequestState& request, const StepPlan& plan) const {
  int64_t size = std::min(request.num_remaining(), limits_.max_step_tokens - plan.num_tokens);
  if (request.is_replaying()) size = std::min(size, request.replay_end - request.num_computed);
  if (request.trim_rows > 0 && request.num_computed < request.num_prompt_tokens) {
    // Rows of the reply run whole, as they did when they were first computed.
    size = std::min(size, request.num_prompt_tokens - request.num_computed);
  }
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
  ScheduledSlice slice;
  slice.request = &request;
  slice.begin = request.num_computed;
  slice.num_tokens = num_tokens;
  slice.is_replay = request.is_replaying();
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
  plan.is_decode_only = plan.is_decode_only && request.is_decoding();
  plan.num_tokens += num_tokens;
  plan.num_logit_rows += rows;
  plan.slices.push_back(std::move(slice));
}

void Scheduler::close(RequestState& request) {
  release_blocks(request);
  parts_.runner.close_sequence(*request.sequence);
  request.sequence.reset();
}

void Scheduler::release_blocks(RequestState& request) {
  for (const model::PageId page : request.blocks) {
    if (--block_users_[static_cast<size_t>(page)] == 0) --num_blocks_used_;
  }
  request.blocks.clear();
}

/// A sequence's table grows and shrinks at its end only.
void Scheduler::sync_blocks(RequestState& request) {
  const auto page_at = [&](size_t index) {
    return parts_.runner.page_at(*request.sequence, PageKind::block, static_cast<int64_t>(index));
  };
  while (!request.blocks.empty() && page_at(request.blocks.size() - 1) != request.blocks.back()) {
    if (--block_users_[static_cast<size_t>(request.blocks.back())] == 0) --num_blocks_used_;
    request.blocks.pop_back();
  }
  for (model::PageId page = 0; (page = page_at(request.blocks.size())) != model::kNoPage;) {
    if (++block_users_[static_cast<size_t>(page)] == 1) ++num_blocks_used_;
    request.blocks.push_back(page);
  }
}

int64_t Scheduler::count_blocks_used() {
  for (const auto& [order, request] : running_) sync_blocks(*request);
  return num_blocks_used_;
}

void Scheduler::preempt_last(const StepPlan& plan) {
  const auto last = std::prev(running_.end());
  // Only decode rows ask for blocks (prompts got theirs at admission), in order: the last one comes after the
  // asker.
  RORQUAL_CHECK(std::none_of(plan.slices.begin(), plan.slices.end(), [&](const ScheduledSlice& slice) {
    return slice.request == last->second.get();
  }));
  preempt(last);
}

void Scheduler::preempt(Queue::iterator running) {
  auto node = running_.extract(running);
  RequestState& victim = *node.mapped();
  const bool is_worth = victim.num_computed > 0 && !victim.is_replaying();
  if (!is_worth || !parts_.swap.swap_out(victim, parts_.runner)) {
    parts_.prefix.keep_end(victim);
    victim.num_computed = 0;
    victim.replay_end = 0;
  }
  close(victim);
  PrefixUse::forget(victim);
  ++victim.num_preemptions;
  ++num_preemptions_;
  waiting_.insert(std::move(node));
}

/// Preempts requests that have come far enough since the last time: half of the prompt, then three tokens of
/// the reply and three more for each time.
void Scheduler::drill() {
  for (auto it = running_.begin(); it != running_.end();) {
    const RequestState& request = *it->second;
    const bool is_due = request.num_preemptions == 0 ? request.num_computed > request.num_prompt_tokens / 2
                                                     : request.num_output() >= 3 * request.num_preemptions;
    const auto at = it++;
    if (is_due && request.num_preemptions < limits_.drill_preemptions) preempt(at);
  }
}

/// Frees blocks without preempting: pages of the prefix cache, and those that lookups of other waiting
/// requests hold.
bool Scheduler::make_room(const RequestState& asker, int64_t num_blocks) {
  if (parts_.prefix.make_room(num_blocks)) return true;
  if (!parts_.prefix.is_on()) return false;
  for (const auto& [order, request] : waiting_) {
    if (request.get() == &asker || request->prefix.phase == PrefixState::Phase::wanted) continue;
    PrefixUse::forget(*request);
    if (parts_.prefix.make_room(num_blocks)) return true;
  }
  return false;
}

Error Scheduler::too_large(const RequestState& request, int64_t num_tokens) const {
  const model::PageStore& pages = parts_.runner.pages();
  return Error(
      Code::out_of_memory,
      fmt::format("the cache of {} blocks ({} free) cannot hold {} tokens of one request ({} of its prompt)",
                  pages.pages_total(PageKind::block), pages.pages_free(PageKind::block), num_tokens,
                  request.num_prompt_tokens),
      "shorten the request or enlarge the cache");
}

/// Room for the next `num_tokens` of a running request, by preemption if need be. False: the request itself
/// was preempted, or it cannot be held at all.
bool Scheduler::reserve(RequestState& request, int64_t num_tokens, StepPlan& plan) {
  const int64_t end = request.num_computed + num_tokens;
  while (!parts_.runner.reserve(*request.sequence, end)) {
    // A sequence has as many blocks as it asked for: what is missing is the rest.
    int64_t held = (end - 1) / page_tokens_;
    while (held > 0 && parts_.runner.page_at(*request.sequence, PageKind::block, held - 1) == model::kNoPage)
      --held;
    const int64_t missing = blocks_for(end) - held;
    if (make_room(request, missing) && parts_.runner.reserve(*request.sequence, end)) return true;
    if (running_.size() == 1) {
      plan.impossible.emplace_back(request.id, too_large(request, end));
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

/// Most drafts that can become tokens of the request.
int32_t Scheduler::draft_limit(const RequestState& request) const {
  if (!request.sampling.forced_tokens.empty()) return 0;
  const int64_t reply_left = request.sampling.max_tokens - request.num_output();
  const int64_t context_left = limits_.max_model_len - request.num_tokens();
  const int64_t most = std::min<int64_t>(request.max_drafts, std::min(reply_left - 1, context_left - 1));
  return static_cast<int32_t>(std::max<int64_t>(most, 0));
}

int64_t Scheduler::rows_for_drafts(const StepPlan& plan) const {
  const int64_t num_prompts = num_running() - static_cast<int64_t>(plan.slices.size());
  const int64_t num_others =
      num_prompts + std::min<int64_t>(num_waiting(), limits_.max_num_seqs - num_running());
  int64_t rows = limits_.max_step_tokens - plan.num_tokens;
  if (num_others > 0) rows /= 2;
  return std::min(rows, limits_.max_logit_rows - plan.num_logit_rows - num_others);
}

void Scheduler::schedule_drafts(StepPlan& plan) {
  if (parts_.drafts.max_drafts() == 0 || plan.slices.empty()) return;
  std::vector<DraftCandidate> candidates;
  for (const ScheduledSlice& slice : plan.slices) {
    candidates.push_back({&slice.request->draft_history, draft_limit(*slice.request), 0});
  }
  parts_.drafts.choose(candidates, static_cast<int64_t>(candidates.size()), rows_for_drafts(plan));
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int32_t count = candidates[i].chosen;
    if (count == 0) continue;
    ScheduledSlice& slice = plan.slices[i];
    const model::SequenceId sequence = *slice.request->sequence;
    const int64_t end = slice.begin + 1 + count;
    const bool has_room = parts_.runner.reserve(sequence, end) ||
                          (parts_.prefix.make_room(blocks_for(end) - slice.begin / page_tokens_) &&
                           parts_.runner.reserve(sequence, end));
    if (!has_room) continue;
    slice.num_drafts = count;
    slice.num_tokens += count;
    for (int32_t j = 1; j <= count; ++j) slice.logit_offsets.push_back(j);
    plan.num_tokens += count;
    plan.num_logit_rows += count;
  }
}

bool Scheduler::prepare_waiting() {
  int64_t bytes = limits_.fetch_bytes;
  int num_looked_at = 0;
  bool has_more = false;
  for (const auto& [order, request] : waiting_) {
    if (num_looked_at++ == kMaxFetching) break;
    if (!request->is_swapped_out()) has_more = !parts_.prefix.prepare(*request, bytes) || has_more;
  }
  return has_more;
}

/// Whether the lookup is over. A step that has something to compute waits for one page from disk at most.
bool Scheduler::is_prepared(RequestState& request, StepPlan& plan) {
  using Phase = PrefixState::Phase;
  if (request.is_swapped_out() || request.prefix.phase == Phase::ready) return true;
  const bool is_idle = running_.empty() && plan.slices.empty();
  int64_t bytes = is_idle ? limits_.fetch_bytes : 1;
  if (request.prefix.phase == Phase::fetching && !is_idle) return false;
  if (parts_.prefix.prepare(request, bytes)) return true;
  plan.has_fetched = true;
  return false;
}

void Scheduler::admit_waiting(StepPlan& plan) {
  int num_passed = 0;
  for (auto it = waiting_.begin(); it != waiting_.end() && num_passed < kMaxFetching;) {
    if (num_running() >= limits_.max_num_seqs || plan.num_tokens >= limits_.max_step_tokens) return;
    const auto next = std::next(it);
    if (!is_prepared(*it->second, plan)) {
      ++num_passed;
    } else if (!admit(it, plan)) {
      return;
    }
    it = next;
  }
}

Result<model::SequenceId> Scheduler::open(RequestState& request) {
  if (!request.is_swapped_out()) return parts_.prefix.open(request, limits_.skips_unread_rows);
  Result<model::SequenceId> sequence = parts_.swap.swap_in(request, parts_.runner);
  if (sequence.ok()) request.sequence = *sequence;
  return sequence;
}

/// Makes room for all tokens of a waiting request and, unless nothing runs, a block more for each that does.
bool Scheduler::has_room_for(const RequestState& request) {
  const int64_t held =
      request.is_swapped_out() ? 0 : static_cast<int64_t>(request.prefix.hit.blocks().size());
  const int64_t missing = std::max<int64_t>(blocks_for(request.num_tokens()) - held, 0);
  return make_room(request, missing + num_running());
}

bool Scheduler::admit(Queue::iterator waiting, StepPlan& plan) {
  RequestState& request = *waiting->second;
  const bool is_alone = running_.empty();
  const auto refuse = [&](Error error) {
    if (is_alone) plan.impossible.emplace_back(request.id, std::move(error));
    return false;
  };
  const bool is_swapped = request.is_swapped_out();
  if (!has_room_for(request)) return refuse(too_large(request, request.num_tokens()));
  // Only now: a long prompt that waits for room is not looked up again and again.
  if (!is_swapped && parts_.prefix.refresh(request) && !has_room_for(request)) {
    return refuse(too_large(request, request.num_tokens()));
  }
  const int64_t before = request.num_computed, replay_before = request.replay_end;
  const auto undo = [&] {
    request.num_computed = before;
    request.replay_end = replay_before;
  };
  if (!is_swapped) {
    request.num_computed = request.prefix.hit.resume_position();
    request.replay_end = request.prefix.hit.replayed_tokens() > 0 ? request.prefix.hit.cached_tokens() : 0;
  }
  const int64_t size = chunk_size(request, plan);
  if (size <= 0) {
    undo();
    return false;
  }
  Result<model::SequenceId> sequence = open(request);
  if (!sequence.ok()) {
    undo();
    return refuse(std::move(sequence).error().at("open a sequence"));
  }
  parts_.prefix.count(request);
  PrefixUse::forget(request);
  current_turn_ = std::max(current_turn_, request.order.turn);
  running_.insert(waiting_.extract(waiting));
  if (!parts_.runner.reserve(*request.sequence, request.num_tokens())) {
    // Cannot be: room was made for it.
    plan.impossible.emplace_back(request.id, too_large(request, request.num_tokens()));
    return false;
  }
  add_slice(request, size, plan);
  return true;
}

}  // namespace rorqual::runtime
