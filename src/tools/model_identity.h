// SPDX-License-Identifier: Apache-2.0
// A name for everything that the bytes of cached pages depend on besides the tokens: pages of one identity
// may be reused by any process that has the same one.
#pragma once

#include <string>

#include "tools/open_model.h"

namespace rorqual::tools {

/// 64 hexadecimal digits, of: config.json, the tensor list, samples of the weights (about a thousand, of a
/// few hundred bytes each, so that models of any size take the same short time), numerics, whether drafts are
/// kept, the lossy switches that change cached values, the tokenizer if Engram hashes its texts, and the
/// layout of pages. Weights that differ only between the samples are not told apart; a sample that cannot be
/// read counts as its error.
std::string model_identity(const OpenedSource& opened, const OpenOptions& options);

}  // namespace rorqual::tools
