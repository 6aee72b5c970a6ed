// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE tokenizer of the DeepSeek family, read from tokenizer.json. docs/text.md#tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace rorqual::text {

/// plain: control tokens spelled in the text are ordinary text (message contents).
/// with_added: added tokens are recognised (completions prompts, /tokenize).
enum class EncodeMode : uint8_t { plain, with_added };

/// Immutable; any thread.
class Tokenizer {
 public:
  /// `json` is the content of tokenizer.json. Errors (corrupt_data) name what is unsupported or inconsistent.
  static Result<Tokenizer> from_json(std::string_view json);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Invalid UTF-8 bytes are encoded byte by byte. Near-linear time in the text's length.
  std::vector<int32_t> encode(std::string_view text, EncodeMode mode) const;
  void append_ids(std::string_view text, EncodeMode mode, std::vector<int32_t>& ids) const;

  /// Bytes of one token: the vocabulary piece, or the spelling of an added token. Empty for ids outside [0,
  /// size).
  std::string_view token_bytes(int32_t id) const;

  /// Token string as tokenizer.json spells it (byte-level alphabet for ordinary tokens).
  std::string_view token_string(int32_t id) const;

  /// Concatenated bytes with invalid UTF-8 replaced by U+FFFD. skip_special drops tokens flagged special.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  bool is_added(int32_t id) const;
  bool is_special(int32_t id) const;
  std::optional<int32_t> added_token(std::string_view spelling) const;

  /// Base vocabulary and added tokens together.
  int32_t vocab_size() const;

  /// SHA-256 of the tokenizer.json that it was read from, 64 hexadecimal digits.
  const std::string& sha256() const;

 private:
  struct Impl;
  friend class TokenizerReader;  // reads tokenizer.json
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Ids to text piece by piece: only whole UTF-8 characters are given out. One thread.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  /// Text that became complete with this token (may be empty).
  std::string push(int32_t id);
  /// Whatever is held back, with U+FFFD for incomplete characters.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace rorqual::text
