// SPDX-License-Identifier: Apache-2.0
// Identifiers need to be unlikely to collide, not secret.
#include "server/ids.h"

#include <random>
#include <string_view>

namespace rorqual::server {

namespace {

std::string draw(std::string_view alphabet, size_t length) {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::uniform_int_distribution<size_t> pick(0, alphabet.size() - 1);
  std::string text(length, ' ');
  for (char& c : text) c = alphabet[pick(generator)];
  return text;
}

}  // namespace

std::string random_hex(size_t length) {
  return draw("0123456789abcdef", length);
}

std::string tool_call_id(int32_t call_index) {
  const std::string number = std::to_string(call_index % 100);
  return "call_" + std::string(2 - number.size(), '0') + number + "_" +
         draw("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", 24);
}

}  // namespace rorqual::server
