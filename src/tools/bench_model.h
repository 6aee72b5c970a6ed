// SPDX-License-Identifier: Apache-2.0
// What the benches of a model in this process share: opening beside the plan, random tokens, figures of the
// process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "tools/open_model.h"

namespace rorqual::tools {

/// Members are destroyed in reverse order: the model first.
struct PlannedModel {
  OpenedSource opened;
  OpenOptions open;  // as resolved
  plan::Plan plan;
  double load_s = 0;
  std::unique_ptr<model::Model> model;
};

/// Plans and loads a model for `open.max_num_seqs` sequences of `tokens` tokens, each with one row of logits
/// per step. Errors: those of opening a model; invalid_argument (a shorter max_model_len was asked for);
/// out_of_memory when the plan does not fit.
Result<PlannedModel> open_planned(OpenOptions open, int64_t tokens);

/// The same tokens in every run.
class RandomTokens {
 public:
  explicit RandomTokens(int64_t vocab_size) : vocab_size_(static_cast<uint64_t>(vocab_size)) {}

  int32_t next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<int32_t>((state_ >> 33) % vocab_size_);
  }

 private:
  uint64_t vocab_size_;
  uint64_t state_ = 0x9E3779B97F4A7C15U;
};

/// Of a steady clock.
double seconds_now();

/// Of one, five and fifteen minutes; empty if the system does not say.
std::vector<double> load_average();

/// Resident memory of this process, now and at most so far; 0 if the system does not say.
int64_t resident_bytes();
int64_t peak_resident_bytes();

}  // namespace rorqual::tools
