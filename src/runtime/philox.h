// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3" (SC11), and the one uniform number that draws the token at a position.
#pragma once

#include <array>
#include <cstdint>

namespace rorqual::runtime {

/// Ten rounds on `counter` under `key`.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product_0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product_1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product_1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product_1),
               static_cast<uint32_t>(product_0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product_0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// The uniform number in [0, 1) of the token at absolute `position` (prompt included, from 0) of a choice.
///
/// key = (low, high word of seed); counter = (low, high word of position, choice_index, 0). From the output
/// words x0, x1 the 53 upper bits of x1 * 2^32 + x0 are the fraction.
constexpr double position_uniform(uint64_t seed, uint32_t choice_index, int64_t position) {
  const auto p = static_cast<uint64_t>(position);
  const auto x = philox4x32({static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), choice_index, 0},
                            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{x[1]} << 32 | x[0]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace rorqual::runtime
