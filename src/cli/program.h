// SPDX-License-Identifier: Apache-2.0
// One run of the program: command and options from the arguments, errors to standard error, exit code out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/resolve.h"

namespace rorqual::cli {

/// Runs `arguments` (without the program's name); returns the exit code (docs/errors.md). Exceptions pass
/// through.
int run_program(const std::vector<std::string>& arguments, const Environment& environment);

/// Overwrites the values of --api-key and the like with asterisks, where `ps` would show them to everyone.
void hide_keys(int num_arguments, char** arguments);

/// The RORQUAL_* part of the process's environment.
Environment process_environment();

/// Unsupported unless the CPU has what the compiled kernels need; RORQUAL_CPU_ISA=ref runs anywhere.
Status check_cpu(bool has_avx2, bool has_fma, bool has_f16c, std::string_view forced_isa);

/// `error: …` and `  hint: …` lines, or the JSON object of docs/errors.md; `param` is the option, if there is
/// one.
std::string error_text(const Error& error, const std::string& param, bool as_json);

}  // namespace rorqual::cli
