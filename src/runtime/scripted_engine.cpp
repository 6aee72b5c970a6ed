// SPDX-License-Identifier: Apache-2.0
// One thread that plays scripts: a queue of due times; it plays a step of every request that is due, then
// sleeps.
#include "runtime/scripted_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "runtime/request_check.h"

namespace rorqual::runtime {

namespace {

using Time = std::chrono::steady_clock::time_point;
using Json = nlohmann::json;

constexpr double kMaxPause_ms = 3.6e6;
constexpr float kDefaultLogprob = -1.0f;
constexpr std::chrono::microseconds kLeastSleep{1000};  // requests that are due so close together go together

struct Script {
  std::vector<int32_t> tokens;
  std::chrono::nanoseconds first_pause{0}, pause{0};
  int64_t step_tokens = 1;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top_logprobs;
  int64_t drafts = 0;   // verified in each step after the first
  FinishInfo reported;  // cached_tokens, disk_tokens, replayed_tokens, preemptions, trim_rows, prefix
  std::string error;
};

// ---- reading a script: json exceptions are turned into an Error at the one wall in parse_line

std::chrono::nanoseconds pause_from(const Json& line, const char* field) {
  const double ms = line.value(field, 0.0);
  if (!(ms >= 0 && ms <= kMaxPause_ms))
    throw std::out_of_range(fmt::format("{} is {}, expected 0 to 3.6e6", field, ms));
  return std::chrono::nanoseconds(static_cast<int64_t>(ms * 1e6));
}

prefix::MissReport miss_from(const Json& miss) {
  prefix::MissReport report;
  const auto name = miss.at("reason").get<std::string>();
  int reason = 0;
  while (reason < prefix::kMissReasons &&
         prefix::miss_reason_name(static_cast<prefix::MissReason>(reason)) != name) {
    ++reason;
  }
  if (reason == prefix::kMissReasons) throw std::out_of_range("miss.reason: no reason is named " + name);
  report.reason = static_cast<prefix::MissReason>(reason);
  report.position = miss.value("position", int64_t{0});
  report.common_tokens = miss.value("common_tokens", int64_t{0});
  if (miss.contains("token")) report.token = miss.at("token").get<int32_t>();
  if (miss.contains("kept_token")) report.kept_token = miss.at("kept_token").get<int32_t>();
  return report;
}

/// What FinishInfo is to say of reuse.
FinishInfo report_from(const Json& line) {
  FinishInfo info;
  info.cached_tokens = line.value("cached_tokens", int64_t{0});
  info.disk_tokens = line.value("disk_tokens", int64_t{0});
  info.replayed_tokens = line.value("replayed_tokens", int64_t{0});
  info.preemptions = line.value("preemptions", int64_t{0});
  info.trim_rows = line.value("replay_trim", int64_t{0});
  if (line.contains("miss")) info.prefix = miss_from(line.at("miss"));
  return info;
}

Script script_from(const Json& line, int64_t vocab_size) {
  Script script;
  script.tokens = line.at("tokens").get<std::vector<int32_t>>();
  for (const int32_t id : script.tokens) {
    if (id < 0 || id >= vocab_size) {
      throw std::out_of_range(fmt::format("token {} is not between 0 and {}", id, vocab_size - 1));
    }
  }
  script.first_pause = pause_from(line, "first_pause_ms");
  script.pause = pause_from(line, "pause_ms");
  script.step_tokens = line.value("step_tokens", int64_t{1});
  if (script.step_tokens < 1) throw std::out_of_range("step_tokens must be 1 or more");
  script.logprobs = line.value("logprobs", std::vector<float>{});
  for (const Json& position : line.value("top_logprobs", Json::array())) {
    auto& row = script.top_logprobs.emplace_back();
    for (const Json& pair : position) {
      row.push_back(
          {pair.at(0).get<int32_t>(), pair.at(1).get<float>(), static_cast<int32_t>(row.size()) + 1});
    }
  }
  script.drafts = line.value("drafts", int64_t{0});
  if (script.drafts < 0 || script.drafts > kMaxDrafts) throw std::out_of_range("drafts must be 0 to 7");
  script.reported = report_from(line);
  script.error = line.value("error", std::string{});
  return script;
}

Result<Script> parse_line(const std::string& text, int64_t number, int64_t vocab_size) {
  try {
    return script_from(Json::parse(text), vocab_size);
  } catch (const std::exception& e) {
    return Error(Code::invalid_argument, fmt::format("script line {}: {}", number, e.what()),
                 "see runtime/scripted_engine.h for the fields of a line");
  }
}

Result<std::vector<Script>> parse_script(std::string_view text, int64_t vocab_size) {
  std::vector<Script> scripts;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    RORQUAL_TRY_ASSIGN(Script script, parse_line(line, number, vocab_size));
    scripts.push_back(std::move(script));
  }
  if (scripts.empty()) {
    return Error(Code::invalid_argument, "the script has no lines",
                 "write at least one line such as {\"tokens\":[5,6]}");
  }
  return scripts;
}

// ---- playing it

/// One request that is being answered. Where it stands is a position in the endless repetition of its tokens
/// and EOS.
struct Performance {
  RequestId id = 0;
  Request request;
  std::shared_ptr<TokenSink> sink;
  const Script* script = nullptr;
  uint64_t seed = 0;
  size_t cursor = 0;  // 0 … tokens.size(); there it is at the end
  int64_t num_output = 0;
  int64_t drafted = 0, accepted = 0;
  bool has_begun = false;
  Time due{};
  Time queued{}, first_token{}, last_token{};
};

double seconds(Time begin, Time end) {
  return std::chrono::duration<double>(end - begin).count();
}

PositionLogprobs made_up(int32_t token, float logprob, int64_t num_top, int64_t vocab_size) {
  PositionLogprobs out;
  out.chosen = {token, logprob, 1};
  for (int64_t i = 0; i < std::min(num_top, vocab_size); ++i) {
    const auto id = static_cast<int32_t>((token + i) % vocab_size);
    out.top.push_back({id, logprob - static_cast<float>(i), static_cast<int32_t>(i) + 1});
  }
  return out;
}

/// The row of a forced token: the script's token is what the model would have said.
PositionLogprobs forced_row(int32_t forced, int32_t own, int64_t num_top, int64_t vocab_size) {
  auto row = made_up(own, kDefaultLogprob, num_top, vocab_size);
  const auto rank = static_cast<int32_t>((forced - own + vocab_size) % vocab_size);
  row.chosen = {forced, kDefaultLogprob - static_cast<float>(rank), rank + 1};
  return row;
}

std::optional<PositionLogprobs> scripted_logprobs(const Performance& p, int32_t token, int64_t vocab_size) {
  const int32_t wanted = p.request.sampling.logprobs;
  if (wanted < 0) return {};
  const Script& script = *p.script;
  const float logprob = p.cursor < script.logprobs.size() ? script.logprobs[p.cursor] : kDefaultLogprob;
  if (p.cursor >= script.top_logprobs.size()) return made_up(token, logprob, wanted, vocab_size);
  PositionLogprobs out;
  out.chosen = {token, logprob, 1};
  const auto& row = script.top_logprobs[p.cursor];
  out.top.assign(row.begin(), row.begin() + std::min<std::ptrdiff_t>(wanted, std::ssize(row)));
  for (const TokenLogprob& entry : row) {
    if (entry.token == token) out.chosen.rank = entry.rank;
  }
  return out;
}

class ScriptedEngine final : public Engine {
 public:
  ScriptedEngine(std::vector<Script> scripts, EngineInfo info, ScriptedOptions options)
      : scripts_(std::move(scripts)), info_(std::move(info)), options_(options), thread_([this] { run(); }) {}

  ~ScriptedEngine() override;

  const EngineInfo& info() const override { return info_; }

  Result<RequestId> submit(Request request, std::shared_ptr<TokenSink> sink) override;
  void cancel(RequestId id) override;
  EngineStats stats() const override;
  bool drain(std::chrono::milliseconds timeout) override;

 private:
  using Queue = std::multimap<Time, std::unique_ptr<Performance>>;
  using Lock = std::unique_lock<std::mutex>;

  struct Ending {
    FinishReason reason = FinishReason::stop;
    std::optional<int32_t> stop_token;
    std::optional<Error> error;
  };

  void run();
  void end_cancelled(Lock& lock);
  void play_due(Time now, Lock& lock);
  std::optional<Ending> play(Performance& p, EngineStats& added);
  static void count_drafts(Performance& p, int64_t num_tokens, EngineStats& added);
  static void count_lookup(const Performance& p, PrefixStats& added);
  void add_figures(const EngineStats& added);
  void begin(Performance& p);
  std::optional<Ending> play_token(Performance& p);
  std::optional<Ending> play_forced(Performance& p);
  void finish(std::unique_ptr<Performance> p, Ending ending, Lock& lock);

  const std::vector<Script> scripts_;
  const EngineInfo info_;
  const ScriptedOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  Queue queue_;  // by due time
  std::vector<RequestId> cancels_;
  uint64_t num_accepted_ = 0;
  int64_t num_unfinished_ = 0;  // includes the one being played
  int64_t num_delivering_ = 0;  // ended, on_finish not returned yet
  EngineStats figures_;         // counters only
  bool is_stopping_ = false, is_draining_ = false;
  std::thread thread_;
};

ScriptedEngine::~ScriptedEngine() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Result<RequestId> ScriptedEngine::submit(Request request, std::shared_ptr<TokenSink> sink) {
  RORQUAL_CHECK(sink != nullptr);
  RORQUAL_TRY(check_request(request, {info_.vocab_size, info_.max_model_len, options_.max_logprobs, 0}));
  const std::lock_guard lock(mutex_);
  if (is_draining_ || is_stopping_) {
    return Error(Code::unavailable, "the engine is draining and takes no new requests",
                 "send it to another server");
  }
  if (options_.max_num_queued_reqs > 0 && num_unfinished_ >= options_.max_num_queued_reqs) {
    return Error(Code::unavailable,
                 fmt::format("the queue is full: {} unfinished requests, limit {}", num_unfinished_,
                             options_.max_num_queued_reqs),
                 "try again later")
        .by(Limit::queued_reqs);
  }
  auto p = std::make_unique<Performance>();
  p->script = &scripts_[num_accepted_ % scripts_.size()];
  p->id = ++num_accepted_;
  p->seed = request.sampling.seed.value_or(p->id);
  p->request = std::move(request);
  p->sink = std::move(sink);
  p->queued = std::chrono::steady_clock::now();
  const RequestId id = p->id;
  p->due = p->queued + p->script->first_pause;
  const Time due = p->due;
  queue_.emplace(due, std::move(p));
  ++num_unfinished_;
  wake_.notify_all();
  return id;
}

void ScriptedEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancels_.push_back(id);
  wake_.notify_all();
}

EngineStats ScriptedEngine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = figures_;
  stats.requests_running = num_unfinished_;
  return stats;
}

bool ScriptedEngine::drain(std::chrono::milliseconds timeout) {
  Lock lock(mutex_);
  is_draining_ = true;
  return idle_.wait_for(lock, timeout, [this] { return num_unfinished_ == 0 && num_delivering_ == 0; });
}

void ScriptedEngine::run() {
  Lock lock(mutex_);
  while (true) {
    if (is_stopping_ || !cancels_.empty()) {
      const bool is_last = is_stopping_;
      end_cancelled(lock);
      if (is_last) return;
      continue;  // the lock was released: there may be new ones, whose call to wake up nobody heard
    }
    const Time now = std::chrono::steady_clock::now();
    if (queue_.empty()) {
      wake_.wait(lock);
    } else if (const Time due = queue_.begin()->first; now < due) {
      wake_.wait_until(lock, std::max(due, now + kLeastSleep));
    } else {
      play_due(now, lock);
    }
  }
}

/// All of them when the engine stops.
void ScriptedEngine::end_cancelled(Lock& lock) {
  std::vector<std::unique_ptr<Performance>> ended;
  for (auto at = queue_.begin(); at != queue_.end();) {
    const bool is_cancelled = std::find(cancels_.begin(), cancels_.end(), at->second->id) != cancels_.end();
    if (is_stopping_ || is_cancelled)
      ended.push_back(std::move(queue_.extract(at++).mapped()));
    else
      ++at;
  }
  cancels_.clear();
  for (auto& p : ended) finish(std::move(p), {FinishReason::cancelled, {}, {}}, lock);
}

/// One step of every request that is due; the lock is released while their sinks are called.
void ScriptedEngine::play_due(Time now, Lock& lock) {
  std::vector<Queue::node_type> playing;
  while (!queue_.empty() && queue_.begin()->first <= now) playing.push_back(queue_.extract(queue_.begin()));
  std::vector<std::optional<Ending>> endings(playing.size());
  EngineStats added;
  lock.unlock();
  for (size_t i = 0; i < playing.size(); ++i) endings[i] = play(*playing[i].mapped(), added);
  lock.lock();
  add_figures(added);
  for (size_t i = 0; i < playing.size(); ++i) {
    Performance& p = *playing[i].mapped();
    if (endings[i]) {
      finish(std::move(playing[i].mapped()), *std::move(endings[i]), lock);
      continue;
    }
    // By the script's rhythm, not by when the thread ran, unless that is a whole pause late.
    p.due = std::max(p.due + p.script->pause, now);
    playing[i].key() = p.due;
    queue_.insert(std::move(playing[i]));
  }
}

/// One step of one request; counts it in `added`.
std::optional<ScriptedEngine::Ending> ScriptedEngine::play(Performance& p, EngineStats& added) {
  std::optional<Ending> ending;
  const int64_t before = p.num_output;
  const bool is_first = !p.has_begun;
  try {
    if (is_first) begin(p);
    if (p.request.sampling.max_tokens == 0) ending = Ending{FinishReason::length, {}, {}};
    for (int64_t i = 0; i < p.script->step_tokens && !ending; ++i) ending = play_token(p);
    if (!is_first) count_drafts(p, p.num_output - before, added);
  } catch (const std::exception& e) {
    ending = Ending{FinishReason::error,
                    {},
                    Error(Code::internal, fmt::format("the receiver of the tokens threw: {}", e.what()))};
  } catch (...) {
    ending = Ending{FinishReason::error, {}, Error(Code::internal, "the receiver of the tokens threw")};
  }
  ++added.steps;
  added.generation_tokens += p.num_output - before;
  if (is_first) {
    added.prompt_tokens += static_cast<int64_t>(p.request.prompt.size());
    added.cached_tokens += p.script->reported.cached_tokens;
    count_lookup(p, added.prefix);
  }
  return ending;
}

/// A step of k tokens is one whose drafts were right k - 1 times.
void ScriptedEngine::count_drafts(Performance& p, int64_t num_tokens, EngineStats& added) {
  if (p.script->drafts == 0) return;
  const int64_t accepted = std::clamp<int64_t>(num_tokens - 1, 0, p.script->drafts);
  p.drafted += p.script->drafts;
  p.accepted += accepted;
  ++added.speculation.drafts;
  added.speculation.draft_tokens += p.script->drafts;
  added.speculation.accepted_tokens += accepted;
  for (int64_t i = 0; i < accepted; ++i) ++added.speculation.accepted_by_position[static_cast<size_t>(i)];
}

void ScriptedEngine::count_lookup(const Performance& p, PrefixStats& added) {
  const FinishInfo& reported = p.script->reported;
  added.misses_by_reason.resize(prefix::kMissReasons);
  ++added.misses_by_reason[static_cast<size_t>(reported.prefix.reason)];
  ++added.queries;
  added.query_tokens += static_cast<int64_t>(p.request.prompt.size());
  added.hit_tokens += reported.cached_tokens;
  added.disk_hit_tokens += reported.disk_tokens;
  added.replayed_tokens += reported.replayed_tokens;
}

void ScriptedEngine::add_figures(const EngineStats& added) {
  PrefixStats& prefix = figures_.prefix;
  prefix.queries += added.prefix.queries;
  prefix.query_tokens += added.prefix.query_tokens;
  prefix.hit_tokens += added.prefix.hit_tokens;
  prefix.disk_hit_tokens += added.prefix.disk_hit_tokens;
  prefix.replayed_tokens += added.prefix.replayed_tokens;
  prefix.misses_by_reason.resize(prefix::kMissReasons);
  for (size_t i = 0; i < added.prefix.misses_by_reason.size(); ++i)
    prefix.misses_by_reason[i] += added.prefix.misses_by_reason[i];
  SpeculationStats& speculation = figures_.speculation;
  speculation.drafts += added.speculation.drafts;
  speculation.draft_tokens += added.speculation.draft_tokens;
  speculation.accepted_tokens += added.speculation.accepted_tokens;
  for (size_t i = 0; i < speculation.accepted_by_position.size(); ++i)
    speculation.accepted_by_position[i] += added.speculation.accepted_by_position[i];
  figures_.steps += added.steps;
  figures_.generation_tokens += added.generation_tokens;
  figures_.prompt_tokens += added.prompt_tokens;
  figures_.cached_tokens += added.cached_tokens;
}

void ScriptedEngine::begin(Performance& p) {
  p.has_begun = true;
  p.first_token = p.last_token = std::chrono::steady_clock::now();
  p.sink->on_begin(p.script->reported.cached_tokens);
  const int32_t wanted = p.request.sampling.prompt_logprobs;
  if (wanted < 0) return;
  std::vector<std::optional<PositionLogprobs>> rows(p.request.prompt.size());
  for (auto i = static_cast<size_t>(p.request.sampling.prompt_logprobs_begin); i < rows.size(); ++i) {
    auto row = made_up(p.request.prompt[i], kDefaultLogprob, wanted, info_.vocab_size);
    if (p.request.sampling.stream_prompt_rows) {
      p.sink->on_prompt_row(static_cast<int64_t>(i), std::move(row), {});
    } else {
      rows[i] = std::move(row);
    }
  }
  if (!p.request.sampling.stream_prompt_rows) p.sink->on_prompt_logprobs(std::move(rows));
}

std::optional<ScriptedEngine::Ending> ScriptedEngine::play_forced(Performance& p) {
  const SamplingParams& params = p.request.sampling;
  const auto& own = p.script->tokens;
  const int32_t token = params.forced_tokens[static_cast<size_t>(p.num_output)];
  const int32_t best = p.cursor < own.size() ? own[p.cursor] : info_.eos_token_id;
  std::optional<PositionLogprobs> row;
  if (params.logprobs >= 0) row = forced_row(token, best, params.logprobs, info_.vocab_size);
  p.last_token = std::chrono::steady_clock::now();
  p.cursor = std::min(p.cursor + 1, own.size());
  ++p.num_output;
  p.sink->on_token(token, std::move(row));
  const auto length = static_cast<int64_t>(p.request.prompt.size()) + p.num_output;
  if (p.num_output < params.max_tokens && length < info_.max_model_len) return {};
  return Ending{FinishReason::length, {}, {}};
}

std::optional<ScriptedEngine::Ending> ScriptedEngine::play_token(Performance& p) {
  const SamplingParams& params = p.request.sampling;
  if (!params.forced_tokens.empty()) return play_forced(p);
  const Script& script = *p.script;
  const auto length = static_cast<int64_t>(p.request.prompt.size());
  // At most once around: what may not end the reply is passed over, and a script may hold nothing else.
  for (size_t tries = 0; tries <= script.tokens.size() + 1; ++tries) {
    const bool is_at_end = p.cursor == script.tokens.size();
    if (is_at_end && !script.error.empty()) {
      return Ending{FinishReason::error, {}, Error(Code::internal, script.error)};
    }
    const int32_t token = is_at_end ? info_.eos_token_id : script.tokens[p.cursor];
    p.last_token = std::chrono::steady_clock::now();
    if (ends_reply(params, token, info_.eos_token_id, p.num_output)) {
      ++p.num_output;
      return Ending{FinishReason::stop, token, {}};
    }
    const bool is_masked = p.num_output < params.min_tokens &&
                           (std::find(params.stop_token_ids.begin(), params.stop_token_ids.end(), token) !=
                                params.stop_token_ids.end() ||
                            (token == info_.eos_token_id && !params.ignore_eos));
    if (is_at_end || is_masked) {
      p.cursor = is_at_end ? 0 : p.cursor + 1;
      continue;
    }
    ++p.num_output;
    p.sink->on_token(token, scripted_logprobs(p, token, info_.vocab_size));
    ++p.cursor;
    if (p.num_output >= params.max_tokens || length + p.num_output >= info_.max_model_len) {
      return Ending{FinishReason::length, {}, {}};
    }
    return {};
  }
  return Ending{FinishReason::error,
                {},
                Error(Code::invalid_argument, "the script has no token that may go on with the reply",
                      "give the script a token that does not end the reply")};
}

void ScriptedEngine::finish(std::unique_ptr<Performance> p, Ending ending, Lock& lock) {
  FinishInfo info;
  if (p->has_begun) info = p->script->reported;
  info.drafted_tokens = p->drafted;
  info.accepted_tokens = p->accepted;
  info.reason = ending.reason;
  info.stop_token = ending.stop_token;
  info.error = std::move(ending.error);
  info.seed = p->seed;
  info.prompt_tokens = static_cast<int64_t>(p->request.prompt.size());
  info.completion_tokens = p->num_output;
  if (p->has_begun) {
    info.prefill_s = seconds(p->queued, p->first_token);
    info.decode_s = seconds(p->first_token, p->last_token);
  }
  --num_unfinished_;
  ++num_delivering_;
  lock.unlock();
  try {
    p->sink->on_finish(info);
  } catch (...) {  // its request is over already
  }
  p.reset();
  lock.lock();
  --num_delivering_;
  if (num_unfinished_ == 0) idle_.notify_all();
}

}  // namespace

Result<std::unique_ptr<Engine>> make_scripted_engine(std::string_view script, EngineInfo info,
                                                     ScriptedOptions options) {
  RORQUAL_TRY_ASSIGN(std::vector<Script> scripts, parse_script(script, info.vocab_size));
  return std::unique_ptr<Engine>(
      std::make_unique<ScriptedEngine>(std::move(scripts), std::move(info), options));
}

Result<std::unique_ptr<Engine>> load_scripted_engine(const std::string& path, EngineInfo info,
                                                     ScriptedOptions options) {
  constexpr int64_t kMaxScriptBytes = int64_t{256} << 20;
  RORQUAL_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxScriptBytes));
  auto engine = make_scripted_engine(text, std::move(info), options);
  if (!engine.ok()) return std::move(engine).error().at(path);
  return engine;
}

}  // namespace rorqual::runtime
