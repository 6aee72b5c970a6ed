// SPDX-License-Identifier: Apache-2.0
// Identifiers need to be unlikely to collide, not secret.
#include "server/ids.h"

#include <algorithm>
#include <cctype>
#include <random>

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

bool is_plain_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

std::string tool_call_id(int32_t call_index) {
  const std::string number = std::to_string(call_index % 100);
  return "call_" + std::string(2 - number.size(), '0') + number + "_" +
         draw("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", 24);
}

}  // namespace rorqual::server
