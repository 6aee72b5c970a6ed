// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_agent.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "kl/bootstrap.h"
#include "report/table.h"
#include "tools/build_info.h"
#include "tools/kl_engine.h"
#include "tools/load_client.h"
#include "tools/load_conversation.h"
#include "tools/load_facts.h"
#include "tools/load_prompts.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

/// One turn of one repeat on one server.
struct TurnResult {
  int64_t prompt_tokens = 0, common_tokens = 0, cached_tokens = 0;
  bool has_ids = false;  // the server told the prompt's ids, so common_tokens is known
  double ttft_s = 0;
  std::string miss_reason;
  Json prefix = nullptr;  // the server's own words on it

  /// Did the cache give what it could?
  bool reaches(double ratio) const {
    return !has_ids || static_cast<double>(cached_tokens) >= ratio * static_cast<double>(common_tokens);
  }
};

struct Target {
  HttpClient client;
  std::string model;
  Json version = nullptr;
  RetainedPrompts retained;
  std::vector<std::vector<TurnResult>> repeats;  // [repeat][turn]
};

Result<TurnResult> result_of(const LoadRecord& record, Target& target, const BenchAgentOptions& options) {
  if (record.outcome != LoadOutcome::success) {
    return Error(Code::internal, fmt::format("{}: {}", target.client.url(),
                                             record.error.empty() ? std::string(outcome_name(record.outcome))
                                                                  : record.error));
  }
  TurnResult result;
  result.prompt_tokens = record.prompt_tokens;
  result.cached_tokens = record.cached_tokens;
  result.ttft_s = record.first_token_s - record.start_s;
  result.has_ids = static_cast<int64_t>(record.prompt_ids.size()) == record.prompt_tokens;
  if (result.has_ids) {
    result.common_tokens = target.retained.common_tokens(record.prompt_ids, options.block_tokens);
    target.retained.add(record.prompt_ids, record.output_ids);
  }
  const Json usage = Json::parse(record.usage, nullptr, false);
  if (usage.is_object()) {
    const Json prefix = usage.value(Json::json_pointer("/rorqual/prefix"), Json(nullptr));
    if (prefix.is_object()) result.prefix = prefix;
    const Json reason = usage.value(Json::json_pointer("/rorqual/prefix/miss/reason"), Json(nullptr));
    if (reason.is_string()) result.miss_reason = reason.get<std::string>();
  }
  return result;
}

Result<TurnResult> ask(Target& target, std::string body, const BenchAgentOptions& options) {
  RORQUAL_TRY_ASSIGN(const auto client, LoadClient::create(target.client, options.timeout_s));
  LoadRecord record;
  client->start({.path = "/v1/chat/completions",
                 .body = std::move(body),
                 .leave_after_tokens = std::nullopt,
                 .leaving = Leaving::close},
                [&](LoadRecord done) { record = std::move(done); });
  client->run();
  return result_of(record, target, options);
}

Status run_repeat(int repeat, const AgentConversation& conversation, const BenchAgentOptions& options,
                  std::vector<Target>& targets) {
  const std::string session = unique_prefix(options.session, static_cast<uint64_t>(repeat));
  const int64_t turns =
      options.turns > 0 ? std::min(options.turns, conversation.num_turns()) : conversation.num_turns();
  for (Target& target : targets) target.repeats.emplace_back();
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (size_t i = 0; i < targets.size(); ++i) {
      // The order changes from turn to turn and from repeat to repeat, so that drifts meet both alike.
      const size_t place = (i + static_cast<size_t>(turn + repeat)) % targets.size();
      Target& target = targets[place];
      auto result =
          ask(target, conversation.body(turn, session, target.model, options.output_tokens), options);
      if (!result.ok()) return std::move(result).error().at(fmt::format("turn {}", turn + 1));
      target.repeats.back().push_back(*std::move(result));
    }
  }
  return Ok();
}

/// One turn over all repeats.
struct TurnSummary {
  int64_t prompt_tokens = 0, common_tokens = 0, cached_tokens = 0;  // of the first repeat
  int64_t missed_repeats = 0;                                       // that found less than they should
  double ttft_s = 0;                                                // median
  std::string reasons;
};

TurnSummary summary_of(const Target& target, size_t turn, const BenchAgentOptions& options) {
  TurnSummary summary;
  std::vector<double> times;
  std::set<std::string> reasons;
  for (const auto& repeat : target.repeats) {
    const TurnResult& result = repeat[turn];
    times.push_back(result.ttft_s);
    if (!result.miss_reason.empty()) reasons.insert(result.miss_reason);
    if (!result.reaches(options.min_hit_ratio)) ++summary.missed_repeats;
  }
  const TurnResult& first = target.repeats.front()[turn];
  summary.prompt_tokens = first.prompt_tokens;
  summary.common_tokens = first.common_tokens;
  summary.cached_tokens = first.cached_tokens;
  if (!times.empty()) summary.ttft_s = kl::percentile(times, 50);
  for (const std::string& reason : reasons) summary.reasons += (summary.reasons.empty() ? "" : ",") + reason;
  return summary;
}

std::vector<TurnSummary> summaries_of(const Target& target, const BenchAgentOptions& options) {
  std::vector<TurnSummary> summaries;
  for (size_t turn = 0; turn < target.repeats.front().size(); ++turn) {
    summaries.push_back(summary_of(target, turn, options));
  }
  return summaries;
}

/// Last turn / turn 2; nothing of fewer turns.
std::optional<double> ttft_ratio(const std::vector<TurnSummary>& turns) {
  if (turns.size() < 3 || turns[1].ttft_s <= 0) return std::nullopt;
  return turns.back().ttft_s / turns[1].ttft_s;
}

Status judge(const std::vector<Target>& targets, const BenchAgentOptions& options) {
  std::string faults;
  const auto add = [&](const std::string& text) { faults += (faults.empty() ? "" : "; ") + text; };
  for (const Target& target : targets) {
    const auto turns = summaries_of(target, options);
    for (size_t i = 1; i < turns.size(); ++i) {
      if (turns[i].missed_repeats == 0) continue;
      add(fmt::format("{}: turn {}: {} cached of {} common tokens in {} of {} repeats", target.client.url(),
                      i + 1, turns[i].cached_tokens, turns[i].common_tokens, turns[i].missed_repeats,
                      target.repeats.size()));
    }
    const auto ratio = ttft_ratio(turns);
    if (options.max_ttft_ratio > 0 && ratio && *ratio > options.max_ttft_ratio) {
      add(fmt::format("{}: the last turn takes {:.2f} times as long as turn 2, at most {:g} are allowed",
                      target.client.url(), *ratio, options.max_ttft_ratio));
    }
  }
  if (faults.empty()) return Ok();
  return Error(Code::gate, faults, "the server's log names what ended the reuse of each prompt");
}

Json target_json(const Target& target, const BenchAgentOptions& options) {
  Json turns = Json::array();
  const auto summaries = summaries_of(target, options);
  for (size_t i = 0; i < summaries.size(); ++i) {
    const TurnSummary& turn = summaries[i];
    Json repeats = Json::array();
    for (const auto& repeat : target.repeats) {
      repeats.push_back({{"prompt_tokens", repeat[i].prompt_tokens},
                         {"common_tokens", repeat[i].has_ids ? Json(repeat[i].common_tokens) : Json(nullptr)},
                         {"cached_tokens", repeat[i].cached_tokens},
                         {"ttft_ms", repeat[i].ttft_s * 1000},
                         {"prefix", repeat[i].prefix}});
    }
    turns.push_back({{"turn", i + 1},
                     {"prompt_tokens", turn.prompt_tokens},
                     {"common_tokens", turn.common_tokens},
                     {"cached_tokens", turn.cached_tokens},
                     {"new_tokens", turn.prompt_tokens - turn.cached_tokens},
                     {"ttft_ms_median", turn.ttft_s * 1000},
                     {"missed_repeats", turn.missed_repeats},
                     {"miss_reasons", turn.reasons},
                     {"repeats", std::move(repeats)}});
  }
  const auto ratio = ttft_ratio(summaries);
  return {{"url", target.client.url()},
          {"model", target.model},
          {"server", target.version},
          {"last_to_second_ttft_ratio", ratio ? Json(*ratio) : Json(nullptr)},
          {"turns", std::move(turns)}};
}

void print_text(const std::vector<Target>& targets, const BenchAgentOptions& options) {
  using report::Align;
  std::vector<std::vector<TurnSummary>> all;
  for (const Target& target : targets) all.push_back(summaries_of(target, options));
  report::Table table{.header = {"turn", "prompt"}, .align = {}, .rows = {}};
  for (size_t s = 0; s < targets.size(); ++s) {
    const std::string mark = targets.size() > 1 ? fmt::format(" {}", s + 1) : std::string();
    for (const char* const name : {"common", "cached", "new", "TTFT ms", "reuse ended by"}) {
      table.header.push_back(fmt::format("{}{}", name, mark));
    }
  }
  table.align.assign(table.header.size(), Align::right);
  for (size_t i = 0; i < all.front().size(); ++i) {
    auto& row = table.rows.emplace_back();
    row = {fmt::format("{}", i + 1), fmt::format("{}", all.front()[i].prompt_tokens)};
    for (const auto& turns : all) {
      const TurnSummary& turn = turns[i];
      row.push_back(fmt::format("{}", turn.common_tokens));
      row.push_back(fmt::format("{}", turn.cached_tokens));
      row.push_back(fmt::format("{}", turn.prompt_tokens - turn.cached_tokens));
      row.push_back(fmt::format("{:.1f}", turn.ttft_s * 1000));
      row.push_back(turn.reasons.empty() ? "–" : turn.reasons);
    }
  }
  fmt::print("{}", report::to_text(table));
  for (size_t s = 0; s < targets.size(); ++s) {
    const auto ratio = ttft_ratio(all[s]);
    if (ratio) fmt::print("{}: last turn / turn 2: {:.2f}\n", targets[s].client.url(), *ratio);
  }
}

Result<std::vector<Target>> open_targets(const BenchAgentOptions& options) {
  std::vector<Target> targets;
  for (const std::string& url : options.urls) {
    RORQUAL_TRY_ASSIGN(HttpClient client, HttpClient::create(url, options.api_key, nullptr));
    client.set_timeout(options.timeout_s);
    RORQUAL_TRY_ASSIGN(const ServerFacts facts, ask_server(client, options.model));
    targets.push_back({.client = std::move(client),
                       .model = facts.model,
                       .version = Json::parse(facts.version, nullptr, false),
                       .retained = {},
                       .repeats = {}});
  }
  return targets;
}

}  // namespace

Status run_bench_agent(const BenchAgentOptions& options) {
  RORQUAL_TRY_ASSIGN(const auto conversation, AgentConversation::read(options.conversation));
  if (options.urls.empty())
    return Error(Code::invalid_argument, "bench agent needs --url", "--url http://host:port");
  if (!options.retained_file.empty() && options.urls.size() > 1) {
    return Error(Code::invalid_argument, "--retained is of one server", "give one --url");
  }
  RORQUAL_TRY_ASSIGN(auto targets, open_targets(options));
  if (!options.retained_file.empty()) RORQUAL_TRY(targets.front().retained.read(options.retained_file));
  const std::string time = utc_now();
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    RORQUAL_TRY(run_repeat(repeat, conversation, options, targets));
  }
  if (!options.retained_file.empty()) RORQUAL_TRY(targets.front().retained.write(options.retained_file));
  if (options.as_json) {
    Json servers = Json::array();
    for (const Target& target : targets) servers.push_back(target_json(target, options));
    const Json report = {{"schema", "rorqual.bench.agent/1"},
                         {"time", time},
                         {"client_version", build_info().version},
                         {"conversation", conversation.name()},
                         {"repeats", options.repeats},
                         {"output_tokens", options.output_tokens},
                         {"session", options.session},
                         {"servers", std::move(servers)}};
    fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_text(targets, options);
  }
  return judge(targets, options);
}

}  // namespace rorqual::tools
