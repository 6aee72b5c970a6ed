// SPDX-License-Identifier: Apache-2.0
// Compressed token ids for Engram's n-gram hashing: tokens whose text normalises alike share an id.
// docs/model.md#engram.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace rorqual::text {

struct TokenMap {
  std::vector<int32_t> compressed;  // [tokenizer.vocab_size()]
  int32_t num_compressed = 0;
};

TokenMap engram_token_map(const Tokenizer& tokenizer);

}  // namespace rorqual::text
