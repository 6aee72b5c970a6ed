// SPDX-License-Identifier: Apache-2.0
// A server of this program's own as a child process, for commands that measure a model through HTTP.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace rorqual::tools {

/// `rorqual serve` on a free port. Ends with this object, and with this process.
class LoadServer {
 public:
  /// `arguments` follow "serve"; address, port and log are set here. RORQUAL_* variables but RORQUAL_CPU_ISA
  /// are not passed on. Blocks until the server is ready. Errors: unavailable with the server's own error.
  static Result<std::unique_ptr<LoadServer>> start(const std::vector<std::string>& arguments);
  ~LoadServer();  // SIGTERM, then waits

  const std::string& url() const;

 private:
  struct Impl;
  explicit LoadServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rorqual::tools
