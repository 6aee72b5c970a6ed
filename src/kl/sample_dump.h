// SPDX-License-Identifier: Apache-2.0
// Made-up captures for the tests of this folder: consistent in every respect that the reader checks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kl/dump.h"

namespace rorqual::kl::sample {

/// Raw logits of all rows: normal with deviation 3.
inline std::vector<std::vector<float>> random_logits(uint32_t seed, int64_t rows, int64_t vocab) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<std::vector<float>> logits(static_cast<size_t>(rows));
  for (auto& row : logits) {
    row.resize(static_cast<size_t>(vocab));
    for (auto& x : row) x = normal(random);
  }
  return logits;
}

/// The same rows with normal noise of deviation `noise`.
inline std::vector<std::vector<float>> with_noise(std::vector<std::vector<float>> logits, uint32_t seed,
                                                  float noise) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  for (auto& row : logits) {
    for (auto& x : row) x += noise * normal(random);
  }
  return logits;
}

/// Scored tokens that depend on the seed only.
inline std::vector<int32_t> random_tokens(uint32_t seed, int64_t rows, int64_t vocab) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  for (auto& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  return tokens;
}

inline void set_shape(Dump& dump, const std::vector<int64_t>& window_rows, int64_t k, int64_t vocab) {
  dump.window_rows = {0};
  for (const int64_t rows : window_rows) dump.window_rows.push_back(dump.window_rows.back() + rows);
  dump.info.model = "model";
  dump.info.corpus = "neutral";
  dump.info.num_windows = static_cast<int64_t>(window_rows.size());
  dump.info.top_k = k;
  dump.info.vocab_size = vocab;
  dump.info.scored_positions = dump.window_rows.back();
  if (std::all_of(window_rows.begin(), window_rows.end(), [&](int64_t n) { return n == window_rows[0]; })) {
    dump.info.context = 2 * window_rows[0];
    dump.info.first_scored = window_rows[0];
  }
}

/// The capture of these logits.
inline Dump dump_of(const std::vector<std::vector<float>>& logits, const std::vector<int32_t>& tokens,
                    const std::vector<int64_t>& window_rows, int64_t k) {
  Dump dump;
  set_shape(dump, window_rows, k, static_cast<int64_t>(logits[0].size()));
  dump.token = tokens;
  for (size_t row = 0; row < logits.size(); ++row) {
    double sum = 0;
    for (const float x : logits[row]) sum += std::exp(static_cast<double>(x));
    std::vector<std::pair<float, int32_t>> order;
    for (size_t id = 0; id < logits[row].size(); ++id) {
      order.emplace_back(static_cast<float>(static_cast<double>(logits[row][id]) - std::log(sum)),
                         static_cast<int32_t>(id));
    }
    dump.token_logprob.push_back(order[static_cast<size_t>(tokens[row])].first);
    std::sort(order.rbegin(), order.rend());
    for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
      dump.top_logprobs.push_back(order[i].first);
      dump.top_ids.push_back(order[i].second);
    }
  }
  return dump;
}

inline Dump random_dump(uint32_t seed, const std::vector<int64_t>& window_rows, int64_t k, int64_t vocab) {
  int64_t rows = 0;
  for (const int64_t n : window_rows) rows += n;
  return dump_of(random_logits(seed, rows, vocab), random_tokens(seed + 1, rows, vocab), window_rows, k);
}

}  // namespace rorqual::kl::sample
