// SPDX-License-Identifier: Apache-2.0
#include "server/connection_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace rorqual::server {

namespace {

constexpr rlim_t kReservedFiles = 64;

}  // namespace

size_t connection_limit(size_t wanted) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return wanted;
  if (files.rlim_cur < wanted + kReservedFiles && files.rlim_max > files.rlim_cur) {
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, wanted + kReservedFiles);
    setrlimit(RLIMIT_NOFILE, &files);
  }
  const rlim_t usable = files.rlim_cur > kReservedFiles ? files.rlim_cur - kReservedFiles : 1;
  return static_cast<size_t>(std::min<rlim_t>(wanted, usable));
}

}  // namespace rorqual::server
