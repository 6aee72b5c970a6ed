// SPDX-License-Identifier: Apache-2.0
// What is scored: windows of token ids, cut from a text or read from a panel of prompts with continuations.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kl/dump.h"
#include "text/tokenizer.h"

namespace rorqual::kl {

/// One sequence: tokens [first_scored, ids.size()) are scored, each from all tokens before it.
struct Window {
  std::vector<int32_t> ids;
  int64_t first_scored = 0;  // at least 1
};

struct Corpus {
  std::string name;           // "neutral", "code", "agentic", "panel", or the stem of a file
  std::string sha256;         // of the text (cut windows) or of the panel's token ids
  std::string prompt_compat;  // switches that a panel's prompts were rendered with; empty = none
  int64_t context = 0;        // length of every window; 0 when lengths differ (panels)
  std::vector<Window> windows;

  int64_t scored_positions() const;
};

struct CutOptions {
  int64_t context = 4096;  // tokens of a window, BOS included
  int64_t max_windows = 24;
};

/// The text is tokenised once as a whole, no special tokens added (but markup of the chat format in the text
/// is recognised); window i = [BOS] + ids[i·(context-1), (i+1)·(context-1)), scored from context/2 on.
/// Errors: invalid_argument when the text is shorter than one window, with both numbers.
Result<Corpus> cut_windows(const text::Tokenizer& tokenizer, std::string name, std::string_view text,
                           const CutOptions& options);

/// The same from the ids of the whole text, tokenised elsewhere (by a server).
Result<Corpus> cut_ids(int32_t bos, std::span<const int32_t> ids, std::string name, std::string_view text,
                       const CutOptions& options);

/// Of every window's length, first scored position and token ids, as little-endian int64, int64 and int32.
std::string windows_sha256(const Corpus& corpus);

/// A panel file (JSON, schema rorqual.kl.panel/1): cases with prompt ids and continuation ids; the
/// continuation is scored.
Result<Corpus> read_panel(const std::string& path);

/// The windows that a capture or another program's panel was made of, to score them again. unsupported when
/// the file does not hold its tokens (public dumps).
Result<Corpus> corpus_of(const Dump& dump);

}  // namespace rorqual::kl
