// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace rorqual {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Known answers of FIPS 180-4's examples.
TEST(Sha256, gives_the_standard_answers) {
  EXPECT_EQ(sha256_hex(bytes_of("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(bytes_of("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, does_not_depend_on_how_the_bytes_are_cut) {
  const std::string text(1000, 'a');
  Sha256 hash;
  for (size_t at = 0; at < text.size(); at += 7) hash.update(bytes_of(text.substr(at, 7)));
  EXPECT_EQ(hash.hex(), sha256_hex(bytes_of(text)));
}

TEST(Sha256, of_a_missing_file_is_not_found) {
  const auto hash = sha256_of_file("/nonexistent/rorqual");
  ASSERT_FALSE(hash.ok());
  EXPECT_EQ(hash.error().code(), Code::not_found);
}

}  // namespace
}  // namespace rorqual
