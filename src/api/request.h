// SPDX-License-Identifier: Apache-2.0
// Request bodies of the HTTP APIs, parsed, checked and resolved. One type for chat completions, Anthropic
// messages and responses; one for completions; one for tokenize/detokenize. docs/api.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/api_error.h"
#include "api/policy.h"
#include "text/chat_encoder.h"
#include "text/output_parser.h"

namespace rorqual::api {

enum class Protocol : uint8_t { chat, messages, responses };

/// What the backend must enforce on the output.
struct Constraint {
  enum class Kind : uint8_t {
    none,
    json,
    regex,
    tool_call,
    tool_call_required,
    choice,
    grammar,
    structural_tag
  };
  Kind kind = Kind::none;
  std::string text;  // json: schema ("" = any object); regex; tool_call…: tool list; all as compact JSON
  /// For the grammar where it is not `text`: with the definitions that the strict normal form leaves out.
  std::string enforced_text = {};
  bool compact = false;  // JSON without white space for looks

  /// "json", "regex", "tool_call", …; nullptr for none.
  const char* kind_name() const;
};

/// vLLM's repetition_detection: the answer ends when its last tokens are `min_count` times the same pattern
/// of min_size to max_size tokens.
struct RepetitionLimit {
  int64_t min_size = 1, max_size = 0, min_count = 2;
};

/// What happens to the prompt between the tokenizer and the engine.
struct PromptFields {
  std::optional<int64_t> truncate_tokens;  // most tokens to keep, -1 = what the context has room for
  bool truncates_end = false;              // drops the last tokens instead of the first ones
  bool returns_text = false;
};

/// Sampling fields after validation; names as in runtime::SamplingParams.
struct SamplingFields {
  std::optional<int64_t> max_tokens;  // as sent; resolve_max_tokens gives the value to use
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0 = off (vLLM's -1 becomes 0)
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::optional<uint64_t> seed;
  int32_t n = 1;
  int64_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  std::vector<std::string> bad_words;
  std::vector<int32_t> allowed_token_ids;
  std::vector<std::pair<int32_t, float>> logit_bias;
  bool logprobs = false;
  std::optional<int32_t> top_logprobs;     // chat; completions: number of alternatives (`logprobs: k`)
  std::optional<int32_t> prompt_logprobs;  // -1 = whole vocabulary
  int64_t prompt_logprobs_begin = 1;       // our own: first prompt token to score
  std::vector<int32_t> logprob_token_ids;
  bool skip_special_tokens = true;
  int32_t priority = 0;
  std::string cache_salt;                        // vLLM: requests of different salts share no cached prefix
  bool skip_reading_prefix_cache = false;        // vLLM's name
  std::optional<int64_t> replay_trim;            // our own: 0 = exact
  std::optional<int32_t> speculative_tokens;     // our own: most drafts of a step, 0 = none
  std::optional<int64_t> thinking_token_budget;  // tokens of thinking before </think> is forced
  std::optional<RepetitionLimit> repetition;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
};

struct StreamFields {
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;
  int64_t interval = 1;  // tokens of one piece, at least
};

/// How a tool is called in answers of the Responses API, by its name in the prompt.
struct ToolOrigin {
  std::string wire_name;
  std::string name_space;  // "" = none
  std::string name;
  bool is_custom = false;  // takes text, not arguments
};

struct ChatRequest {
  Protocol protocol = Protocol::chat;
  std::string model;
  text::Conversation conversation;
  text::ParserOptions parsing;
  SamplingFields sampling;
  Constraint constraint;
  StreamFields stream;
  PromptFields prompt;
  bool lowers_max_tokens = false;        // to the room that the prompt leaves, instead of an error
  bool echo = false;                     // the answer repeats the message that it continues
  std::vector<ToolOrigin> tool_origins;  // Responses: those that differ from their name in the prompt
  /// Responses: fields that the answer repeats, name and JSON text, in this order.
  std::vector<std::pair<std::string, std::string>> repeated_fields;
  bool include_reasoning = true;
  bool parallel_tool_calls = true;
  std::optional<std::string> request_id;
};

struct CompletionRequest {
  std::string model;

  /// One entry per prompt: text (encoded with added tokens) or token ids.
  struct PromptItem {
    bool is_tokens = false;
    std::string text;
    std::vector<int32_t> tokens;
  };

  std::vector<PromptItem> prompts;
  std::optional<std::string> suffix;  // fill in the middle
  bool echo = false;
  bool add_special_tokens = true;
  Constraint constraint;
  SamplingFields sampling;  // max_tokens always set (default 16)
  StreamFields stream;
  PromptFields prompt;
  std::optional<std::string> request_id;
};

struct TokenizeRequest {
  std::optional<std::string> prompt;               // exactly one of prompt and
  std::optional<text::Conversation> conversation;  // messages
  bool return_token_strs = false;
};

/// Bodies are JSON text (depth at most 128, duplicate keys: the last value wins). Errors name the field at
/// fault in `param`, unless the policy is the official one.
ApiResult<ChatRequest> parse_chat_request(std::string_view body, const ApiPolicy& policy);
ApiResult<ChatRequest> parse_messages_request(std::string_view body, const ApiPolicy& policy);
ApiResult<ChatRequest> parse_responses_request(std::string_view body, const ApiPolicy& policy);
ApiResult<CompletionRequest> parse_completion_request(std::string_view body, const ApiPolicy& policy);
ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body, const ApiPolicy& policy);
ApiResult<std::vector<int32_t>> parse_detokenize_request(std::string_view body);

/// Number of new tokens to allow: the explicit value if prompt + value fits the context (else the room left
/// if the request may be lowered, or the official 400), else the default of the mode (chat 8192, thinking
/// 65536, full effort 131072) lowered to the room left, at least 1.
ApiResult<int64_t> resolve_max_tokens(const ChatRequest& request, int64_t prompt_tokens,
                                      int64_t max_model_len);

/// The official text for a prompt and completion that do not fit.
std::string context_overflow_message(int64_t max_model_len, int64_t prompt_tokens, int64_t max_tokens);

}  // namespace rorqual::api
