// SPDX-License-Identifier: Apache-2.0
// The prompt encoder that a checkpoint brings along as a Python file. It is not run; its digest says which
// revision of the chat format the checkpoint was published with.
#pragma once

#include <string>

namespace rorqual::tools {

/// "encoding/encoding.py sha256:<64 digits>" for a model folder with such a file; else "". Of several files,
/// encoding.py, else the first by name.
std::string checkpoint_encoder(const std::string& model_folder);

/// "as published for DeepSeek-V4.1" for a tokenizer of that digest, else "".
std::string published_tokenizer(const std::string& sha256);

}  // namespace rorqual::tools
