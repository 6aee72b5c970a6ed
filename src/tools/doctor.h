// SPDX-License-Identifier: Apache-2.0
// `rorqual doctor`: what this machine gives to the program, how fast it is, and whether the kernels agree
// here.
#pragma once

#include "base/result.h"

namespace rorqual::tools {

struct DoctorOptions {
  bool as_json = false;
  bool measure = true;  // read bandwidth and multiply-add rate, about two seconds
  int threads = 0;      // 0 = what this process may use
};

/// Prints the report to standard output. Errors: gate when the self-test of the kernels fails.
Status run_doctor(const DoctorOptions& options);

}  // namespace rorqual::tools
