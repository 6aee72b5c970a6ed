// SPDX-License-Identifier: Apache-2.0
#include "kernels/scratch.h"

#include <gtest/gtest.h>

#include <cstring>

namespace rorqual::kernels {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// A step that takes `count` blocks of 8 MiB, one inside the other.
void run_step(Scratch& scratch, int count) {
  const Scratch::Frame frame(scratch);
  std::byte* before = nullptr;
  for (int i = 0; i < count; ++i) {
    auto* block = scratch.alloc<std::byte>(8 * kMiB);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
    EXPECT_NE(block, before);
    std::memset(block, i, 64);
    before = block;
  }
}

TEST(Scratch, reserved_space_holds_steps_of_any_size_without_another_chunk) {
  Scratch scratch;
  ASSERT_TRUE(scratch.reserve(64 * kMiB).ok());
  for (const int count : {1, 3, 2, 8, 5}) run_step(scratch, count);
  EXPECT_EQ(scratch.reserved_bytes(), 64 * kMiB);
}

TEST(Scratch, without_a_reserve_it_grows_as_needed_and_keeps_what_it_has) {
  Scratch scratch;
  run_step(scratch, 2);
  const int64_t after_first = scratch.reserved_bytes();
  EXPECT_GE(after_first, 16 * kMiB);
  run_step(scratch, 2);
  EXPECT_EQ(scratch.reserved_bytes(), after_first);
}

TEST(Scratch, a_reserve_that_is_too_small_is_not_the_end) {
  Scratch scratch;
  ASSERT_TRUE(scratch.reserve(8 * kMiB).ok());
  run_step(scratch, 3);
  EXPECT_GE(scratch.reserved_bytes(), 24 * kMiB);
}

TEST(Scratch, frames_give_back_what_was_taken_inside) {
  Scratch scratch;
  ASSERT_TRUE(scratch.reserve(16 * kMiB).ok());
  auto* outer = scratch.alloc<float>(16);
  float* inner = nullptr;
  {
    const Scratch::Frame frame(scratch);
    inner = scratch.alloc<float>(16);
  }
  EXPECT_NE(outer, inner);
  EXPECT_EQ(scratch.alloc<float>(16), inner);
}

TEST(Scratch, nothing_to_reserve_reserves_nothing_and_too_much_is_an_error) {
  Scratch none;
  ASSERT_TRUE(none.reserve(0).ok());
  EXPECT_EQ(none.reserved_bytes(), 0);
  Scratch huge;
  const Status status = huge.reserve(INT64_MAX - 1);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), Code::out_of_memory);
}

}  // namespace
}  // namespace rorqual::kernels
