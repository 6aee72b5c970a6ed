// SPDX-License-Identifier: Apache-2.0
// Entry of the program: CPU check, signals, and the one place that catches exceptions.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/program.h"

namespace {

int report(const rorqual::Error& error) {
  std::fflush(stdout);
  std::fputs(rorqual::cli::error_text(error, {}, false).c_str(), stderr);
  return rorqual::exit_code(error.code());
}

}  // namespace

int main(int argc, char** argv) {
  using rorqual::Code;
  using rorqual::Error;
  // First of all: nothing before this line may use an instruction that the CPU could lack.
  const char* forced = std::getenv("RORQUAL_CPU_ISA");
  const auto cpu =
      rorqual::cli::check_cpu(__builtin_cpu_supports("avx2") != 0, __builtin_cpu_supports("fma") != 0,
                              __builtin_cpu_supports("f16c") != 0, forced == nullptr ? "" : forced);
  if (!cpu.ok()) return report(cpu.error());
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe or socket is an error value where it is written
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    rorqual::cli::hide_keys(argc, argv);
    return rorqual::cli::run_program(arguments, rorqual::cli::process_environment());
  } catch (const std::bad_alloc&) {
    return report(Error(Code::out_of_memory, "out of memory",
                        "free memory, or lower --max-model-len or --max-num-seqs"));
  } catch (const std::exception& error) {
    return report(Error(Code::internal, std::string("internal error: ") + error.what(),
                        "please report this with the output of `rorqual doctor`"));
  }
}
