// SPDX-License-Identifier: Apache-2.0
#include "tools/check_replies.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "base/check.h"
#include "runtime/local_engine.h"
#include "tools/load_prompts.h"

namespace rorqual::tools {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<int32_t>;

// ------------------------------------------------------------------------------------------------ conditions
enum Factor : size_t { batch, chunk, threads, drafts, cache, preempted, sampling };

constexpr size_t kFactors = 7;
constexpr std::array<size_t, kFactors> kLevels = {4, 4, 2, 4, 3, 2, 2};
constexpr std::array<const char*, kFactors> kFactorNames = {"batch", "step",      "threads", "drafts",
                                                            "cache", "preempted", "sampling"};
constexpr std::array<size_t, 4> kBatchSizes = {1, 3, 8, 8};
constexpr std::array<const char*, 4> kBatchNames = {"alone", "of 3", "of 8", "arriving at random"};
constexpr size_t kArrivingAtRandom = 3;
constexpr std::array<int64_t, 4> kChunks = {16, 64, 256, 2048};
constexpr std::array<int32_t, 4> kDrafts = {0, 2, 5, 7};
constexpr std::array<const char*, 3> kCacheNames = {"cold", "memory", "disk"};
constexpr int64_t kPage = model::kPageTokens;
constexpr uint64_t kSampleSeed = 20261130;

/// One level of every factor.
using Condition = std::array<size_t, kFactors>;

std::string level_name(size_t factor, size_t level) {
  switch (factor) {
    case batch:
      return kBatchNames[level];
    case chunk:
      return std::to_string(kChunks[level]);
    case threads:
      return std::to_string(level + 1);
    case drafts:
      return std::to_string(kDrafts[level]);
    case cache:
      return kCacheNames[level];
    case preempted:
      return level == 0 ? "no" : "yes";
    default:
      return level == 0 ? "greedy" : "seeded";
  }
}

std::string describe(const Condition& c) {
  std::string text;
  for (size_t f = 0; f < kFactors; ++f) {
    text += fmt::format("{}{} {}", f == 0 ? "" : ", ", kFactorNames[f], level_name(f, c[f]));
  }
  return text;
}

/// Which levels of which two factors have met.
class PairCoverage {
 public:
  void add(const Condition& c) {
    for (size_t f = 0; f < kFactors; ++f)
      for (size_t g = f + 1; g < kFactors; ++g) pairs_.insert({f, c[f], g, c[g]});
  }

  size_t num_new(const Condition& c) const {
    size_t count = 0;
    for (size_t f = 0; f < kFactors; ++f)
      for (size_t g = f + 1; g < kFactors; ++g) count += 1 - pairs_.count({f, c[f], g, c[g]});
    return count;
  }

  static size_t num_all() {
    size_t all = 0;
    for (size_t f = 0; f < kFactors; ++f)
      for (size_t g = f + 1; g < kFactors; ++g) all += kLevels[f] * kLevels[g];
    return all;
  }

  size_t size() const { return pairs_.size(); }

 private:
  std::set<std::array<size_t, 4>> pairs_;
};

// ------------------------------------------------------------------------------------------------ replies
/// What is compared: ids, and the bits of the log-probabilities.
struct Reply {
  Tokens tokens;
  std::vector<std::pair<int32_t, uint32_t>> logprobs;  // chosen and alternatives, id and bits
  bool operator==(const Reply&) const = default;
};

uint32_t bits_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// Requests in flight of one session.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t num_tokens = 0, num_unfinished = 0;
};

class ReplySink final : public runtime::TokenSink {
 public:
  explicit ReplySink(std::shared_ptr<Progress> progress) : progress_(std::move(progress)) {}

  void on_token(int32_t token, std::optional<runtime::PositionLogprobs> row) override {
    const std::lock_guard lock(progress_->mutex);
    reply.tokens.push_back(token);
    if (row) {
      reply.logprobs.emplace_back(row->chosen.token, bits_of(row->chosen.logprob));
      for (const auto& top : row->top) reply.logprobs.emplace_back(top.token, bits_of(top.logprob));
    }
    ++progress_->num_tokens;
    progress_->changed.notify_all();
  }

  void on_finish(const runtime::FinishInfo& finish) override {
    const std::lock_guard lock(progress_->mutex);
    info = finish;
    --progress_->num_unfinished;
    progress_->changed.notify_all();
  }

  Reply reply;
  runtime::FinishInfo info;

 private:
  std::shared_ptr<Progress> progress_;
};

using Sinks = std::vector<std::shared_ptr<ReplySink>>;

/// A request of a session: which prompt, greedy (0) or seeded (1).
struct Ask {
  size_t prompt = 0;
  size_t sampling = 0;
};

/// A group of requests under one condition (its `sampling` is that of each ask).
struct Session {
  Condition condition{};
  std::vector<Ask> asks;
};

// ------------------------------------------------------------------------------------------------ the check
class RepliesCheck {
 public:
  RepliesCheck(const CheckRepliesOptions& options, std::vector<Tokens> prompts, CheckReport& report)
      : options_(options), prompts_(std::move(prompts)), report_(report), random_(options.seed) {}

  Status run();

 private:
  std::vector<Session> draw_sessions();
  std::vector<Session> all_sessions();
  Condition draw_condition(size_t batch_level, const std::vector<Ask>& asks);
  Status make_references();
  Status run_session(const Session& session);
  Result<OpenedEngine> open(const Condition& condition, const std::string& disk) const;
  runtime::Request make_request(const Ask& ask) const;
  Tokens warming_prompt(const Tokens& prompt);
  Status warm(runtime::Engine& engine, const Session& session);
  Result<Sinks> ask_all(runtime::Engine& engine, const std::vector<runtime::Request>& requests,
                        bool is_at_random);
  void compare(const Session& session, const Sinks& sinks);
  void print_coverage();

  const CheckRepliesOptions& options_;
  std::vector<Tokens> prompts_;
  CheckReport& report_;
  std::mt19937_64 random_;
  std::vector<std::array<Reply, 2>> references_;  // [prompt][greedy, seeded]
  PairCoverage coverage_, planned_;
  std::map<std::string, int64_t> counts_;  // what happened, for the note
  fs::path folder_;                        // of the disk caches
};

runtime::Request RepliesCheck::make_request(const Ask& ask) const {
  runtime::Request request;
  request.prompt = prompts_[ask.prompt];
  request.sampling.max_tokens = options_.answer_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 3;
  request.sampling.temperature = ask.sampling == 0 ? 0.0f : 0.9f;
  request.sampling.seed = kSampleSeed + ask.prompt;
  if (ask.sampling == 1) {
    request.sampling.top_p = 0.95f;
    request.sampling.frequency_penalty = 0.3f;
  }
  return request;
}

Result<OpenedEngine> RepliesCheck::open(const Condition& c, const std::string& disk) const {
  OpenOptions open = options_.open;
  open.threads = static_cast<int>(c[threads]) + 1;
  open.max_num_batched_tokens = kChunks[c[chunk]];
  open.max_num_seqs = 8;
  open.max_model_len = options_.max_prompt_tokens + options_.answer_tokens + kPage;
  open.with_drafts = true;
  runtime::EngineOptions engine;
  engine.max_num_seqs = open.max_num_seqs;
  engine.max_num_batched_tokens = open.max_num_batched_tokens;
  ReuseOptions reuse;
  reuse.speculative_tokens = kDrafts[c[drafts]];
  reuse.prefix_cache_bytes = c[cache] == 0 ? 0 : int64_t{256} << 20;
  reuse.prefix_cache_dir = disk;
  engine.drill_preemptions = c[preempted] == 0 ? 0 : 2;
  engine.swap_bytes = c[preempted] != 0 && c[threads] != 0 ? int64_t{64} << 20 : 0;
  return open_engine(open, engine, {}, {}, reuse);
}

/// The prompt itself, or one that shares its first part only: hits of whole prompts and of parts.
Tokens RepliesCheck::warming_prompt(const Tokens& prompt) {
  Tokens warming = prompt;
  if (random_() % 2 == 0) return warming;
  warming.resize(std::max(std::min<size_t>(warming.size(), kPage + 1), warming.size() * 3 / 4));
  warming.push_back(warming.front());
  return warming;
}

Status RepliesCheck::warm(runtime::Engine& engine, const Session& session) {
  std::vector<runtime::Request> requests;
  for (const Ask& ask : session.asks) {
    runtime::Request request = make_request(ask);
    request.prompt = warming_prompt(request.prompt);
    request.sampling.max_tokens = 1;
    requests.push_back(std::move(request));
  }
  RORQUAL_TRY_ASSIGN(const Sinks sinks, ask_all(engine, requests, false));
  RORQUAL_CHECK(sinks.size() == requests.size());
  return Ok{};
}

Result<Sinks> RepliesCheck::ask_all(runtime::Engine& engine, const std::vector<runtime::Request>& requests,
                                    bool is_at_random) {
  const auto progress = std::make_shared<Progress>();
  Sinks sinks;
  for (const runtime::Request& request : requests) {
    if (is_at_random) {
      std::unique_lock lock(progress->mutex);
      const int64_t due = progress->num_tokens + static_cast<int64_t>(random_() % 12);
      progress->changed.wait(lock,
                             [&] { return progress->num_tokens >= due || progress->num_unfinished == 0; });
    }
    sinks.push_back(std::make_shared<ReplySink>(progress));
    {
      const std::lock_guard lock(progress->mutex);
      ++progress->num_unfinished;
    }
    RORQUAL_TRY_ASSIGN(const runtime::RequestId id, engine.submit(request, sinks.back()));
    static_cast<void>(id);
  }
  std::unique_lock lock(progress->mutex);
  progress->changed.wait(lock, [&] { return progress->num_unfinished == 0; });
  for (const auto& sink : sinks) {
    if (sink->info.error) return *sink->info.error;
  }
  return sinks;
}

Status RepliesCheck::make_references() {
  references_.resize(prompts_.size());
  Condition plain{};
  plain[chunk] = kChunks.size() - 1;
  RORQUAL_TRY_ASSIGN(const OpenedEngine opened, open(plain, ""));
  for (size_t p = 0; p < prompts_.size(); ++p) {
    for (size_t s = 0; s < 2; ++s) {
      RORQUAL_TRY_ASSIGN(const Sinks sinks, ask_all(*opened.engine, {make_request({p, s})}, false));
      references_[p][s] = sinks.front()->reply;
    }
  }
  return Ok{};
}

void RepliesCheck::compare(const Session& session, const Sinks& sinks) {
  for (size_t i = 0; i < sinks.size(); ++i) {
    const Ask& ask = session.asks[i];
    const runtime::FinishInfo& info = sinks[i]->info;
    Condition condition = session.condition;
    condition[sampling] = ask.sampling;
    coverage_.add(condition);
    const Reply& expected = references_[ask.prompt][ask.sampling];
    const Reply& got = sinks[i]->reply;
    report_.expect(got == expected, [&] {
      size_t at = 0;
      while (at < std::min(got.tokens.size(), expected.tokens.size()) &&
             got.tokens[at] == expected.tokens[at])
        ++at;
      return fmt::format("prompt {}: {}: got {} ids, expected {}; ids {}; seed {}", ask.prompt,
                         describe(condition), got.tokens.size(), expected.tokens.size(),
                         got.tokens == expected.tokens ? "equal, log-probabilities differ"
                                                       : fmt::format("differ from position {} on", at),
                         options_.seed);
    });
    const auto length = static_cast<int64_t>(prompts_[ask.prompt].size());
    if (session.condition[cache] != 0 && length > kPage) {
      report_.expect(info.cached_tokens > 0, [&] {
        return fmt::format("prompt {}: {}: no cached token ({})", ask.prompt, describe(condition),
                           prefix::miss_reason_name(info.prefix.reason));
      });
    }
    counts_["replies"] += 1;
    counts_["cached tokens"] += info.cached_tokens;
    counts_["replayed tokens"] += info.replayed_tokens;
    counts_["preemptions"] += info.preemptions;
    counts_["drafted tokens"] += info.drafted_tokens;
    counts_["accepted tokens"] += info.accepted_tokens;
    if (session.condition[preempted] != 0) {
      report_.expect(info.preemptions > 0, [&] {
        return fmt::format("prompt {}: {}: was never preempted", ask.prompt, describe(condition));
      });
    }
  }
}

Status RepliesCheck::run_session(const Session& session) {
  std::string disk;
  if (session.condition[cache] == 2) {
    disk = (folder_ / "pages").string();
    std::error_code ignored;
    fs::remove_all(disk, ignored);
    RORQUAL_TRY_ASSIGN(const OpenedEngine before, open(session.condition, disk));
    RORQUAL_TRY(warm(*before.engine, session));
  }
  RORQUAL_TRY_ASSIGN(const OpenedEngine opened, open(session.condition, disk));
  if (session.condition[cache] == 1) RORQUAL_TRY(warm(*opened.engine, session));
  std::vector<runtime::Request> requests;
  for (const Ask& ask : session.asks) requests.push_back(make_request(ask));
  RORQUAL_TRY_ASSIGN(const Sinks sinks,
                     ask_all(*opened.engine, requests, session.condition[batch] == kArrivingAtRandom));
  compare(session, sinks);
  return Ok{};
}

/// Of some random conditions the one in which most levels meet for the first time.
Condition RepliesCheck::draw_condition(size_t batch_level, const std::vector<Ask>& asks) {
  constexpr int kTries = 24;
  Condition best{};
  size_t best_new = 0;
  for (int i = 0; i < kTries; ++i) {
    Condition c{};
    for (size_t f = 0; f < kFactors; ++f) c[f] = random_() % kLevels[f];
    c[batch] = batch_level;
    size_t num_new = 0;
    for (const Ask& ask : asks) {
      c[sampling] = ask.sampling;
      num_new = std::max(num_new, coverage_.num_new(c));
    }
    if (i == 0 || num_new > best_new) {
      best = c;
      best_new = num_new;
    }
  }
  for (const Ask& ask : asks) {
    best[sampling] = ask.sampling;
    coverage_.add(best);
  }
  return best;
}

/// Every prompt equally often in every kind of batch.
std::vector<Session> RepliesCheck::draw_sessions() {
  std::vector<Session> sessions;
  for (size_t level = 0; level < kBatchSizes.size(); ++level) {
    std::vector<Ask> asks;
    for (int64_t round = 0; round < options_.cells / static_cast<int64_t>(kBatchSizes.size()); ++round) {
      std::vector<size_t> order(prompts_.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), random_);
      for (const size_t p : order) asks.push_back({p, random_() % 2});
    }
    for (size_t at = 0; at < asks.size(); at += kBatchSizes[level]) {
      Session session;
      const size_t end = std::min(asks.size(), at + kBatchSizes[level]);
      session.asks.assign(asks.begin() + static_cast<int64_t>(at), asks.begin() + static_cast<int64_t>(end));
      session.condition = draw_condition(level, session.asks);
      sessions.push_back(std::move(session));
    }
  }
  planned_ = std::exchange(coverage_, {});  // what is run is counted when it is compared
  return sessions;
}

std::vector<Session> RepliesCheck::all_sessions() {
  std::vector<Session> sessions;
  size_t num_conditions = 1;
  for (const size_t levels : kLevels) num_conditions *= levels;
  for (size_t i = 0; i < num_conditions; ++i) {
    Condition c{};
    for (size_t f = 0, rest = i; f < kFactors; rest /= kLevels[f++]) c[f] = rest % kLevels[f];
    for (size_t first = 0; first < prompts_.size(); first += kBatchSizes[c[batch]]) {
      Session session{c, {}};
      for (size_t p = 0; p < kBatchSizes[c[batch]]; ++p) {
        session.asks.push_back({(first + p) % prompts_.size(), c[sampling]});
      }
      planned_.add(c);
      sessions.push_back(std::move(session));
    }
  }
  return sessions;
}

void RepliesCheck::print_coverage() {
  std::string text;
  for (const auto& [name, count] : counts_)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  report_.note(fmt::format("{} of {} pairs of conditions met; {}; seed {}", coverage_.size(),
                           PairCoverage::num_all(), text, options_.seed));
  // One shard of many runs its part; together they run what was planned.
  const PairCoverage& due = options_.shards > 1 ? planned_ : coverage_;
  report_.expect(due.size() == PairCoverage::num_all(),
                 [] { return std::string("not every two conditions met: ask for more prompts or cells"); });
  // A shard may be all of one kind: what it ran was checked one by one.
  const bool has_all =
      counts_["preemptions"] > 0 && counts_["cached tokens"] > 0 && counts_["drafted tokens"] > 0;
  report_.expect(options_.shards > 1 || has_all,
                 [] { return std::string("no preemption, no hit or no draft happened at all"); });
}

Status RepliesCheck::run() {
  std::error_code error;
  folder_ = fs::temp_directory_path(error) / fmt::format("rorqual-check-replies-{}", getpid());
  RORQUAL_TRY(make_references());
  const std::vector<Session> sessions = options_.is_full ? all_sessions() : draw_sessions();
  Status status = Ok{};
  for (size_t i = 0; i < sessions.size() && status.ok(); ++i) {
    const auto shards = static_cast<size_t>(std::max<int64_t>(options_.shards, 1));
    if (i % shards == static_cast<size_t>(options_.shard)) status = run_session(sessions[i]);
  }
  fs::remove_all(folder_, error);
  RORQUAL_TRY(std::move(status));
  print_coverage();
  return Ok{};
}

/// The texts of a file as ids, control tokens recognised.
Result<std::vector<Tokens>> read_prompts(const std::string& path, const text::Tokenizer& tokenizer) {
  RORQUAL_TRY_ASSIGN(const std::vector<LoadPrompt> rows, read_load_prompts(path));
  std::vector<Tokens> prompts;
  for (const LoadPrompt& row : rows) {
    const auto fields = nlohmann::json::parse(row.fields);
    const auto prompt = fields.find("prompt");
    if (row.is_chat || !prompt->is_string()) {
      return Error(Code::corrupt_data,
                   fmt::format(R"({}, prompt {}: expected an object with "prompt", a string)", path,
                               prompts.size() + 1));
    }
    prompts.push_back(tokenizer.encode(prompt->get<std::string>(), text::EncodeMode::with_added));
  }
  return prompts;
}

/// Random ids; every third prompt begins like the one before it.
std::vector<Tokens> random_prompts(const CheckRepliesOptions& options, int64_t vocab) {
  std::mt19937_64 random(options.seed);
  std::vector<Tokens> prompts;
  for (int64_t i = 0; i < options.prompts; ++i) {
    Tokens tokens;
    if (i % 3 == 2) {
      tokens = prompts.back();
      tokens.resize(tokens.size() / 2);
    }
    const auto more = 8 + random() % static_cast<uint64_t>(options.max_prompt_tokens / 2);
    for (uint64_t t = 0; t < more; ++t)
      tokens.push_back(static_cast<int32_t>(3 + random() % static_cast<uint64_t>(vocab - 3)));
    prompts.push_back(std::move(tokens));
  }
  return prompts;
}

}  // namespace

Status check_replies(const CheckRepliesOptions& options, CheckReport& report) {
  if (options.shard >= options.shards) {
    return Error(Code::invalid_argument,
                 fmt::format("--shard {}: expected less than --shards {}", options.shard, options.shards));
  }
  if (options.cells % static_cast<int64_t>(kBatchSizes.size()) != 0) {
    return Error(Code::invalid_argument,
                 fmt::format("--cells {}: expected a multiple of {}", options.cells, kBatchSizes.size()));
  }
  std::vector<Tokens> prompts;
  {
    RORQUAL_TRY_ASSIGN(const OpenedSource opened, open_source(options.open, options.files.empty()));
    if (options.files.empty()) {
      prompts = random_prompts(options, opened.config.vocab_size);
    } else {
      for (const std::string& file : options.files) {
        RORQUAL_TRY_ASSIGN(const auto more, read_prompts(file, *opened.tokenizer));
        prompts.insert(prompts.end(), more.begin(), more.end());
      }
      std::mt19937_64 random(options.seed);
      std::shuffle(prompts.begin(), prompts.end(), random);
    }
  }
  if (static_cast<int64_t>(prompts.size()) > options.prompts)
    prompts.resize(static_cast<size_t>(options.prompts));
  for (Tokens& tokens : prompts) {
    const auto limit = static_cast<size_t>(options.max_prompt_tokens);
    if (tokens.size() > limit) tokens.erase(tokens.begin(), tokens.end() - static_cast<int64_t>(limit));
  }
  return RepliesCheck(options, std::move(prompts), report).run();
}

}  // namespace rorqual::tools
