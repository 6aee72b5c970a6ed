// SPDX-License-Identifier: Apache-2.0
// Upper limits on request fields that no option changes. docs/limits.md lists them; those that options change
// are in policy.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rorqual::api {

inline constexpr size_t kMaxJsonValues = 2'097'152;  // of a body: two prompts of a million ids each
inline constexpr size_t kMaxStops = 16;              // strings of `stop`
inline constexpr size_t kMaxStopTokenIds = 1024;     // `stop_token_ids`
inline constexpr size_t kMaxBadWords = 1024;         // `bad_words`
inline constexpr size_t kMaxLogitBiases = 1024;      // entries of `logit_bias`
inline constexpr size_t kMaxSaltBytes = 1024;        // `cache_salt`
inline constexpr int64_t kMaxSpeculativeTokens = 7;
inline constexpr size_t kMaxPrompts = 256;         // of one completions request
inline constexpr size_t kMaxImageUrlBytes = 8192;  // not data URLs
inline constexpr size_t kMaxToolNameBytes = 128;

}  // namespace rorqual::api
