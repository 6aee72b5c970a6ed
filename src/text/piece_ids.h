// SPDX-License-Identifier: Apache-2.0
// Token ids of rendered pieces. Used by the encoders of this folder only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat_renderer.h"
#include "text/tokenizer.h"

namespace rorqual::text {

/// One BPE pass per plain piece, one id per control token. Errors: unsupported (a control token is missing).
Status append_piece_ids(const std::vector<PromptPiece>& pieces, const Tokenizer& tokenizer,
                        std::vector<int32_t>& ids);

/// Ids of a whole prompt where spellings count. Errors: invalid_argument when it spells another number of
/// image placeholders than `num_images`.
Result<std::vector<int32_t>> spelled_ids(std::string_view prompt, size_t num_images,
                                         const Tokenizer& tokenizer);

}  // namespace rorqual::text
