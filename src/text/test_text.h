// SPDX-License-Identifier: Apache-2.0
// For tests: the demonstration model's tokenizer, messages, the seed of random texts.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "text/chat_encoder.h"
#include "text/tokenizer.h"

namespace rorqual::text {

/// The markers and 4,099 tokens.
inline const Tokenizer& mini_tokenizer() {
  static const Tokenizer tokenizer = [] {
    auto json = read_text_file(RORQUAL_SOURCE_DIR "/models/mini/tokenizer.json", int64_t{1} << 28);
    RORQUAL_CHECK(json.ok());
    auto made = Tokenizer::from_json(*std::move(json));
    RORQUAL_CHECK(made.ok());
    return *std::move(made);
  }();
  return tokenizer;
}

inline Message message(Role role, const std::string& content) {
  Message out;
  out.role = role;
  out.content.push_back({false, content, {}});
  return out;
}

/// RORQUAL_TEST_SEED, or a fixed one; to be printed with every failure.
inline uint64_t test_seed() {
  const char* given = std::getenv("RORQUAL_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 20261017;
}

}  // namespace rorqual::text
