// SPDX-License-Identifier: Apache-2.0
// Everything in F64 from the F32 numbers of the dumps. Nothing is renormalised: that would change published
// figures. docs/fidelity.md#measures.
#include "kl/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/check.h"
#include "kl/bootstrap.h"
#include "runtime/logprobs.h"

namespace rorqual::kl {
namespace {

constexpr double kMinRest = 1e-12;
constexpr double kOvershoot = 1 + 1e-4;
constexpr int64_t kShiftMinRows = 16;

// ---- are they about the same thing? ----

Error different(std::string_view what, const std::string& reference, const std::string& candidate) {
  return Error(Code::corrupt_data,
               fmt::format("captures cannot be compared: {} is {} in the reference, {} in the candidate",
                           what, reference, candidate),
               "capture both from the same corpus with the same settings");
}

std::string quoted(const std::string& text) {
  return "'" + text + "'";
}

std::optional<Error> different_settings(const DumpInfo& a, const DumpInfo& b) {
  if (a.corpus != b.corpus) return different("corpus", quoted(a.corpus), quoted(b.corpus));

  struct Field {
    std::string_view name;
    int64_t a, b;
  };

  const Field fields[] = {{"the length of windows", a.context, b.context},
                          {"the number of windows", a.num_windows, b.num_windows},
                          {"the first scored position", a.first_scored, b.first_scored},
                          {"the number of scored positions", a.scored_positions, b.scored_positions},
                          {"top K", a.top_k, b.top_k},
                          {"the vocabulary", a.vocab_size, b.vocab_size}};
  for (const auto& field : fields) {
    if (field.a == field.b) continue;
    const bool is_shift = field.name == "the first scored position" && std::abs(field.a - field.b) == 1;
    return different(field.name, std::to_string(field.a),
                     std::to_string(field.b) + (is_shift ? " (a shift by one position)" : ""));
  }
  return std::nullopt;
}

/// How many rows of `a` equal the next row of `b` inside windows, by `equal(row of a, row of b)`.
template <class Equal>
int64_t count_shifted(const Dump& a, const Equal& equal) {
  int64_t count = 0;
  for (size_t w = 0; w + 1 < a.window_rows.size(); ++w) {
    for (int64_t row = a.window_rows[w]; row + 1 < a.window_rows[w + 1]; ++row)
      count += equal(static_cast<size_t>(row), static_cast<size_t>(row) + 1) ? 1 : 0;
  }
  return count;
}

Error different_tokens(const Dump& a, const Dump& b) {
  size_t row = 0;
  while (a.token[row] == b.token[row]) ++row;
  const int64_t pairs = a.num_rows() - a.info.num_windows;
  const int64_t later = count_shifted(a, [&](size_t i, size_t j) { return a.token[i] == b.token[j]; });
  const int64_t earlier = count_shifted(a, [&](size_t i, size_t j) { return b.token[i] == a.token[j]; });
  if (pairs > 0 && std::max(later, earlier) == pairs) {
    return Error(
        Code::corrupt_data,
        fmt::format("captures cannot be compared: the candidate's tokens are the reference's, shifted by "
                    "one position ({})",
                    later == pairs ? "later" : "earlier"),
        "labels were shifted twice or not at all; row i must score token first_scored + i");
  }
  return different(fmt::format("the token of row {}", row), std::to_string(a.token[row]),
                   std::to_string(b.token[row]));
}

/// Equal tokens, but distributions of the neighbouring position.
std::optional<Error> shifted_rows(const Dump& a, const Dump& b) {
  const auto k = static_cast<size_t>(a.info.top_k);
  const auto best_equal = [&](size_t i, size_t j) { return a.top_ids[i * k] == b.top_ids[j * k]; };
  const int64_t pairs = a.num_rows() - a.info.num_windows;
  if (pairs < kShiftMinRows) return std::nullopt;
  int64_t same = 0;
  for (size_t row = 0; row < a.token.size(); ++row) same += best_equal(row, row) ? 1 : 0;
  const int64_t later = count_shifted(a, best_equal);
  const int64_t earlier = count_shifted(a, [&](size_t i, size_t j) { return best_equal(j, i); });
  const int64_t shifted = std::max(later, earlier);
  if (2 * shifted < pairs || 2 * same > shifted) return std::nullopt;
  return Error(
      Code::corrupt_data,
      fmt::format("captures cannot be compared: the candidate's rows are shifted by one position ({}): the "
                  "best token agrees in {} of {} rows as given, in {} when moved by one",
                  later > earlier ? "later" : "earlier", same, a.num_rows(), shifted),
      "row i must hold the prediction of token first_scored + i");
}

}  // namespace

Status check_comparable(const Dump& reference, const Dump& candidate) {
  if (auto error = different_settings(reference.info, candidate.info)) return *std::move(error);
  if (reference.window_rows != candidate.window_rows)
    return different("the division into windows", "another", "another");
  if (reference.token != candidate.token) return different_tokens(reference, candidate);
  const auto both_differ = [](const std::string& a, const std::string& b) {
    return !a.empty() && !b.empty() && a != b;
  };
  const DumpInfo &a = reference.info, &b = candidate.info;
  if (both_differ(a.corpus_sha256, b.corpus_sha256))
    return different("the corpus's SHA-256", a.corpus_sha256.substr(0, 16), b.corpus_sha256.substr(0, 16));
  if (both_differ(a.windows_sha256, b.windows_sha256))
    return different("the windows' SHA-256", a.windows_sha256.substr(0, 16), b.windows_sha256.substr(0, 16));
  if (auto error = shifted_rows(reference, candidate)) return *std::move(error);
  return Ok();
}

// ---- one position ----

std::string_view id_set_name(IdSet id_set) {
  return id_set == IdSet::full ? "full" : id_set == IdSet::candidate_top_k ? "candidate" : "both";
}

Bound kl_bound(std::span<const double> log_p, std::span<const double> log_q) {
  RORQUAL_CHECK(log_p.size() == log_q.size());
  double kl = 0, mass_p = 0, mass_q = 0;
  for (size_t i = 0; i < log_p.size(); ++i) {
    const double p = std::exp(log_p[i]);
    mass_p += p;
    mass_q += std::exp(log_q[i]);
    kl += p * (log_p[i] - log_q[i]);
  }
  const double rest_p = std::clamp(1 - mass_p, kMinRest, 1.0), rest_q = std::clamp(1 - mass_q, kMinRest, 1.0);
  return {kl + rest_p * (std::log(rest_p) - std::log(rest_q)), mass_p};
}

double exact_kl(std::span<const float> reference, std::span<const float> candidate) {
  RORQUAL_CHECK(reference.size() == candidate.size());
  const double sum_p = runtime::log_sum_exp(reference), sum_q = runtime::log_sum_exp(candidate);
  double kl = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = static_cast<double>(reference[i]) - sum_p;
    kl += std::exp(log_p) * (log_p - (static_cast<double>(candidate[i]) - sum_q));
  }
  return kl;
}

namespace {

/// Finds S of one row after the other.
class Rows {
 public:
  Rows(const Dump& reference, const Dump& candidate, const CompareOptions& options)
      : reference_(reference),
        candidate_(candidate),
        options_(options),
        k_(static_cast<size_t>(reference.info.top_k)),
        marks_(static_cast<size_t>(reference.info.vocab_size)) {}

  Result<Bound> bound(int64_t row) {
    if (options_.id_set == IdSet::full) return full(row);
    mark(row);
    log_p_.clear();
    log_q_.clear();
    if (options_.id_set == IdSet::candidate_top_k) {
      RORQUAL_TRY(take_reference_logits(row));
    } else {
      take_reference_top(row);
    }
    return kl_bound(log_p_, log_q_);
  }

 private:
  struct Mark {
    int64_t row = -1;
    size_t dumps = 0;  // how many of candidate and `also`, in this order, have the id
    double log_q = 0;
  };

  template <class Visit>
  void for_each_top(const Dump& dump, int64_t row, const Visit& visit) const {
    const size_t begin = static_cast<size_t>(row) * k_;
    for (size_t i = begin; i < begin + k_; ++i) {
      if (!std::isinf(dump.top_logprobs[i]))
        visit(dump.top_ids[i], static_cast<double>(dump.top_logprobs[i]));
    }
  }

  void mark(int64_t row) {
    for_each_top(candidate_, row, [&](int32_t id, double log_q) {
      marks_[static_cast<size_t>(id)] = {row, 1, log_q};
    });
    size_t dumps = 1;
    for (const Dump* dump : options_.also) {
      for_each_top(*dump, row, [&](int32_t id, double) {
        Mark& mark = marks_[static_cast<size_t>(id)];
        if (mark.row == row && mark.dumps == dumps) ++mark.dumps;
      });
      ++dumps;
    }
    needed_ = dumps;
  }

  bool is_common(const Mark& mark, int64_t row) const { return mark.row == row && mark.dumps == needed_; }

  void take_reference_top(int64_t row) {
    for_each_top(reference_, row, [&](int32_t id, double log_p) {
      const Mark& mark = marks_[static_cast<size_t>(id)];
      if (!is_common(mark, row)) return;
      log_p_.push_back(log_p);
      log_q_.push_back(mark.log_q);
    });
  }

  Status take_reference_logits(int64_t row) {
    reference_row_.resize(marks_.size());
    RORQUAL_TRY(options_.reference_logits->read(row, reference_row_));
    const double lse = runtime::log_sum_exp(reference_row_);
    for_each_top(candidate_, row, [&](int32_t id, double log_q) {
      if (!is_common(marks_[static_cast<size_t>(id)], row)) return;
      log_p_.push_back(static_cast<double>(reference_row_[static_cast<size_t>(id)]) - lse);
      log_q_.push_back(log_q);
    });
    return finite(row, lse);
  }

  Result<Bound> full(int64_t row) {
    reference_row_.resize(marks_.size());
    candidate_row_.resize(marks_.size());
    RORQUAL_TRY(options_.reference_logits->read(row, reference_row_));
    RORQUAL_TRY(options_.candidate_logits->read(row, candidate_row_));
    const double kl = exact_kl(reference_row_, candidate_row_);
    RORQUAL_TRY(finite(row, kl));
    return Bound{kl, 1};
  }

  static Status finite(int64_t row, double value) {
    if (std::isfinite(value)) return Ok();
    return Error(Code::corrupt_data, fmt::format("full logits of row {} are not finite", row));
  }

  const Dump& reference_;
  const Dump& candidate_;
  const CompareOptions& options_;
  size_t k_;
  size_t needed_ = 1;
  std::vector<Mark> marks_;  // [V]
  std::vector<double> log_p_, log_q_;
  std::vector<float> reference_row_, candidate_row_;
};

// ---- all positions ----

double sorted_at(const std::vector<double>& sorted, double fraction) {
  const auto n = static_cast<double>(sorted.size());
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(n * fraction))];
}

Interval interval_of(const std::vector<double>& means) {
  return {percentile(means, 2.5), percentile(means, 97.5)};
}

double perplexity(const Dump& dump) {
  double sum = 0;
  for (const float lp : dump.token_logprob) sum += static_cast<double>(lp);
  return std::exp(-sum / static_cast<double>(dump.token_logprob.size()));
}

int64_t count_overshoot(const Dump& dump) {
  const auto k = static_cast<size_t>(dump.info.top_k);
  int64_t rows = 0;
  for (size_t begin = 0; begin < dump.top_logprobs.size(); begin += k) {
    double mass = 0;
    for (size_t i = begin; i < begin + k; ++i) mass += std::exp(static_cast<double>(dump.top_logprobs[i]));
    rows += mass > kOvershoot ? 1 : 0;
  }
  return rows;
}

void add_distribution(const Positions& positions, Summary& summary) {
  std::vector<double> sorted = positions.kl;
  std::sort(sorted.begin(), sorted.end());
  summary.median = sorted_at(sorted, 0.5);
  summary.p90 = sorted_at(sorted, 0.9);
  summary.p95 = sorted_at(sorted, 0.95);
  summary.p99 = sorted_at(sorted, 0.99);
  summary.max = sorted.back();
  std::vector<double> mass = positions.common_mass;
  std::sort(mass.begin(), mass.end());
  summary.common_mass_median = sorted_at(mass, 0.5);
  summary.common_mass_p1 = sorted_at(mass, 0.01);
  summary.common_mass_min = mass.front();
}

Summary summarize(const Dump& reference, const Dump& candidate, const Positions& positions) {
  Summary summary;
  summary.positions = reference.num_rows();
  summary.windows = reference.info.num_windows;
  const std::span kl(positions.kl);
  for (size_t w = 0; w + 1 < reference.window_rows.size(); ++w) {
    const auto begin = static_cast<size_t>(reference.window_rows[w]);
    const auto end = static_cast<size_t>(reference.window_rows[w + 1]);
    summary.window_means.push_back(mean(kl.subspan(begin, end - begin)));
  }
  summary.mean_kl = mean(summary.window_means);
  summary.mean_kl_ci = interval_of(bootstrap_means(summary.window_means));
  summary.position_mean_kl = mean(kl);
  add_distribution(positions, summary);
  const double rows = static_cast<double>(summary.positions);
  int64_t equal = 0;
  double difference = 0;
  for (size_t row = 0; row < positions.kl.size(); ++row) {
    equal += positions.top1_equal[row];
    difference += std::abs(static_cast<double>(reference.token_logprob[row]) -
                           static_cast<double>(candidate.token_logprob[row]));
  }
  summary.top1 = static_cast<double>(equal) / rows;
  summary.mean_abs_token_delta = difference / rows;
  summary.reference_perplexity = perplexity(reference);
  summary.candidate_perplexity = perplexity(candidate);
  summary.overshoot_reference = count_overshoot(reference);
  summary.overshoot_candidate = count_overshoot(candidate);
  return summary;
}

Status check_logits(const LogitRows* logits, const Dump& dump, std::string_view whose) {
  if (logits == nullptr) {
    return Error(Code::unsupported, fmt::format("this set of ids needs the full logits of the {}", whose),
                 "use --id-set both, or capture with --logits");
  }
  if (logits->num_rows() == dump.num_rows() && logits->vocab_size() == dump.info.vocab_size) return Ok();
  return Error(Code::corrupt_data,
               fmt::format("full logits of the {} are [{}, {}], expected [{}, {}]", whose, logits->num_rows(),
                           logits->vocab_size(), dump.num_rows(), dump.info.vocab_size));
}

}  // namespace

Result<Comparison> compare(const Dump& reference, const Dump& candidate, const CompareOptions& options) {
  RORQUAL_TRY(check_comparable(reference, candidate));
  for (const Dump* dump : options.also) RORQUAL_TRY(check_comparable(reference, *dump));
  if (options.id_set != IdSet::both_top_k)
    RORQUAL_TRY(check_logits(options.reference_logits, reference, "reference"));
  if (options.id_set == IdSet::full)
    RORQUAL_TRY(check_logits(options.candidate_logits, candidate, "candidate"));
  Comparison result;
  result.reference = reference.info;
  result.candidate = candidate.info;
  result.id_set = options.id_set;
  Rows rows(reference, candidate, options);
  const auto k = static_cast<size_t>(reference.info.top_k);
  for (int64_t row = 0; row < reference.num_rows(); ++row) {
    RORQUAL_TRY_ASSIGN(const Bound bound, rows.bound(row));
    const size_t first = static_cast<size_t>(row) * k;
    result.positions.kl.push_back(bound.kl);
    result.positions.common_mass.push_back(bound.mass);
    result.positions.top1_equal.push_back(reference.top_ids[first] == candidate.top_ids[first] ? 1 : 0);
  }
  result.summary = summarize(reference, candidate, result.positions);
  return result;
}

Result<Paired> compare_paired(const Dump& reference, const Dump& a, const Dump& b,
                              const CompareOptions& options) {
  Paired paired;
  CompareOptions for_a = options, for_b = options;
  for_a.also.push_back(&b);
  for_b.also.push_back(&a);
  for_b.candidate_logits = options.second_logits;
  RORQUAL_TRY_ASSIGN(paired.a, compare(reference, a, for_a));
  RORQUAL_TRY_ASSIGN(paired.b, compare(reference, b, for_b));
  const auto &means_a = paired.a.summary.window_means, &means_b = paired.b.summary.window_means;
  std::vector<double> difference(means_a.size());
  std::transform(means_a.begin(), means_a.end(), means_b.begin(), difference.begin(), std::minus<>());
  paired.mean_difference = mean(difference);
  const auto drawn = bootstrap_means(difference);
  paired.difference_ci = interval_of(drawn);
  const auto above = std::count_if(drawn.begin(), drawn.end(), [](double d) { return d > 0; });
  paired.probability_a_greater = static_cast<double>(above) / static_cast<double>(drawn.size());
  // The same seed draws the same windows for both sides.
  auto ratio = bootstrap_means(means_a);
  const auto drawn_b = bootstrap_means(means_b);
  const auto relative = [](double new_kl, double old_kl) {
    if (new_kl == old_kl) return 0.0;
    return old_kl > 0 ? (new_kl - old_kl) / old_kl : std::numeric_limits<double>::infinity();
  };
  std::transform(ratio.begin(), ratio.end(), drawn_b.begin(), ratio.begin(), relative);
  paired.relative_ci = interval_of(ratio);
  paired.relative_change = relative(paired.a.summary.mean_kl, paired.b.summary.mean_kl);
  return paired;
}

}  // namespace rorqual::kl
