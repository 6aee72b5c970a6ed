// SPDX-License-Identifier: Apache-2.0
// Model output to reasoning, content and tool calls, as a stream. Control markers count only as token ids
// when ids are fed; in text mode their spelling counts. The grammar is described in docs/text.md#output.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace rorqual::text {

/// Where the prompt left off.
enum class InitialStage : uint8_t { content, reasoning, reasoning_continuation, content_continuation };

struct ParserOptions {
  InitialStage initial_stage = InitialStage::content;
  bool parse_tool_calls = false;      // tools are active
  bool starts_in_tool_calls = false;  // the prompt already opened the calls block
  bool parse_json_output = false;     // response_format json_object
  std::vector<std::string> stop;      // matched in content only
  int64_t min_tokens = 0;             // stop strings that end within so many tokens do not count
};

/// One delta. A call starts with tool_begin (name complete), then tool_arguments pieces, then tool_end.
struct ParserEvent {
  enum class Kind : uint8_t { reasoning, content, tool_begin, tool_arguments, tool_end };
  Kind kind = Kind::content;
  std::string text;        // delta; the tool's name for tool_begin
  int32_t tool_index = 0;  // for the tool kinds
};

/// Section a token's text belongs to: decides the log-probability array and the reasoning token count.
enum class TokenPlace : uint8_t { reasoning, content, none };

enum class StopCause : uint8_t { stop, length };

/// One thread, one output. Linear time. What is held back is bounded by the longest marker, the longest stop
/// string, 4 KiB of a tool's name, 64 KiB of a parameter without its `string` attribute, and, in prose, the
/// run of newlines that a calls block may follow.
class OutputParser {
 public:
  OutputParser(const Tokenizer& tokenizer, ParserOptions options);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;

  /// Feeds one generated token (not EOS) and returns what became certain.
  std::vector<ParserEvent> push(int32_t token);

  /// Text mode, for outputs without ids: markers are recognised by spelling. Not to be mixed with push().
  std::vector<ParserEvent> push_text(std::string_view text);

  /// End of the output: everything held back is given out.
  std::vector<ParserEvent> finish();

  /// Section of the last token given to push().
  TokenPlace last_place() const;

  /// True after a stop string or the end of the calls block: the engine may stop, all later output is
  /// dropped.
  bool is_done() const;

  /// The stop string that ended the content.
  std::optional<std::string> matched_stop() const;

  /// "tool_calls" when a call was begun and the backend stopped by itself, else "stop" or "length". A
  /// matched stop string gives "stop".
  std::string finish_reason(StopCause backend) const;

  /// Bytes that were fed and not yet given out or dropped.
  size_t held_bytes() const;

  /// Completed calls so far.
  int32_t num_calls_completed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A whole output at once, for non-streaming callers and tools.
struct ParsedOutput {
  std::optional<std::string> reasoning;  // none when empty
  std::string content;

  struct Call {
    std::string name;
    std::string arguments;
  };

  std::vector<Call> calls;
};

/// Appends events to `output`.
void accumulate(const std::vector<ParserEvent>& events, ParsedOutput& output);

}  // namespace rorqual::text
