// SPDX-License-Identifier: Apache-2.0
// Random histories of the local engine under virtual time: arrivals, cancellations, tiny caches, failing
// steps. After every step the invariants hold, and every request gets exactly the tokens that it would get
// alone.
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
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine_core.h"
#include "runtime/fake_runner.h"
#include "runtime/logprobs.h"
#include "runtime/request_check.h"

namespace rorqual::runtime {
namespace {

constexpr int32_t kEos = 1;
constexpr double kTimeTolerance_s = 1e-7;

class VirtualClock final : public Clock {
 public:
  int64_t now_ns() const override { return now; }

  int64_t now = 1;
};

/// Where a violation happened.
struct Place {
  uint64_t seed = 0;
  int64_t step = 0;
};

Place place;

void require(bool condition, const char* what, uint64_t id = 0) {
  if (condition) return;
  std::fprintf(stderr,
               "sim_engine: violated: %s (request %llu) at step %lld; repeat with --seed %llu --rounds 1\n",
               what, static_cast<unsigned long long>(id), static_cast<long long>(place.step),
               static_cast<unsigned long long>(place.seed));
  std::exit(1);
}

/// What a request must deliver, computed without the scheduler.
struct Expectation {
  std::vector<int32_t> tokens;
  std::vector<PositionLogprobs> rows, prompt_rows;
  FinishReason reason = FinishReason::length;
};

bool is_equal(const PositionLogprobs& a, const PositionLogprobs& b) {
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token == y.token && x.logprob == y.logprob && x.rank == y.rank;
  };
  return same(a.chosen, b.chosen) && std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(), same);
}

Expectation run_alone(const Request& request, const FakeRunner& model, int64_t max_model_len) {
  const SamplingParams& params = request.sampling;
  Expectation out;
  const auto length = static_cast<int64_t>(request.prompt.size());
  for (int64_t i = params.prompt_logprobs_begin; i < length && params.prompt_logprobs >= 0; ++i) {
    const auto prefix = std::span<const int32_t>(request.prompt).first(static_cast<size_t>(i));
    LogprobRequest wanted;
    wanted.chosen = request.prompt[static_cast<size_t>(i)];
    wanted.top_k = params.prompt_logprobs;
    out.prompt_rows.push_back(position_logprobs(model.logits_after(prefix), wanted));
  }
  Sampler sampler(model.vocab_size());
  TokenCounts counts(request.prompt);
  std::vector<int32_t> tokens = request.prompt;
  while (static_cast<int64_t>(out.tokens.size()) < params.max_tokens &&
         static_cast<int64_t>(tokens.size()) < max_model_len) {
    const auto row = model.logits_after(tokens);
    const bool is_forced = !params.forced_tokens.empty();
    const auto token = is_forced ? Result<int32_t>(params.forced_tokens[out.tokens.size()])
                                 : sampler.sample(row, {params, counts, tokens, length, *params.seed, kEos});
    require(token.ok(), "the reference run draws a token");
    if (!is_forced && ends_reply(params, *token, kEos, static_cast<int64_t>(out.tokens.size()))) {
      out.reason = FinishReason::stop;
      break;
    }
    if (params.logprobs >= 0) out.rows.push_back(position_logprobs(row, {*token, params.logprobs, {}}));
    out.tokens.push_back(*token);
    tokens.push_back(*token);
    counts.add_output(*token);
  }
  return out;
}

/// A sink that compares what arrives with what must arrive, token by token.
class Checker final : public TokenSink {
 public:
  Checker(RequestId id, Request request, Expectation expected, int64_t arrived_ns)
      : id_(id), request_(std::move(request)), expected_(std::move(expected)), arrived_ns_(arrived_ns) {}

  void on_prompt_logprobs(std::vector<std::optional<PositionLogprobs>> rows) override {
    require(!has_prompt_rows_ && num_tokens_ == 0 && !is_finished_, "prompt rows come once and first", id_);
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
    require(num_tokens_ == 0 && !is_finished_, "prompt rows come first", id_);
    require(position == params.prompt_logprobs_begin + static_cast<int64_t>(num_streamed_),
            "streamed rows come once and in order", id_);
    require(num_streamed_ < expected_.prompt_rows.size() &&
                is_equal(row, expected_.prompt_rows[num_streamed_]) && !logits.empty(),
            "streamed rows as alone", id_);
    ++num_streamed_;
  }

  void on_token(int32_t token, std::optional<PositionLogprobs> row) override {
    require(!is_finished_, "no token after the end", id_);
    require(num_tokens_ < expected_.tokens.size() && token == expected_.tokens[num_tokens_],
            "tokens as alone", id_);
    require(row.has_value() == (request_.sampling.logprobs >= 0), "rows as asked for", id_);
    if (row) require(is_equal(*row, expected_.rows[num_tokens_]), "rows as alone", id_);
    ++num_tokens_;
  }

  void on_finish(const FinishInfo& info) override {
    require(!is_finished_, "a request ends once", id_);
    is_finished_ = true;
    info_ = info;
    require(info.prompt_tokens == static_cast<int64_t>(request_.prompt.size()), "prompt tokens are counted",
            id_);
    require(info.seed == request_.sampling.seed, "the seed is reported", id_);
    if (info.reason == FinishReason::error || info.reason == FinishReason::cancelled) return;
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

  bool is_finished() const { return is_finished_; }

  const FinishInfo& info() const { return info_; }

  bool has_started() const { return num_tokens_ > 0 || (is_finished_ && info_.completion_tokens > 0); }

  double scheduled_s() const { return static_cast<double>(arrived_ns_) * 1e-9 + info_.queue_s; }

 private:
  RequestId id_;
  Request request_;
  Expectation expected_;
  int64_t arrived_ns_;
  size_t num_tokens_ = 0, num_streamed_ = 0;
  bool has_prompt_rows_ = false, is_finished_ = false;
  FinishInfo info_;
};

/// Counts over all rounds: a simulation that never preempts proves nothing about preemption.
struct Coverage {
  int64_t requests = 0, finished = 0, cancelled = 0, failed = 0, preemptions = 0, steps = 0, chunks = 0;
};

class Simulation {
 public:
  Simulation(uint64_t seed, Coverage& coverage) : random_(seed), coverage_(coverage) {
    FakeRunnerOptions fake;
    fake.page_tokens = 2 * pick(1, 4);
    fake.blocks = pick(4, 60);
    fake.max_step_rows = pick(4, 64);
    fake.max_sequences = pick(1, 20);
    fake.max_model_len = pick(8, 120);
    fake.salt = random_();
    auto runner = std::make_unique<FakeRunner>(fake);
    runner_ = runner.get();
    does_fail_ = pick(0, 4) == 0;
    runner_->before_forward = [this](auto slices) { return before_forward(slices); };
    EngineOptions options;
    options.max_num_seqs = pick(1, 16);
    options.max_num_batched_tokens = pick(4, 64);
    options.long_prefill_token_threshold = pick(-1, 10);
    options.max_logit_rows = pick(1, 40);
    options.max_logprobs = -1;
    clock_ = std::make_shared<VirtualClock>();
    options.clock = clock_;
    EngineInfo info;
    info.eos_token_id = kEos;
    auto core = EngineCore::create(std::move(runner), info, options);
    require(core.ok(), "the options are valid");
    core_ = *std::move(core);
    pressure_ = static_cast<int>(pick(1, 60));
  }

  /// The history as a hash, equal for equal seeds.
  uint64_t run(int64_t num_steps) {
    for (place.step = 0; place.step < num_steps; ++place.step) {
      if (pick(0, 99) < pressure_) arrive();
      if (pick(0, 99) < 6) cancel_one();
      clock_->now += pick(1, 1000);
      step();
    }
    int64_t bound = 50;
    for (const auto& checker : checkers_) {
      if (!checker->is_finished())
        bound += 4 * (prompt_length(*checker) + checker->request().sampling.max_tokens);
    }
    for (int64_t i = 0; core_->has_work(); ++i, ++place.step) {
      require(i < bound, "everything ends within a bounded number of steps");
      step();
    }
    check_end();
    return history_;
  }

 private:
  int64_t pick(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  static int64_t prompt_length(const Checker& checker) {
    return static_cast<int64_t>(checker.request().prompt.size());
  }

  Status before_forward(std::span<const model::StepSlice> slices) {
    clock_->now += pick(1000, 100000);
    for (const model::StepSlice& slice : slices) {
      history_ =
          history_ * 0x100000001b3u ^ static_cast<uint64_t>(slice.sequence) ^ (slice.tokens.size() << 20);
      if (slice.logit_offsets.empty()) ++coverage_.chunks;
    }
    if (does_fail_ && pick(0, 99) == 0) return Error(Code::out_of_memory, "a failing step");
    return Ok{};
  }

  Request random_request() {
    Request request;
    SamplingParams& p = request.sampling;
    const int64_t max_len = core_->info().max_model_len;
    const int64_t vocab = core_->info().vocab_size;
    p.max_tokens = max_len < 2 || pick(0, 9) == 0 ? 0 : pick(1, 40);
    request.prompt.resize(
        static_cast<size_t>(pick(1, std::max<int64_t>(std::min<int64_t>(max_len - 1, 50), 1))));
    for (int32_t& token : request.prompt) token = static_cast<int32_t>(pick(0, vocab - 1));
    p.temperature = pick(0, 2) == 0 ? 0.0f : 0.8f;
    p.seed = random_();
    p.choice_index = static_cast<uint32_t>(pick(0, 2));
    if (pick(0, 3) == 0) p.top_k = static_cast<int32_t>(pick(1, 30));
    if (pick(0, 3) == 0) p.top_p = 0.7f;
    if (pick(0, 5) == 0) p.repetition_penalty = 1.3f;
    if (pick(0, 5) == 0) p.frequency_penalty = 0.4f;
    if (pick(0, 4) == 0) p.min_tokens = pick(0, p.max_tokens);
    if (pick(0, 4) == 0) p.stop_token_ids = {static_cast<int32_t>(pick(0, vocab - 1))};
    p.ignore_eos = pick(0, 3) == 0;
    if (pick(0, 4) == 0) p.logprobs = static_cast<int32_t>(pick(0, 5));
    if (pick(0, 4) == 0) {
      p.prompt_logprobs = static_cast<int32_t>(pick(0, 3));
      if (pick(0, 1) == 0) p.prompt_logprobs_begin = pick(1, 20);
      p.stream_prompt_rows = pick(0, 1) == 0;
    }
    if (p.max_tokens > 0 && pick(0, 9) == 0) {
      p.forced_tokens.resize(static_cast<size_t>(p.max_tokens));
      for (int32_t& token : p.forced_tokens) token = static_cast<int32_t>(pick(0, vocab - 1));
    }
    request.priority = pick(0, 9) == 0 ? static_cast<int32_t>(pick(-1, 1)) : 0;
    request.client_key = pick(0, 2) == 0 ? "one" : "two";
    return request;
  }

  void arrive() {
    for (int64_t i = pick(1, 4); i > 0; --i) {
      Request request = random_request();
      const RequestId id = ++num_requests_;
      auto checker = std::make_shared<Checker>(
          id, request, run_alone(request, *runner_, core_->info().max_model_len), clock_->now);
      checkers_.push_back(checker);
      core_->expect(request);
      core_->add(id, std::move(request), checker, clock_->now);
    }
  }

  void cancel_one() {
    core_->cancel(num_requests_ + 1);  // unknown
    if (checkers_.empty()) return;
    const auto& checker = checkers_[static_cast<size_t>(pick(0, static_cast<int64_t>(checkers_.size()) - 1))];
    const bool was_finished = checker->is_finished();
    core_->cancel(checker->id());
    require(checker->is_finished(), "a cancelled request ends at once", checker->id());
    if (!was_finished)
      require(checker->info().reason == FinishReason::cancelled, "as cancelled", checker->id());
    check_invariants();
  }

  void step() {
    if (!core_->has_work()) return;
    const int64_t steps_before = runner_->num_steps;
    require(core_->step().ok(), "a step goes on");
    require(runner_->num_steps == steps_before + 1, "a step with work computes something");
    check_invariants();
  }

  void check_invariants() const {
    const Scheduler& scheduler = core_->scheduler();
    const EngineFigures& figures = core_->figures();
    require(runner_->holds(model::PageKind::block) + runner_->pages().pages_free(model::PageKind::block) ==
                runner_->pages().pages_total(model::PageKind::block),
            "blocks are conserved");
    require(runner_->num_open() == scheduler.num_running(), "only running requests hold sequences");
    require(figures.blocks_used == runner_->holds(model::PageKind::block), "used blocks are reported");
    require(scheduler.num_running() <= core_->options().max_num_seqs, "max_num_seqs");
    int64_t unfinished = 0;
    for (const auto& checker : checkers_) unfinished += checker->is_finished() ? 0 : 1;
    require(unfinished == scheduler.num_running() + scheduler.num_waiting(), "no request is lost");
    require(unfinished == figures.unfinished, "unfinished requests are counted");
    std::vector<RequestId> ids = scheduler.ids();
    std::sort(ids.begin(), ids.end());
    require(std::adjacent_find(ids.begin(), ids.end()) == ids.end(), "a request is in one place");
  }

  void check_end() const {
    const EngineFigures& figures = core_->figures();
    require(runner_->pages().pages_free(model::PageKind::block) ==
                    runner_->pages().pages_total(model::PageKind::block) &&
                runner_->num_open() == 0,
            "idle holds nothing");
    require(figures.pending_prompt_tokens == 0 && figures.running == 0, "idle counts nothing");
    int64_t completion = 0;
    std::map<std::pair<int32_t, std::string>, double> latest_start;
    for (const auto& checker : checkers_) {
      const FinishInfo& info = checker->info();
      require(checker->is_finished(), "every request ends", checker->id());
      require(does_fail_ || info.reason != FinishReason::error, "nothing fails by itself", checker->id());
      completion += info.completion_tokens;
      ++coverage_.requests;
      coverage_.cancelled += info.reason == FinishReason::cancelled ? 1 : 0;
      coverage_.failed += info.reason == FinishReason::error ? 1 : 0;
      coverage_.finished += info.reason == FinishReason::stop || info.reason == FinishReason::length ? 1 : 0;
      if (!checker->has_started()) continue;
      double& latest = latest_start[{checker->request().priority, checker->request().client_key}];
      require(checker->scheduled_s() >= latest - kTimeTolerance_s, "first come, first served in a class",
              checker->id());
      latest = std::max(latest, checker->scheduled_s());
    }
    require(completion == figures.generation_tokens, "generated tokens are counted");
    coverage_.preemptions += figures.preemptions;
    coverage_.steps += figures.steps;
  }

  std::mt19937_64 random_;
  Coverage& coverage_;
  std::shared_ptr<VirtualClock> clock_;
  FakeRunner* runner_ = nullptr;
  std::unique_ptr<EngineCore> core_;
  std::vector<std::shared_ptr<Checker>> checkers_;
  RequestId num_requests_ = 0;
  uint64_t history_ = 0;
  bool does_fail_ = false;
  int pressure_ = 0;
};

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
  std::printf(
      "%lld requests: %lld finished, %lld cancelled, %lld failed by injection; %lld steps, %lld prompt "
      "chunks, "
      "%lld preemptions\n",
      static_cast<long long>(coverage.requests), static_cast<long long>(coverage.finished),
      static_cast<long long>(coverage.cancelled), static_cast<long long>(coverage.failed),
      static_cast<long long>(coverage.steps), static_cast<long long>(coverage.chunks),
      static_cast<long long>(coverage.preemptions));
  if (num_rounds >= 20) {
    require(coverage.finished > 0 && coverage.cancelled > 0 && coverage.failed > 0 && coverage.chunks > 0 &&
                coverage.preemptions > 0,
            "the rounds cover every kind of event");
  }
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
