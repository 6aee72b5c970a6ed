// SPDX-License-Identifier: Apache-2.0
// `rorqual doctor`: what this machine gives to the program, how fast it is, and whether the kernels agree
// here.
#pragma once

#include <string>

#include "base/result.h"

namespace rorqual::tools {

struct DoctorOptions {
  bool as_json = false;
  bool measure = true;  // memory, arithmetic, kernels, disk: below ten seconds
  int threads = 0;      // 0 = what this process may use
  std::string disk;     // file or model folder to read; empty = a temporary file in the working folder
};

/// Prints the report to standard output. Errors: gate when the self-test of the kernels fails.
Status run_doctor(const DoctorOptions& options);

}  // namespace rorqual::tools
