// SPDX-License-Identifier: Apache-2.0
// Random histories of the local engine under virtual time: arrivals with common prefixes, priorities, client
// keys, cancellations between and within steps, tiny caches, a prefix cache with a disk that fails, swapping,
// drafts, constraints, replays, trims, failing steps. After every step the invariants hold, and every request
// gets exactly the tokens that it would get alone.
//
//   sim_engine [--seed S] [--rounds N] [--steps N]
//
// Round i runs with seed S + i; a violation prints the seed and the step and exits with 1.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "prefix/fake_disk.h"
#include "runtime/engine_core.h"
#include "runtime/fake_runner.h"
#include "sim_request.h"

namespace rorqual::runtime {
namespace {

using model::PageKind;

constexpr double kTimeTolerance_s = 1e-7;
constexpr int64_t kMaxUnfinished = 40;

class VirtualClock final : public Clock {
 public:
  int64_t now_ns() const override { return now; }

  int64_t now = 1;
};

/// Counts over all rounds: a simulation that never preempts proves nothing about preemption.
struct Coverage {
  int64_t requests = 0, finished = 0, cancelled = 0, failed = 0, expired = 0, steps = 0, chunks = 0;
  int64_t preemptions = 0, swaps = 0, cancelled_in_step = 0, trimmed = 0, constrained = 0;
  int64_t hits = 0, disk_hits = 0, replays = 0, evictions = 0, damaged = 0;
  int64_t drafted = 0, accepted = 0, longest_wait = 0;

  void print() const;
  bool is_complete() const;
};

void Coverage::print() const {
  const auto n = [](int64_t count) { return static_cast<long long>(count); };
  std::printf(
      "%lld requests: %lld finished, %lld cancelled (%lld within a step), %lld failed by injection, "
      "%lld expired; %lld constrained, %lld trimmed\n",
      n(requests), n(finished), n(cancelled), n(cancelled_in_step), n(failed), n(expired), n(constrained),
      n(trimmed));
  std::printf("%lld steps, %lld prompt chunks, %lld preemptions, %lld by swapping; longest wait %lld steps\n",
              n(steps), n(chunks), n(preemptions), n(swaps), n(longest_wait));
  std::printf(
      "prefix tokens: %lld reused, %lld of them from disk, %lld replayed; %lld pages evicted, %lld "
      "damaged on disk; drafts: %lld of %lld accepted\n",
      n(hits), n(disk_hits), n(replays), n(evictions), n(damaged), n(accepted), n(drafted));
}

bool Coverage::is_complete() const {
  for (const int64_t count :
       {finished, cancelled, cancelled_in_step, failed, expired, chunks, preemptions, swaps, trimmed,
        constrained, hits, disk_hits, replays, evictions, damaged, drafted, accepted, drafted - accepted}) {
    if (count <= 0) return false;
  }
  return true;
}

/// A request and its bound on waiting: the work of everything that may be served while it waits.
struct Tracked {
  std::shared_ptr<Checker> checker;
  ServiceOrder order;
  int64_t wait_steps = 0, allowance = 0;
  std::set<RequestId> counted;
};

class Simulation {
 public:
  Simulation(uint64_t seed, Coverage& coverage);

  /// The history as a hash, equal for equal seeds.
  uint64_t run(int64_t num_steps);

 private:
  int64_t pick(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  bool is_one_in(int64_t count) { return pick(1, count) == 1; }

  FakeRunnerOptions random_model();
  EngineOptions random_options(const FakeRunner& runner);
  Status before_forward(std::span<const model::StepSlice> slices);
  Request random_request();
  void choose_prompt(Request& request, int64_t max_length);
  void choose_sampling(SamplingParams& p);
  void arrive();
  void cancel_one(bool is_in_step);
  void while_computing();
  void step();
  void track_waits();
  int64_t work_of(const Checker& checker) const;
  void check_pages() const;
  void check_invariants() const;
  void check_end() const;

  std::mt19937_64 random_;
  Coverage& coverage_;
  std::shared_ptr<VirtualClock> clock_ = std::make_shared<VirtualClock>();
  std::shared_ptr<prefix::FakeDisk> disk_;
  FakeRunner* runner_ = nullptr;
  InlineExecutor* executor_ = nullptr;
  std::unique_ptr<EngineCore> core_;
  std::vector<Tracked> requests_;            // by id - 1
  std::vector<RequestId> unended_;           // ascending
  std::vector<std::vector<int32_t>> texts_;  // prompts and their replies, to begin others with
  uint64_t history_ = 0;
  bool does_fail_ = false, does_expire_ = false, is_draining_ = false;
  int pressure_ = 0;
  int64_t num_rows_ = 0, num_replay_rows_ = 0;
};

FakeRunnerOptions Simulation::random_model() {
  FakeRunnerOptions fake;
  fake.page_tokens = 2 * pick(1, 4);
  fake.blocks = pick(4, 60);
  fake.max_step_rows = pick(4, 64);
  fake.max_sequences = pick(1, 20);
  fake.max_model_len = pick(8, 120);
  fake.layers = pick(2, 4);
  // Whole pages, or less than one.
  fake.window = is_one_in(2) ? fake.page_tokens * pick(1, 3) : pick(1, fake.page_tokens);
  fake.draft_percent = static_cast<int>(pick(0, 100));
  fake.salt = random_();
  return fake;
}

EngineOptions Simulation::random_options(const FakeRunner& runner) {
  EngineOptions options;
  options.max_num_seqs = pick(1, 16);
  options.max_num_batched_tokens = pick(4, 64);
  options.long_prefill_token_threshold = pick(-1, 10);
  options.max_logit_rows = pick(1, 40);
  options.max_logprobs = -1;
  options.clock = clock_;
  options.model_identity = "sim";
  options.drafts = is_one_in(3) ? 0 : static_cast<int32_t>(pick(1, 7));
  options.are_drafts_adaptive = is_one_in(2);
  options.skips_unread_rows = !is_one_in(4);
  if (is_one_in(3)) options.swap_bytes = pick(1, 40000);
  if (does_expire_) options.max_queue_wait_s = static_cast<double>(pick(1, 3000)) * 1e-6;
  options.prefix_snapshot_interval = is_one_in(2) ? 0 : runner.pages().page_tokens() * pick(1, 6);
  if (is_one_in(4)) return options;
  const int64_t windows = pick(1, 24);
  options.prefix_cache_bytes = 2 * windows * runner.pages().page_bytes(PageKind::window);
  options.prefix_fetch_bytes = pick(1, 2000);
  if (!is_one_in(3)) return options;
  disk_ = std::make_shared<prefix::FakeDisk>();
  const auto damage = static_cast<int>(pick(0, 5));
  disk_->is_damaged = [this, damage](const prefix::PageKey&) { return pick(0, 99) < damage; };
  disk_->is_full = [this, damage](const prefix::DiskPage&) { return pick(0, 99) < damage; };
  options.prefix_disk = disk_;
  return options;
}

Simulation::Simulation(uint64_t seed, Coverage& coverage) : random_(seed), coverage_(coverage) {
  does_fail_ = is_one_in(5);
  does_expire_ = is_one_in(6);
  const FakeRunnerOptions fake = random_model();
  const EngineOptions options = random_options(FakeRunner(fake));
  FakeRunnerOptions sized = fake;
  // The cache's own, and those that lookups hold beside it.
  const int64_t window_bytes = fake.page_tokens * fake.layers * 8;
  const int64_t window_pages = (fake.window + fake.page_tokens - 1) / fake.page_tokens;
  sized.prefix_windows =
      options.prefix_cache_bytes / 2 / window_bytes + (Scheduler::kMaxFetching + 1) * window_pages;
  auto runner = std::make_unique<FakeRunner>(sized);
  runner_ = runner.get();
  runner_->before_forward = [this](auto slices) { return before_forward(slices); };
  runner_->before_draft = [this](auto slices, int64_t count) -> Status {
    clock_->now += pick(100, 2000) * (static_cast<int64_t>(slices.size()) + count);
    if (does_fail_ && pick(0, 99) == 0) return Error(Code::out_of_memory, "a failing draft pass");
    return Ok{};
  };
  EngineInfo info;
  info.eos_token_id = kEos;
  auto executor = std::make_unique<InlineExecutor>();
  executor_ = executor.get();
  auto core = EngineCore::create(std::move(runner), info, options, std::move(executor));
  require(core.ok(), "the options are valid");
  core_ = *std::move(core);
  pressure_ = static_cast<int>(pick(1, 60));
}

uint64_t Simulation::run(int64_t num_steps) {
  for (place.step = 0; place.step < num_steps; ++place.step) {
    if (pick(0, 99) < pressure_) arrive();
    if (pick(0, 99) < 4) cancel_one(false);
    clock_->now += pick(1, 1000);
    step();
  }
  is_draining_ = true;
  int64_t bound = 50;
  for (const Tracked& request : requests_) {
    if (!request.checker->is_finished()) bound += work_of(*request.checker);
  }
  for (int64_t i = 0; core_->has_work(); ++i, ++place.step) {
    require(i < bound, "everything ends within a bounded number of steps");
    step();
  }
  check_end();
  return history_;
}

Status Simulation::before_forward(std::span<const model::StepSlice> slices) {
  clock_->now += pick(1000, 20000);
  for (const model::StepSlice& slice : slices) {
    clock_->now += 300 * static_cast<int64_t>(slice.tokens.size());
    history_ =
        history_ * 0x100000001b3u ^ static_cast<uint64_t>(slice.sequence) ^ (slice.tokens.size() << 20);
    if (slice.logit_offsets.empty()) ++coverage_.chunks;
    (slice.is_replay ? num_replay_rows_ : num_rows_) += static_cast<int64_t>(slice.tokens.size());
  }
  if (does_fail_ && pick(0, 99) == 0) return Error(Code::out_of_memory, "a failing step");
  return Ok{};
}

void Simulation::choose_prompt(Request& request, int64_t max_length) {
  const int64_t vocab = core_->info().vocab_size;
  std::vector<int32_t>& prompt = request.prompt;
  const auto length = static_cast<size_t>(pick(1, max_length));
  if (!texts_.empty() && !is_one_in(3)) {
    const auto& text = texts_[static_cast<size_t>(pick(0, static_cast<int64_t>(texts_.size()) - 1))];
    const int64_t most = std::min<int64_t>(static_cast<int64_t>(text.size()), max_length);
    prompt.assign(text.begin(), text.begin() + pick(is_one_in(2) ? most / 2 : 0, most));
    prompt.resize(std::min(prompt.size(), length));
  }
  while (prompt.size() < (is_one_in(2) ? length : 1))
    prompt.push_back(static_cast<int32_t>(pick(0, vocab - 1)));
}

void Simulation::choose_sampling(SamplingParams& p) {
  const int64_t vocab = core_->info().vocab_size;
  p.temperature = is_one_in(2) ? 0.0f : 0.5f;
  p.seed = random_();
  p.choice_index = static_cast<uint32_t>(pick(0, 2));
  if (is_one_in(5)) p.top_k = static_cast<int32_t>(pick(1, 30));
  if (is_one_in(5)) p.top_p = 0.7f;
  if (is_one_in(8)) p.repetition_penalty = 1.3f;
  if (is_one_in(8)) p.frequency_penalty = 0.4f;
  if (is_one_in(5)) p.min_tokens = pick(0, p.max_tokens);
  if (is_one_in(5)) p.stop_token_ids = {static_cast<int32_t>(pick(0, vocab - 1))};
  p.ignore_eos = is_one_in(4);
  if (is_one_in(4)) p.logprobs = static_cast<int32_t>(pick(0, 5));
  if (is_one_in(8)) {
    p.prompt_logprobs = static_cast<int32_t>(pick(0, 3));
    if (is_one_in(2)) p.prompt_logprobs_begin = pick(1, 20);
    p.stream_prompt_rows = is_one_in(2);
  }
  if (p.max_tokens > 0 && is_one_in(10)) {
    p.forced_tokens.resize(static_cast<size_t>(p.max_tokens));
    for (int32_t& token : p.forced_tokens) token = static_cast<int32_t>(pick(0, vocab - 1));
  }
  if (is_one_in(6)) {
    p.constraint = std::make_shared<SimConstraint>(random_(), vocab);
    // Both together may leave no token.
    p.min_tokens = 0;
    ++coverage_.constrained;
  }
}

Request Simulation::random_request() {
  Request request;
  const int64_t max_len = core_->info().max_model_len;
  request.sampling.max_tokens = max_len < 2 || is_one_in(10) ? 0 : pick(1, 40);
  choose_prompt(request, std::max<int64_t>(std::min<int64_t>(max_len - 1, 50), 1));
  choose_sampling(request.sampling);
  request.priority = is_one_in(10) ? static_cast<int32_t>(pick(-1, 1)) : 0;
  request.client_key = is_one_in(3) ? "one" : "two";
  request.reads_prefix_cache = !is_one_in(12);
  if (is_one_in(12)) request.cache_salt = "other";
  if (is_one_in(4)) request.breakpoints = {pick(0, 30)};
  if (is_one_in(4)) request.drafts = static_cast<int32_t>(pick(0, 7));
  if (is_one_in(12)) {
    request.replay_trim = pick(1, 12);
    ++coverage_.trimmed;
  }
  return request;
}

void Simulation::arrive() {
  if (is_draining_ || core_->figures().unfinished > kMaxUnfinished) return;
  for (int64_t i = pick(1, 4); i > 0; --i) {
    Request request = random_request();
    const RequestId id = requests_.size() + 1;
    Tracked tracked;
    tracked.checker = std::make_shared<Checker>(
        id, request, run_alone(request, runner_->network(), core_->info().max_model_len), clock_->now);
    auto& text = texts_.emplace_back(request.prompt);
    const auto& reply = tracked.checker->expected().tokens;
    text.insert(text.end(), reply.begin(), reply.end());
    if (texts_.size() > 12) texts_.erase(texts_.begin());
    core_->expect(request);
    core_->add(id, std::move(request), tracked.checker, clock_->now);
    tracked.order = core_->scheduler().find(id)->order;
    requests_.push_back(std::move(tracked));
    unended_.push_back(id);
  }
}

void Simulation::cancel_one(bool is_in_step) {
  core_->cancel(requests_.size() + 1);  // unknown
  if (requests_.empty()) return;
  const auto newest = static_cast<int64_t>(requests_.size()) - 1;
  Checker& checker = *requests_[static_cast<size_t>(pick(std::max<int64_t>(newest - 12, 0), newest))].checker;
  const bool was_finished = core_->scheduler().find(checker.id()) == nullptr;
  core_->cancel(checker.id());
  if (!was_finished) checker.is_cancelled = true;
  if (is_in_step) {
    coverage_.cancelled_in_step += was_finished ? 0 : 1;
    return;
  }
  if (was_finished) core_->flush();
  require(checker.is_finished(), "a cancelled request ends at once", checker.id());
  if (!was_finished) {
    require(checker.info().reason == FinishReason::cancelled, "as cancelled", checker.id());
  }
  check_invariants();
}

/// What other threads do while a step computes.
void Simulation::while_computing() {
  if (is_one_in(20)) arrive();
  if (is_one_in(25)) cancel_one(true);
  if (is_one_in(10)) core_->prepare();
}

void Simulation::step() {
  if (!core_->has_work()) return;
  executor_->is_late = is_one_in(2);
  const int64_t steps_before = runner_->num_steps;
  const int64_t reads_before = disk_ ? disk_->stats().read_pages + disk_->stats().damaged_pages : 0;
  const int64_t unfinished_before = core_->figures().unfinished;
  require(core_->step([this] { while_computing(); }).ok(), "a step goes on");
  const bool has_read = disk_ && disk_->stats().read_pages + disk_->stats().damaged_pages > reads_before;
  require(
      runner_->num_steps == steps_before + 1 || has_read || core_->figures().unfinished < unfinished_before,
      "a step with work computes something, or reads for those who wait");
  if (is_one_in(2)) core_->flush();
  track_waits();
  check_invariants();
}

/// Steps that a request can keep others from being served: its tokens, computed again after preemptions, and
/// its pages read from disk.
int64_t Simulation::work_of(const Checker& checker) const {
  const int64_t tokens = checker.prompt_length() + checker.request().sampling.max_tokens;
  return 6 * (tokens + runner_->replay_rows()) + 40;
}

/// No starvation: a request waits while those before it in the order of service, and those that were running
/// or passed it while it waited for the disk, are served; not longer.
void Simulation::track_waits() {
  const Scheduler& scheduler = core_->scheduler();
  std::vector<std::pair<RequestId, ServiceOrder>> running;
  std::vector<std::pair<RequestId, ServiceOrder>> unfinished;
  std::erase_if(unended_, [&](RequestId id) {
    Tracked& request = requests_[id - 1];
    if (!request.checker->is_finished()) return false;
    request.checker->forget_expectation();
    request.counted.clear();
    return true;
  });
  for (const RequestId id : unended_) {
    const RequestState* state = scheduler.find(id);
    if (state == nullptr) continue;
    unfinished.emplace_back(id, state->order);
    if (state->sequence) running.emplace_back(id, state->order);
  }
  for (const RequestId waiting : unended_) {
    Tracked& request = requests_[waiting - 1];
    const RequestState* state = scheduler.find(waiting);
    if (state == nullptr || state->scheduled_ns != 0) continue;
    const auto allow = [&](RequestId id) {
      if (request.counted.insert(id).second) request.allowance += work_of(*requests_[id - 1].checker);
    };
    allow(state->id);
    for (const auto& [id, order] : running) allow(id);
    for (const auto& [id, order] : unfinished) {
      if (order < state->order) allow(id);
    }
    ++request.wait_steps;
    require(request.wait_steps <= request.allowance, "nobody waits longer than those before it take",
            state->id);
    coverage_.longest_wait = std::max(coverage_.longest_wait, request.wait_steps);
  }
}

/// Every hold of a page belongs to a sequence, to the prefix cache or to a lookup.
void Simulation::check_pages() const {
  const prefix::FakePages& pages = runner_->pages();
  const PrefixStats stats = core_->prefix().stats();
  int64_t hit_blocks = 0, hit_windows = 0;
  bool is_fetching = false;
  std::set<model::PageId> used;
  for (const RequestId id : core_->scheduler().ids()) {
    const RequestState& request = *core_->scheduler().find(id);
    hit_blocks += static_cast<int64_t>(request.prefix.hit.blocks().size());
    hit_windows += static_cast<int64_t>(request.prefix.hit.windows().size());
    is_fetching = is_fetching || request.prefix.phase == PrefixState::Phase::fetching;
    for (int64_t i = 0; request.sequence; ++i) {
      const model::PageId page = runner_->page_at(*request.sequence, PageKind::block, i);
      if (page == model::kNoPage) break;
      used.insert(page);
    }
    require(request.sequence || request.blocks.empty(), "who does not run holds no blocks", id);
  }
  require(pages.holds(PageKind::block) == runner_->holds(PageKind::block) + stats.blocks + hit_blocks,
          "blocks are conserved");
  const int64_t windows = runner_->holds(PageKind::window) + stats.windows + hit_windows;
  require(is_fetching ? pages.holds(PageKind::window) >= windows : pages.holds(PageKind::window) == windows,
          "window pages are conserved");
  for (const PageKind kind : {PageKind::block, PageKind::window}) {
    int64_t held = 0;
    for (model::PageId page = 0; page < pages.pages_total(kind); ++page) {
      held += pages.holders(kind, page) > 0 ? 1 : 0;
    }
    require(held + pages.pages_free(kind) == pages.pages_total(kind), "a page is held or free");
  }
  require(stats.bytes <= std::max<int64_t>(stats.max_bytes, 0), "the prefix cache keeps its limit");
  require(core_->figures().blocks_used == static_cast<int64_t>(used.size()), "used blocks are reported");
}

void Simulation::check_invariants() const {
  check_pages();
  const Scheduler& scheduler = core_->scheduler();
  const EngineFigures& figures = core_->figures();
  require(runner_->num_open() == scheduler.num_running(), "only running requests hold sequences");
  require(scheduler.num_running() <= core_->options().max_num_seqs, "max_num_seqs");
  require(figures.unfinished == scheduler.num_running() + scheduler.num_waiting(),
          "unfinished requests are counted");
  for (const RequestId id : unended_) {
    require(!requests_[id - 1].checker->is_finished() || scheduler.find(id) == nullptr,
            "what has ended is gone", id);
  }
  std::vector<RequestId> ids = scheduler.ids();
  std::sort(ids.begin(), ids.end());
  require(std::adjacent_find(ids.begin(), ids.end()) == ids.end(), "a request is in one place");
}

void Simulation::check_end() const {
  const EngineFigures& figures = core_->figures();
  const EngineStats stats = core_->stats();
  require(runner_->num_open() == 0 && figures.blocks_used == 0, "idle holds nothing");
  require(figures.pending_prompt_tokens == 0 && figures.running == 0, "idle counts nothing");
  int64_t completion = 0, drafted = 0, accepted = 0, cached = 0, preempted = 0, replayed = 0, prompt = 0;
  bool has_all_prompts = true;
  std::map<std::pair<int32_t, std::string>, double> latest_start;
  for (const Tracked& tracked : requests_) {
    const Checker& checker = *tracked.checker;
    const FinishInfo& info = checker.info();
    require(checker.is_finished(), "every request ends", checker.id());
    const bool has_expired = info.reason == FinishReason::error && info.error->code() == Code::unavailable;
    const bool is_failure = !does_fail_ && !does_expire_ && info.reason == FinishReason::error;
    require(!is_failure, is_failure ? info.error->message().c_str() : "", checker.id());
    completion += info.completion_tokens;
    drafted += info.drafted_tokens;
    accepted += info.accepted_tokens;
    preempted += info.preemptions;
    replayed += info.replayed_tokens;
    cached += info.cached_tokens;
    prompt += info.prompt_tokens;
    has_all_prompts =
        has_all_prompts && info.reason != FinishReason::error && info.reason != FinishReason::cancelled;
    ++coverage_.requests;
    coverage_.cancelled += info.reason == FinishReason::cancelled ? 1 : 0;
    coverage_.expired += has_expired ? 1 : 0;
    coverage_.failed += info.reason == FinishReason::error && !has_expired ? 1 : 0;
    coverage_.finished += info.reason == FinishReason::stop || info.reason == FinishReason::length ? 1 : 0;
    if (!checker.has_started() || disk_) continue;
    double& latest = latest_start[{checker.request().priority, checker.request().client_key}];
    require(checker.scheduled_s() >= latest - kTimeTolerance_s, "first come, first served in a class",
            checker.id());
    latest = std::max(latest, checker.scheduled_s());
  }
  require(completion == figures.generation_tokens, "generated tokens are counted");
  require(drafted == stats.speculation.draft_tokens && accepted == stats.speculation.accepted_tokens,
          "drafts are counted");
  require(preempted == stats.preemptions && stats.swapped_in <= stats.swapped_out &&
              stats.swapped_out <= stats.preemptions,
          "preemptions are counted");
  if (has_all_prompts) {
    require(stats.prompt_tokens == prompt && stats.cached_tokens == cached, "prompts are counted");
    require(stats.prefix.hit_tokens == cached || !stats.prefix.is_on, "hits are counted");
  }
  if (has_all_prompts && preempted == 0) {
    // Rows: uncached prompt tokens; of each verification one and its drafts, of which the accepted ones and
    // one more became tokens (one less where the last accepted draft ended the reply).
    const int64_t rows =
        prompt - cached + completion - static_cast<int64_t>(requests_.size()) + drafted - accepted;
    const int64_t slack = 2 * static_cast<int64_t>(requests_.size());
    require(num_rows_ >= rows && num_rows_ <= rows + slack, "computed and cached tokens are all tokens");
    require(num_replay_rows_ == replayed, "replayed rows are counted");
  }
  require(stats.iteration_tokens_sum <= num_rows_ + num_replay_rows_, "rows of steps are counted");
  coverage_.preemptions += stats.preemptions;
  coverage_.swaps += stats.swapped_in;
  coverage_.steps += stats.steps;
  coverage_.hits += stats.prefix.hit_tokens;
  coverage_.disk_hits += stats.prefix.disk_hit_tokens;
  coverage_.replays += stats.prefix.replayed_tokens;
  coverage_.evictions += stats.prefix.evicted_blocks + stats.prefix.evicted_windows;
  coverage_.damaged += stats.prefix.disk_damaged_pages;
  coverage_.drafted += drafted;
  coverage_.accepted += accepted;
}

int simulate(uint64_t seed, int64_t num_rounds, int64_t num_steps) {
  std::printf("sim_engine: seed %llu, %lld rounds of %lld steps\n", static_cast<unsigned long long>(seed),
              static_cast<long long>(num_rounds), static_cast<long long>(num_steps));
  Coverage coverage;
  for (int64_t round = 0; round < num_rounds; ++round) {
    place.seed = seed + static_cast<uint64_t>(round);
    const uint64_t history = Simulation(place.seed, coverage).run(num_steps);
    if (round % 10 == 0) {
      require(Simulation(place.seed, coverage).run(num_steps) == history, "a seed repeats its history");
    }
  }
  coverage.print();
  if (num_rounds >= 100) require(coverage.is_complete(), "the rounds cover every kind of event");
  return 0;
}

}  // namespace
}  // namespace rorqual::runtime

int main(int argc, char** argv) {
  uint64_t seed = 1;
  int64_t rounds = 60;
  int64_t steps = 250;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (i + 1 == argc) {
      std::fprintf(stderr, "usage: sim_engine [--seed S] [--rounds N] [--steps N]\n");
      return 2;
    }
    const char* value = argv[++i];
    if (option == "--seed") {
      seed = std::strtoull(value, nullptr, 10);
    } else if (option == "--rounds") {
      rounds = std::strtoll(value, nullptr, 10);
    } else if (option == "--steps") {
      steps = std::strtoll(value, nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: sim_engine [--seed S] [--rounds N] [--steps N]\n");
      return 2;
    }
  }
  return rorqual::runtime::simulate(seed, rounds, steps);
}
