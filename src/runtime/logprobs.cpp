// SPDX-License-Identifier: Apache-2.0
// Log-softmax and ranks over one row of the vocabulary.
#include "runtime/logprobs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <string>

#include "base/check.h"
#include "runtime/exp_log.h"

namespace rorqual::runtime {

namespace {

constexpr size_t kChains = 16;

float at(std::span<const float> row, int32_t id) {
  return row[static_cast<size_t>(id)];
}

/// Strict order "a is better than b".
struct Better {
  std::span<const float> logits;

  bool operator()(int32_t a, int32_t b) const {
    const float x = at(logits, a);
    const float y = at(logits, b);
    return x > y || (x == y && a < b);
  }
};

int32_t rank_of(std::span<const float> logits, int32_t id) {
  const float value = at(logits, id);
  const auto split = static_cast<size_t>(id);
  int32_t better = 0;
  for (size_t i = 0; i < split; ++i) better += logits[i] >= value ? 1 : 0;
  for (size_t i = split + 1; i < logits.size(); ++i) better += logits[i] > value ? 1 : 0;
  return better + 1;
}

}  // namespace

bool is_finite_row(std::span<const float> logits) {
  uint32_t bad = 0;
  for (const float value : logits)
    bad |= (std::bit_cast<uint32_t>(value) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  return bad == 0;
}

Error not_finite(int64_t position) {
  return Error(
      Code::internal,
      "the model gave a logit that is not finite for the token at position " + std::to_string(position),
      "check the checkpoint with 'rorqual inspect --verify' and the program with 'rorqual doctor'");
}

double log_sum_exp(std::span<const float> logits) {
  const double max = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  std::array<double, kChains> chain{};
  size_t i = 0;
  for (; i + kChains <= logits.size(); i += kChains) {
    for (size_t j = 0; j < kChains; ++j)
      chain[j] += exp_nonpositive(static_cast<double>(logits[i + j]) - max);
  }
  for (size_t j = 0; i + j < logits.size(); ++j) {
    chain[j] += exp_nonpositive(static_cast<double>(logits[i + j]) - max);
  }
  for (size_t half = kChains / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) chain[j] += chain[j + half];
  }
  return max + log_positive(chain[0]);
}

std::vector<int32_t> best_ids(std::span<const float> logits, int64_t k) {
  RORQUAL_CHECK(k >= 0 && k <= static_cast<int64_t>(logits.size()));
  const Better better{logits};
  const auto count = static_cast<size_t>(k);
  std::vector<int32_t> ids(count);
  if (count == 0) return ids;
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(i);
  if (count < logits.size()) {
    // A heap with the worst kept id on top: later ids are worse at equal logits, so only a larger logit
    // replaces it.
    std::make_heap(ids.begin(), ids.end(), better);
    float worst = at(logits, ids.front());
    for (size_t i = count; i < logits.size(); ++i) {
      if (!(logits[i] > worst)) continue;
      std::pop_heap(ids.begin(), ids.end(), better);
      ids.back() = static_cast<int32_t>(i);
      std::push_heap(ids.begin(), ids.end(), better);
      worst = at(logits, ids.front());
    }
  }
  std::sort(ids.begin(), ids.end(), better);
  return ids;
}

PositionLogprobs position_logprobs(std::span<const float> logits, const LogprobRequest& request) {
  const double normalizer = log_sum_exp(logits);
  const auto entry = [&](int32_t id, int32_t rank) {
    return TokenLogprob{id, static_cast<float>(static_cast<double>(at(logits, id)) - normalizer), rank};
  };
  PositionLogprobs out;
  const auto size = static_cast<int64_t>(logits.size());
  const std::vector<int32_t> best = best_ids(logits, std::min(request.top_k, size));
  std::vector<int32_t> others(request.additional_ids.begin(), request.additional_ids.end());
  std::sort(others.begin(), others.end());
  others.erase(std::unique(others.begin(), others.end()), others.end());
  std::erase_if(others, [&](int32_t id) {
    return id < 0 || id >= size || std::find(best.begin(), best.end(), id) != best.end();
  });
  std::sort(others.begin(), others.end(), Better{logits});
  out.top.reserve(best.size() + others.size());
  for (size_t i = 0; i < best.size(); ++i) out.top.push_back(entry(best[i], static_cast<int32_t>(i) + 1));
  for (const int32_t id : others) out.top.push_back(entry(id, rank_of(logits, id)));
  out.chosen = entry(request.chosen, rank_of(logits, request.chosen));
  return out;
}

}  // namespace rorqual::runtime
