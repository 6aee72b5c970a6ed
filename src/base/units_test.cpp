// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <gtest/gtest.h>

#include "base/checked.h"
#include "base/sha256.h"

namespace rorqual {
namespace {

TEST(Units, writes_sizes_with_one_decimal) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(1048575), "1.0 MiB");  // never "1024.0 KiB"
  EXPECT_EQ(format_bytes(13314398618), "12.4 GiB");
  EXPECT_EQ(format_bytes(510286023000), "475.2 GiB");
  EXPECT_EQ(format_bytes(INT64_MAX), "8192.0 PiB");
}

TEST(Units, groups_digits) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(96085), "96,085");
  EXPECT_EQ(format_count(510286023000), "510,286,023,000");
  EXPECT_EQ(format_count(-1234), "-1,234");
  EXPECT_EQ(format_count(-123), "-123");
}

TEST(Units, reads_counts_with_decimal_and_binary_suffixes) {
  const struct {
    const char* text;
    int64_t value;
  } cases[] = {{"0", 0},
               {"131072", 131072},
               {"1k", 1000},
               {"1K", 1024},
               {"25.6k", 25600},
               {"256K", 262144},
               {"1M", 1048576},
               {"1m", 1000000},
               {"2G", int64_t{2} << 30},
               {"1.5g", 1500000000},
               {"1T", int64_t{1} << 40},
               {"9223372036854775807", INT64_MAX},
               {"0.5k", 500}};

  for (const auto& [text, value] : cases) {
    const auto parsed = parse_count(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.error().message();
    EXPECT_EQ(*parsed, value) << text;
  }
}

TEST(Units, refuses_what_is_not_a_count) {
  for (const char* text :
       {"", "-1", "+1", "k", "1.5", "1.5K", "1.", ".5k", "1kk", "1 k", "1KB", "1x", "0x10", "1e3",
        "9223372036854775808", "9007199254740992K", "99999999T", "1.0001k", "1.00000000000000000000k"}) {
    const auto parsed = parse_count(text);
    EXPECT_FALSE(parsed.ok()) << text;
    if (parsed.ok()) continue;
    EXPECT_EQ(parsed.error().code(), Code::invalid_argument) << text;
    EXPECT_NE(parsed.error().hint(), "") << text;
  }
}

TEST(Checked, answers_instead_of_overflowing) {
  EXPECT_EQ(mul_checked(int64_t{1} << 31, int64_t{1} << 31), int64_t{1} << 62);
  EXPECT_EQ(mul_checked(int64_t{1} << 32, int64_t{1} << 31), std::nullopt);
  EXPECT_EQ(add_checked(INT64_MAX, 1), std::nullopt);
  EXPECT_EQ(add_checked(INT64_MAX, 0), INT64_MAX);
  const int64_t shape[] = {3, 4, 5};
  EXPECT_EQ(product_checked(shape), 60);
  EXPECT_EQ(product_checked({}), 1);
  const int64_t negative[] = {3, -4};
  EXPECT_EQ(product_checked(negative), std::nullopt);
  const int64_t huge[] = {int64_t{1} << 32, int64_t{1} << 32, 0};
  EXPECT_EQ(product_checked(huge), std::nullopt);
}

TEST(Sha256, gives_the_published_digests) {
  const std::string abc = "abc";
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(std::as_bytes(std::span(abc))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 parts;
  parts.update(std::as_bytes(std::span(abc).first(1)));
  parts.update(std::as_bytes(std::span(abc).subspan(1)));
  EXPECT_EQ(parts.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of_file("/nowhere/x").error().code(), Code::not_found);
}

}  // namespace
}  // namespace rorqual
