// SPDX-License-Identifier: Apache-2.0
#include "model/engram_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "model/config_check.h"

namespace rorqual::model {
namespace {

__extension__ using Uint128 = unsigned __int128;

constexpr int64_t kMaxSlots = 64;  // Engram layers that a full model may have
constexpr int64_t kSeedFactor = 10007;

uint64_t mul_mod(uint64_t a, uint64_t b, uint64_t modulus) {
  return static_cast<uint64_t>(Uint128{a} * b % modulus);
}

uint64_t pow_mod(uint64_t base, uint64_t exponent, uint64_t modulus) {
  uint64_t result = 1;
  base %= modulus;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = mul_mod(result, base, modulus);
    base = mul_mod(base, base, modulus);
  }
  return result;
}

/// numpy's SeedSequence for one non-negative integer, 4-word pool: the state words of its bit generators.
class SeedSequence {
 public:
  explicit SeedSequence(uint64_t entropy) {
    const std::array<uint32_t, 2> words = {static_cast<uint32_t>(entropy),
                                           static_cast<uint32_t>(entropy >> 32)};
    uint32_t constant = 0x43b0d7e5;
    for (size_t i = 0; i < pool_.size(); ++i)
      pool_[i] = hash(i < words.size() ? words[i] : 0, constant, 0x931e8875);
    for (size_t src = 0; src < pool_.size(); ++src) {
      for (size_t dst = 0; dst < pool_.size(); ++dst) {
        if (src != dst) pool_[dst] = mix(pool_[dst], hash(pool_[src], constant, 0x931e8875));
      }
    }
  }

  std::array<uint64_t, 4> state() const {
    std::array<uint32_t, 8> words{};
    uint32_t constant = 0x8b51f9dd;
    for (size_t i = 0; i < words.size(); ++i) words[i] = hash(pool_[i % pool_.size()], constant, 0x58f38ded);
    std::array<uint64_t, 4> out{};
    for (size_t i = 0; i < out.size(); ++i) out[i] = words[2 * i] | (uint64_t{words[2 * i + 1]} << 32);
    return out;
  }

 private:
  static uint32_t hash(uint32_t value, uint32_t& constant, uint32_t multiplier) {
    value ^= constant;
    constant *= multiplier;
    value *= constant;
    return value ^ (value >> 16);
  }

  static uint32_t mix(uint32_t a, uint32_t b) {
    const uint32_t value = a * 0xca01f9dd - b * 0x4973f715;
    return value ^ (value >> 16);
  }

  std::array<uint32_t, 4> pool_{};
};

/// PCG XSL-RR 128/64, seeded as numpy's PCG64.
class Pcg64 {
 public:
  explicit Pcg64(const std::array<uint64_t, 4>& seed)
      : increment_((((Uint128{seed[2]} << 64) | seed[3]) << 1) | 1) {
    step();
    state_ += (Uint128{seed[0]} << 64) | seed[1];
    step();
  }

  uint64_t next() {
    step();
    const auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const auto rotation = static_cast<unsigned>(state_ >> 122);
    return (folded >> rotation) | (folded << ((64 - rotation) & 63));
  }

  /// Uniform in [0, bound) by Lemire's method; bound > 2^32 (numpy draws smaller ones otherwise).
  uint64_t next_below(uint64_t bound) {
    Uint128 product = Uint128{next()} * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold) product = Uint128{next()} * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  void step() {
    constexpr Uint128 kMultiplier = (Uint128{0x2360ed051fc65da4} << 64) | 0x4385df649fccf645;
    state_ = state_ * kMultiplier + increment_;
  }

  Uint128 state_ = 0;
  Uint128 increment_;
};

int64_t row_count(const std::vector<int64_t>& primes) {
  return std::accumulate(primes.begin(), primes.end(), int64_t{0});
}

}  // namespace

bool is_prime(uint64_t value) {
  // These bases decide every value below 2^64 (Sorenson and Webster 2015).
  constexpr std::array<uint64_t, 12> kBases = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
  if (value < 2) return false;
  for (const uint64_t prime : kBases) {
    if (value % prime == 0) return value == prime;
  }
  const int shift = __builtin_ctzll(value - 1);
  const uint64_t odd = (value - 1) >> shift;
  return std::all_of(kBases.begin(), kBases.end(), [&](uint64_t base) {
    uint64_t power = pow_mod(base, odd, value);
    if (power == 1 || power == value - 1) return true;
    for (int i = 1; i < shift; ++i) {
      power = mul_mod(power, power, value);
      if (power == value - 1) return true;
    }
    return false;
  });
}

std::vector<std::vector<int64_t>> prime_layout(int64_t num_slots, int64_t columns, int64_t search_start) {
  RORQUAL_CHECK(num_slots >= 0 && columns >= 0 && search_start >= 0 && search_start <= (int64_t{1} << 40));
  std::vector<std::vector<int64_t>> layout(static_cast<size_t>(num_slots));
  // Each n-gram size restarts at search_start but skips used primes; as used ones are exactly those seen so
  // far, this is one run.
  int64_t candidate = search_start;
  for (auto& primes : layout) {
    while (static_cast<int64_t>(primes.size()) < columns) {
      if (is_prime(static_cast<uint64_t>(candidate))) primes.push_back(candidate);
      ++candidate;
    }
  }
  return layout;
}

std::vector<int64_t> hash_multipliers(int64_t layer_id, int64_t count, int64_t compressed_vocab) {
  RORQUAL_CHECK(layer_id >= 0 && compressed_vocab >= 1 && compressed_vocab < (int64_t{1} << 30));
  const int64_t bound = std::numeric_limits<int64_t>::max() / compressed_vocab / 2;
  Pcg64 generator(SeedSequence(static_cast<uint64_t>(kSeedFactor * layer_id)).state());
  std::vector<int64_t> multipliers;
  for (int64_t i = 0; i < count; ++i) {
    multipliers.push_back(static_cast<int64_t>(generator.next_below(static_cast<uint64_t>(bound))) * 2 + 1);
  }
  return multipliers;
}

Result<std::vector<std::vector<int64_t>>> engram_primes(const Config& config) {
  const size_t num_layers = config.engram_layer_ids.size();
  const bool is_slice = !config.layer_origin.empty();
  const auto layout = prime_layout(is_slice ? kMaxSlots : static_cast<int64_t>(num_layers),
                                   config.engram_columns(), config.engram_vocab_size);
  std::vector<std::vector<int64_t>> primes;
  size_t slot = 0;
  for (size_t i = 0; i < num_layers; ++i) {
    const int64_t rows = config.engram_num_embeddings[i];
    while (is_slice && slot < layout.size() && row_count(layout[slot]) < rows) ++slot;
    if (slot >= layout.size() || row_count(layout[slot]) != rows) {
      const std::string expected = slot < layout.size() && !is_slice
                                       ? fmt::format("{}", row_count(layout[slot]))
                                       : "a sum of its bucket primes";
      return Error(Code::corrupt_data,
                   fmt::format("config.json: engram_num_embeddings[{}] is {}, expected {} (from "
                               "engram_vocab_size {}, {} columns)",
                               i, rows, expected, config.engram_vocab_size, config.engram_columns()),
                   kConfigHint);
    }
    primes.push_back(layout[slot++]);
  }
  return primes;
}

Result<NgramHasher> NgramHasher::create(const Config& config, std::span<const int32_t> token_map) {
  if (static_cast<int64_t>(token_map.size()) < config.vocab_size) {
    return Error(
        Code::corrupt_data,
        fmt::format("the tokenizer has {} tokens, config.json says {}", token_map.size(), config.vocab_size),
        "tokenizer.json and config.json are from different models");
  }
  int64_t num_compressed = 0;
  for (const int32_t id : token_map) {
    RORQUAL_CHECK(id >= 0);
    num_compressed = std::max<int64_t>(num_compressed, int64_t{id} + 1);
  }
  if (num_compressed != config.engram_compressed_vocab_size) {
    return Error(Code::corrupt_data,
                 fmt::format("the tokenizer compresses to {} n-gram ids, config.json says {}", num_compressed,
                             config.engram_compressed_vocab_size),
                 "tokenizer.json and config.json are from different models");
  }
  RORQUAL_TRY_ASSIGN(const auto primes, engram_primes(config));
  NgramHasher hasher;
  hasher.columns_ = config.engram_columns();
  hasher.heads_ = config.engram_n_heads;
  hasher.max_ngram_ = config.engram_max_ngram_size;
  hasher.pad_ = token_map[static_cast<size_t>(config.engram_pad_token_id)];
  for (size_t i = 0; i < primes.size(); ++i) {
    const int64_t id = config.engram_layer_ids[i];
    const int64_t original_id =
        config.layer_origin.empty() ? id : config.layer_origin[static_cast<size_t>(id)];
    Layer layer;
    layer.multipliers = hash_multipliers(original_id, hasher.max_ngram_, config.engram_compressed_vocab_size);
    layer.primes = primes[i];
    layer.offsets.resize(primes[i].size());
    std::exclusive_scan(primes[i].begin(), primes[i].end(), layer.offsets.begin(), int64_t{0});
    hasher.layers_.push_back(std::move(layer));
  }
  return hasher;
}

void NgramHasher::hash(std::span<const int32_t> history, int64_t start, int64_t count, int64_t* rows) const {
  RORQUAL_CHECK(start >= 0 && count >= 0 && start + count <= static_cast<int64_t>(history.size()));
  std::vector<int64_t> tokens(static_cast<size_t>(max_ngram_));
  for (int64_t position = start; position < start + count; ++position) {
    bool is_blocked = false;  // stays set: beyond a gap everything older is padding
    for (int64_t back = 0; back < max_ngram_; ++back) {
      is_blocked = is_blocked || position < back || history[static_cast<size_t>(position - back)] < 0;
      tokens[static_cast<size_t>(back)] = is_blocked ? pad_ : history[static_cast<size_t>(position - back)];
    }
    for (const Layer& layer : layers_) {
      int64_t mixed = tokens[0] * layer.multipliers[0];
      size_t column = 0;
      for (size_t back = 1; back < tokens.size(); ++back) {
        mixed ^= tokens[back] * layer.multipliers[back];
        for (int64_t head = 0; head < heads_; ++head, ++column) {
          *rows++ = mixed % layer.primes[column] + layer.offsets[column];
        }
      }
    }
  }
}

}  // namespace rorqual::model
