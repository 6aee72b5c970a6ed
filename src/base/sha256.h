// SPDX-License-Identifier: Apache-2.0
// SHA-256 of streams: hashes of files and of the program itself.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace rorqual {

/// Feed with update(), then hex() once. One thread.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);

  /// 64 lower-case hex digits; no update() afterwards.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::span<const std::byte> bytes);
Result<std::string> sha256_of_file(const std::string& path);

}  // namespace rorqual
