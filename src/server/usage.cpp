// SPDX-License-Identifier: Apache-2.0
// JSON and log text of usage.
#include "server/usage.h"

#include <string_view>

namespace rorqual::server {

namespace {

constexpr int64_t kNotableTokens = 64;

std::string quoted(std::string_view text) {
  JsonWriter json;
  json.string(text);
  return json.take();
}

}  // namespace

void write_reuse(JsonWriter& json, const ReuseReport& reuse) {
  json.begin_object().key("prefix").begin_object();
  json.field("cached", reuse.cached_tokens).field("disk", reuse.disk_tokens);
  json.field("replayed", reuse.replayed_tokens).key("miss");
  if (!reuse.miss || reuse.miss->reason == prefix::MissReason::none) {
    json.null();
  } else {
    const prefix::MissReport& miss = *reuse.miss;
    json.begin_object().field("reason", prefix::miss_reason_name(miss.reason));
    json.field("position", miss.position).field("common_tokens", miss.common_tokens);
    const auto text = [&json](const char* name, bool is_there, const std::string& value) {
      if (is_there) {
        json.field(name, value);
      } else {
        json.null_field(name);
      }
    };
    text("token_text", miss.token.has_value(), reuse.token_text);
    text("kept_token_text", !reuse.kept_token_text.empty(), reuse.kept_token_text);
    json.end_object();
  }
  json.end_object();
  json.key("drafts").begin_object().field("drafted", reuse.drafted_tokens);
  json.field("accepted", reuse.accepted_tokens).end_object();
  json.field("replay_trim", reuse.trim_rows).field("preemptions", reuse.preemptions).end_object();
}

void ReuseReport::add(const runtime::FinishInfo& info, bool is_first_of_prompt) {
  if (is_first_of_prompt) {
    cached_tokens += info.cached_tokens;
    disk_tokens += info.disk_tokens;
    replayed_tokens += info.replayed_tokens;
  }
  drafted_tokens += info.drafted_tokens;
  accepted_tokens += info.accepted_tokens;
  preemptions += info.preemptions;
  trim_rows = info.trim_rows;
}

void write_usage(JsonWriter& json, const Usage& usage, const ReuseReport* reuse) {
  json.begin_object();
  json.field("prompt_tokens", usage.prompt_tokens).field("completion_tokens", usage.completion_tokens);
  json.field("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").begin_object().field("cached_tokens", usage.cached_tokens).end_object();
  json.key("completion_tokens_details").begin_object();
  json.field("reasoning_tokens", usage.reasoning_tokens).end_object();
  json.field("prompt_cache_hit_tokens", usage.cached_tokens);
  json.field("prompt_cache_miss_tokens", usage.prompt_tokens - usage.cached_tokens);
  if (reuse != nullptr) {
    json.key("rorqual");
    write_reuse(json, *reuse);
  }
  json.end_object();
}

std::string miss_line(const prefix::MissReport& miss, int64_t cached_tokens,
                      const text::Tokenizer& tokenizer) {
  if (miss.reason == prefix::MissReason::none || miss.reason == prefix::MissReason::off) return {};
  std::string line = "prefix miss=";
  line += prefix::miss_reason_name(miss.reason);
  line += " cached=" + std::to_string(cached_tokens) + " common=" + std::to_string(miss.common_tokens) +
          " position=" + std::to_string(miss.position);
  if (miss.token) line += " token=" + quoted(tokenizer.decode({&*miss.token, 1}, false));
  if (miss.kept_token) line += " kept=" + quoted(tokenizer.decode({&*miss.kept_token, 1}, false));
  return line;
}

bool is_notable(const prefix::MissReport& miss, int64_t cached_tokens) {
  switch (miss.reason) {
    case prefix::MissReason::none:
    case prefix::MissReason::off:
    case prefix::MissReason::bypassed:
    case prefix::MissReason::too_short:
    case prefix::MissReason::first_seen:
    case prefix::MissReason::extends:
      return false;
    case prefix::MissReason::tokens_differ:
    case prefix::MissReason::image_differs:
      return miss.common_tokens > kNotableTokens;
    case prefix::MissReason::evicted:
    case prefix::MissReason::windows_missing:
    case prefix::MissReason::disk_error:
      break;
  }
  return miss.common_tokens - cached_tokens > kNotableTokens;
}

}  // namespace rorqual::server
