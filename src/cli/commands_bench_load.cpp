// SPDX-License-Identifier: Apache-2.0
// bench serve, bench agent.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/values.h"
#include "tools/bench_agent.h"
#include "tools/bench_serve.h"

namespace rorqual::cli {
namespace {

using Options = std::vector<OptionSpec>;

constexpr std::string_view kGates[] = {"errors",      "lengths",     "counters",
                                       "prefix-hits", "preemptions", "drain"};

OptionSpec text_option(std::string_view name, std::string_view group, std::string_view help,
                       std::string_view value_name) {
  return {.name = name, .group = group, .help = help, .value_name = value_name};
}

OptionSpec seconds_option(std::string_view name, std::string_view group, std::string_view help,
                          std::string_view value) {
  return {.name = name,
          .kind = OptionKind::real,
          .group = group,
          .help = help,
          .value_name = "SECONDS",
          .default_value = value,
          .min = 0,
          .max = 1e6};
}

Options target_options() {
  return {{.name = "model",
           .kind = OptionKind::path,
           .group = "arguments",
           .help = "serve this model for the run (default without --url: the embedded one)",
           .value_name = "MODEL",
           .is_positional = true},
          {.name = "url",
           .group = "server",
           .help = "load this running server (http://host:port) instead of starting one",
           .value_name = "URL",
           .is_common = true},
          text_option("api-key", "server", "key for --url; better given as RORQUAL_API_KEY", "KEY"),
          text_option("served-model-name", "server", "model to ask for; default: the first that is listed",
                      "NAME"),
          {.name = "serve-option",
           .group = "server",
           .help = "NAME=VALUE for the server that is started, such as max-num-seqs=32",
           .value_name = "OPTION",
           .is_list = true},
          seconds_option("timeout", "server", "a request that is silent for so long has failed, 0 = never",
                         "600")};
}

Options load_options() {
  Options options = {
      {.name = "streams",
       .group = "load",
       .help = "requests in flight; several numbers (1,8,32) are measured one after the other",
       .value_name = "LIST",
       .default_value = "1",
       .is_common = true},
      {.name = "runs",
       .kind = OptionKind::integer,
       .group = "load",
       .help = "repetitions of all of it, for mean and sample standard deviation",
       .value_name = "N",
       .default_value = "1",
       .min = 1,
       .max = 1000,
       .is_common = true},
      seconds_option("duration", "load", "time of one run; running requests are cut off at its end", "0"),
      {.name = "requests",
       .kind = OptionKind::size,
       .group = "load",
       .help = "end a run after so many requests; default without --duration: 4 per stream",
       .value_name = "N",
       .min = 1,
       .is_common = true},
      seconds_option("warm-up", "load", "not measured at the beginning of each run", "0"),
      seconds_option("ramp-up", "load", "streams begin evenly over this time", "0"),
      {.name = "cancel-rate",
       .kind = OptionKind::real,
       .group = "load",
       .help = "share of requests whose client leaves after a random number of tokens",
       .value_name = "X",
       .default_value = "0",
       .min = 0,
       .max = 1},
      seconds_option("refused-wait", "load",
                     "pause of a stream after 429 or 503, less if Retry-After is less", "1"),
      {.name = "seed",
       .kind = OptionKind::integer,
       .group = "load",
       .help = "seed of random prompts, prefixes and leaving clients",
       .value_name = "N",
       .default_value = "1",
       .min = 0}};
  for (OptionSpec& option : options) {
    option.is_common = option.is_common || option.name == "duration" || option.name == "warm-up";
  }
  return options;
}

Options request_options() {
  return {{.name = "prompts",
           .kind = OptionKind::path,
           .group = "requests",
           .help = "JSON lines {\"prompt\": …} or {\"messages\": …}, used in turn",
           .value_name = "FILE",
           .is_common = true},
          {.name = "unique-prefix",
           .kind = OptionKind::flag,
           .group = "requests",
           .help = "put random words before each prompt of the file, so that none is found in a cache"},
          {.name = "prompt-tokens",
           .kind = OptionKind::size,
           .group = "requests",
           .help = "random prompts of exactly so many tokens; default without --prompts: 128",
           .value_name = "N",
           .min = 1,
           .is_common = true},
          {.name = "endpoint",
           .kind = OptionKind::choice,
           .group = "requests",
           .help = "route of random prompts",
           .value_name = "ROUTE",
           .default_value = "completions",
           .choices = "completions|chat"},
          {.name = "tokenizer",
           .kind = OptionKind::path,
           .group = "requests",
           .help = "tokenizer.json that counts random prompts; default: the server's /tokenize",
           .value_name = "FILE"},
          {.name = "output-tokens",
           .kind = OptionKind::size,
           .group = "requests",
           .help = "answers of exactly so many tokens: max_tokens, min_tokens, ignore_eos",
           .value_name = "N",
           .min = 1,
           .is_common = true},
          {.name = "max-tokens",
           .kind = OptionKind::size,
           .group = "requests",
           .help = "most tokens of an answer, if not --output-tokens",
           .value_name = "N",
           .min = 1},
          {.name = "temperature",
           .kind = OptionKind::real,
           .group = "requests",
           .help = "0 = greedy; default: the server's",
           .value_name = "X",
           .min = 0,
           .max = 2,
           .is_common = true},
          {.name = "request-seed",
           .kind = OptionKind::integer,
           .group = "requests",
           .help = "seed field of each request; default: none",
           .value_name = "N",
           .min = 0},
          text_option("body", "requests", "JSON object whose fields are put into each request", "JSON")};
}

Options report_options() {
  return {
      {.name = "counters",
       .kind = OptionKind::flag,
       .group = "report",
       .help = "sample the server's /metrics beside the load",
       .default_value = "on"},
      {.name = "sample-interval",
       .kind = OptionKind::real,
       .group = "report",
       .help = "between two samples",
       .value_name = "SECONDS",
       .default_value = "1",
       .min = 0.01,
       .max = 2},
      {.name = "gates",
       .group = "report",
       .help =
           "what must hold, else exit 1: errors,lengths,counters,prefix-hits,preemptions,drain; all; none",
       .value_name = "LIST",
       .default_value = "all",
       .is_common = true},
      {.name = "allow-refusals",
       .kind = OptionKind::flag,
       .group = "report",
       .help = "429 and 503 are no errors"},
      {.name = "csv",
       .kind = OptionKind::path,
       .group = "report",
       .help = "write one line per run",
       .value_name = "FILE",
       .is_common = true},
      {.name = "requests-file",
       .kind = OptionKind::path,
       .group = "report",
       .help = "write one JSON line per request",
       .value_name = "FILE"},
      text_option("profile", "report",
                  "decode or prefill: the tokens of the CSV; default: by the answers' length", "NAME"),
      text_option("label", "report", "config column of the CSV; default: the model", "NAME")};
}

Result<tools::LoadGates> gates_of(const std::string& text) {
  tools::LoadGates gates;
  if (text == "all") return gates;
  gates.errors = gates.lengths = gates.counters = gates.prefix_hits = gates.preemptions = gates.drain = false;
  if (text == "none") return gates;
  bool* const places[] = {&gates.errors,      &gates.lengths,     &gates.counters,
                          &gates.prefix_hits, &gates.preemptions, &gates.drain};
  for (const std::string& name : split_list(text)) {
    const auto* const found = std::find(std::begin(kGates), std::end(kGates), name);
    if (found == std::end(kGates)) {
      return Error(Code::invalid_argument, fmt::format("--gates: got '{}'", name),
                   "errors, lengths, counters, prefix-hits, preemptions, drain; or all, none");
    }
    *places[found - std::begin(kGates)] = true;
  }
  return gates;
}

/// MODEL, --url and what is said of either.
Status read_target(const Values& values, tools::BenchServeOptions& options) {
  options.url = values.text("url");
  options.api_key = values.text("api-key");
  options.model = values.text("served-model-name");
  options.timeout_s = values.real("timeout");
  if (!options.url.empty() && (values.has("model") || values.has("serve-option"))) {
    return Error(Code::invalid_argument, "--url excludes MODEL and --serve-option", "leave one of them out");
  }
  if (values.has("model")) options.serve_arguments.push_back(values.text("model"));
  for (const std::string& item : values.list("serve-option")) options.serve_arguments.push_back("--" + item);
  return Ok();
}

void read_load(const Values& values, tools::BenchServeOptions& options) {
  options.runs = static_cast<int>(values.integer("runs"));
  options.plan.duration_s = values.real("duration");
  options.plan.warm_up_s = values.real("warm-up");
  options.plan.ramp_up_s = values.real("ramp-up");
  options.plan.cancel_rate = values.real("cancel-rate");
  options.plan.refused_wait_s = values.real("refused-wait");
  options.plan.seed = static_cast<uint64_t>(values.integer("seed"));
  options.plan.requests = values.number("requests").value_or(0);
}

void read_requests(const Values& values, tools::BenchServeOptions& options) {
  options.prompts_file = values.text("prompts");
  options.has_unique_prefix = values.flag("unique-prefix");
  options.prompt_tokens = values.number("prompt-tokens");
  options.is_chat = values.text("endpoint") == "chat";
  options.tokenizer = values.text("tokenizer");
  options.body.output_tokens = values.number("output-tokens");
  options.body.max_tokens = values.number("max-tokens");
  if (values.has("temperature")) options.body.temperature = values.real("temperature");
  options.body.seed = values.number("request-seed");
  options.body.extra = values.text("body");
}

Status bench_serve(const Values& values) {
  tools::BenchServeOptions options;
  RORQUAL_TRY(read_target(values, options));
  RORQUAL_TRY_ASSIGN(options.streams, parse_numbers("streams", values.text("streams"), 4096));
  read_load(values, options);
  read_requests(values, options);
  options.has_counters = values.flag("counters");
  options.sample_interval_s = values.real("sample-interval");
  RORQUAL_TRY_ASSIGN(options.gates, gates_of(values.text("gates")));
  options.gates.allows_refusals = values.flag("allow-refusals");
  options.csv_file = values.text("csv");
  options.requests_file = values.text("requests-file");
  options.profile = values.text("profile");
  options.label = values.text("label");
  options.as_json = values.flag("json");
  return tools::run_bench_serve(options);
}

Status bench_agent(const Values& values) {
  tools::BenchAgentOptions options;
  options.urls = values.list("url");
  options.api_key = values.text("api-key");
  options.model = values.text("served-model-name");
  options.conversation = values.text("conversation");
  options.repeats = static_cast<int>(values.integer("repeats"));
  options.turns = values.integer("turns");
  options.output_tokens = values.integer("output-tokens");
  options.block_tokens = values.integer("block-tokens");
  options.session = static_cast<uint64_t>(values.integer("session"));
  options.retained_file = values.text("retained");
  options.min_hit_ratio = values.real("min-hit-ratio");
  options.max_ttft_ratio = values.real("max-ttft-ratio");
  options.timeout_s = values.real("timeout");
  options.as_json = values.flag("json");
  if (options.urls.size() > 2) {
    return Error(Code::invalid_argument,
                 fmt::format("--url: got {}, expected one or two", options.urls.size()),
                 "two servers are compared with each other");
  }
  return tools::run_bench_agent(options);
}

OptionSpec integer_option(std::string_view name, std::string_view help, std::string_view value,
                          double least) {
  return {.name = name,
          .kind = OptionKind::integer,
          .group = "conversation",
          .help = help,
          .value_name = "N",
          .default_value = value,
          .min = least,
          .max = 1 << 20};
}

OptionSpec ratio_option(std::string_view name, std::string_view help) {
  return {.name = name,
          .kind = OptionKind::real,
          .group = "gates",
          .help = help,
          .value_name = "X",
          .default_value = "0",
          .min = 0,
          .max = 1000,
          .is_common = true};
}

Options agent_options() {
  return {
      {.name = "conversation",
       .kind = OptionKind::path,
       .group = "arguments",
       .help = "recorded conversation, such as bench/conversations/tools20.json",
       .value_name = "FILE",
       .is_positional = true,
       .is_required = true},
      {.name = "url",
       .group = "server",
       .help = "a running server (http://host:port); given twice, both are asked in turn",
       .value_name = "URL",
       .is_common = true,
       .is_list = true},
      text_option("api-key", "server", "key for --url; better given as RORQUAL_API_KEY", "KEY"),
      text_option("served-model-name", "server", "model to ask for; default: the first that is listed",
                  "NAME"),
      seconds_option("timeout", "server", "a request that is silent for so long has failed, 0 = never",
                     "600"),
      integer_option("repeats", "the whole conversation so many times, each as a new one", "5", 1),
      integer_option("turns", "only the first turns; 0 = all", "0", 0),
      integer_option("output-tokens", "tokens that the server generates in each turn", "8", 1),
      integer_option("block-tokens", "page of the server's prefix cache", "64", 1),
      integer_option("session", "names the conversations: the same number sends the same texts", "1", 0),
      {.name = "retained",
       .kind = OptionKind::path,
       .group = "conversation",
       .help = "what the server may hold from earlier runs: read if the file is there, written at the end",
       .value_name = "FILE"},
      ratio_option("min-hit-ratio",
                   "exit 1 if a turn from the second on finds less of what it has in common with earlier "
                   "ones (0.98); 0 = off"),
      ratio_option("max-ttft-ratio",
                   "exit 1 if the last turn's first token takes longer than so many times that of turn 2; "
                   "0 = off")};
}

}  // namespace

CommandSpec bench_agent_command() {
  return {
      .name = "bench agent",
      .summary = "a recorded tool conversation turn by turn: prefix reuse and time to first token",
      .description =
          "Asks --url for each turn of a recorded conversation, with the recorded answers as history, and "
          "prints prompt tokens, the longest prefix in common with what was asked before, cached tokens, "
          "time to first token (median of the repeats) and what ended the reuse.",
      .example = "rorqual bench agent bench/conversations/tools20.json --url http://127.0.0.1:8000",
      .options = agent_options(),
      .run = bench_agent};
}

CommandSpec bench_serve_command() {
  auto options = target_options();
  append(options, load_options());
  append(options, request_options());
  append(options, report_options());
  return {.name = "bench serve",
          .summary = "load on a server: speed, latencies, the server's own counters, validity",
          .description =
              "Keeps STREAMS streamed requests in flight against --url, or against a server that is started "
              "for it, and measures token rates by the server's counters, times to first token and between "
              "tokens. Ends with 1 when a gate says that the run does not count.",
          .example =
              "rorqual bench serve --url http://127.0.0.1:8000 --streams 1,8,32 --duration 90 --warm-up 10 "
              "--prompt-tokens 1024 --output-tokens 256",
          .options = std::move(options),
          .run = bench_serve};
}

}  // namespace rorqual::cli
