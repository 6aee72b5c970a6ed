// SPDX-License-Identifier: Apache-2.0
// Input of the text commands: an argument, a file or standard input; and the tokenizer they use.
#pragma once

#include <string>

#include "base/result.h"
#include "text/tokenizer.h"

namespace rorqual::tools {

struct TextInput {
  std::string text;       // used if has_text
  bool has_text = false;  // given as an argument
  std::string file;       // else this file; empty or "-" = standard input
};

/// Errors: not_found, io; corrupt_data beyond 256 MiB.
Result<std::string> read_input(const TextInput& input);

/// `path` is a tokenizer.json, a model folder that holds one, or empty for the embedded model's.
/// Errors: not_found, corrupt_data.
Result<text::Tokenizer> load_tokenizer(const std::string& path);

}  // namespace rorqual::tools
