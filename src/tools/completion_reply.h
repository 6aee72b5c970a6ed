// SPDX-License-Identifier: Apache-2.0
// Answers of /v1/completions for prompts of token ids, read back into what an engine reports: rows of
// prompt_logprobs (up to hundreds of megabytes, read row by row) and generated tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "runtime/engine.h"

namespace rorqual::tools {

struct ReplyContext {
  std::span<const int32_t> prompt;
  int64_t first_scored = 1;   // earlier rows are passed over
  int64_t top_k = -1;         // entries of a row besides the prompt's own token; -1 = rows not wanted
  int64_t num_logprobs = -1;  // of generated tokens
  int32_t eos_token_id = 1;
  std::span<const int32_t> stop_token_ids;
  bool is_piece = false;  // one event of a stream: may be without an end, and without choices
};

/// One row per scored prompt token, ascending.
using OnPromptRow = std::function<void(int64_t position, runtime::PositionLogprobs row)>;

struct CompletionReply {
  std::vector<int32_t> tokens;                                 // without an end token
  std::vector<std::optional<runtime::PositionLogprobs>> rows;  // of `tokens`
  runtime::FinishInfo info;
  bool has_end = false, has_usage = false;  // of a piece: what it brought
};

/// `body` is the JSON answer; it gets room behind its end for the parser. Numbers are read as doubles and
/// rounded to F32, so that the fewest digits that give an F32 give it back. Errors: corrupt_data (what is
/// missing or of the wrong kind).
Result<CompletionReply> read_completion(std::string& body, const ReplyContext& context,
                                        const OnPromptRow& on_row);

}  // namespace rorqual::tools
