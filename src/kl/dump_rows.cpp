// SPDX-License-Identifier: Apache-2.0
#include "kl/dump_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace rorqual::kl {
namespace {

// Rounding of F32 log-softmax may pass 0 by a little; more means that these are no log-probabilities.
constexpr float kMaxLogprob = 1e-3f;
// A token's own entry and the one in the top K come from one row of one softmax.
constexpr float kMaxTokenDifference = 1e-3f;

Error bad_row(int64_t row, const std::string& what) {
  return Error(Code::corrupt_data, fmt::format("row {}: {}", row, what),
               "the file is no capture in the form of docs/fidelity.md#dumps; capture it again");
}

Error bad_size(std::string_view name, size_t got, int64_t expected) {
  return Error(Code::corrupt_data, fmt::format("{} has {} elements, expected {}", name, got, expected),
               "sizes follow from scored_positions, topk and the number of windows");
}

/// Ascending offsets from 0 to `end`, one per window and one more.
Status check_offsets(std::string_view name, std::span<const int64_t> offsets, int64_t windows, int64_t end) {
  if (static_cast<int64_t>(offsets.size()) != windows + 1) return bad_size(name, offsets.size(), windows + 1);
  const bool starts = offsets.front() == 0 && offsets.back() == end;
  for (size_t w = 1; w < offsets.size(); ++w) {
    if (!starts || offsets[w] <= offsets[w - 1]) {
      return Error(Code::corrupt_data, fmt::format("{}: must ascend from 0 to {}, got {}, {} at window {}",
                                                   name, end, offsets[w - 1], offsets[w], w - 1));
    }
  }
  return Ok();
}

class RowChecker {
 public:
  explicit RowChecker(const Dump& dump) : dump_(dump), seen_(static_cast<size_t>(dump.info.vocab_size), -1) {}

  Status check(int64_t row) {
    const auto k = static_cast<size_t>(dump_.info.top_k);
    const auto begin = static_cast<size_t>(row) * k;
    const std::span ids(dump_.top_ids.data() + begin, k);
    const std::span lps(dump_.top_logprobs.data() + begin, k);
    RORQUAL_TRY(check_token(row));
    const int32_t token = dump_.token[static_cast<size_t>(row)];
    const float token_lp = dump_.token_logprob[static_cast<size_t>(row)];
    bool is_in_top = false;
    for (size_t i = 0; i < k; ++i) {
      const float lp = lps[i];
      if (std::isnan(lp) || lp > kMaxLogprob)
        return bad_row(row, fmt::format("top_lps[{}] is {}, expected a log-probability (at most 0)", i, lp));
      if (i > 0 && lp > lps[i - 1])
        return bad_row(row, fmt::format("top_lps is not descending: {} after {} at {}", lp, lps[i - 1], i));
      if (std::isinf(lp)) continue;  // unused place: its id means nothing
      RORQUAL_TRY(check_id(row, i, ids[i]));
      is_in_top |= ids[i] == token;
      if (ids[i] == token && std::abs(lp - token_lp) > kMaxTokenDifference) {
        return bad_row(row, fmt::format("tok_lp is {}, but top_lps has {} for the same token {}; tokens and "
                                        "log-probabilities are shifted against each other?",
                                        token_lp, lp, token));
      }
    }
    if (std::isinf(lps[0])) return bad_row(row, "top_lps has no entry");
    const bool is_full = !std::isinf(lps[k - 1]);
    if (is_full && !is_in_top && token_lp > lps[k - 1] + kMaxTokenDifference) {
      return bad_row(row, fmt::format("tok_lp is {}, above the last of the top {} ({}), but token {} is not "
                                      "among them",
                                      token_lp, k, lps[k - 1], token));
    }
    return Ok();
  }

 private:
  Status check_token(int64_t row) const {
    const int32_t token = dump_.token[static_cast<size_t>(row)];
    const float lp = dump_.token_logprob[static_cast<size_t>(row)];
    if (token < 0 || token >= dump_.info.vocab_size) {
      return bad_row(row, fmt::format("tok_id is {}, expected 0 to {}", token, dump_.info.vocab_size - 1));
    }
    if (!std::isfinite(lp) || lp > kMaxLogprob)
      return bad_row(row, fmt::format("tok_lp is {}, expected a finite log-probability (at most 0)", lp));
    return Ok();
  }

  Status check_id(int64_t row, size_t place, int32_t id) {
    if (id < 0 || id >= dump_.info.vocab_size) {
      return bad_row(
          row, fmt::format("top_ids[{}] is {}, expected 0 to {}", place, id, dump_.info.vocab_size - 1));
    }
    int64_t& seen = seen_[static_cast<size_t>(id)];
    if (seen == row) return bad_row(row, fmt::format("top_ids has {} twice", id));
    seen = row;
    return Ok();
  }

  const Dump& dump_;
  std::vector<int64_t> seen_;  // last row that had the id
};

}  // namespace

Status check_dump_shapes(const Dump& dump) {
  const DumpInfo& info = dump.info;
  const int64_t rows = info.scored_positions;
  if (info.top_k < 1 || rows < 1 || info.num_windows < 1 || info.vocab_size < info.top_k) {
    return Error(Code::corrupt_data,
                 fmt::format("{} positions, {} windows, top {} of a vocabulary of {}", rows, info.num_windows,
                             info.top_k, info.vocab_size),
                 "a dump has at least one of each");
  }
  if (dump.num_rows() != rows) return bad_size("tok_id", dump.token.size(), rows);
  if (static_cast<int64_t>(dump.token_logprob.size()) != rows)
    return bad_size("tok_lp", dump.token_logprob.size(), rows);
  if (static_cast<int64_t>(dump.top_ids.size()) != rows * info.top_k)
    return bad_size("top_ids", dump.top_ids.size(), rows * info.top_k);
  if (static_cast<int64_t>(dump.top_logprobs.size()) != rows * info.top_k)
    return bad_size("top_lps", dump.top_logprobs.size(), rows * info.top_k);
  RORQUAL_TRY(check_offsets("window_rows", dump.window_rows, info.num_windows, rows));
  if (dump.window_begin.empty() && dump.window_ids.empty() && dump.window_first_scored.empty()) return Ok();
  RORQUAL_TRY(check_offsets("window_begin", dump.window_begin, info.num_windows,
                            static_cast<int64_t>(dump.window_ids.size())));
  if (static_cast<int64_t>(dump.window_first_scored.size()) != info.num_windows)
    return bad_size("window_first_scored", dump.window_first_scored.size(), info.num_windows);
  return Ok();
}

namespace {

/// The scored part of every window's tokens is tok_id.
Status check_windows(const Dump& dump) {
  for (size_t w = 0; w + 1 < dump.window_begin.size(); ++w) {
    const int64_t length = dump.window_begin[w + 1] - dump.window_begin[w];
    const int64_t first = dump.window_first_scored[w];
    const int64_t rows = dump.window_rows[w + 1] - dump.window_rows[w];
    if (first < 1 || first > length || length - first != rows) {
      return Error(Code::corrupt_data, fmt::format("window {}: {} tokens scored from {} are not its {} rows",
                                                   w, length, first, rows));
    }
    for (int64_t i = 0; i < rows; ++i) {
      const int32_t expected = dump.window_ids[static_cast<size_t>(dump.window_begin[w] + first + i)];
      const int32_t got = dump.token[static_cast<size_t>(dump.window_rows[w] + i)];
      if (got != expected) {
        return bad_row(dump.window_rows[w] + i, fmt::format("tok_id is {}, window {} has {} at position {}",
                                                            got, w, expected, first + i));
      }
    }
  }
  return Ok();
}

}  // namespace

Status check_dump(const Dump& dump) {
  RORQUAL_TRY(check_dump_shapes(dump));
  RORQUAL_TRY(check_windows(dump));
  RowChecker checker(dump);
  for (int64_t row = 0; row < dump.num_rows(); ++row) RORQUAL_TRY(checker.check(row));
  return Ok();
}

void sort_ties(Dump& dump) {
  const auto k = static_cast<size_t>(dump.info.top_k);
  if (k == 0) return;
  for (size_t begin = 0; begin + k <= dump.top_ids.size(); begin += k) {
    int32_t* ids = dump.top_ids.data() + begin;
    const float* lps = dump.top_logprobs.data() + begin;
    for (size_t i = 0; i < k;) {
      size_t end = i + 1;
      while (end < k && lps[end] == lps[i]) ++end;
      if (end > i + 1 && !std::isinf(lps[i])) std::sort(ids + i, ids + end, std::greater<>());
      i = end;
    }
  }
}

bool append_utf8(uint32_t code, std::string& out) {
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
  const auto put = [&out](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
  return true;
}

}  // namespace rorqual::kl
