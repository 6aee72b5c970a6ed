// SPDX-License-Identifier: Apache-2.0
#include "tools/other_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "plan/verdict.h"
#include "runtime/scripted_engine.h"
#include "tools/remote_engine.h"

namespace rorqual::tools {
namespace {

constexpr std::string_view kScript = "script:";
constexpr int64_t kMaxScript_bytes = int64_t{256} << 20;

/// Texts as tokens. Lines that are no JSON objects stay: the engine says what is wrong with them.
std::string with_tokens(const std::string& script, const text::Tokenizer& tokenizer) {
  std::istringstream lines(script);
  std::string line, out;
  while (std::getline(lines, line)) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("text") && json["text"].is_string()) {
      json["tokens"] = tokenizer.encode(json["text"].get<std::string>(), text::EncodeMode::with_added);
      json.erase("text");
      line = json.dump();
    }
    out += line + "\n";
  }
  return out;
}

Status open_script(const OtherEngineOptions& options, const OpenOptions& open, OpenedEngine& result) {
  const std::string path = options.name.substr(kScript.size());
  RORQUAL_TRY_ASSIGN(const std::string script, read_text_file(path, kMaxScript_bytes));
  const model::Config& config = result.opened.config;
  runtime::EngineInfo info;
  info.model_name = result.opened.name;
  info.numerics = open.numerics;
  info.kernels = "script";
  info.vocab_size = config.vocab_size;
  info.max_model_len = open.max_model_len > 0
                           ? open.max_model_len
                           : std::min(config.max_position_embeddings, plan::kDefaultMaxModelLen);
  info.eos_token_id = static_cast<int32_t>(config.eos_token_id);
  info.max_drafts = runtime::kMaxDrafts;
  auto engine = runtime::make_scripted_engine(
      with_tokens(script, *result.opened.tokenizer), std::move(info),
      {.max_num_queued_reqs = options.max_num_queued_reqs, .max_logprobs = options.max_logprobs});
  if (!engine.ok()) return std::move(engine).error().at(path);
  result.engine = *std::move(engine);
  return Ok();
}

}  // namespace

Result<OpenedEngine> open_other_engine(const OtherEngineOptions& options, const OpenOptions& open) {
  const bool is_script = options.name.starts_with(kScript);
  if (!is_script && options.name.find("://") == std::string::npos) {
    return Error(Code::invalid_argument,
                 fmt::format("--engine '{}': expected local, script:FILE or http://host:port", options.name));
  }
  OpenedEngine result;
  RORQUAL_TRY_ASSIGN(result.opened, open_source(open));
  if (is_script) {
    RORQUAL_TRY(open_script(options, open, result));
    return result;
  }
  RORQUAL_TRY_ASSIGN(result.engine, RemoteEngine::connect({.url = options.name,
                                                           .api_key = options.api_key,
                                                           .model = options.upstream_model,
                                                           .connections = options.connections,
                                                           .vocab_size = result.opened.config.vocab_size,
                                                           .is_streaming = true}));
  const int64_t vocab_size = result.engine->info().vocab_size;
  if (vocab_size != result.opened.config.vocab_size) {
    return Error(Code::invalid_argument,
                 fmt::format("--engine {}: its vocabulary has {} tokens, that of MODEL {}", options.name,
                             vocab_size, result.opened.config.vocab_size),
                 "name the model that runs there as MODEL; its config and tokenizer are enough");
  }
  return result;
}

}  // namespace rorqual::tools
