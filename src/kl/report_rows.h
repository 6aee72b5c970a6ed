// SPDX-License-Identifier: Apache-2.0
// What the report computes from the positions of a comparison: bins over the window and over sizes, the worst
// positions, tokens in their context. Only kl_report uses it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kl/compare.h"
#include "kl/dump.h"
#include "text/tokenizer.h"

namespace rorqual::kl {

/// Where a row of a dump lies.
struct RowPlace {
  int64_t window = 0;
  int64_t position = 0;  // in the window
};

RowPlace place_of(const Dump& dump, int64_t row);

/// First scored position of a window.
int64_t first_scored_of(const Dump& dump, int64_t window);

/// Equal bins over positions; a mean without values is NaN.
struct PositionBins {
  std::vector<double> edges;                   // [bins + 1]
  std::vector<double> mean;                    // [bins] mean KL
  std::vector<double> low, high;               // [bins] mean -/+ 1.96 standard errors
  std::vector<std::vector<double>> by_window;  // [windows][bins] mean KL
};

PositionBins bin_by_position(const Dump& dump, std::span<const double> kl, int64_t num_bins);

/// Counts on a logarithmic axis, four bins a decade.
struct KlHistogram {
  std::vector<double> edges;   // [bins + 1], nats; empty if every value is below kSmallestKl
  std::vector<double> counts;  // [bins]
  int64_t below = 0;           // positions below kSmallestKl, zero and negative ones among them
};

inline constexpr double kSmallestKl = 1e-8;

KlHistogram histogram_of(std::span<const double> kl);

/// 95 % interval of one window's mean from the spread of its positions, taken as independent.
Interval window_interval(const Dump& dump, std::span<const double> kl, int64_t window);

/// Rows by KL descending, then by number.
std::vector<int64_t> worst_rows(std::span<const double> kl, int64_t at_most);

/// Tokens around a row as far as the dump knows them: all of the window where it holds the windows' ids, else
/// only the scored ones.
struct TokenContext {
  std::vector<int32_t> before, after;
};

TokenContext context_of(const Dump& dump, int64_t row, int64_t num_before, int64_t num_after);

/// HTML of tokens one after the other: their text with signs, or "#id" with blanks without a tokenizer.
std::string tokens_html(const text::Tokenizer* tokenizer, std::span<const int32_t> ids);

/// The articles of the worst positions: context, the actual token, both best lists side by side.
std::string worst_html(const Dump& reference, const Dump& candidate, const Comparison& comparison,
                       const text::Tokenizer* tokenizer, std::span<const int64_t> rows);

}  // namespace rorqual::kl
