// SPDX-License-Identifier: Apache-2.0
// Topics of `rorqual check ops` about number formats, matrix products, norms and experts. Formats, codes and
// choices must be exact. A float sum may differ from the file's by both sides' rounding; u = 2^-24 is half an
// F32 step.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <system_error>

#include "num/quantise.h"
#include "tools/check_ops_vectors.h"

namespace rorqual::tools {
namespace {

using kernels::WeightFormat;

constexpr double kHalfUlp = 0x1p-24;

std::vector<int64_t> as_integers(const std::vector<std::byte>& bytes) {
  std::vector<int64_t> result;
  for (const std::byte byte : bytes) result.push_back(static_cast<int64_t>(byte));
  return result;
}

/// Values of a packed matrix by its definition.
std::vector<float> values_of(const kernels::Matrix& matrix) {
  std::vector<float> values;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t col = 0; col < matrix.cols; ++col) values.push_back(kernels::matrix_value(matrix, row, col));
  }
  return values;
}

/// The tier's own decoder, seen through products with unit vectors: 1·w plus zeros is w. Values below the
/// normal range are flushed by the product and left out.
void check_unit_products(OpsCheck& check, const std::string& label, const kernels::Matrix& matrix,
                         const std::vector<float>& values) {
  if (std::any_of(values.begin(), values.end(), [](float v) { return !std::isfinite(v); })) return;
  std::vector<float> units(static_cast<size_t>(matrix.cols * matrix.cols), 0.0f);
  for (int64_t k = 0; k < matrix.cols; ++k) units[static_cast<size_t>(k * matrix.cols + k)] = 1.0f;
  const std::vector<float> columns = ops_linear(check.ops, matrix, units, matrix.cols, false);
  std::vector<float> want, got;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t k = 0; k < matrix.cols; ++k) {
      const float value = values[static_cast<size_t>(row * matrix.cols + k)];
      if ((num::bits_of(value) & num::kAbsMask) < 0x00800000u) continue;
      want.push_back(value);
      got.push_back(columns[static_cast<size_t>(k * matrix.rows + row)]);
    }
  }
  check.expect_bits(label, want, got);
}

/// `prefix`.w and .scale against .value.
Status check_weight(OpsCheck& check, const std::string& prefix, WeightFormat format) {
  RORQUAL_TRY_ASSIGN(const OpsTensor* w, check.vectors.need(prefix + ".w", 2));
  const int64_t rows = w->dim(0);
  RORQUAL_TRY_ASSIGN(const OpsTensor* value, check.vectors.need(prefix + ".value", 2));
  const int64_t cols = value->dim(1);
  const int64_t blocks = (cols + 31) / 32;
  const bool is_fp4 = format == WeightFormat::mxfp4;
  RORQUAL_TRY_ASSIGN(
      w, check.vectors.need_shape(prefix + ".w", {rows, kernels::source_row_bytes(format, cols)}));
  RORQUAL_TRY_ASSIGN(value, check.vectors.need_shape(prefix + ".value", {rows, cols}));
  RORQUAL_TRY_ASSIGN(const OpsTensor* scale,
                     check.vectors.need_shape(prefix + ".scale", {is_fp4 ? rows : (rows + 31) / 32, blocks}));
  const OpsMatrix matrix(format, rows, cols, w->bytes(), scale->bytes());
  check.expect_bits(prefix + ".value", value->floats, values_of(matrix.view()));
  check_unit_products(check, prefix + ".value by products", matrix.view(), value->floats);
  return Ok{};
}

/// Rows of an Engram table: E4M3 with a scale per 32 columns.
Status check_weight_rows(OpsCheck& check) {
  RORQUAL_TRY_ASSIGN(const OpsTensor* w, check.vectors.need("fp8row.w", 2));
  const int64_t rows = w->dim(0);
  const int64_t cols = w->dim(1);
  RORQUAL_TRY_ASSIGN(const OpsTensor* scale, check.vectors.need_shape("fp8row.scale", {rows, cols / 32}));
  RORQUAL_TRY_ASSIGN(const OpsTensor* value, check.vectors.need_shape("fp8row.value", {rows, cols}));
  std::vector<float> got(w->integers.size());
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<std::byte> record;
    for (int64_t c = 0; c < cols; ++c)
      record.push_back(static_cast<std::byte>(w->integers[static_cast<size_t>(row * cols + c)]));
    for (int64_t g = 0; g < cols / 32; ++g) {
      record.push_back(static_cast<std::byte>(scale->integers[static_cast<size_t>(row * (cols / 32) + g)]));
    }
    check.ops.decode_fp8(record.data(), cols, got.data() + row * cols);
  }
  check.expect_bits("fp8row.value", value->floats, got);
  return Ok{};
}

std::vector<int64_t> widen(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

/// The quantisers of weights, which the generator of synthetic checkpoints uses.
Status check_weight_quantisers(OpsCheck& check) {
  RORQUAL_TRY_ASSIGN(const OpsTensor* src, check.vectors.need("quant.src", 2));
  const int64_t rows = src->dim(0);
  const int64_t cols = src->dim(1);
  const int64_t blocks = (cols + 31) / 32;
  if (check.vectors.has("quant.fp8")) {
    RORQUAL_TRY_ASSIGN(const OpsTensor* codes, check.vectors.need_shape("quant.fp8", {rows, cols}));
    RORQUAL_TRY_ASSIGN(const OpsTensor* scales,
                       check.vectors.need_shape("quant.fp8_scale", {(rows + 31) / 32, blocks}));
    std::vector<uint8_t> got(codes->integers.size()), got_scales(scales->integers.size());
    num::fp8_block_quantise(src->floats.data(), rows, cols, got.data(), got_scales.data());
    check.expect_integers("quant.fp8", codes->integers, widen(got));
    check.expect_integers("quant.fp8_scale", scales->integers, widen(got_scales));
  }
  if (check.vectors.has("quant.fp4")) {
    RORQUAL_TRY_ASSIGN(const OpsTensor* codes, check.vectors.need_shape("quant.fp4", {rows, cols / 2}));
    RORQUAL_TRY_ASSIGN(const OpsTensor* scales,
                       check.vectors.need_shape("quant.fp4_scale", {rows, cols / 32}));
    std::vector<uint8_t> got(codes->integers.size()), got_scales(scales->integers.size());
    for (int64_t row = 0; row < rows; ++row) {
      num::mxfp4_row_quantise(src->floats.data() + row * cols, cols, got.data() + row * (cols / 2),
                              got_scales.data() + row * (cols / 32));
    }
    check.expect_integers("quant.fp4", codes->integers, widen(got));
    check.expect_integers("quant.fp4_scale", scales->integers, widen(got_scales));
  }
  return Ok{};
}

/// A quantiser of activations or caches as the operators offer it.
struct ActivationFormat {
  const char* prefix;
  const char* code_name;
  int64_t group;
  bool packed;  // two codes a byte
  void (*kernels::OperatorTable::*qdq)(const float*, int64_t, float*);
  void (*kernels::OperatorTable::*encode)(const float*, int64_t, std::byte*);
  void (*kernels::OperatorTable::*decode)(const std::byte*, int64_t, float*);
};

constexpr ActivationFormat kActivationFormats[] = {
    {"fp8", "q", 32, false, &kernels::OperatorTable::qdq_fp8, &kernels::OperatorTable::encode_fp8,
     &kernels::OperatorTable::decode_fp8},
    {"fp4_e8m0", "code", 32, true, &kernels::OperatorTable::qdq_fp4_e8m0,
     &kernels::OperatorTable::encode_fp4_e8m0, &kernels::OperatorTable::decode_fp4_e8m0},
    {"fp4_e4m3", "code", 16, true, &kernels::OperatorTable::qdq_fp4_e4m3,
     &kernels::OperatorTable::encode_fp4_e4m3, &kernels::OperatorTable::decode_fp4_e4m3},
};

/// Records of all rows -> codes (one a value) and scales.
void split_record(const std::vector<std::byte>& record, int64_t width, bool packed,
                  std::vector<int64_t>& codes, std::vector<int64_t>& scales) {
  const std::vector<int64_t> bytes = as_integers(record);
  for (int64_t i = 0; i < width; ++i) {
    const int64_t byte = bytes[static_cast<size_t>(packed ? i / 2 : i)];
    codes.push_back(!packed ? byte : i % 2 == 0 ? byte & 15 : byte >> 4);
  }
  const auto code_bytes = packed ? width / 2 : width;
  scales.insert(scales.end(), bytes.begin() + code_bytes, bytes.end());
}

Status check_activation(OpsCheck& check, const ActivationFormat& format) {
  const std::string prefix = format.prefix;
  RORQUAL_TRY_ASSIGN(const OpsTensor* x, check.vectors.need(prefix + ".x", 2));
  const int64_t rows = x->dim(0);
  const int64_t width = x->dim(1);
  if (width % format.group != 0 || width == 0) {
    return Error(Code::corrupt_data, fmt::format("{}: '{}.x' has {} columns, expected a multiple of {}",
                                                 check.vectors.path(), prefix, width, format.group));
  }
  RORQUAL_TRY_ASSIGN(const OpsTensor* code,
                     check.vectors.need_shape(prefix + "." + format.code_name, {rows, width}));
  RORQUAL_TRY_ASSIGN(const OpsTensor* scale,
                     check.vectors.need_shape(prefix + ".scale", {rows, width / format.group}));
  RORQUAL_TRY_ASSIGN(const OpsTensor* value, check.vectors.need_shape(prefix + ".value", {rows, width}));
  std::vector<float> rounded(x->floats.size()), decoded(x->floats.size());
  std::vector<int64_t> codes, scales;
  for (int64_t row = 0; row < rows; ++row) {
    const float* source = x->floats.data() + row * width;
    std::vector<std::byte> record(
        static_cast<size_t>((format.packed ? width / 2 : width) + width / format.group));
    (check.ops.*format.qdq)(source, width, rounded.data() + row * width);
    (check.ops.*format.encode)(source, width, record.data());
    (check.ops.*format.decode)(record.data(), width, decoded.data() + row * width);
    split_record(record, width, format.packed, codes, scales);
  }
  check.expect_integers(prefix + "." + format.code_name, code->integers, codes);
  check.expect_integers(prefix + ".scale", scale->integers, scales);
  check.expect_bits(prefix + ".value", value->floats, rounded);
  check.expect_bits(prefix + ".value from the record", value->floats, decoded);
  return Ok{};
}

/// Σ|x·w| for each output: what rounding errors of a sum are measured in.
std::vector<double> magnitudes(const std::vector<float>& x, int64_t num_rows, const kernels::Matrix& matrix) {
  const std::vector<float> w = values_of(matrix);
  std::vector<double> result;
  for (int64_t t = 0; t < num_rows; ++t) {
    for (int64_t row = 0; row < matrix.rows; ++row) {
      double sum = 0;
      for (int64_t k = 0; k < matrix.cols; ++k) {
        sum += std::abs(static_cast<double>(x[static_cast<size_t>(t * matrix.cols + k)]) *
                        static_cast<double>(w[static_cast<size_t>(row * matrix.cols + k)]));
      }
      result.push_back(sum);
    }
  }
  return result;
}

/// Half-ulps between two F32 sums of K products in unknown orders: at most K roundings on either side.
double sum_roundings(int64_t cols) {
  return 2.0 * static_cast<double>(cols) * kHalfUlp;
}

Status check_linear_format(OpsCheck& check, const std::string& prefix, WeightFormat format,
                           const OpsTensor& x) {
  RORQUAL_TRY_ASSIGN(const OpsTensor* w, check.vectors.need(prefix + ".w", 2));
  const int64_t num_rows = x.dim(0);
  const int64_t cols = x.dim(1);
  const int64_t outputs = w->dim(0);
  RORQUAL_TRY_ASSIGN(
      w, check.vectors.need_shape(prefix + ".w", {outputs, kernels::source_row_bytes(format, cols)}));
  const int64_t scale_rows = format == WeightFormat::mxfp4 ? outputs : (outputs + 31) / 32;
  RORQUAL_TRY_ASSIGN(const OpsTensor* scale,
                     check.vectors.need_shape(prefix + ".scale", {scale_rows, (cols + 31) / 32}));
  const OpsMatrix matrix(format, outputs, cols, w->bytes(), scale->bytes());
  const double roundings = sum_roundings(cols);

  RORQUAL_TRY_ASSIGN(const OpsTensor* exact,
                     check.vectors.need_shape(prefix + ".exact", {num_rows, outputs}));
  const std::vector<double> plain = magnitudes(x.floats, num_rows, matrix.view());
  check.expect_within(prefix + ".exact", exact->floats,
                      ops_linear(check.ops, matrix.view(), x.floats, num_rows, false),
                      [&](size_t i) { return roundings * plain[i]; });

  RORQUAL_TRY_ASSIGN(const OpsTensor* official,
                     check.vectors.need_shape(prefix + ".official", {num_rows, outputs}));
  std::vector<float> quantised(x.floats.size());
  for (int64_t t = 0; t < num_rows; ++t)
    check.ops.qdq_fp8(x.floats.data() + t * cols, cols, quantised.data() + t * cols);
  const std::vector<double> rounded = magnitudes(quantised, num_rows, matrix.view());
  // Sums that straddle the middle of two BF16 values round apart, by one BF16 step.
  check.expect_within(prefix + ".official", official->floats,
                      ops_linear(check.ops, matrix.view(), quantised, num_rows, true),
                      [&](size_t i) { return roundings * rounded[i] + bf16_step(official->floats[i]); });
  return Ok{};
}

/// Router logits, scores and choices. The scaling factor is not in the file; normalised weights sum to it.
Status check_router(OpsCheck& check) {
  RORQUAL_TRY_ASSIGN(const OpsTensor* x, check.vectors.need("router.x", 2));
  RORQUAL_TRY_ASSIGN(const OpsTensor* w, check.vectors.need("router.w", 2));
  RORQUAL_TRY_ASSIGN(const OpsTensor* index, check.vectors.need("router.idx", 2));
  const int64_t rows = x->dim(0);
  const int64_t experts = w->dim(0);
  const int64_t active = index->dim(1);
  RORQUAL_TRY_ASSIGN(w, check.vectors.need_shape("router.w", {experts, x->dim(1)}));
  RORQUAL_TRY_ASSIGN(index, check.vectors.need_shape("router.idx", {rows, active}));
  RORQUAL_TRY_ASSIGN(const OpsTensor* bias, check.vectors.need_shape("router.bias", {experts}));
  RORQUAL_TRY_ASSIGN(const OpsTensor* weight, check.vectors.need_shape("router.weight", {rows, active}));
  RORQUAL_TRY_ASSIGN(const OpsTensor* selection,
                     check.vectors.need_shape("router.selection_score", {rows, experts}));
  if (rows == 0 || active < 2 || active >= experts) {
    return Error(Code::corrupt_data, fmt::format("{}: router with {} rows, {} of {} experts",
                                                 check.vectors.path(), rows, active, experts));
  }
  double total = 0;
  for (int64_t i = 0; i < active; ++i) total += static_cast<double>(weight->floats[static_cast<size_t>(i)]);
  kernels::MoeArgs args;
  args.num_active = active;
  args.routed_scale = static_cast<float>(std::round(total * 1000) / 1000);

  const OpsMatrix gate(WeightFormat::bf16, *w);
  const std::vector<float> logits = ops_linear(check.ops, gate.view(), x->floats, rows, false);
  const std::vector<double> sums = magnitudes(x->floats, rows, gate.view());
  // sqrt(softplus) has a slope below 0.35; its own evaluation and the bias add at most 8 half-ulps on either
  // side.
  const auto score_error = [&](size_t i) {
    return 0.35 * sum_roundings(x->dim(1)) * sums[i] +
           16 * kHalfUlp * (1 + std::abs(static_cast<double>(selection->floats[i])));
  };
  std::vector<int32_t> got_index(index->integers.size());
  std::vector<float> got(weight->floats.size());
  std::vector<int64_t> choices;
  for (int64_t t = 0; t < rows; ++t) {
    int32_t* chosen = got_index.data() + t * active;
    check.ops.route(logits.data() + t * experts, bias->floats.data(), experts, args, chosen,
                    got.data() + t * active, nullptr);
    for (int64_t i = 0; i < active; ++i) {
      // Two experts whose scores are closer than the sums' error, but not tied, may stand in either order.
      const int64_t want = index->integers[static_cast<size_t>(t * active + i)];
      const auto at_want = static_cast<size_t>(t * experts + want);
      const auto at_got = static_cast<size_t>(t * experts + chosen[i]);
      const double gap = std::abs(static_cast<double>(selection->floats[at_want]) -
                                  static_cast<double>(selection->floats[at_got]));
      const bool undecided = gap > 0 && gap <= score_error(at_want) + score_error(at_got);
      choices.push_back(undecided ? want : chosen[i]);
    }
  }
  check.expect_integers("router.idx", index->integers, choices);
  check.expect_within("router.weight", weight->floats, got, [&](size_t i) {
    // w = scale·a/Σa: relative error of the quotient is that of a plus that of the sum.
    const size_t row = i / static_cast<size_t>(active);
    double sum = 0;
    double error = 0;
    for (int64_t k = 0; k < active; ++k) {
      const auto e =
          static_cast<size_t>(index->integers[row * static_cast<size_t>(active) + static_cast<size_t>(k)]);
      const size_t at = row * static_cast<size_t>(experts) + e;
      sum += static_cast<double>(selection->floats[at]) - static_cast<double>(bias->floats[e]);
      error = std::max(error, score_error(at));
    }
    const double value = std::abs(static_cast<double>(weight->floats[i]));
    return (static_cast<double>(args.routed_scale) + value * static_cast<double>(active)) * error / sum +
           8 * kHalfUlp * value;
  });
  return Ok{};
}

/// "limit4.weighted" -> 4; nothing for other names. The suffix goes first: its dot could end a number.
std::optional<float> swiglu_limit(std::string_view name) {
  constexpr std::string_view kPrefix = "limit", kSuffix = ".weighted";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  if (name.ends_with(kSuffix)) name.remove_suffix(kSuffix.size());
  float limit = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), limit);
  if (error != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return limit;
}

Status check_swiglu(OpsCheck& check) {
  RORQUAL_TRY_ASSIGN(const OpsTensor* gate, check.vectors.need("gate", 2));
  const int64_t rows = gate->dim(0);
  const int64_t width = gate->dim(1);
  RORQUAL_TRY_ASSIGN(const OpsTensor* up, check.vectors.need_shape("up", {rows, width}));
  for (const auto& [name, tensor] : check.vectors.tensors()) {
    const std::optional<float> limit = swiglu_limit(name);
    if (!limit) continue;
    const bool weighted = name.find(".weighted") != std::string::npos;
    const OpsTensor* weight = nullptr;
    if (weighted) {
      RORQUAL_TRY_ASSIGN(weight, check.vectors.need_shape("weight", {rows, 1}));
    }
    RORQUAL_TRY_ASSIGN(const OpsTensor* want, check.vectors.need_shape(name, {rows, width}));
    std::vector<float> got(want->floats.size());
    for (int64_t row = 0; row < rows; ++row) {
      check.ops.swiglu(gate->floats.data() + row * width, up->floats.data() + row * width, width, *limit,
                       weighted ? weight->floats[static_cast<size_t>(row)] : 1.0f, false,
                       got.data() + row * width);
    }
    // silu within 3 ulp on either side, and two products.
    check.expect_within(name, want->floats, got, [&](size_t i) {
      return (2 * 3 * 2 + 4) * kHalfUlp * std::abs(static_cast<double>(want->floats[i])) + 0x1p-125;
    });
  }
  return Ok{};
}

}  // namespace

Status check_ops_tables(OpsCheck& check) {
  std::vector<std::byte> codes(256 + 8), nibbles(16 + 1);
  for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::byte>(i);
  std::fill(codes.begin() + 256, codes.end(), std::byte{127});
  for (size_t i = 0; i < 16; ++i) nibbles[i / 2] |= static_cast<std::byte>(i % 2 == 0 ? i : i << 4);
  nibbles[16] = std::byte{127};
  if (check.vectors.has("e2m1")) {
    RORQUAL_TRY_ASSIGN(const OpsTensor* e2m1, check.vectors.need_shape("e2m1", {16}));
    std::vector<float> got(32);
    check.ops.decode_fp4_e8m0(nibbles.data(), 32, got.data());
    got.resize(16);
    check.expect_bits("e2m1", e2m1->floats, got);
  }
  if (check.vectors.has("e4m3")) {
    RORQUAL_TRY_ASSIGN(const OpsTensor* e4m3, check.vectors.need_shape("e4m3", {256}));
    std::vector<float> got(256);
    check.ops.decode_fp8(codes.data(), 256, got.data());
    check.expect_bits("e4m3", e4m3->floats, got);
  }
  if (check.vectors.has("e8m0")) {
    RORQUAL_TRY_ASSIGN(const OpsTensor* e8m0, check.vectors.need_shape("e8m0", {256}));
    std::vector<float> scalar, want, got;
    for (int code = 0; code < 256; ++code) {
      scalar.push_back(num::e8m0_decode(static_cast<uint8_t>(code)));
      if (code == 255) continue;                           // records never hold it
      std::vector<std::byte> record(33, std::byte{0x38});  // E4M3 ones
      record[32] = static_cast<std::byte>(code);
      float values[32];
      check.ops.decode_fp8(record.data(), 32, values);
      want.push_back(e8m0->floats[static_cast<size_t>(code)]);
      got.push_back(values[0]);
    }
    check.expect_bits("e8m0", e8m0->floats, scalar);
    check.expect_bits("e8m0 in records", want, got);
  }
  return Ok{};
}

Status check_ops_weights(OpsCheck& check) {
  if (check.vectors.has("fp4.w")) RORQUAL_TRY(check_weight(check, "fp4", WeightFormat::mxfp4));
  if (check.vectors.has("fp8.w")) RORQUAL_TRY(check_weight(check, "fp8", WeightFormat::fp8_block32));
  if (check.vectors.has("fp8row.w")) RORQUAL_TRY(check_weight_rows(check));
  if (check.vectors.has("quant.src")) RORQUAL_TRY(check_weight_quantisers(check));
  return Ok{};
}

Status check_ops_activations(OpsCheck& check) {
  for (const ActivationFormat& format : kActivationFormats) {
    if (check.vectors.has(std::string(format.prefix) + ".x")) RORQUAL_TRY(check_activation(check, format));
  }
  return Ok{};
}

Status check_ops_linear(OpsCheck& check) {
  RORQUAL_TRY_ASSIGN(const OpsTensor* x, check.vectors.need("x", 2));
  if (check.vectors.has("fp8.w"))
    RORQUAL_TRY(check_linear_format(check, "fp8", WeightFormat::fp8_block32, *x));
  if (check.vectors.has("fp4.w")) RORQUAL_TRY(check_linear_format(check, "fp4", WeightFormat::mxfp4, *x));
  return Ok{};
}

Status check_ops_norm(OpsCheck& check) {
  RORQUAL_TRY_ASSIGN(const OpsTensor* x, check.vectors.need("x", 2));
  const int64_t rows = x->dim(0);
  const int64_t width = x->dim(1);
  RORQUAL_TRY_ASSIGN(const OpsTensor* weight, check.vectors.need_shape("w", {width}));
  RORQUAL_TRY_ASSIGN(const OpsTensor* eps, check.vectors.need_shape("eps", {1}));
  for (const bool official : {false, true}) {
    const std::string name = official ? "official" : "exact";
    RORQUAL_TRY_ASSIGN(const OpsTensor* want, check.vectors.need_shape(name, {rows, width}));
    std::vector<float> got(want->floats.size());
    for (int64_t row = 0; row < rows; ++row) {
      check.ops.rms_norm(x->floats.data() + row * width, weight->floats.data(), eps->floats[0], width,
                         official, got.data() + row * width);
    }
    // The sum of squares has relative error below width·u on either side, its root half of that; then mean,
    // eps, root, reciprocal (which the other side may approximate within 1 ulp) and two products: below 8u on
    // either side.
    const double relative = (static_cast<double>(width) + 16) * kHalfUlp;
    check.expect_within(name, want->floats, got, [&](size_t i) {
      const double value = static_cast<double>(want->floats[i]);
      return relative * std::abs(value) + (official && value != 0 ? bf16_step(value) : 0.0) + 0x1p-125;
    });
  }
  return Ok{};
}

Status check_ops_mlp(OpsCheck& check) {
  if (check.vectors.has("gate")) RORQUAL_TRY(check_swiglu(check));
  if (check.vectors.has("router.x")) RORQUAL_TRY(check_router(check));
  return Ok{};
}

}  // namespace rorqual::tools
