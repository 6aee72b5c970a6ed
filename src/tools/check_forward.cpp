// SPDX-License-Identifier: Apache-2.0
#include "tools/check_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "kernels/operators.h"
#include "tools/check_trim.h"
#include "tools/forward_fixture.h"

namespace rorqual::tools {
namespace {

// Two F32 implementations of the exact mode agree to about 2e-5 on logits of standard deviation 3; 1e-3
// leaves room for other orders of summation and still catches every wrong formula
// (tests/golden/forward/README.md).
constexpr float kExactTolerance = 1e-3f;
constexpr double kExactKl = 1e-8;
// A discrete choice whose distance to another one is smaller than this may fall either way.
constexpr float kNearTie = 1e-4f;
// What such a choice may move trimmed logits by. tiny-a exact_L300 has one of 2.4e-7 among its trimmed rows:
// the reference's own F64 run differs from the file, which is F32, by 2.1e-3.
constexpr float kNearTieTolerance = 1e-2f;
// Layer by layer in reference numerics: what the official code itself reaches against the float64 fixtures.
constexpr double kLayerEqualShare = 0.98;
constexpr double kPooledEqualShare = 0.99;
constexpr double kSelectedEqualShare = 0.998;
// End to end on the trained model: the reference's own F32 run against its F64 run gives 5.0e-4 and 97.6 %.
constexpr double kTrainedKl = 1.5e-3;
constexpr double kTrainedTop1 = 0.955;

/// The larger of two differences; one that is not a number is larger than all others and stays.
template <class T>
T larger(T worst, T difference) {
  return std::isnan(worst) || difference <= worst ? worst : difference;
}

struct Divergence {
  double kl_sum = 0, kl_max = 0;
  int64_t rows = 0, top1_equal = 0;
  int64_t values = 0, values_equal = 0;
  float max_difference = 0;

  void add(const Divergence& other) {
    kl_sum += other.kl_sum;
    kl_max = larger(kl_max, other.kl_max);
    rows += other.rows;
    top1_equal += other.top1_equal;
    values += other.values;
    values_equal += other.values_equal;
    max_difference = larger(max_difference, other.max_difference);
  }

  double kl_mean() const { return rows == 0 ? 0 : kl_sum / static_cast<double>(rows); }

  double top1() const { return rows == 0 ? 1 : static_cast<double>(top1_equal) / static_cast<double>(rows); }

  std::string text() const {
    return fmt::format(
        "{} rows, mean KL {:.2e}, max KL {:.2e}, top-1 {:.2f} %, max |logit difference| {:.2e}, {:.2f} % of "
        "logits bit-equal",
        rows, kl_mean(), kl_max, 100 * top1(), max_difference,
        values == 0 ? 100.0 : 100.0 * static_cast<double>(values_equal) / static_cast<double>(values));
  }
};

/// KL(gold || got) of two rows of logits, in nats, F64.
double row_kl(const float* gold, const float* got, int64_t vocab) {
  const auto log_sum = [vocab](const float* x) {
    const double top = *std::max_element(x, x + vocab);
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(x[i]) - top);
    return top + std::log(sum);
  };
  const double gold_norm = log_sum(gold), got_norm = log_sum(got);
  double kl = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    const double log_p = gold[i] - gold_norm;
    kl += std::exp(log_p) * (log_p - (got[i] - got_norm));
  }
  return kl;
}

Divergence compare_logits(const FloatTensor& gold, const std::vector<float>& got) {
  Divergence result;
  const int64_t vocab = gold.width();
  for (int64_t r = 0; r < gold.rows(); ++r) {
    const float* a = gold.row(r);
    const float* b = got.data() + r * vocab;
    const double kl = row_kl(a, b, vocab);
    result.kl_sum += kl;
    result.kl_max = larger(result.kl_max, kl);
    result.rows += 1;
    result.top1_equal += (std::max_element(a, a + vocab) - a) == (std::max_element(b, b + vocab) - b) ? 1 : 0;
    for (int64_t i = 0; i < vocab; ++i) {
      result.max_difference = larger(result.max_difference, std::fabs(a[i] - b[i]));
      result.values_equal += a[i] == b[i] ? 1 : 0;
    }
    result.values += vocab;
  }
  return result;
}

/// Rows of one layer's outputs kept from a trace.
struct LayerRecord {
  std::map<std::string, std::vector<float>> floats;  // at the fixture's positions
  std::vector<std::vector<int64_t>> router;          // all rows, ascending
  std::vector<std::vector<int64_t>> selected;        // all rows, ascending
};

std::vector<float> pick_rows(const float* values, int64_t width, const std::vector<int64_t>& rows) {
  std::vector<float> out;
  out.reserve(rows.size() * static_cast<size_t>(width));
  for (const int64_t row : rows) out.insert(out.end(), values + row * width, values + (row + 1) * width);
  return out;
}

/// Entries of a row of a golden selection, ascending, without padding.
std::vector<int64_t> selected_of(const IntTensor& gold, int64_t row) {
  std::vector<int64_t> entries;
  std::copy_if(gold.row(row), gold.row(row) + gold.width(), std::back_inserter(entries),
               [](int64_t e) { return e >= 0; });
  std::sort(entries.begin(), entries.end());
  return entries;
}

/// Keeps what fixtures store; optionally forces the layer inputs from whole golden streams.
class Recorder final : public model::Probe {
 public:
  Recorder(const ForwardFixture& fixture, const model::Model& model)
      : fixture_(fixture), model_(model), config_(model.config()) {
    if (const IntTensor* pos = fixture.find_int("pos")) positions_ = pos->values;
    layers_.resize(static_cast<size_t>(config_.num_hidden_layers));
    tainted_.resize(layers_.size());
  }

  /// Names of the whole streams at entry of a layer, if the file has them.
  const FloatTensor* golden_streams(int64_t layer) const {
    const auto tokens = fixture_.find_int("ids")->rows();
    for (const char* prefix : {"all.", ""}) {
      const bool is_end = layer == config_.num_hidden_layers;
      const std::string name = is_end && *prefix != '\0' ? std::string("all.resid_out")
                               : is_end                  ? fmt::format("layers.{}.resid_out", layer - 1)
                                                         : fmt::format("{}layers.{}.resid_in", prefix, layer);
      const FloatTensor* found = fixture_.find_float(name);
      if (found != nullptr && found->rows() == tokens) return found;
    }
    return nullptr;
  }

  const FloatTensor* golden_pre(int64_t layer) const {
    const FloatTensor* found = fixture_.find_float(fmt::format("all.layers.{}.pre_mix_in", layer));
    return found != nullptr ? found : fixture_.find_float(fmt::format("layers.{}.pre_mix_in", layer));
  }

  bool can_force() const {
    if (fixture_.find_int("ids")->rows() < 2) return false;
    for (int64_t l = 0; l <= config_.num_hidden_layers; ++l) {
      if (golden_streams(l) == nullptr) return false;
    }
    return true;
  }

  void force() { is_forcing_ = true; }

  void hash_rows(std::span<const int64_t> rows) override { hash_rows_.assign(rows.begin(), rows.end()); }

  void layer_begin(int64_t layer, std::span<float> streams, std::span<float> pre_mix) override {
    if (!is_forcing_) return;
    if (layer > 0) compare_streams(layer - 1, *golden_streams(layer), streams);
    std::copy(golden_streams(layer)->values.begin(), golden_streams(layer)->values.end(), streams.begin());
    std::copy(golden_pre(layer)->values.begin(), golden_pre(layer)->values.end(), pre_mix.begin());
  }

  void layer_end(const model::LayerTrace& trace) override {
    LayerRecord& record = layers_[static_cast<size_t>(trace.layer)];
    const int64_t n = config_.hc_mult, d = config_.hidden_size, k = config_.num_experts_per_tok;
    for (int64_t t = 0; t < trace.num_rows; ++t) {
      std::vector<int64_t> experts(trace.router_index + t * k, trace.router_index + (t + 1) * k);
      std::sort(experts.begin(), experts.end());
      record.router.push_back(std::move(experts));
      if (trace.selected == nullptr) continue;
      const int32_t* row = trace.selected + t * config_.index_topk;
      record.selected.emplace_back(row, row + trace.selected_count[t]);
    }
    find_tainted(trace.layer, record);
    if (is_forcing_) {
      if (trace.layer + 1 == config_.num_hidden_layers) {
        compare_streams(trace.layer, *golden_streams(trace.layer + 1),
                        std::span(trace.streams_out, static_cast<size_t>(trace.num_rows * n * d)));
      }
      return;
    }
    keep(record, "resid_in", trace.streams_in, n * d);
    keep(record, "pre_mix_in", trace.pre_mix_in, n);
    keep(record, "attn_out", trace.attn_out, d);
    keep(record, "hc_pre", trace.hyper_pre, n);
    keep(record, "hc_post", trace.hyper_post, n);
    keep(record, "hc_comb", trace.hyper_comb, n * n);
    keep(record, "ffn_out", trace.ffn_out, d);
    keep(record, "resid_out", trace.streams_out, n * d);
    if (trace.engram_gate != nullptr) keep(record, "engram_gate", trace.engram_gate, n);
    keep_router_weights(record, trace);
    if (model_.options().numerics == kernels::Numerics::exact) {
      keep(record, "window_kv", reinterpret_cast<const float*>(trace.window_records), config_.head_dim);
    }
  }

  void taps(std::span<const float> taps) override {
    const auto width = config_.hidden_size * static_cast<int64_t>(config_.dspark_target_layer_ids.size());
    globals_["taps"] = pick_rows(taps.data(), width, positions_);
  }

  void final_hidden(std::span<const float> hidden) override {
    globals_["final_hidden"] = pick_rows(hidden.data(), config_.hidden_size, positions_);
  }

  struct LayerShare {
    int64_t values = 0, values_equal = 0, rows = 0, rows_equal = 0;
    std::string first_difference;
  };

  const std::vector<LayerShare>& shares() const { return shares_; }

  const std::vector<LayerRecord>& layers() const { return layers_; }

  const std::map<std::string, std::vector<float>>& globals() const { return globals_; }

  const std::vector<int64_t>& hashes() const { return hash_rows_; }

  /// Rows of a layer whose selection fell the other way at a tie that the official code leaves undefined.
  bool is_tainted(int64_t layer, int64_t row) const {
    const auto& rows = tainted_[static_cast<size_t>(layer)];
    return !rows.empty() && rows[static_cast<size_t>(row)];
  }

  const std::vector<int64_t>& positions() const { return positions_; }

 private:
  void keep(LayerRecord& record, const char* name, const float* values, int64_t width) {
    record.floats[name] = pick_rows(values, width, positions_);
  }

  void find_tainted(int64_t layer, const LayerRecord& record) {
    if (!fixture_.is_official_code || config_.ratio(layer) == 0) return;
    auto& rows = tainted_[static_cast<size_t>(layer)];
    if (record.selected.empty()) {  // a reuse layer has the selection of its index source
      rows = tainted_[static_cast<size_t>(config_.index_source_of(layer))];
      return;
    }
    const IntTensor* gold = fixture_.find_int(fmt::format("layers.{}.topk", layer));
    const FloatTensor* gap = fixture_.find_float(fmt::format("layers.{}.topk_gap", layer));
    const FloatTensor* candidates =
        fixture_.find_float(fmt::format("layers.{}.candidate_gap", config_.candidate_source_layer_id));
    if (gold == nullptr || gap == nullptr || gold->rows() != static_cast<int64_t>(record.selected.size()))
      return;
    rows.resize(record.selected.size());
    for (size_t t = 0; t < rows.size(); ++t) {
      const bool is_above_candidates = candidates != nullptr && layer > config_.candidate_source_layer_id;
      const bool is_tie = gap->values[t] == 0 || (is_above_candidates && candidates->values[t] == 0);
      rows[t] = is_tie && selected_of(*gold, static_cast<int64_t>(t)) != record.selected[t];
    }
  }

  /// Weights in the order of ascending expert id, as the fixtures store them.
  void keep_router_weights(LayerRecord& record, const model::LayerTrace& trace) {
    const int64_t k = config_.num_experts_per_tok;
    std::vector<float>& out = record.floats["router_w"];
    for (const int64_t t : positions_) {
      std::vector<std::pair<int32_t, float>> picks;
      for (int64_t i = 0; i < k; ++i) {
        picks.emplace_back(trace.router_index[t * k + i], trace.router_weight[t * k + i]);
      }
      std::sort(picks.begin(), picks.end());
      for (const auto& pick : picks) out.push_back(pick.second);
    }
  }

  void compare_streams(int64_t layer, const FloatTensor& gold, std::span<const float> got) {
    shares_.resize(static_cast<size_t>(config_.num_hidden_layers));
    LayerShare& share = shares_[static_cast<size_t>(layer)];
    const int64_t width = gold.width();
    for (int64_t t = 0; t < gold.rows(); ++t) {
      if (is_tainted(layer, t)) continue;
      int64_t equal = 0;
      for (int64_t i = 0; i < width; ++i) {
        const float a = gold.row(t)[i], b = got[static_cast<size_t>(t * width + i)];
        if (a == b) {
          ++equal;
        } else if (share.first_difference.empty()) {
          share.first_difference = fmt::format("row {} element {}: {} for {}", t, i, b, a);
        }
      }
      share.values += width;
      share.values_equal += equal;
      share.rows += 1;
      share.rows_equal += equal == width ? 1 : 0;
    }
  }

  const ForwardFixture& fixture_;
  const model::Model& model_;
  const model::Config& config_;
  bool is_forcing_ = false;
  std::vector<int64_t> positions_, hash_rows_;
  std::vector<LayerRecord> layers_;
  std::vector<std::vector<bool>> tainted_;  // [layer][row], empty = none
  std::map<std::string, std::vector<float>> globals_;
  std::vector<LayerShare> shares_;
};

/// Counts of all files of one run, judged at the end.
struct Pool {
  Divergence exact, trained;
  int64_t layer_values = 0, layer_values_equal = 0;
  int64_t selected_rows = 0, selected_equal = 0;
  int64_t near_ties_excused = 0;
  int64_t forced_files = 0;
};

class FileCheck {
 public:
  FileCheck(const ForwardFixture& fixture, model::Model& model, CheckReport& report, Pool& pool)
      : fixture_(fixture), model_(model), report_(report), pool_(pool), recorder_(fixture, model) {
    for (const int64_t id : fixture.find_int("ids")->values) ids_.push_back(static_cast<int32_t>(id));
  }

  Status run() {
    RORQUAL_TRY_ASSIGN(sequence_, model_.open_sequence());
    const Status status = run_open();
    model_.set_probe(nullptr);
    model_.close_sequence(sequence_);
    if (!status.ok() || fixture_.mode != "exact") return status;
    const TrimBounds bounds{.logits = kExactTolerance,
                            .near_tie = kNearTie,
                            .near_tie_logits = kNearTieTolerance,
                            .near_tie_token = 10 * kExactTolerance};
    RORQUAL_TRY_ASSIGN(const int64_t excused, check_trim(fixture_, model_, bounds, report_));
    pool_.near_ties_excused += excused;
    return Ok{};
  }

 private:
  Status run_open() {
    const bool is_exact = fixture_.mode == "exact";
    const bool is_forced = !is_exact && recorder_.can_force();
    if (is_forced) recorder_.force();
    const bool fits = model_.reserve(sequence_, static_cast<int64_t>(ids_.size()) + kDecodeRoom);
    if (!fits) return Error(Code::internal, "no cache blocks left");
    model_.set_probe(&recorder_);
    RORQUAL_TRY(prefill());
    model_.set_probe(nullptr);
    if (is_forced) {
      check_layers();
      return Ok{};
    }
    const Divergence logits = compare_logits(*fixture_.find_float("logits"), logits_);
    report_.note(fmt::format("{}: {} {}", fixture_.path, fixture_.mode, logits.text()));
    if (!is_exact) {
      pool_.trained.add(logits);
      return Ok{};
    }
    pool_.exact.add(logits);
    report_.expect(logits.max_difference <= kExactTolerance, [&] {
      return fmt::format("{} logits: max difference {:.3e}, expected at most {:.0e}", fixture_.path,
                         logits.max_difference, kExactTolerance);
    });
    check_exact_values();
    check_choices();
    return check_decode();
  }

  Status prefill() {
    std::set<int32_t> wanted;
    for (const int64_t row : fixture_.find_int("logit_rows")->values)
      wanted.insert(static_cast<int32_t>(row));
    const auto last = static_cast<int32_t>(ids_.size()) - 1;
    wanted.insert(last);
    const std::vector<int32_t> offsets(wanted.begin(), wanted.end());
    model::StepSlice slice;
    slice.sequence = sequence_;
    slice.tokens = ids_;
    slice.logit_offsets = offsets;
    const auto vocab = static_cast<size_t>(model_.vocab_size());
    std::vector<float> all(offsets.size() * vocab);
    RORQUAL_TRY(model_.forward(std::span(&slice, 1), all));
    last_logits_.assign(all.end() - static_cast<std::ptrdiff_t>(vocab), all.end());
    for (const int64_t row : fixture_.find_int("logit_rows")->values) {
      const auto at =
          std::lower_bound(offsets.begin(), offsets.end(), static_cast<int32_t>(row)) - offsets.begin();
      logits_.insert(logits_.end(), all.begin() + at * static_cast<std::ptrdiff_t>(vocab),
                     all.begin() + (at + 1) * static_cast<std::ptrdiff_t>(vocab));
    }
    return Ok{};
  }

  // ---- reference numerics, forced inputs
  void check_layers() {
    pool_.forced_files += 1;
    std::string line = fmt::format("{}: layer by layer, % of elements (rows) bit-equal:", fixture_.path);
    for (size_t l = 0; l < recorder_.shares().size(); ++l) {
      const auto& share = recorder_.shares()[l];
      const double equal = static_cast<double>(share.values_equal) / static_cast<double>(share.values);
      const double rows = static_cast<double>(share.rows_equal) / static_cast<double>(share.rows);
      line += fmt::format(" {:.2f} ({:.0f})", 100 * equal, 100 * rows);
      pool_.layer_values += share.values;
      pool_.layer_values_equal += share.values_equal;
      report_.expect(equal >= kLayerEqualShare && rows >= 0.5, [&] {
        return fmt::format(
            "{} layer {}: {:.2f} % of elements and {:.1f} % of rows bit-equal, expected {} % and 50 %; "
            "first: {}",
            fixture_.path, l, 100 * equal, 100 * rows, 100 * kLayerEqualShare, share.first_difference);
      });
    }
    report_.note(std::move(line));
    check_choices();
  }

  // ---- choices of both modes
  void check_choices() {
    for (int64_t l = 0; l < model_.config().num_hidden_layers; ++l) {
      const LayerRecord& record = recorder_.layers()[static_cast<size_t>(l)];
      check_router(l, record);
      check_selected(l, record);
    }
  }

  void check_router(int64_t layer, const LayerRecord& record) {
    const IntTensor* gold = fixture_.find_int(fmt::format("layers.{}.router_idx", layer));
    const FloatTensor* gap = fixture_.find_float(fmt::format("layers.{}.router_gap", layer));
    if (gold == nullptr || gap == nullptr) return;
    int64_t bad = 0, first = -1;
    for (int64_t t = 0; t < gold->rows(); ++t) {
      std::vector<int64_t> want(gold->row(t), gold->row(t) + gold->width());
      std::sort(want.begin(), want.end());
      if (want == record.router[static_cast<size_t>(t)]) continue;
      if (gap->values[static_cast<size_t>(t)] < kNearTie || recorder_.is_tainted(layer, t)) {
        ++pool_.near_ties_excused;
        continue;
      }
      if (first < 0) first = t;
      ++bad;
    }
    report_.expect(bad == 0, [&] {
      return fmt::format(
          "{} layer {} router: {} of {} rows pick other experts without a near-tie, first row {}",
          fixture_.path, layer, bad, gold->rows(), first);
    });
  }

  void check_selected(int64_t layer, const LayerRecord& record) {
    const IntTensor* gold = fixture_.find_int(fmt::format("layers.{}.topk", layer));
    const FloatTensor* gap = fixture_.find_float(fmt::format("layers.{}.topk_gap", layer));
    if (gold == nullptr || gap == nullptr) return;
    const bool is_all_rows = gold->rows() == static_cast<int64_t>(ids_.size());
    int64_t bad = 0, first = -1;
    for (int64_t i = 0; i < gold->rows(); ++i) {
      const int64_t t = is_all_rows ? i : recorder_.positions()[static_cast<size_t>(i)];
      const std::vector<int64_t> want = selected_of(*gold, i);
      const bool is_equal = want == record.selected[static_cast<size_t>(t)];
      const float distance = gap->values[static_cast<size_t>(t)];
      if (recorder_.is_tainted(layer, t)) {
        ++pool_.near_ties_excused;
        continue;
      }
      pool_.selected_rows += 1;
      pool_.selected_equal += is_equal ? 1 : 0;
      if (is_equal || fixture_.mode != "exact") continue;
      if (distance > 0 && distance < kNearTie) {
        ++pool_.near_ties_excused;
        continue;
      }
      if (first < 0) first = t;
      ++bad;
    }
    if (fixture_.mode != "exact") return;  // judged over all files
    report_.expect(bad == 0, [&] {
      return fmt::format(
          "{} layer {} index: {} of {} rows select other entries without a near-tie, first row {}",
          fixture_.path, layer, bad, gold->rows(), first);
    });
  }

  // ---- exact values
  void check_values(const std::string& name, const std::vector<float>& got) {
    const FloatTensor* gold = fixture_.find_float(name);
    if (gold == nullptr) return;
    float largest = 0, worst = 0;
    size_t where = 0;
    const bool is_shape_equal = gold->values.size() == got.size();
    for (size_t i = 0; is_shape_equal && i < got.size(); ++i) {
      largest = std::max(largest, std::fabs(gold->values[i]));
      const float difference = std::fabs(gold->values[i] - got[i]);
      if (larger(worst, difference) == worst || std::isnan(worst)) continue;
      worst = difference;
      where = i;
    }
    const float bound = kExactTolerance * std::max(1.0f, largest / 4);
    report_.expect(is_shape_equal && worst <= bound, [&] {
      if (!is_shape_equal) {
        return fmt::format("{} {}: {} values, expected {}", fixture_.path, name, got.size(),
                           gold->values.size());
      }
      return fmt::format("{} {}: element {} is {}, expected {} (difference {:.2e}, bound {:.1e})",
                         fixture_.path, name, where, got[where], gold->values[where], worst, bound);
    });
  }

  void check_exact_values() {
    for (const auto& [name, values] : recorder_.globals()) check_values(name, values);
    for (int64_t l = 0; l < model_.config().num_hidden_layers; ++l) {
      for (const auto& [name, values] : recorder_.layers()[static_cast<size_t>(l)].floats) {
        check_values(fmt::format("layers.{}.{}", l, name), values);
      }
      check_cache(l);
    }
    check_hashes();
  }

  /// Compressed entries and index keys as the cache holds them (F32 records in exact numerics).
  void check_cache(int64_t layer) {
    const IntTensor* rows = fixture_.find_int(fmt::format("layers.{}.comp_rows", layer));
    if (rows == nullptr) return;
    const auto source = model_.cache_layout().source_of_layer[static_cast<size_t>(layer)];
    const kernels::CompressedCache cache = model_.sequence(sequence_).compressed(source);
    const auto gather = [&](std::byte* const* pages, int64_t width) {
      std::vector<float> out(rows->values.size() * static_cast<size_t>(width));
      for (size_t i = 0; i < rows->values.size(); ++i) {
        const int64_t entry = rows->values[i];
        const std::byte* record = pages[entry / cache.page_entries] + entry % cache.page_entries * width * 4;
        std::memcpy(out.data() + i * static_cast<size_t>(width), record, static_cast<size_t>(width) * 4);
      }
      return out;
    };
    check_values(fmt::format("layers.{}.comp_kv", layer), gather(cache.kv_pages, model_.config().head_dim));
    check_values(fmt::format("layers.{}.index_k", layer),
                 gather(cache.index_pages, model_.config().index_head_dim));
  }

  void check_hashes() {
    const IntTensor* gold = fixture_.find_int("hash_ids");
    if (gold == nullptr) return;
    const int64_t stride = gold->width();
    const bool is_all_rows = gold->rows() == static_cast<int64_t>(ids_.size());
    int64_t bad = 0;
    for (int64_t i = 0; i < gold->rows(); ++i) {
      const int64_t t = is_all_rows ? i : recorder_.positions()[static_cast<size_t>(i)];
      bad += std::equal(gold->row(i), gold->row(i) + stride, recorder_.hashes().begin() + t * stride) ? 0 : 1;
    }
    report_.expect(bad == 0, [&] {
      return fmt::format("{} hash_ids: {} of {} rows differ", fixture_.path, bad, gold->rows());
    });
  }

  // ---- greedy continuation and drafts
  Status check_decode() {
    const IntTensor* greedy = fixture_.find_int("greedy");
    if (greedy == nullptr) return Ok{};
    const FloatTensor* margins = fixture_.find_float("greedy_margin");
    const IntTensor* drafts = fixture_.find_int("draft_tokens");
    int64_t compared = 0;
    for (int64_t i = 0; i < greedy->rows(); ++i) {
      const auto token = static_cast<int32_t>(std::max_element(last_logits_.begin(), last_logits_.end()) -
                                              last_logits_.begin());
      const bool is_near =
          margins != nullptr && margins->values[static_cast<size_t>(i)] < 10 * kExactTolerance;
      if (token != greedy->values[static_cast<size_t>(i)]) {
        if (is_near) {
          ++pool_.near_ties_excused;
        } else {
          report_.add_failure(fmt::format("{} greedy step {}: token {}, expected {}", fixture_.path, i, token,
                                          greedy->values[static_cast<size_t>(i)]));
        }
        break;  // everything after a different token is free
      }
      ++compared;
      if (drafts != nullptr && model_.weights().draft) RORQUAL_TRY(check_draft(i, token));
      model::StepSlice slice;
      slice.sequence = sequence_;
      slice.tokens = std::span(&token, 1);
      const int32_t offset = 0;
      slice.logit_offsets = std::span(&offset, 1);
      RORQUAL_TRY(model_.forward(std::span(&slice, 1), last_logits_));
    }
    report_.expect(compared > 0,
                   [&] { return fmt::format("{} greedy: no step could be compared", fixture_.path); });
    return Ok{};
  }

  Status check_draft(int64_t step, int32_t token) {
    RORQUAL_TRY_ASSIGN(const model::Draft draft, model_.draft_logits(sequence_, token));
    const IntTensor& gold = *fixture_.find_int("draft_tokens");
    const FloatTensor* margins = fixture_.find_float("draft_margin");
    const FloatTensor* confidence = fixture_.find_float("draft_confidence");
    bool is_free = false;
    for (int64_t j = 0; j < gold.width() && !is_free; ++j) {
      const float margin = margins != nullptr ? margins->row(step)[j] : 1.0f;
      if (draft.tokens[static_cast<size_t>(j)] != gold.row(step)[j]) {
        if (margin < 10 * kExactTolerance) {
          ++pool_.near_ties_excused;
        } else {
          report_.add_failure(fmt::format("{} draft {} of step {}: token {}, expected {}", fixture_.path, j,
                                          step, draft.tokens[static_cast<size_t>(j)], gold.row(step)[j]));
        }
        is_free = true;
      } else {
        report_.pass();
      }
    }
    if (is_free) return Ok{};
    if (confidence != nullptr) {
      float worst = 0, largest = 0;
      for (int64_t j = 0; j < gold.width(); ++j) {
        worst = larger(worst, std::fabs(confidence->row(step)[j] - draft.confidence[static_cast<size_t>(j)]));
        largest = std::max(largest, std::fabs(confidence->row(step)[j]));
      }
      report_.expect(worst <= kExactTolerance * std::max(1.0f, largest / 4), [&] {
        return fmt::format("{} draft confidence of step {}: difference {:.2e}", fixture_.path, step, worst);
      });
    }
    if (step == 0) check_values("draft_logits_first", draft.logits);
    return Ok{};
  }

 public:
  static constexpr int64_t kDecodeRoom = 64;

 private:
  const ForwardFixture& fixture_;
  model::Model& model_;
  CheckReport& report_;
  Pool& pool_;
  Recorder recorder_;
  std::vector<int32_t> ids_;
  std::vector<float> logits_, last_logits_;
  model::SequenceId sequence_ = 0;
};

Result<std::vector<std::string>> list_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
    }
    if (error) return Error(Code::io, fmt::format("cannot list '{}': {}", path, error.message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// The official prefill lists min(T, W) window columns, later steps W; BF16 numerators depend on where an
/// entry stands in the list. A window of T shows the same entries to every row of a T-token prompt in that
/// layout.
int64_t window_of(const ForwardFixture& fixture, int64_t sliding_window) {
  const int64_t tokens = fixture.find_int("ids")->rows();
  return fixture.is_official_code ? std::min(tokens, sliding_window) : sliding_window;
}

/// One call of check_forward: what is checked and where it is reported.
struct Run {
  const CheckForwardOptions& options;
  const OpenedSource& opened;
  std::vector<ForwardFixture> fixtures;
  CheckReport& report;
  Pool pool;
};

/// Room for the longest run of a mode, its greedy steps included, in one sequence.
OpenOptions options_for(const Run& run, const std::string& mode) {
  OpenOptions open = run.options.open;
  open.numerics = mode == "exact" ? "exact" : "reference";
  open.with_drafts = run.opened.config.num_stages() > 0;
  open.max_num_seqs = 1;
  open.max_num_batched_tokens = 1;
  for (const ForwardFixture& fixture : run.fixtures) {
    if (fixture.mode == mode) {
      open.max_num_batched_tokens = std::max(open.max_num_batched_tokens, fixture.find_int("ids")->rows());
    }
  }
  open.max_model_len = std::min(run.opened.config.max_position_embeddings,
                                open.max_num_batched_tokens + FileCheck::kDecodeRoom);
  return open;
}

Status run_mode(Run& run, const std::string& mode) {
  const OpenedSource& opened = run.opened;
  const OpenOptions open = options_for(run, mode);
  std::unique_ptr<model::Model> model;
  for (const ForwardFixture& fixture : run.fixtures) {
    if (fixture.mode != mode) continue;
    const int64_t window = window_of(fixture, opened.config.sliding_window);
    if (model == nullptr || model->config().sliding_window != window) {
      model.reset();  // one copy of the weights at a time
      model::Config config = opened.config;
      config.sliding_window = window;
      RORQUAL_TRY_ASSIGN(model, open_model(opened, open, config));
    }
    RORQUAL_TRY(FileCheck(fixture, *model, run.report, run.pool).run());
  }
  return Ok{};
}

void judge_pool(const Pool& pool, bool is_trained, CheckReport& report) {
  if (pool.exact.rows > 0) {
    report.note("exact, all files: " + pool.exact.text());
    report.expect(pool.exact.kl_mean() <= kExactKl, [&] {
      return fmt::format("exact: mean KL {:.2e}, expected at most {:.0e}", pool.exact.kl_mean(), kExactKl);
    });
  }
  if (pool.layer_values > 0) {
    const double equal =
        static_cast<double>(pool.layer_values_equal) / static_cast<double>(pool.layer_values);
    report.note(fmt::format("reference layer by layer, {} files: {:.3f} % of elements bit-equal",
                            pool.forced_files, 100 * equal));
    report.expect(equal >= kPooledEqualShare, [&] {
      return fmt::format("reference layer by layer: {:.2f} % of elements bit-equal, expected {} %",
                         100 * equal, 100 * kPooledEqualShare);
    });
  }
  if (pool.selected_rows > 0) {
    const double equal = static_cast<double>(pool.selected_equal) / static_cast<double>(pool.selected_rows);
    report.note(fmt::format("selected sets equal in {} of {} rows", pool.selected_equal, pool.selected_rows));
    report.expect(equal >= kSelectedEqualShare, [&] {
      return fmt::format("selected sets equal in {:.2f} % of rows, expected {} %", 100 * equal,
                         100 * kSelectedEqualShare);
    });
  }
  if (pool.trained.rows > 0) {
    report.note("reference end to end, all files: " + pool.trained.text() +
                (is_trained ? "" : " (no bound: end to end is chaotic on random weights)"));
    if (is_trained) {
      report.expect(pool.trained.kl_mean() <= kTrainedKl && pool.trained.top1() >= kTrainedTop1, [&] {
        return fmt::format(
            "reference end to end: mean KL {:.2e} and top-1 {:.2f} %, expected at most {:.1e} and at least "
            "{} %",
            pool.trained.kl_mean(), 100 * pool.trained.top1(), kTrainedKl, 100 * kTrainedTop1);
      });
    }
  }
  report.note(fmt::format("near-ties excused: {}", pool.near_ties_excused));
}

}  // namespace

Status check_forward(const CheckForwardOptions& options, CheckReport& report) {
  RORQUAL_TRY_ASSIGN(const auto files, list_files(options.fixtures));
  RORQUAL_TRY_ASSIGN(const OpenedSource opened, open_source(options.open));
  Run run{.options = options, .opened = opened, .fixtures = {}, .report = report, .pool = {}};
  bool has_text = false;
  for (const std::string& path : files) {
    RORQUAL_TRY_ASSIGN(ForwardFixture fixture, load_forward_fixture(path));
    if (!fixture.model.empty() && fixture.model != opened.name) {
      report.skip(fmt::format("{}: made with model '{}', this is '{}'", path, fixture.model, opened.name));
      continue;
    }
    RORQUAL_TRY(check_fixture_shapes(fixture, opened.config));
    has_text = has_text || fixture.is_text;
    run.fixtures.push_back(std::move(fixture));
  }
  if (run.fixtures.empty()) {
    return Error(Code::not_found,
                 fmt::format("no golden run for model '{}' among {} files", opened.name, files.size()),
                 "name a folder of fixtures made with this model");
  }
  for (const std::string mode : {"exact", "official"}) {
    const bool is_wanted = std::any_of(run.fixtures.begin(), run.fixtures.end(),
                                       [&](const ForwardFixture& f) { return f.mode == mode; });
    if (is_wanted) RORQUAL_TRY(run_mode(run, mode));
  }
  judge_pool(run.pool, has_text, report);
  return Ok{};
}

}  // namespace rorqual::tools
