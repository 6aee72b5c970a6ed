// SPDX-License-Identifier: Apache-2.0
// `rorqual check` for text: files of vectors (tests/golden/encoding/README.md) against tokenizer, prompt
// encoder, output parser and image token counts.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tools/check_report.h"

namespace rorqual::tools {

struct CheckTextOptions {
  std::string kind;  // encoding | encoder-ext | tokenizer | parsing | image-tokens
  std::vector<std::string> files;
  std::string tokenizer;  // path of tokenizer.json; needed by encoding, tokenizer, parsing
};

/// One case per vector. Errors: invalid_argument for an unknown kind or missing tokenizer; io and
/// corrupt_data for files.
Status check_text(const CheckTextOptions& options, CheckReport& report);

}  // namespace rorqual::tools
