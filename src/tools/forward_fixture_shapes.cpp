// SPDX-License-Identifier: Apache-2.0
// Shapes and ranges of golden forward runs, before anything is indexed by them.
#include <fmt/format.h>

#include <algorithm>

#include "tools/forward_fixture.h"

namespace rorqual::tools {
namespace {

class Shapes {
 public:
  Shapes(const ForwardFixture& fixture, const model::Config& config)
      : fixture_(fixture), config_(config), tokens_(fixture.find_int("ids")->rows()) {
    if (const IntTensor* pos = fixture.find_int("pos")) positions_ = pos->rows();
  }

  Status check() const {
    if (tokens_ == 0 || fixture_.find_int("ids")->values.empty()) return fault("ids", "is empty");
    RORQUAL_TRY(in_range("ids", config_.vocab_size));
    RORQUAL_TRY(in_range("pos", tokens_));
    RORQUAL_TRY(in_range("logit_rows", tokens_));
    RORQUAL_TRY(size_of("logits", fixture_.find_int("logit_rows")->rows() * config_.vocab_size));
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) RORQUAL_TRY(check_layer(layer));
    const auto engrams = static_cast<int64_t>(config_.engram_layer_ids.size());
    RORQUAL_TRY(per_row_or_position("hash_ids", engrams * config_.engram_columns()));
    RORQUAL_TRY(check_trim());
    return check_decode();
  }

 private:
  Error fault(const std::string& tensor, const std::string& what) const {
    return Error(Code::corrupt_data,
                 fmt::format("'{}' is not a golden run of this model: {} {}", fixture_.path, tensor, what),
                 "use fixtures made with this model (tests/golden/forward/README.md)");
  }

  Status in_range(const std::string& name, int64_t limit) const {
    const IntTensor* found = fixture_.find_int(name);
    if (found == nullptr) return Ok{};
    for (const int64_t value : found->values) {
      if (value < 0 || value >= limit)
        return fault(name, fmt::format("holds {}, expected 0 to {}", value, limit - 1));
    }
    return Ok{};
  }

  /// Number of values of a tensor, if it is there.
  Status size_of(const std::string& name, int64_t expected) const {
    int64_t size = expected;
    if (const FloatTensor* found = fixture_.find_float(name))
      size = static_cast<int64_t>(found->values.size());
    if (const IntTensor* found = fixture_.find_int(name)) size = static_cast<int64_t>(found->values.size());
    if (size != expected) return fault(name, fmt::format("has {} values, expected {}", size, expected));
    return Ok{};
  }

  /// `width` values for every token, or for every stored position.
  Status per_row_or_position(const std::string& name, int64_t width) const {
    const IntTensor* found = fixture_.find_int(name);
    if (found == nullptr) return Ok{};
    const bool is_rows = found->rows() == tokens_ || found->rows() == positions_;
    if (!is_rows || static_cast<int64_t>(found->values.size()) != found->rows() * width) {
      return fault(name, fmt::format("has {} rows of {} values, expected {} or {} rows of {}", found->rows(),
                                     found->width(), tokens_, positions_, width));
    }
    return Ok{};
  }

  /// Whether this run's choices are compared at all (check_forward.cpp): exact runs and runs with whole
  /// streams.
  bool is_compared() const {
    if (fixture_.mode == "exact") return true;
    const FloatTensor* whole = fixture_.find_float("all.layers.0.resid_in");
    if (whole == nullptr) whole = fixture_.find_float("layers.0.resid_in");
    return tokens_ > 1 && whole != nullptr && whole->rows() == tokens_;
  }

  Status needed(const std::string& name, bool is_present) const {
    if (is_present || !is_compared()) return Ok{};
    return fault(name, "is missing");
  }

  Status check_layer(int64_t layer) const {
    const auto name = [layer](const char* what) { return fmt::format("layers.{}.{}", layer, what); };
    const int64_t streams = config_.hc_mult * config_.hidden_size;
    for (const std::string& prefix : {std::string(), std::string("all.")}) {
      const std::string in = fmt::format("{}layers.{}.resid_in", prefix, layer);
      const FloatTensor* whole = fixture_.find_float(in);
      if (whole == nullptr || whole->rows() != tokens_) continue;
      RORQUAL_TRY(size_of(in, tokens_ * streams));
      RORQUAL_TRY(size_of(fmt::format("{}layers.{}.pre_mix_in", prefix, layer), tokens_ * config_.hc_mult));
    }
    for (const std::string& out : {std::string("all.resid_out"), name("resid_out")}) {
      const FloatTensor* whole = fixture_.find_float(out);
      if (whole != nullptr && whole->rows() == tokens_) RORQUAL_TRY(size_of(out, tokens_ * streams));
    }
    RORQUAL_TRY(needed(name("router_idx"), fixture_.find_int(name("router_idx")) != nullptr));
    RORQUAL_TRY(needed(name("router_gap"), fixture_.find_float(name("router_gap")) != nullptr));
    RORQUAL_TRY(size_of(name("router_idx"), tokens_ * config_.num_active_experts(layer)));
    RORQUAL_TRY(size_of(name("router_gap"), tokens_));
    return check_selection(layer, name("topk"), name("comp_rows"));
  }

  Status check_selection(int64_t layer, const std::string& topk, const std::string& comp_rows) const {
    const model::LayerRole role = config_.role(layer);
    const bool is_source = role == model::LayerRole::full || role == model::LayerRole::reindex;
    const IntTensor* selected = fixture_.find_int(topk);
    if (!is_source && selected != nullptr) return fault(topk, "belongs to a layer without an index");
    if (!is_source) return Ok{};
    RORQUAL_TRY(needed(topk, selected != nullptr));
    RORQUAL_TRY(needed(topk + "_gap", fixture_.find_float(topk + "_gap") != nullptr));
    RORQUAL_TRY(size_of(topk + "_gap", tokens_));
    if (selected != nullptr && selected->rows() != tokens_ && selected->rows() != positions_) {
      return fault(topk,
                   fmt::format("has {} rows, expected {} or {}", selected->rows(), tokens_, positions_));
    }
    return role == model::LayerRole::full ? in_range(comp_rows, tokens_ / config_.ratio(layer))
                                          : Status(Ok{});
  }

  Status check_trim() const {
    const FloatTensor* logits = fixture_.find_float("trim_logits");
    if (logits == nullptr) return Ok{};
    if (logits->rows() < 1 || logits->rows() > tokens_) {
      return fault("trim_logits", fmt::format("has {} rows, expected 1 to {}", logits->rows(), tokens_));
    }
    RORQUAL_TRY(size_of("trim_logits", logits->rows() * config_.vocab_size));
    return in_range("trim_greedy", config_.vocab_size);
  }

  Status check_decode() const {
    const IntTensor* greedy = fixture_.find_int("greedy");
    if (greedy == nullptr) return Ok{};
    RORQUAL_TRY(size_of("greedy_margin", greedy->rows()));
    for (const char* name : {"draft_tokens", "draft_margin", "draft_confidence"}) {
      RORQUAL_TRY(fixture_.is_official_code ? Status(Ok{})
                                            : size_of(name, greedy->rows() * config_.dspark_block_size));
    }
    return Ok{};
  }

  const ForwardFixture& fixture_;
  const model::Config& config_;
  int64_t tokens_ = 0, positions_ = 0;
};

}  // namespace

Status check_fixture_shapes(const ForwardFixture& fixture, const model::Config& config) {
  return Shapes(fixture, config).check();
}

}  // namespace rorqual::tools
