// SPDX-License-Identifier: Apache-2.0
#include "kl/report_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "report/characters.h"

namespace rorqual::kl {
namespace {

constexpr int kBinsPerDecade = 4;
constexpr int64_t kListed = 10;  // tokens of each best list
constexpr int64_t kTokensBefore = 64, kTokensAfter = 16;

size_t at(int64_t index) {
  return static_cast<size_t>(index);
}

struct Moments {
  double sum = 0, sum_of_squares = 0;
  int64_t count = 0;

  void add(double value) {
    sum += value;
    sum_of_squares += value * value;
    ++count;
  }

  double mean() const {
    return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
  }

  /// 1.96 standard errors of the mean; 0 for fewer than two values.
  double half_width() const {
    if (count < 2) return 0;
    const auto n = static_cast<double>(count);
    const double variance = std::max(0.0, (sum_of_squares - sum * sum / n) / (n - 1));
    return 1.96 * std::sqrt(variance / n);
  }
};

std::string probability(double logprob) {
  if (!std::isfinite(logprob)) return "–";
  const double p = std::exp(logprob);
  return p >= 0.001 ? fmt::format("{:.4f}", p) : fmt::format("{:.1e}", p);
}

bool is_listed(const Dump& dump, int64_t row, int32_t id) {
  const auto first = dump.top_ids.begin() + row * dump.info.top_k;
  const auto last = first + std::min(kListed, dump.info.top_k);
  return std::find(first, last, id) != last;
}

/// Two cells: a token of one list and its probability with a bar.
std::string top_cells(const Dump& dump, const Dump& other, int64_t row, int64_t rank,
                      const text::Tokenizer* tokenizer) {
  const auto index = at(row * dump.info.top_k + rank);
  const float logprob = dump.top_logprobs[index];
  if (!std::isfinite(logprob)) return "<td></td><td></td>";
  const int32_t id = dump.top_ids[index];
  std::string classes;
  if (id == dump.token[at(row)]) classes = " class=\"hit\"";
  if (!is_listed(other, row, id)) classes = classes.empty() ? " class=\"alone\"" : " class=\"hit alone\"";
  const double share = std::exp(static_cast<double>(logprob));
  return fmt::format(
      "<td{}><code title=\"token {}\"><bdi>{}</bdi></code></td><td class=\"p\" style=\"--p:{:.1f}%\">{}</td>",
      classes, id, tokens_html(tokenizer, std::span(&id, 1)), 100 * std::min(1.0, share),
      probability(logprob));
}

std::string top_table(const Dump& reference, const Dump& candidate, int64_t row,
                      const text::Tokenizer* tokenizer) {
  std::string out =
      "<div class=\"scroll\"><table class=\"tops\"><thead><tr><th>rank</th><th>reference</th><th>p</th>"
      "<th>candidate</th><th>p</th></tr></thead><tbody>\n";
  const int64_t ranks = std::min({kListed, reference.info.top_k, candidate.info.top_k});
  for (int64_t rank = 0; rank < ranks; ++rank) {
    out += fmt::format("<tr><td>{}</td>", rank + 1) + top_cells(reference, candidate, row, rank, tokenizer) +
           top_cells(candidate, reference, row, rank, tokenizer) + "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace

int64_t first_scored_of(const Dump& dump, int64_t window) {
  return dump.window_first_scored.empty() ? dump.info.first_scored : dump.window_first_scored[at(window)];
}

RowPlace place_of(const Dump& dump, int64_t row) {
  const auto after = std::upper_bound(dump.window_rows.begin(), dump.window_rows.end(), row);
  RORQUAL_CHECK(after != dump.window_rows.begin() && after != dump.window_rows.end());
  const auto window = after - dump.window_rows.begin() - 1;
  return {window, first_scored_of(dump, window) + row - dump.window_rows[at(window)]};
}

PositionBins bin_by_position(const Dump& dump, std::span<const double> kl, int64_t num_bins) {
  const auto num_windows = static_cast<int64_t>(dump.window_rows.size()) - 1;
  int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
  for (int64_t window = 0; window < num_windows; ++window) {
    const int64_t begin = first_scored_of(dump, window);
    first = std::min(first, begin);
    last = std::max(last, begin + dump.window_rows[at(window + 1)] - dump.window_rows[at(window)]);
  }
  PositionBins bins;
  if (last <= first) return bins;
  num_bins = std::min(num_bins, last - first);
  const auto bin_of = [&](int64_t position) { return (position - first) * num_bins / (last - first); };
  for (int64_t bin = 0; bin <= num_bins; ++bin) {
    bins.edges.push_back(static_cast<double>(first) + static_cast<double>(last - first) *
                                                          static_cast<double>(bin) /
                                                          static_cast<double>(num_bins));
  }
  std::vector<Moments> all(at(num_bins));
  for (int64_t window = 0; window < num_windows; ++window) {
    std::vector<Moments> here(at(num_bins));
    for (int64_t row = dump.window_rows[at(window)]; row < dump.window_rows[at(window + 1)]; ++row) {
      const auto position = first_scored_of(dump, window) + row - dump.window_rows[at(window)];
      all[at(bin_of(position))].add(kl[at(row)]);
      here[at(bin_of(position))].add(kl[at(row)]);
    }
    auto& means = bins.by_window.emplace_back();
    for (const auto& moments : here) means.push_back(moments.mean());
  }
  for (const auto& moments : all) {
    bins.mean.push_back(moments.mean());
    bins.low.push_back(moments.mean() - moments.half_width());
    bins.high.push_back(moments.mean() + moments.half_width());
  }
  return bins;
}

KlHistogram histogram_of(std::span<const double> kl) {
  KlHistogram histogram;
  const int first = static_cast<int>(std::lround(std::log10(kSmallestKl))) * kBinsPerDecade;
  std::vector<double> counts;
  for (const double value : kl) {
    if (!(value >= kSmallestKl)) {
      ++histogram.below;
      continue;
    }
    const auto bin = static_cast<int64_t>(std::floor(std::log10(value) * kBinsPerDecade)) - first;
    const auto index = at(std::max<int64_t>(bin, 0));
    if (index >= counts.size()) counts.resize(index + 1);
    counts[index] += 1;
  }
  const auto filled = std::find_if(counts.begin(), counts.end(), [](double count) { return count > 0; });
  const auto skipped = static_cast<int>(filled - counts.begin());
  histogram.counts.assign(filled, counts.end());
  if (histogram.counts.empty()) return histogram;
  for (size_t edge = 0; edge <= histogram.counts.size(); ++edge) {
    const double exponent = static_cast<double>(first + skipped + static_cast<int>(edge)) / kBinsPerDecade;
    histogram.edges.push_back(std::pow(10.0, exponent));
  }
  return histogram;
}

Interval window_interval(const Dump& dump, std::span<const double> kl, int64_t window) {
  Moments moments;
  for (int64_t row = dump.window_rows[at(window)]; row < dump.window_rows[at(window + 1)]; ++row)
    moments.add(kl[at(row)]);
  return {moments.mean() - moments.half_width(), moments.mean() + moments.half_width()};
}

std::vector<int64_t> worst_rows(std::span<const double> kl, int64_t at_most) {
  std::vector<int64_t> rows(kl.size());
  std::iota(rows.begin(), rows.end(), int64_t{0});
  const auto wanted = std::clamp<int64_t>(at_most, 0, static_cast<int64_t>(rows.size()));
  std::partial_sort(rows.begin(), rows.begin() + wanted, rows.end(), [&](int64_t a, int64_t b) {
    return kl[at(a)] != kl[at(b)] ? kl[at(a)] > kl[at(b)] : a < b;
  });
  rows.resize(at(wanted));
  return rows;
}

TokenContext context_of(const Dump& dump, int64_t row, int64_t num_before, int64_t num_after) {
  const auto [window, position] = place_of(dump, row);
  TokenContext context;
  if (!dump.window_ids.empty()) {
    const int64_t begin = dump.window_begin[at(window)], end = dump.window_begin[at(window + 1)];
    const int64_t here = begin + position;
    const auto ids = dump.window_ids.begin();
    context.before.assign(ids + std::max(begin, here - num_before), ids + here);
    context.after.assign(ids + here + 1, ids + std::min(end, here + 1 + num_after));
  } else {
    const int64_t begin = dump.window_rows[at(window)], end = dump.window_rows[at(window + 1)];
    const auto ids = dump.token.begin();
    context.before.assign(ids + std::max(begin, row - num_before), ids + row);
    context.after.assign(ids + row + 1, ids + std::min(end, row + 1 + num_after));
  }
  return context;
}

std::string tokens_html(const text::Tokenizer* tokenizer, std::span<const int32_t> ids) {
  std::string bytes, out;
  for (const int32_t id : ids) {
    const auto piece = tokenizer == nullptr ? std::string_view() : tokenizer->token_bytes(id);
    if (!piece.empty()) {
      bytes += piece;
      continue;
    }
    out += report::escaped_with_signs(bytes) + fmt::format("<span class=\"sign\">#{} </span>", id);
    bytes.clear();
  }
  return out + report::escaped_with_signs(bytes);
}

std::string worst_html(const Dump& reference, const Dump& candidate, const Comparison& comparison,
                       const text::Tokenizer* tokenizer, std::span<const int64_t> rows) {
  constexpr size_t kOpen = 3;  // the first ones are unfolded
  std::string out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t row = rows[i];
    const auto [window, position] = place_of(reference, row);
    const int32_t token = reference.token[at(row)];
    const auto actual = tokens_html(tokenizer, std::span(&token, 1));
    const auto context =
        context_of(reference.window_ids.empty() ? candidate : reference, row, kTokensBefore, kTokensAfter);
    out += fmt::format(
        "<article class=\"worst\"><details{}><summary><b>{}.</b> KL <b>{:.4g}</b> · window {}, position {} · "
        "<code title=\"token {}\"><bdi>{}</bdi></code> p {} → {}</summary>\n",
        i < kOpen ? " open" : "", i + 1, comparison.positions.kl[at(row)], window, position, token, actual,
        probability(reference.token_logprob[at(row)]), probability(candidate.token_logprob[at(row)]));
    out += fmt::format("<p class=\"context\"><bdi>{}</bdi><mark><bdi>{}</bdi></mark><bdi>{}</bdi></p>\n",
                       tokens_html(tokenizer, context.before), actual, tokens_html(tokenizer, context.after));
    out += top_table(reference, candidate, row, tokenizer) + "</details></article>\n";
  }
  return out;
}

}  // namespace rorqual::kl
