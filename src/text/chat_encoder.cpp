// SPDX-License-Identifier: Apache-2.0
// Whole prompts from rendered pieces, and their ids.
#include "text/chat_encoder.h"

#include <string_view>
#include <utility>

#include "text/chat_renderer.h"
#include "text/json_text.h"
#include "text/piece_ids.h"
#include "text/utf8.h"

namespace rorqual::text {

namespace {

std::vector<PromptPiece> render_pieces(const Conversation& conversation, std::vector<ImageInput>& images) {
  std::vector<PromptPiece> pieces;
  ChatRenderer renderer(conversation);
  while (renderer.next()) {
    if (renderer.starts_output()) {
      pieces.clear();
      images.clear();
    }
    renderer.render(pieces);
    renderer.append_images(images);
  }
  return pieces;
}

Prompt assemble(const std::vector<PromptPiece>& pieces) {
  Prompt prompt;
  int64_t offset = 0;
  for (const auto& piece : pieces) {
    const int64_t length = count_code_points(piece.text);
    if (piece.is_special) prompt.special_ranges.emplace_back(offset, offset + length);
    prompt.text += piece.text;
    offset += length;
  }
  return prompt;
}

}  // namespace

Prompt render_chat(const Conversation& conversation) {
  std::vector<ImageInput> images;
  Prompt prompt = assemble(render_pieces(conversation, images));
  prompt.images = std::move(images);
  return prompt;
}

Result<Prompt> encode_chat(const Conversation& conversation, const Tokenizer& tokenizer) {
  std::vector<ImageInput> images;
  const std::vector<PromptPiece> pieces = render_pieces(conversation, images);
  Prompt prompt = assemble(pieces);
  prompt.images = std::move(images);
  if (conversation.spells_control_tokens) {
    RORQUAL_TRY_ASSIGN(prompt.token_ids, spelled_ids(prompt.text, prompt.images.size(), tokenizer));
  } else {
    RORQUAL_TRY(append_piece_ids(pieces, tokenizer, prompt.token_ids));
  }
  return prompt;
}

std::string tool_schema_line(const std::string& name, const std::string& description,
                             const std::string& parameters_json) {
  return "{\"name\": " + json_quote(name) + ", \"description\": " + json_quote(description) +
         ", \"parameters\": " + (parameters_json.empty() ? "{}" : parameters_json) + "}";
}

}  // namespace rorqual::text
