// SPDX-License-Identifier: Apache-2.0
#include "tools/check_trim.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace rorqual::tools {
namespace {

/// The closest choice of a run; exact ties do not count, they have a rule.
class ClosestChoice final : public model::Probe {
 public:
  explicit ClosestChoice(model::Model& model) : model_(model) { model_.set_probe(this); }

  ~ClosestChoice() override { model_.set_probe(nullptr); }

  ClosestChoice(const ClosestChoice&) = delete;
  ClosestChoice& operator=(const ClosestChoice&) = delete;

  void layer_end(const model::LayerTrace& trace) override {
    add(trace.router_gap, trace.num_rows);
    if (trace.selected != nullptr) add(trace.topk_gap, trace.num_rows);
  }

  float gap() const { return gap_; }

 private:
  void add(const float* gaps, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (gaps[i] > 0) gap_ = std::min(gap_, gaps[i]);
    }
  }

  model::Model& model_;
  float gap_ = std::numeric_limits<float>::infinity();
};

class TrimRun {
 public:
  TrimRun(const ForwardFixture& fixture, model::Model& model, const TrimBounds& bounds, CheckReport& report)
      : fixture_(fixture), model_(model), bounds_(bounds), report_(report) {}

  Result<int64_t> run() {
    model::SequenceStart start;
    start.trim_rows = model_.config().sliding_window;
    RORQUAL_TRY_ASSIGN(sequence_, model_.open_sequence(start));
    const Status status = run_open();
    model_.close_sequence(sequence_);
    if (!status.ok()) return status.error();
    return excused_;
  }

 private:
  Status run_open() {
    const std::vector<int64_t>& ids = fixture_.find_int("ids")->values;
    const std::vector<int32_t> tokens(ids.begin(), ids.end());
    const auto length = static_cast<int64_t>(tokens.size());
    const IntTensor* greedy = fixture_.find_int("trim_greedy");
    const int64_t steps = greedy == nullptr ? 0 : greedy->rows();
    if (!model_.reserve(sequence_, length + steps)) return Error(Code::internal, "no cache blocks left");
    // The file's logits are of the last rows of one chunk.
    const FloatTensor& gold = *fixture_.find_float("trim_logits");
    std::vector<int32_t> offsets;
    for (int64_t i = 0; i < gold.rows(); ++i)
      offsets.push_back(static_cast<int32_t>(length - gold.rows() + i));
    model::StepSlice slice;
    slice.sequence = sequence_;
    slice.tokens = tokens;
    slice.logit_offsets = offsets;
    slice.window_targets = std::span(&length, 1);
    std::vector<float> logits(gold.values.size());
    const ClosestChoice closest(model_);
    RORQUAL_TRY(model_.forward(std::span(&slice, 1), logits));
    compare(gold, logits, closest.gap());
    logits.erase(logits.begin(), logits.end() - static_cast<std::ptrdiff_t>(model_.vocab_size()));
    return steps == 0 ? Ok{} : decode(*greedy, logits);
  }

  void compare(const FloatTensor& gold, const std::vector<float>& logits, float closest) {
    float worst = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const float difference = std::fabs(logits[i] - gold.values[i]);
      if (std::isnan(difference) || difference > worst) worst = difference;
    }
    float bound = bounds_.logits;
    if (worst > bound && closest < bounds_.near_tie) {
      bound = bounds_.near_tie_logits;
      ++excused_;
    }
    report_.expect(worst <= bound, [&] {
      return fmt::format(
          "{} trim_logits: max difference {:.3e}, expected at most {:.0e}; closest choice {:.1e}",
          fixture_.path, worst, bound, closest);
    });
    report_.note(
        fmt::format("{}: replay trim of {} rows, max |logit difference| {:.2e}, closest choice {:.1e}",
                    fixture_.path, model_.config().sliding_window, worst, closest));
  }

  Status decode(const IntTensor& greedy, std::vector<float>& logits) {
    for (int64_t i = 0; i < greedy.rows(); ++i) {
      const auto best = std::max_element(logits.begin(), logits.end());
      const auto token = static_cast<int32_t>(best - logits.begin());
      const float lead = *best - logits[static_cast<size_t>(greedy.values[static_cast<size_t>(i)])];
      if (token != greedy.values[static_cast<size_t>(i)]) {
        report_.expect(lead < bounds_.near_tie_token, [&] {
          return fmt::format("{} trim_greedy step {}: token {}, expected {}", fixture_.path, i, token,
                             greedy.values[static_cast<size_t>(i)]);
        });
        break;  // everything after a different token is free
      }
      report_.pass();
      model::StepSlice slice;
      slice.sequence = sequence_;
      slice.tokens = std::span(&token, 1);
      const int32_t offset = 0;
      slice.logit_offsets = std::span(&offset, 1);
      RORQUAL_TRY(model_.forward(std::span(&slice, 1), logits));
    }
    return Ok{};
  }

  const ForwardFixture& fixture_;
  model::Model& model_;
  TrimBounds bounds_;
  CheckReport& report_;
  model::SequenceId sequence_ = 0;
  int64_t excused_ = 0;
};

}  // namespace

Result<int64_t> check_trim(const ForwardFixture& fixture, model::Model& model, const TrimBounds& bounds,
                           CheckReport& report) {
  if (fixture.find_float("trim_logits") == nullptr) return int64_t{0};
  return TrimRun(fixture, model, bounds, report).run();
}

}  // namespace rorqual::tools
