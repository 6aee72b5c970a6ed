// SPDX-License-Identifier: Apache-2.0
// Conversations to prompts: the chat format of DeepSeek-V4.1, with control tokens kept apart from message
// text. Text that spells a control token stays text. docs/text.md#prompts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace rorqual::text {

/// The release whose encoding rules the prompts follow; docs/text.md#prompts.
inline constexpr std::string_view kPromptEncodingRevision = "1017";

enum class Role : uint8_t { system, user, assistant, tool, latest_reminder, developer };

/// Quick-instruction task attached to a user message (not reachable from the public APIs).
enum class QuickTask : uint8_t { none, action, query, authority, domain, title, read_url };

/// One image of the conversation, in the order of its placeholder in the prompt.
struct ImageInput {
  enum class Kind : uint8_t { url, data_url, file_id };
  Kind kind = Kind::url;
  std::string url;     // http(s) URL, data URL or file id
  std::string detail;  // "low" | "high" | "auto" | "original"
  std::string path;    // where the request held it, for messages
};

struct ContentPart {
  bool is_image = false;
  std::string text;  // if !is_image
  ImageInput image;  // if is_image
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text as the client sent it
};

struct Message {
  Role role = Role::user;
  std::vector<ContentPart> content;  // parts are joined by two newlines
  std::string reasoning;             // assistant
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool
  bool is_prefix = false;            // last assistant message: generation continues it
  QuickTask task = QuickTask::none;  // user
};

/// Which finished assistant messages show their reasoning when no tools are active (with tools, all do).
/// after_last_user is what the reference encoder does; it also leaves out earlier developer messages.
enum class KeepReasoning : uint8_t { none, after_last_user, all };

/// Everything that decides the prompt.
struct Conversation {
  std::vector<Message> messages;
  bool thinking = true;
  int32_t effort = 75;                    // 1..100, printed when thinking
  std::vector<std::string> tool_schemas;  // one JSON line per active tool; empty = tools not active
  std::string response_schema;            // JSON text of the response section; empty = no section
  bool force_tool_call = false;           // open the calls block after the generation cue
  bool add_bos = true;
  bool add_generation_prompt = true;  // false: omit the cue after the last message
  KeepReasoning keep_reasoning = KeepReasoning::none;
  bool spells_control_tokens = false;     // text that spells a control token becomes that token
  bool sections_on_first_system = false;  // tools and response format go where the first system message is
  size_t num_context_messages =
      0;  // messages that an earlier prompt holds already: only what follows is rendered
};

/// Half-open range of code points.
using CodePointRange = std::pair<int64_t, int64_t>;

struct Prompt {
  std::string text;
  std::vector<CodePointRange> special_ranges;  // control tokens, one token each
  std::vector<int32_t> token_ids;
  std::vector<ImageInput> images;  // one placeholder token each, in this order
};

/// Text and special ranges only (token_ids stays empty). Deterministic, needs no tokenizer.
Prompt render_chat(const Conversation& conversation);

/// Text, ranges and ids: one BPE pass per maximal plain run, one id per control token.
/// Errors: unsupported when the tokenizer lacks a control token (names it); invalid_argument when message
/// text spells an image placeholder and spellings count (spells_control_tokens).
Result<Prompt> encode_chat(const Conversation& conversation, const Tokenizer& tokenizer);

/// Reference-encoder task name ("action", "query", …); QuickTask::none for an unknown name.
QuickTask quick_task_from_name(const std::string& name);

/// Line of the tool section for one tool: {"name": …, "description": …, "parameters": …}. `parameters_json`
/// is JSON text; "" means {}.
std::string tool_schema_line(const std::string& name, const std::string& description,
                             const std::string& parameters_json);

}  // namespace rorqual::text
