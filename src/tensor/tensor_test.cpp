// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tensor/buffer.h"
#include "tensor/collective.h"
#include "tensor/dtype.h"

namespace rorqual::tensor {
namespace {

TEST(DType, names_and_sizes_are_those_of_safetensors) {
  const std::array<std::pair<const char*, int64_t>, 12> expected = {{{"F32", 4},
                                                                     {"F16", 2},
                                                                     {"BF16", 2},
                                                                     {"F8_E4M3", 1},
                                                                     {"F8_E5M2", 1},
                                                                     {"F8_E8M0", 1},
                                                                     {"I8", 1},
                                                                     {"U8", 1},
                                                                     {"I16", 2},
                                                                     {"I32", 4},
                                                                     {"I64", 8},
                                                                     {"BOOL", 1}}};
  for (const auto& [name, bytes] : expected) {
    const auto dtype = dtype_from_name(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(dtype_name(*dtype), name);
    EXPECT_EQ(dtype_bytes(*dtype), bytes) << name;
  }
  EXPECT_FALSE(dtype_from_name("F64X").has_value());
  EXPECT_FALSE(dtype_from_name("").has_value());
}

TEST(Buffer, is_zeroed_aligned_and_moves_without_copying) {
  for (const int64_t size : {int64_t{1}, int64_t{4097}, (int64_t{4} << 20) + 5}) {
    auto made = Buffer::allocate(size);
    ASSERT_TRUE(made.ok());
    Buffer buffer = *std::move(made);
    EXPECT_EQ(buffer.size_bytes(), size);
    EXPECT_EQ(buffer.kind(), MemoryKind::host);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    for (int64_t i = 0; i < size; i += 509) ASSERT_EQ(buffer.data()[i], std::byte{0});
    buffer.data()[size - 1] = std::byte{7};
    const std::byte* before = buffer.data();
    const Buffer moved = std::move(buffer);
    EXPECT_EQ(moved.data(), before);
    EXPECT_EQ(moved.data()[size - 1], std::byte{7});
  }
}

TEST(Buffer, of_two_mebibytes_starts_on_a_huge_page) {
  const auto made = Buffer::allocate(int64_t{2} << 20);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(made->data()) % (uintptr_t{2} << 20), 0u);
}

TEST(Buffer, refuses_what_it_cannot_give) {
  const auto huge = Buffer::allocate(INT64_MAX - 1);
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().code(), Code::out_of_memory);
  const auto device = Buffer::allocate(64, MemoryKind::device);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().code(), Code::unsupported);
}

TEST(Collective, of_one_rank_keeps_the_values) {
  const auto collective = single_rank();
  EXPECT_EQ(collective->shard().rank, 0);
  EXPECT_EQ(collective->shard().world, 1);
  std::vector<float> values = {1.5f, -2.0f};
  ASSERT_TRUE(collective->sum(values).ok());
  EXPECT_EQ(values, (std::vector<float>{1.5f, -2.0f}));
  std::vector<float> all(2);
  ASSERT_TRUE(collective->gather(values, all).ok());
  EXPECT_EQ(all, values);
  std::vector<float> wrong(3);
  EXPECT_FALSE(collective->gather(values, wrong).ok());
}

}  // namespace
}  // namespace rorqual::tensor
