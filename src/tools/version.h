// SPDX-License-Identifier: Apache-2.0
// `rorqual version`: what the program is, so that every result and bug report can say it.
#pragma once

#include <string>

#include "base/result.h"

namespace rorqual::tools {

/// SHA-256 of the running program file as 64 hex digits. Errors: io.
Result<std::string> program_sha256();

/// The object of `version --json` as text: commit, dirty flag, compiler, flags, libraries, kernel tier, own
/// SHA-256. Result files carry it under "build".
Result<std::string> version_json();

/// Prints to standard output.
Status run_version(bool as_json);

/// "rorqual 0.1.0 (a1b2c3d4e, GNU 12.2.0, kernels avx2)", for banners.
std::string version_line();

}  // namespace rorqual::tools
