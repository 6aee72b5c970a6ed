// SPDX-License-Identifier: Apache-2.0
// Cuts text into the pieces that BPE works on: the three regular expressions of DeepSeek's tokenizer.json as
// one scanner. The expressions and their traps are written out in docs/text.md#pieces.
#pragma once

#include <string_view>
#include <vector>

namespace rorqual::text {

/// Appends the pieces of `text` in order; together they are `text`. Every byte of ill-formed UTF-8 is its own
/// piece. Linear time.
void split_pieces(std::string_view text, std::vector<std::string_view>& pieces);

}  // namespace rorqual::text
