// SPDX-License-Identifier: Apache-2.0
// A tiny "network" over 64-bit words with the data flow of the real model: layers with sliding windows, a
// last layer that writes compressed entries, layers above it that read all of them. Values are hashes, so
// whatever is stale, missing or of another prefix changes every logit after it. Tests only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace rorqual::runtime {

struct FakeNetwork {
  int64_t vocab_size = 61;
  int64_t layers = 3;
  int64_t source = 1;  // layers from this one on read the entries, which are made of its input
  int64_t window = 4;
  uint64_t salt = 0;  // another model

  /// Everything that the next token's row depends on, computed without a cache: the reference.
  struct State {
    int64_t length = 0;
    uint64_t entries = 0;           // sum of all entries
    std::vector<uint64_t> windows;  // [layers][window], by position modulo the window
    uint64_t output = 0;            // of the last row
  };

  static uint64_t mix(uint64_t x) {  // finaliser of splitmix64
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

  static uint64_t embed(int32_t token) { return mix(static_cast<uint64_t>(token) + 1); }

  static uint64_t window_record(int64_t layer, uint64_t x) {
    return mix(x + 0x1000 * (static_cast<uint64_t>(layer) + 1));
  }

  static uint64_t entry(int64_t position, uint64_t x) {
    return mix(x ^ mix(static_cast<uint64_t>(position)));
  }

  /// What a record `distance` positions back adds to a row.
  static uint64_t seen(uint64_t record, int64_t distance) {
    return record * (2 * static_cast<uint64_t>(distance) + 1);
  }

  uint64_t next_layer(int64_t layer, uint64_t x, uint64_t windows, uint64_t entries) const {
    const uint64_t context = layer >= source ? entries : 0;
    return mix(x ^ mix(windows + mix(context + static_cast<uint64_t>(layer))));
  }

  State empty() const {
    State state;
    state.windows.assign(static_cast<size_t>(layers * window), 0);
    return state;
  }

  void push(State& state, int32_t token) const {
    const int64_t p = state.length++;
    uint64_t x = embed(token);
    for (int64_t l = 0; l < layers; ++l) {
      uint64_t* ring = state.windows.data() + l * window;
      ring[p % window] = window_record(l, x);
      if (l == source) state.entries += entry(p, x);
      uint64_t sum = 0;
      for (int64_t q = std::max<int64_t>(p - window + 1, 0); q <= p; ++q)
        sum += seen(ring[q % window], p - q);
      x = next_layer(l, x, sum, state.entries);
    }
    state.output = x;
  }

  State after(std::span<const int32_t> prefix) const {
    State state = empty();
    for (const int32_t token : prefix) push(state, token);
    return state;
  }

  /// [-4, 4)
  float logit(uint64_t output, int64_t id) const {
    const auto bits = static_cast<int32_t>(mix(output ^ salt ^ (static_cast<uint64_t>(id) << 40)) >> 48);
    return static_cast<float>(bits - 32768) * 0x1p-13f;
  }

  void write_logits(uint64_t output, std::span<float> row) const {
    for (size_t i = 0; i < row.size(); ++i) row[i] = logit(output, static_cast<int64_t>(i));
  }

  int32_t best(uint64_t output) const {
    int32_t best = 0;
    for (int32_t i = 1; i < vocab_size; ++i) {
      if (logit(output, i) > logit(output, best)) best = i;
    }
    return best;
  }

  /// Rows before a target whose window record of `layer` is needed (docs/numerics.md).
  int64_t rows_needed(int64_t layer) const { return 1 + (window - 1) * (layers - layer); }
};

}  // namespace rorqual::runtime
