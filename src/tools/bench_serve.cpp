// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_serve.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "text/tokenizer.h"
#include "tools/build_info.h"
#include "tools/kl_engine.h"
#include "tools/load_facts.h"
#include "tools/load_server.h"
#include "tools/text_input.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string load_average_text() {
  double loads[3];
  return getloadavg(loads, 3) == 3 ? fmt::format("{:.2f} {:.2f} {:.2f}", loads[0], loads[1], loads[2])
                                   : std::string();
}

/// Where the prompts of a command come from.
class Prompts {
 public:
  static Result<Prompts> open(const BenchServeOptions& options, const HttpClient& client);

  /// The call number `index` of the whole command; indices are never used twice.
  Result<LoadCall> call(uint64_t index) const;

 private:
  Prompts() = default;

  const BenchServeOptions* options_ = nullptr;
  LoadBody body_;
  std::vector<LoadPrompt> rows_;
  std::optional<RandomPrompts> random_;
};

/// Counts tokens by a tokenizer file or by the server's /tokenize.
Result<TokenCounter> token_counter(const BenchServeOptions& options, const HttpClient& client) {
  if (!options.tokenizer.empty()) {
    RORQUAL_TRY_ASSIGN(auto tokenizer, load_tokenizer(options.tokenizer));
    const auto shared = std::make_shared<text::Tokenizer>(std::move(tokenizer));
    return TokenCounter([shared](std::string_view text) -> Result<int64_t> {
      return static_cast<int64_t>(shared->encode(text, text::EncodeMode::with_added).size());
    });
  }
  return TokenCounter([&client, model = options.model](std::string_view text) -> Result<int64_t> {
    Json body = {{"prompt", text}};
    if (!model.empty()) body["model"] = model;
    RORQUAL_TRY_ASSIGN(const HttpAnswer answer, client.post("/tokenize", body.dump()));
    const Json json = Json::parse(answer.body, nullptr, false);
    if (answer.status / 100 != 2 || !json.is_object() || !json.contains("count") ||
        !json["count"].is_number_integer()) {
      return Error(Code::unsupported,
                   fmt::format("{}/tokenize answered {}: prompts of exact length need it", client.url(),
                               answer.status),
                   "give --tokenizer FILE or --prompts FILE");
    }
    return json["count"].get<int64_t>();
  });
}

Result<Prompts> Prompts::open(const BenchServeOptions& options, const HttpClient& client) {
  Prompts prompts;
  prompts.options_ = &options;
  prompts.body_ = options.body;
  if (!options.prompts_file.empty()) {
    RORQUAL_TRY_ASSIGN(prompts.rows_, read_load_prompts(options.prompts_file));
  } else {
    RORQUAL_TRY_ASSIGN(const TokenCounter count, token_counter(options, client));
    RORQUAL_TRY_ASSIGN(prompts.random_,
                       RandomPrompts::create(*options.prompt_tokens, options.plan.seed, count));
  }
  RORQUAL_TRY_ASSIGN(const LoadCall first, prompts.call(0));  // so that a bad body is told at once
  static_cast<void>(first);
  return prompts;
}

Result<LoadCall> Prompts::call(uint64_t index) const {
  LoadPrompt prompt;
  std::string prefix;
  if (random_) {
    const std::string text = random_->text(index);
    prompt.is_chat = options_->is_chat;
    const Json message = {{"role", "user"}, {"content", text}};
    prompt.fields =
        (prompt.is_chat ? Json{{"messages", Json::array({message})}} : Json{{"prompt", text}}).dump();
  } else {
    prompt = rows_[index % rows_.size()];
    if (options_->has_unique_prefix) prefix = unique_prefix(options_->plan.seed, index);
  }
  LoadCall call;
  call.path = prompt.is_chat ? "/v1/chat/completions" : "/v1/completions";
  RORQUAL_TRY_ASSIGN(call.body, load_body(body_, prompt, prefix));
  return call;
}

/// A command's run: all tiers and repetitions in turn.
class Bench {
 public:
  Bench(const BenchServeOptions& options, const HttpClient& client, const Prompts& prompts)
      : options_(options), client_(client), prompts_(prompts) {}

  Status run_all();

  const std::vector<LoadSummary>& summaries() const { return summaries_; }

  const std::string& records() const { return records_; }

 private:
  Status run_one(int64_t streams, int run);

  const BenchServeOptions& options_;
  const HttpClient& client_;
  const Prompts& prompts_;
  uint64_t asked_ = 0;
  std::vector<LoadSummary> summaries_;
  std::string records_;
};

Status Bench::run_all() {
  for (int run = 0; run < options_.runs; ++run) {
    for (const int64_t streams : options_.streams) RORQUAL_TRY(run_one(streams, run));
  }
  return Ok();
}

Status Bench::run_one(int64_t streams, int run) {
  if (!options_.as_json && isatty(STDERR_FILENO) == 1) {
    fmt::print(stderr, "{} streams, run {} of {} …\n", streams, run + 1, options_.runs);
  }
  LoadPlan plan = options_.plan;
  plan.streams = streams;
  constexpr int64_t kRequestsPerStream = 4;
  if (plan.duration_s <= 0 && plan.requests <= 0) plan.requests = kRequestsPerStream * streams;
  plan.seed =
      load_random(options_.plan.seed, 1000 * static_cast<uint64_t>(run) + static_cast<uint64_t>(streams));
  RORQUAL_TRY_ASSIGN(const auto load, LoadClient::create(client_, options_.timeout_s));
  MetricsSampler sampler(client_, options_.sample_interval_s);
  if (options_.has_counters) RORQUAL_TRY(sampler.start());
  const uint64_t first = asked_;
  RORQUAL_TRY_ASSIGN(const LoadRun result, run_load(*load, plan, [&](int64_t index) {
                       asked_ = first + static_cast<uint64_t>(index) + 1;
                       return prompts_.call(first + static_cast<uint64_t>(index));
                     }));
  LoadContext context{.streams = streams,
                      .run = run,
                      .prompt_tokens = options_.is_chat ? std::nullopt : options_.prompt_tokens,
                      .output_tokens = options_.body.output_tokens,
                      .has_counters = options_.has_counters,
                      .missed_samples = 0,
                      .drained = std::nullopt};
  if (options_.has_counters) {
    sampler.stop();
    context.missed_samples = sampler.missed();
    context.drained = wait_until_drained(client_);
  }
  if (!options_.requests_file.empty()) {
    for (const LoadRecord& record : result.records) records_ += record_json(record, context);
  }
  summaries_.push_back(summarize(result, sampler.samples(), std::move(context), options_.gates));
  return Ok();
}

Json options_json(const BenchServeOptions& options) {
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  return {{"streams", options.streams},
          {"runs", options.runs},
          {"duration_seconds", options.plan.duration_s},
          {"requests", options.plan.requests},
          {"warm_up_seconds", options.plan.warm_up_s},
          {"ramp_up_seconds", options.plan.ramp_up_s},
          {"prompts", options.prompts_file.empty() ? Json(nullptr) : Json(options.prompts_file)},
          {"prompt_tokens", or_null(options.prompt_tokens)},
          {"output_tokens", or_null(options.body.output_tokens)},
          {"max_tokens", or_null(options.body.max_tokens)},
          {"temperature", or_null(options.body.temperature)},
          {"request_seed", or_null(options.body.seed)},
          {"seed", options.plan.seed},
          {"cancel_rate", options.plan.cancel_rate},
          {"unique_prefix", options.has_unique_prefix},
          {"endpoint", options.is_chat ? "chat" : "completions"},
          {"sample_interval_seconds", options.sample_interval_s}};
}

Status write_outputs(const BenchServeOptions& options, const std::string& label, const Bench& bench) {
  if (!options.csv_file.empty()) {
    const bool is_prefill = options.body.output_tokens == 1;
    const auto profile = options.profile.empty() ? (is_prefill ? "prefill" : "decode") : options.profile;
    RORQUAL_TRY(write_text_file(options.csv_file, summaries_csv(bench.summaries(), profile, label)));
  }
  if (!options.requests_file.empty()) RORQUAL_TRY(write_text_file(options.requests_file, bench.records()));
  return Ok();
}

/// The options with the defaults that depend on others.
Result<BenchServeOptions> completed(BenchServeOptions options) {
  if (options.streams.empty()) options.streams = {1};
  if (!options.prompts_file.empty() && options.prompt_tokens) {
    return Error(Code::invalid_argument, "--prompts and --prompt-tokens exclude each other",
                 "leave one of them out");
  }
  constexpr int64_t kTokens = 128;
  if (options.prompts_file.empty() && !options.prompt_tokens) options.prompt_tokens = kTokens;
  if (options.prompts_file.empty() && !options.body.output_tokens && !options.body.max_tokens) {
    options.body.output_tokens = kTokens;
  }
  if (options.plan.duration_s > 0 && options.plan.warm_up_s >= options.plan.duration_s) {
    return Error(Code::invalid_argument,
                 fmt::format("--warm-up {:g} leaves nothing of --duration {:g}", options.plan.warm_up_s,
                             options.plan.duration_s),
                 "make the warm-up shorter");
  }
  if (options.plan.cancel_rate > 0) {
    options.plan.cancel_tokens =
        options.body.output_tokens.value_or(options.body.max_tokens.value_or(kTokens));
  }
  return options;
}

}  // namespace

Status run_bench_serve(const BenchServeOptions& given) {
  RORQUAL_TRY_ASSIGN(BenchServeOptions options, completed(given));
  std::unique_ptr<LoadServer> server;
  if (options.url.empty()) {
    RORQUAL_TRY_ASSIGN(server, LoadServer::start(options.serve_arguments));
    options.url = server->url();
  }
  RORQUAL_TRY_ASSIGN(HttpClient client, HttpClient::create(options.url, options.api_key, nullptr));
  client.set_timeout(options.timeout_s);
  RORQUAL_TRY_ASSIGN(const ServerFacts facts, ask_server(client, options.model));
  options.model = options.body.model = facts.model;
  RORQUAL_TRY_ASSIGN(const Prompts prompts, Prompts::open(options, client));
  const std::string load_before = load_average_text(), time = utc_now();
  Bench bench(options, client, prompts);
  RORQUAL_TRY(bench.run_all());
  RORQUAL_TRY(write_outputs(options, options.label.empty() ? facts.model : options.label, bench));
  if (options.as_json) {
    Json runs = Json::array();
    for (const LoadSummary& summary : bench.summaries()) runs.push_back(summary_json(summary));
    const Json report = {{"schema", "rorqual.bench.serve/1"},
                         {"time", time},
                         {"client_version", build_info().version},
                         {"model", facts.model},
                         {"server", Json::parse(facts.version, nullptr, false)},
                         {"load_average_before", load_before},
                         {"options", options_json(options)},
                         {"runs", std::move(runs)},
                         {"tiers", tiers_json(bench.summaries())}};
    fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    fmt::print("model {}, load average before {}\n{}", facts.model, load_before,
               summaries_text(bench.summaries()));
  }
  return gate_status(bench.summaries());
}

}  // namespace rorqual::tools
