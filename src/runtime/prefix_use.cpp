// SPDX-License-Identifier: Apache-2.0
// Lookups, starts and offers of the prefix cache.
#include "runtime/prefix_use.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"

namespace rorqual::runtime {

namespace {

using prefix::PrefixCache;
using Phase = PrefixState::Phase;

}  // namespace

PrefixUse::PrefixUse(model::Runner& runner, PrefixUseOptions options)
    : runner_(runner),
      options_(std::move(options)),
      page_tokens_(runner.pages().page_tokens()),
      window_pages_(runner.window_pages()) {
  counted_.misses_by_reason.assign(prefix::kMissReasons, 0);
  if (options_.max_bytes <= 0) return;
  prefix::PrefixCacheOptions cache;
  cache.model_identity = options_.model_identity;
  cache.max_bytes = options_.max_bytes;
  cache.window_pages = window_pages_;
  cache.replay_rows = runner.replay_rows();
  cache.replay_cost = runner.replay_cost();
  cache.disk = options_.disk;
  cache_ = std::make_unique<PrefixCache>(runner.pages(), std::move(cache));
}

void PrefixUse::begin(RequestState& request) {
  PrefixState& state = request.prefix;
  state.keeps = is_on();
  state.reads = state.reads && is_on() && !request.needs_prompt_scores();
  if (!is_on()) return;
  state.root = prefix::root_key(options_.model_identity, state.salt);
  name_pages(request, request.num_tokens() / page_tokens_);
}

void PrefixUse::name_pages(RequestState& request, int64_t count) const {
  PrefixState& state = request.prefix;
  state.keys =
      prefix::page_keys(state.root, {.tokens = request.tokens}, page_tokens_, count, std::move(state.keys));
}

PrefixCache::Query PrefixUse::query(const RequestState& request) const {
  PrefixCache::Query query;
  query.tokens = request.tokens;
  query.keys = request.prefix.keys;
  query.root = request.prefix.root;
  query.limit = request.num_tokens() - 1;
  query.trim_rows = request.trim_rows;
  return query;
}

void PrefixUse::lookup(RequestState& request) {
  name_pages(request, request.num_tokens() / page_tokens_);
  request.prefix.hit = cache_->find(query(request));
  request.prefix.generation = generation_;
  request.prefix.phase = Phase::fetching;
}

void PrefixUse::conclude(RequestState& request) {
  cache_->finish(query(request), request.prefix.hit);
  request.prefix.disk_tokens = std::max(request.prefix.disk_tokens, request.prefix.hit.disk_tokens());
  request.prefix.phase = Phase::ready;
}

bool PrefixUse::prepare(RequestState& request, int64_t& fetch_bytes) {
  PrefixState& state = request.prefix;
  if (state.phase == Phase::ready) return true;
  if (!state.reads) {
    state.phase = Phase::ready;
    return true;
  }
  if (state.phase == Phase::wanted) lookup(request);
  if (!cache_->fetch(state.hit, fetch_bytes)) return false;
  conclude(request);
  return true;
}

bool PrefixUse::refresh(RequestState& request) {
  PrefixState& state = request.prefix;
  if (!state.reads || state.generation == generation_) return false;
  const int64_t most = (request.num_tokens() - 1) / page_tokens_ * page_tokens_;
  if (state.hit.resume_position() == most) return false;
  prefix::PrefixHit before = std::move(state.hit);
  lookup(request);
  conclude(request);
  if (state.hit.resume_position() >= before.resume_position()) return true;
  state.hit = std::move(before);
  return false;
}

void PrefixUse::forget(RequestState& request) {
  request.prefix.hit = {};
  request.prefix.disk_tokens = 0;
  request.prefix.phase = Phase::wanted;
}

Result<model::SequenceId> PrefixUse::open(RequestState& request, bool skips_unread_rows) {
  const prefix::PrefixHit& hit = request.prefix.hit;
  const int64_t cached = hit.cached_tokens();
  model::SequenceStart start;
  start.tokens = std::span<const int32_t>(request.tokens).first(static_cast<size_t>(cached));
  start.blocks = hit.blocks();
  start.windows = hit.windows();
  start.length = hit.resume_position();
  start.trim_rows = request.trim_rows;
  RORQUAL_TRY_ASSIGN(const model::SequenceId sequence, runner_.open_sequence(start));
  request.sequence = sequence;
  request.num_computed = start.length;
  request.replay_end = hit.replayed_tokens() > 0 ? cached : 0;
  request.replayed_tokens += hit.replayed_tokens();
  request.prefix.num_offered = cached / page_tokens_;
  // Rows of a trimmed replay are approximations, and what follows is made of them.
  if (request.trim_rows > 0 && hit.replayed_tokens() > 0) request.prefix.keeps = false;
  request.window_targets.clear();
  request.whole_from = cached;
  if (request.trim_rows > 0) {
    request.window_targets = {request.num_prompt_tokens};
  } else if (skips_unread_rows && !request.needs_prompt_scores()) {
    if (is_on()) {
      request.window_targets = prefix::window_targets(request.num_prompt_tokens, request.breakpoints,
                                                      options_.snapshot_interval, page_tokens_);
    }
    for (const int64_t end : {request.num_prompt_tokens, request.num_tokens()}) {
      if (request.window_targets.empty() || request.window_targets.back() < end)
        request.window_targets.push_back(end);
    }
    request.whole_from = request.num_tokens();
  }
  return sequence;
}

prefix::MissReport PrefixUse::report(const RequestState& request) const {
  if (request.prefix.reads) return cache_->explain(query(request), request.prefix.hit);
  prefix::MissReport report;
  report.reason = is_on() ? prefix::MissReason::bypassed : prefix::MissReason::off;
  return report;
}

void PrefixUse::count(RequestState& request) {
  PrefixState& state = request.prefix;
  if (state.is_counted) return;
  state.is_counted = true;
  state.first_report = report(request);
  request.cached_tokens = state.hit.cached_tokens();
  request.disk_tokens = std::min(state.disk_tokens, request.cached_tokens);
  if (is_on()) ++counted_.misses_by_reason[static_cast<size_t>(state.first_report.reason)];
  if (!state.reads) return;
  ++counted_.queries;
  counted_.query_tokens += request.num_prompt_tokens;
  counted_.hit_tokens += request.cached_tokens;
  counted_.disk_hit_tokens += request.disk_tokens;
  counted_.replayed_tokens += state.hit.replayed_tokens();
}

void PrefixUse::offer_page(RequestState& request, int64_t index, bool has_window,
                           PrefixCache::WindowUse use) {
  const auto at = static_cast<size_t>(index);
  PrefixCache::Offer offer;
  offer.key = request.prefix.keys[at];
  offer.parent = index == 0 ? request.prefix.root : request.prefix.keys[at - 1];
  offer.tokens = std::span<const int32_t>(request.tokens)
                     .subspan(at * static_cast<size_t>(page_tokens_), static_cast<size_t>(page_tokens_));
  offer.block = runner_.page_at(*request.sequence, model::PageKind::block, index);
  if (has_window) offer.window = runner_.page_at(*request.sequence, model::PageKind::window, index);
  offer.window_use = use;
  RORQUAL_CHECK(offer.block != model::kNoPage);
  cache_->offer(offer);
  ++generation_;
}

void PrefixUse::keep_step(RequestState& request, int64_t begin) {
  if (!request.prefix.keeps || request.is_replaying()) return;
  const int64_t num_pages = request.num_computed / page_tokens_;
  std::set<int64_t> windows;
  const auto want = [&](int64_t target) {
    if (target <= begin || target > request.num_computed || target % page_tokens_ != 0) return;
    const int64_t end = target / page_tokens_;
    for (int64_t i = std::max<int64_t>(end - window_pages_, 0); i < end; ++i) windows.insert(i);
  };
  if (request.trim_rows == 0 && begin < request.replay_end) {
    want(request.replay_end);  // the only target of a replay
  } else if (request.trim_rows == 0) {
    for (const int64_t target : request.targets_above(begin)) want(target);
  }
  if (num_pages == request.prefix.num_offered && windows.empty()) return;
  name_pages(request, num_pages);
  const auto offer_window = [&](int64_t i) {
    const bool is_end = (i + 2 * window_pages_ + 2) * page_tokens_ > request.num_prompt_tokens;
    offer_page(request, i, true,
               is_end ? PrefixCache::WindowUse::prompt_end : PrefixCache::WindowUse::interval);
  };
  for (const int64_t i : windows) {
    if (i < request.prefix.num_offered) offer_window(i);
  }
  for (int64_t i = request.prefix.num_offered; i < num_pages; ++i) {
    if (windows.contains(i)) {
      offer_window(i);
    } else {
      offer_page(request, i, false, PrefixCache::WindowUse::interval);
    }
  }
  request.prefix.num_offered = num_pages;
}

void PrefixUse::keep_end(RequestState& request) {
  if (!request.prefix.keeps || request.trim_rows > 0 || request.is_replaying() || !request.sequence) return;
  const int64_t last = request.num_computed / page_tokens_;
  for (int64_t end = std::max<int64_t>(last - 1, 1); end <= last; ++end) {
    if (end * page_tokens_ < request.whole_from) continue;
    const int64_t first = std::max<int64_t>(end - window_pages_, 0);
    bool is_held = true;
    for (int64_t i = first; i < end; ++i) {
      is_held = is_held && runner_.page_at(*request.sequence, model::PageKind::window, i) != model::kNoPage;
    }
    if (!is_held) continue;
    for (int64_t i = first; i < end; ++i) offer_page(request, i, true, PrefixCache::WindowUse::reply_end);
  }
}

bool PrefixUse::make_room(int64_t count) {
  if (runner_.pages().pages_free(model::PageKind::block) >= count) return true;
  return is_on() && cache_->make_room(model::PageKind::block, count);
}

PrefixStats PrefixUse::stats() const {
  PrefixStats stats = counted_;
  stats.is_on = is_on();
  if (!is_on()) return stats;
  const prefix::PrefixCacheStats& cache = cache_->stats();
  stats.has_disk = options_.disk != nullptr;
  stats.blocks = cache.blocks;
  stats.windows = cache.windows;
  stats.bytes = cache.bytes;
  stats.max_bytes = options_.max_bytes;
  stats.evicted_blocks = cache.evicted_blocks;
  stats.evicted_windows = cache.evicted_windows;
  stats.mismatches = cache.mismatches;
  return stats;
}

}  // namespace rorqual::runtime
