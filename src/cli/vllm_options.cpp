// SPDX-License-Identifier: Apache-2.0
#include "cli/vllm_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>

namespace rorqual::cli {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kGroup = "vLLM's names";
constexpr std::string_view kOneProcess = "one process computes the whole model on this machine's CPUs";
constexpr std::string_view kNoGpu = "this version computes on CPUs";
constexpr std::string_view kOwnKernels = "there is one set of kernels, see --kernels";
constexpr std::string_view kNoGraphs = "CPUs need no graphs";
constexpr std::string_view kOwnParser = "the model's own parser is always on";

struct VllmOption {
  std::string_view name;
  bool is_flag;
  std::string_view accepted;  // "a|b", "deepseek*"; "*" = any; "" = none; flags: on, off or on|off
  std::string_view why;       // nothing has to be done for what is accepted, or the rest cannot be
};

constexpr VllmOption kOptions[] = {
    {"tensor-parallel-size", false, "1", kOneProcess},
    {"pipeline-parallel-size", false, "1", kOneProcess},
    {"data-parallel-size", false, "1", kOneProcess},
    {"enable-expert-parallel", true, "off", kOneProcess},
    {"enable-eplb", true, "off", kOneProcess},
    {"eplb-config", false, "", kOneProcess},
    {"distributed-executor-backend", false, "uni|mp", kOneProcess},
    {"api-server-count", false, "1", kOneProcess},
    {"moe-backend", false, "auto", kOwnKernels},
    {"attention-backend", false, "auto", kOwnKernels},
    {"linear-backend", false, "auto", kOwnKernels},
    {"quantization", false, "auto|none", "number formats are the checkpoint's"},
    {"dtype", false, "auto|bfloat16", "number formats are the checkpoint's"},
    {"kv-cache-dtype", false, "auto", "the cache has the model's own formats"},
    {"load-format", false, "auto|safetensors", "checkpoints are safetensors"},
    {"block-size", false, "64", "pages of the cache hold 64 tokens"},
    {"gpu-memory-utilization", false, "*", kNoGpu},
    {"cpu-offload-gb", false, "*", kNoGpu},
    {"enforce-eager", true, "on|off", kNoGraphs},
    {"max-cudagraph-capture-size", false, "*", kNoGraphs},
    {"cudagraph-capture-sizes", false, "*", kNoGraphs},
    {"compilation-config", false, "*", kNoGraphs},
    {"async-scheduling", true, "on", "a step is prepared while the one before it computes"},
    {"enable-chunked-prefill", true, "on", "prompts are always computed in chunks"},
    {"trust-remote-code", true, "on|off", "no code of a checkpoint is ever run"},
    {"tokenizer-mode", false, "*", "the tokenizer is built in"},
    {"chat-template", false, "", "the prompt format belongs to the model"},
    {"tool-call-parser", false, "deepseek*", kOwnParser},
    {"reasoning-parser", false, "deepseek*", kOwnParser},
    {"enable-auto-tool-choice", true, "on", kOwnParser},
    {"generation-config", false, "auto|vllm", "requests say how to sample; nothing else does"},
    {"enable-prompt-tokens-details", true, "on", "usage always tells the cached tokens"},
    {"enable-server-load-tracking", true, "on", "/load is always there"},
    {"enable-request-id-headers", true, "on", "X-Request-Id is always sent"},
    {"disable-log-requests", true, "on", "texts are never logged"},
    {"enable-log-requests", true, "off", "texts are never logged"},
    {"disable-log-stats", true, "on|off", "the status line costs nothing; see --log-level"},
    {"prefix-caching-hash-algo", false, "*", "pages are found by a 128-bit hash and compared token by token"},
    {"enable-lora", true, "off", "adapters are not implemented"},
    {"kv-transfer-config", false, "", "the cache is not sent to other servers; see --prefix-cache-dir"},
    {"ssl-keyfile", false, "", "TLS is not built in: put a reverse proxy in front"},
    {"ssl-certfile", false, "", "TLS is not built in: put a reverse proxy in front"},
};

bool fits(std::string_view accepted, std::string_view value) {
  while (!accepted.empty()) {
    const size_t bar = std::min(accepted.find('|'), accepted.size());
    std::string_view word = accepted.substr(0, bar);
    accepted.remove_prefix(std::min(bar + 1, accepted.size()));
    const bool is_open = word.ends_with('*');
    if (is_open) word.remove_suffix(1);
    if (is_open ? value.starts_with(word) : value == word) return true;
  }
  return false;
}

std::string help_of(const VllmOption& option) {
  if (option.accepted.empty()) return fmt::format("refused: {}", option.why);
  if (option.accepted == "*" || option.accepted == "on|off")
    return fmt::format("accepted, no effect: {}", option.why);
  std::string words(option.accepted);
  for (size_t at = words.find('|'); at != std::string::npos; at = words.find('|', at))
    words.replace(at, 1, ", ");
  return fmt::format("only {}: {}", words, option.why);
}

Error both_names(std::string_view theirs, std::string_view ours) {
  return {Code::invalid_argument, fmt::format("--{} and --{} are the same option", theirs, ours),
          "leave one of them out"};
}

/// The JSON object of an option, whose keys must be among `keys`.
Result<Json> object_of(std::string_view name, const std::string& text,
                       std::initializer_list<std::string_view> keys) {
  Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return Error(Code::invalid_argument, fmt::format("--{}: got '{}', expected a JSON object", name, text));
  }
  for (const auto& item : object.items()) {
    if (std::find(keys.begin(), keys.end(), item.key()) != keys.end()) continue;
    return Error(Code::unsupported, fmt::format("--{}: the key '{}' has no meaning here", name, item.key()),
                 "leave it out");
  }
  return object;
}

/// {"method": "dspark", "num_speculative_tokens": 2}
Status apply_speculative_config(const Values& values, tools::ServeOptions& options) {
  constexpr std::string_view kName = "speculative-config";
  if (!values.has(kName)) return Ok();
  if (values.is_given("speculative-tokens")) return both_names(kName, "speculative-tokens");
  RORQUAL_TRY_ASSIGN(const Json config,
                     object_of(kName, values.text(kName), {"method", "num_speculative_tokens"}));
  const Json method = config.value("method", Json("dspark"));
  if (method != "dspark" && method != "mtp" && method != "deepseek_mtp") {
    return Error(Code::unsupported,
                 fmt::format("--{}: the method {} is not implemented", kName, method.dump()),
                 "the model's own draft stages are used: \"dspark\"");
  }
  const Json count = config.value("num_speculative_tokens", Json());
  if (!count.is_number_unsigned() || count.get<uint64_t>() > static_cast<uint64_t>(runtime::kMaxDrafts)) {
    return Error(Code::invalid_argument,
                 fmt::format("--{}: num_speculative_tokens is {}, expected an integer from 0 to {}", kName,
                             count.dump(), runtime::kMaxDrafts));
  }
  options.reuse.speculative_tokens = count.get<int32_t>();
  return Ok();
}

/// {"cpu_offload": true}: the Engram tables in host memory.
Status apply_engram_config(const Values& values, tools::ServeOptions& options) {
  constexpr std::string_view kName = "engram-config";
  if (!values.has(kName)) return Ok();
  if (values.is_given("engram-placement")) return both_names(kName, "engram-placement");
  RORQUAL_TRY_ASSIGN(const Json config, object_of(kName, values.text(kName), {"cpu_offload"}));
  if (config.value("cpu_offload", Json()) != true) {
    return Error(Code::unsupported, fmt::format("--{}: only {{\"cpu_offload\": true}} is possible", kName),
                 "see --engram-placement");
  }
  options.open.engram_placement = "host";
  return Ok();
}

}  // namespace

std::vector<OptionSpec> vllm_options() {
  static const std::deque<std::string> kHelps = [] {
    std::deque<std::string> helps;
    for (const auto& option : kOptions) helps.push_back(help_of(option));
    return helps;
  }();
  std::vector<OptionSpec> specs = {
      {.name = "max-num-queued-reqs",
       .kind = OptionKind::integer,
       .group = kGroup,
       .help = "the same as --max-queued-requests",
       .value_name = "N",
       .min = 0,
       .max = 1'000'000},
      {.name = "speculative-config",
       .group = kGroup,
       .help = "the same as --speculative-tokens: {\"method\": \"dspark\", \"num_speculative_tokens\": N}",
       .value_name = "JSON"},
      {.name = "engram-config",
       .group = kGroup,
       .help = "{\"cpu_offload\": true}: the same as --engram-placement host",
       .value_name = "JSON"},
      {.name = "disable-uvicorn-access-log",
       .kind = OptionKind::flag,
       .group = kGroup,
       .help = "the same as --no-access-log"}};
  size_t index = 0;
  for (const auto& option : kOptions) {
    specs.push_back({.name = option.name,
                     .kind = option.is_flag ? OptionKind::flag : OptionKind::text,
                     .group = kGroup,
                     .help = kHelps[index++],
                     .value_name = option.is_flag ? "" : "VALUE"});
  }
  return specs;
}

Status apply_vllm_options(const Values& values, tools::ServeOptions& options) {
  for (const auto& option : kOptions) {
    if (!values.is_given(option.name) || fits(option.accepted, values.text(option.name))) continue;
    const std::string& value = values.text(option.name);
    const bool is_on = value == "on";
    return Error(Code::unsupported,
                 option.is_flag
                     ? fmt::format("--{}{} is not possible: {}", is_on ? "" : "no-", option.name, option.why)
                     : fmt::format("--{} {} is not possible: {}", option.name, value, option.why),
                 option.accepted.empty() || option.is_flag
                     ? "leave it out"
                     : fmt::format("leave it out, or give it as {}", option.accepted));
  }
  if (values.has("max-num-queued-reqs")) {
    if (values.is_given("max-queued-requests"))
      return both_names("max-num-queued-reqs", "max-queued-requests");
    options.engine.max_num_queued_reqs = values.integer("max-num-queued-reqs");
    options.server.max_num_queued_reqs = options.engine.max_num_queued_reqs;
  }
  if (values.flag("disable-uvicorn-access-log")) options.server.access_log = false;
  RORQUAL_TRY(apply_speculative_config(values, options));
  return apply_engram_config(values, options);
}

}  // namespace rorqual::cli
