// SPDX-License-Identifier: Apache-2.0
// `rorqual tokenize`, `render`, `parse`: text and messages to ids and prompts, outputs to messages. No model
// runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/prompt_compat.h"
#include "tools/text_input.h"

namespace rorqual::tools {

struct TokenizeOptions {
  TextInput input;
  std::string tokenizer;      // as load_tokenizer takes it
  bool decode = false;        // the input is ids (blanks, commas or a JSON list), the output text
  bool plain = false;         // spellings of control tokens are ordinary text
  bool skip_special = false;  // decode: leave out control tokens
  bool pieces = false;        // one line per token: id, tab, piece
  bool as_json = false;
};

/// Prints ids (or the text) to standard output. Errors: invalid_argument (no id, or outside the vocabulary),
/// and those of the input and the tokenizer.
Status run_tokenize(const TokenizeOptions& options);

struct RenderOptions {
  TextInput input;  // a chat completions body, or only its list of messages, as JSON
  std::string tokenizer;
  bool ids = false;  // print ids instead of the prompt
  text::PromptCompat prompt_compat;
  bool as_json = false;
};

/// Prints the prompt that the chat endpoint would use. Errors: invalid_argument with the API's own text.
Status run_render(const RenderOptions& options);

struct ParseOptions {
  TextInput input;
  std::string tokenizer;
  bool ids = false;               // the input is token ids; else text, where markers count by their spelling
  std::string stage = "content";  // content | reasoning: where the prompt left off
  bool tool_calls = false;        // tools are active
  bool json_output = false;       // response_format json_object
  bool hit_length = false;        // the output ended at max_tokens
  std::vector<std::string> stop;
};

/// Prints the message as JSON: content, reasoning_content, tool_calls, finish_reason.
Status run_parse(const ParseOptions& options);

/// Token ids from "1 2 3", "1,2,3" or "[1, 2, 3]". Errors (invalid_argument) name the position.
Result<std::vector<int32_t>> parse_token_ids(const std::string& text, int32_t vocab_size);

}  // namespace rorqual::tools
