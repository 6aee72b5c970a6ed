// SPDX-License-Identifier: Apache-2.0
// What a load asks: the rows of a file, or random texts of an exact number of tokens; and the request bodies.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace rorqual::tools {

/// Fields of every request.
struct LoadBody {
  std::string model;
  std::optional<int64_t> output_tokens;  // exactly: max_tokens = min_tokens, ignore_eos
  std::optional<int64_t> max_tokens;     // at most, if output_tokens is not given
  std::optional<double> temperature;
  std::optional<int64_t> seed;
  std::string extra;  // a JSON object whose fields replace the others; empty = none
};

/// A prompt with its fields.
struct LoadPrompt {
  bool is_chat = false;
  std::string fields;  // JSON object: prompt, or messages and what belongs to them
  std::optional<int64_t> output_tokens, max_tokens;  // of this prompt alone
};

/// Number of tokens of a text, by whoever decides.
using TokenCounter = std::function<Result<int64_t>(std::string_view text)>;

/// Rows of JSON lines: {"prompt": text or ids} or {"messages": […], …}; optional "output_tokens_count",
/// "max_tokens"; of chats all other fields go to the request as they are. Errors: not_found, corrupt_data
/// (file and line).
Result<std::vector<LoadPrompt>> read_load_prompts(const std::string& path);

/// Texts of random words, each of exactly `tokens` tokens, no two alike from their beginning on.
class RandomPrompts {
 public:
  /// Counts the tokens of each word alone, which is right for tokenizers that cut at spaces, and checks the
  /// sum on one text. Errors: those of `count`; unsupported (no word of one token, or the sum is wrong).
  static Result<RandomPrompts> create(int64_t tokens, uint64_t seed, const TokenCounter& count);

  /// The text number `index`; the same for the same seed.
  std::string text(uint64_t index) const;

 private:
  RandomPrompts() = default;

  struct Word {
    std::string text;  // with the space before it
    int64_t tokens = 0;
  };

  int64_t tokens_ = 0;  // without what the tokenizer adds
  uint64_t seed_ = 0;
  std::vector<Word> words_, single_;  // all; those of one token
};

/// The body of one streamed request with usage in every event. `prefix`, if not empty, is put before the
/// prompt's text, or before the first message's. Errors: invalid_argument (extra is no JSON object; a prompt
/// of ids has no text to put the prefix before).
Result<std::string> load_body(const LoadBody& fields, const LoadPrompt& prompt, const std::string& prefix);

/// A few random words for load_body, different for each index: so that a prompt that comes again shares no
/// page with its earlier self.
std::string unique_prefix(uint64_t seed, uint64_t index);

/// Random numbers of a stream and a place in it; the same on every machine.
uint64_t load_random(uint64_t seed, uint64_t place);

}  // namespace rorqual::tools
