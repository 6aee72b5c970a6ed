// SPDX-License-Identifier: Apache-2.0
// Ids of pieces and of spelled prompts.
#include "text/piece_ids.h"

#include <algorithm>
#include <string>

namespace rorqual::text {

Status append_piece_ids(const std::vector<PromptPiece>& pieces, const Tokenizer& tokenizer,
                        std::vector<int32_t>& ids) {
  for (const auto& piece : pieces) {
    if (!piece.is_special) {
      tokenizer.append_ids(piece.text, EncodeMode::plain, ids);
      continue;
    }
    const auto id = tokenizer.added_token(piece.text);
    if (!id) {
      return Error(Code::unsupported,
                   "the tokenizer has no token " + piece.text + ", which the chat format needs",
                   "use the tokenizer.json that belongs to the model");
    }
    ids.push_back(*id);
  }
  return Ok{};
}

Result<std::vector<int32_t>> spelled_ids(std::string_view prompt, size_t num_images,
                                         const Tokenizer& tokenizer) {
  auto ids = tokenizer.encode(prompt, EncodeMode::with_added);
  const auto image = tokenizer.added_token(kImageToken);
  const auto found = image ? std::count(ids.begin(), ids.end(), *image) : 0;
  if (static_cast<size_t>(found) == num_images) return ids;
  return Error(Code::invalid_argument,
               "the prompt spells " + std::to_string(found) + " image placeholders " +
                   std::string(kImageToken) + ", the messages hold " + std::to_string(num_images) + " images",
               "leave the spelling out, or serve without the prompt switch plain_text");
}

}  // namespace rorqual::text
