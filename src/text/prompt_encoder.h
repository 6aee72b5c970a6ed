// SPDX-License-Identifier: Apache-2.0
// Prompts of a server: the ids of encode_chat, but blocks that were seen before are neither rendered nor
// tokenised again. docs/text.md#memo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "text/chat_encoder.h"
#include "text/prompt_memo.h"
#include "text/tokenizer.h"

namespace rorqual::text {

struct EncodedPrompt {
  std::vector<int32_t> token_ids;  // empty if the text is longer than allowed
  std::vector<ImageInput> images;  // one placeholder token each, in this order
  size_t text_bytes = 0;           // of the rendered prompt
};

/// Any thread. The tokenizer must outlive it.
class PromptEncoder {
 public:
  static constexpr size_t kDefaultMemoBytes = size_t{64} << 20;

  explicit PromptEncoder(const Tokenizer& tokenizer, size_t memo_bytes = kDefaultMemoBytes)
      : tokenizer_(tokenizer), memo_(memo_bytes) {}

  /// The same ids and images as encode_chat. A text of more than `max_text_bytes` is rendered, not tokenised.
  /// Errors: those of encode_chat.
  Result<EncodedPrompt> encode(const Conversation& conversation, size_t max_text_bytes = SIZE_MAX);

  PromptMemoStats memo_stats() const { return memo_.stats(); }

 private:
  const Tokenizer& tokenizer_;
  PromptMemo memo_;
};

}  // namespace rorqual::text
