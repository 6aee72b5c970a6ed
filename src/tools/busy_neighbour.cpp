// SPDX-License-Identifier: Apache-2.0
#include "tools/busy_neighbour.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace rorqual::tools {
namespace {

/// Never returns. Ends with the process that made it, however that one ends.
[[noreturn]] void burn() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::raise(SIGSTOP);
  for (;;) __asm__ volatile("" ::: "memory");
}

}  // namespace

Status BusyNeighbours::start(int count) {
  for (int i = 0; i < count; ++i) {
    const pid_t child = ::fork();
    if (child == 0) burn();
    if (child < 0)
      return Error(Code::io, fmt::format("cannot start a competing process: {}", std::strerror(errno)));
    processes_.push_back(child);
    int state = 0;
    ::waitpid(child, &state, WUNTRACED);
  }
  return Ok();
}

BusyNeighbours::~BusyNeighbours() {
  for (const pid_t process : processes_) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
}

void BusyNeighbours::resume() const {
  for (const pid_t process : processes_) ::kill(process, SIGCONT);
}

void BusyNeighbours::pause() const {
  for (const pid_t process : processes_) {
    int state = 0;
    ::kill(process, SIGSTOP);
    ::waitpid(process, &state, WUNTRACED);
  }
}

}  // namespace rorqual::tools
