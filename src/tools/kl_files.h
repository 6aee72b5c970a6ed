// SPDX-License-Identifier: Apache-2.0
// Files of the kl commands: what can be said about them before anything is computed.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace rorqual::tools {

/// Whether `path`, the value of `option`, can be written: it is no folder, and the folder it stands in is
/// there and may be written to. Errors: invalid_argument, io.
Status check_output(std::string_view option, const std::string& path);

/// Error corrupt_data with the first ill-formed byte: servers and tokenizers would replace it, each its own
/// way.
Status check_utf8(std::string_view what, std::string_view text);

}  // namespace rorqual::tools
