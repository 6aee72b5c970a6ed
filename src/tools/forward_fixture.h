// SPDX-License-Identifier: Apache-2.0
// A golden forward run in memory: tensors as F32 or I64, whatever they were stored as. Private to
// check_forward.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace rorqual::tools {

struct FloatTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;

  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }

  int64_t width() const { return rows() == 0 ? 0 : static_cast<int64_t>(values.size()) / rows(); }

  const float* row(int64_t i) const { return values.data() + i * width(); }
};

struct IntTensor {
  std::vector<int64_t> shape;
  std::vector<int64_t> values;

  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }

  int64_t width() const { return rows() == 0 ? 0 : static_cast<int64_t>(values.size()) / rows(); }

  const int64_t* row(int64_t i) const { return values.data() + i * width(); }
};

struct ForwardFixture {
  std::string path;      // for messages
  std::string mode;      // "exact" | "official"
  std::string model;     // the model it was made with, may be empty
  bool is_text = false;  // a real prompt, so the model it was made with is a trained one
  bool is_official_code =
      false;  // made by the official code: choices at ties are undefined, decode not stored
  std::map<std::string, FloatTensor> floats;
  std::map<std::string, IntTensor> ints;

  const FloatTensor* find_float(const std::string& name) const;
  const IntTensor* find_int(const std::string& name) const;
};

/// Errors: corrupt_data when ids, logits or logit_rows are missing or disagree.
Result<ForwardFixture> load_forward_fixture(const std::string& path);

/// Every tensor that the check reads has the shape and the range that `config` implies, and what must be
/// compared is there: router picks of every layer and selections of every index source, with their gaps, in
/// exact runs and in runs with whole streams. Errors: corrupt_data with file, tensor, got and expected.
Status check_fixture_shapes(const ForwardFixture& fixture, const model::Config& config);

}  // namespace rorqual::tools
