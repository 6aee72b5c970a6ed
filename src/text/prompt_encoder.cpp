// SPDX-License-Identifier: Apache-2.0
#include "text/prompt_encoder.h"

#include <memory>
#include <string>
#include <utility>

#include "text/chat_renderer.h"
#include "text/piece_ids.h"

namespace rorqual::text {

namespace {

/// A block of the prompt: remembered, or rendered now.
struct Stretch {
  std::shared_ptr<const PromptMemo::Block> known;
  std::string key;  // of a block to remember
  std::vector<PromptPiece> pieces;
  size_t text_bytes = 0;
};

Stretch make_stretch(const ChatRenderer& renderer, PromptMemo& memo, std::string& key) {
  Stretch stretch;
  key.clear();
  renderer.append_key(key);
  if (!key.empty()) stretch.known = memo.find(key);
  if (stretch.known != nullptr) {
    stretch.text_bytes = stretch.known->text_bytes;
    return stretch;
  }
  stretch.key = key;
  renderer.render(stretch.pieces);
  for (const auto& piece : stretch.pieces) stretch.text_bytes += piece.text.size();
  return stretch;
}

/// Spellings can reach across blocks, so the whole text is encoded at once.
Result<EncodedPrompt> encode_spelled(const Conversation& conversation, const Tokenizer& tokenizer,
                                     size_t max_text_bytes) {
  Prompt prompt = render_chat(conversation);
  EncodedPrompt out{{}, std::move(prompt.images), prompt.text.size()};
  if (out.text_bytes > max_text_bytes) return out;
  RORQUAL_TRY_ASSIGN(out.token_ids, spelled_ids(prompt.text, out.images.size(), tokenizer));
  return out;
}

}  // namespace

Result<EncodedPrompt> PromptEncoder::encode(const Conversation& conversation, size_t max_text_bytes) {
  if (conversation.spells_control_tokens) return encode_spelled(conversation, tokenizer_, max_text_bytes);
  EncodedPrompt out;
  std::vector<Stretch> stretches;
  std::string key;
  size_t known_ids = 0;
  ChatRenderer renderer(conversation);
  while (renderer.next()) {
    if (renderer.starts_output()) {
      stretches.clear();
      out = {};
      known_ids = 0;
    }
    renderer.append_images(out.images);
    stretches.push_back(make_stretch(renderer, memo_, key));
    out.text_bytes += stretches.back().text_bytes;
    if (stretches.back().known != nullptr) known_ids += stretches.back().known->ids.size();
  }
  if (out.text_bytes > max_text_bytes) return out;
  out.token_ids.reserve(known_ids + 4096);
  for (Stretch& stretch : stretches) {
    if (stretch.known != nullptr) {
      const auto& ids = stretch.known->ids;
      out.token_ids.insert(out.token_ids.end(), ids.begin(), ids.end());
      continue;
    }
    const size_t begin = out.token_ids.size();
    RORQUAL_TRY(append_piece_ids(stretch.pieces, tokenizer_, out.token_ids));
    if (stretch.key.empty()) continue;
    const auto first = out.token_ids.begin() + static_cast<std::ptrdiff_t>(begin);
    memo_.put(std::make_shared<PromptMemo::Block>(
        PromptMemo::Block{std::move(stretch.key), {first, out.token_ids.end()}, stretch.text_bytes}));
  }
  return out;
}

}  // namespace rorqual::text
