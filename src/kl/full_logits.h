// SPDX-License-Identifier: Apache-2.0
// Full-vocabulary rows: written as a stream behind a dump's arrays, read row by row, from our own files and
// from panels that others made (.npy, .npz, .safetensors with a manifest).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "kl/dump.h"

namespace rorqual::kl {

/// Rows of raw logits (or log-probabilities: a constant per row changes nothing). Any thread.
class LogitRows {
 public:
  virtual ~LogitRows() = default;
  virtual int64_t num_rows() const = 0;
  virtual int64_t vocab_size() const = 0;

  /// Copies row `row` [V] to `out`. Errors: io, corrupt_data.
  virtual Status read(int64_t row, std::span<float> out) const = 0;
};

/// Writes `path` (.safetensors): rows arrive in order first, the dump's arrays follow at finish.
class LogitsWriter {
 public:
  /// Errors: invalid_argument (extension), io (also: the disk cannot hold num_rows · V · 4 bytes, both
  /// numbers).
  static Result<std::unique_ptr<LogitsWriter>> create(const std::string& path, int64_t num_rows,
                                                      int64_t vocab_size);
  virtual ~LogitsWriter() = default;
  virtual Status append(std::span<const float> row) = 0;
  virtual Status finish(const Dump& dump) = 0;
};

/// The logits of a dump that has them (dump.logits_path).
Result<std::unique_ptr<LogitRows>> open_logits(const Dump& dump);

/// A panel of another program: a manifest (.json or .tsv) or one file; per case token ids, first scored
/// position and F32 logits [positions, V]. Gives a dump (top-K computed here) and its rows.
struct ExternalPanel {
  Dump dump;
  std::unique_ptr<LogitRows> logits;
};

Result<ExternalPanel> read_external_panel(const std::string& path, int64_t top_k);

/// A capture of ours or in the public layout, or else a panel of another program: whichever the file is.
/// `logits` is null where there are none; `top_k` matters to panels only.
Result<ExternalPanel> read_capture_or_panel(const std::string& path, int64_t top_k);

}  // namespace rorqual::kl
