// SPDX-License-Identifier: Apache-2.0
// Why a prompt was not found in the prefix cache from its first to its last page: the answer to "why is my
// agent loop slow".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace rorqual::prefix {

/// Prompts of one chat format share a few tokens by chance; from so many on they count as alike.
inline constexpr int64_t kAlikeTokens = 8;

/// What ended the reuse. Windows are blamed only where nothing else is: a prompt that was changed, or of
/// which pages have left, would have ended there anyway.
enum class MissReason : uint8_t {
  none,             // everything was reused that can be (the last token is always computed)
  off,              // no prefix cache in this engine
  bypassed,         // the request does not read it: prompt_logprobs, or asked not to
  too_short,        // less than one whole page before the last token
  first_seen,       // no kept prompt of this salt begins alike: not one in its first kAlikeTokens
  tokens_differ,    // a kept prompt goes on with another token: see position, token, kept_token
  image_differs,    // the same tokens, another image
  extends,          // a kept prompt ends here: the rest is new
  evicted,          // the page was here and has left to make room
  windows_missing,  // entries were kept without windows, and restarting earlier was cheaper than a replay
  disk_error,       // the page on disk could not be read or was damaged
};

inline constexpr int kMissReasons = static_cast<int>(MissReason::disk_error) + 1;

/// "none", "off", "bypassed", "too_short", …: the words of usage, log and metrics.
std::string_view miss_reason_name(MissReason reason);

/// Of one lookup. Positions count from 0.
struct MissReport {
  MissReason reason = MissReason::none;
  int64_t position = 0;               // first token that differs, is new, or was not to be had
  std::optional<int32_t> token;       // at the first difference: of this prompt …
  std::optional<int32_t> kept_token;  // … and of the most similar kept one
  int64_t common_tokens = 0;          // longest prefix in common with what is kept, in tokens
};

}  // namespace rorqual::prefix
