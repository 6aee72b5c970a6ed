// SPDX-License-Identifier: Apache-2.0
// `rorqual check ops`, topics hyper, rope, compressor, hashing and attention. Schema:
// tests/golden/ops/README.md. Each bound below says what it allows for: another order of an F32 sum, or a
// rounding that fell the other way because of it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

#include "base/thread_pool.h"
#include "kernels/scratch.h"
#include "model/config.h"
#include "model/engram_hash.h"
#include "model/rope.h"
#include "num/formats.h"
#include "tools/check_ops_vectors.h"

namespace rorqual::tools {
namespace {

using kernels::Numerics;

constexpr double kF32Step = 0x1p-23;
constexpr float kHyperEps = 1e-6f;  // the generator's hc_eps
constexpr float kNormEps = 1e-20f;  // and rms_norm_eps
constexpr int kSinkhornIterations = 20;

struct Variant {
  const char* suffix;
  Numerics numerics;
};

constexpr Variant kVariants[] = {{"exact", Numerics::exact}, {"official", Numerics::reference}};

/// A kernel context of two threads.
struct Workplace {
  explicit Workplace(Numerics numerics) : pool(2), ctx{&pool, &scratch, numerics} {}

  ThreadPool pool;
  kernels::Scratch scratch;
  kernels::Context ctx;
};

/// A weight in panel form and the memory it lives in.
struct PackedWeight {
  tensor::Buffer buffer;
  kernels::Matrix matrix;
};

Result<PackedWeight> pack(kernels::WeightFormat format, int64_t rows, int64_t cols, const void* source) {
  PackedWeight weight;
  RORQUAL_TRY_ASSIGN(weight.buffer, tensor::Buffer::allocate(kernels::packed_data_bytes(format, rows, cols)));
  weight.matrix = kernels::pack_matrix(format, rows, cols, static_cast<const std::byte*>(source), nullptr,
                                       weight.buffer.data(), nullptr);
  return weight;
}

Result<PackedWeight> pack_bf16(const OpsTensor& values) {
  std::vector<uint16_t> codes;
  codes.reserve(values.floats.size());
  for (const float v : values.floats) codes.push_back(num::bf16_encode(v));
  return pack(kernels::WeightFormat::bf16, values.dim(0), values.dim(1), codes.data());
}

double largest(const std::vector<float>& values) {
  double most = 0;
  for (const float v : values) most = std::max(most, std::fabs(static_cast<double>(v)));
  return most;
}

/// Bound of results that end in one BF16 rounding: one step, besides the error `f32` in front of it.
std::function<double(size_t)> rounded_bound(const std::vector<float>& want, double f32) {
  return [&want, f32](size_t i) { return bf16_step(static_cast<double>(want[i])) + f32; };
}

std::function<double(size_t)> fixed_bound(double bound) {
  return [bound](size_t) { return bound; };
}

/// Names with this prefix and suffix around digits: the digits, as numbers.
std::vector<int64_t> numbered(const OpsVectors& file, const std::string& prefix, const std::string& suffix) {
  std::vector<int64_t> out;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name.size() <= prefix.size() + suffix.size() || name.compare(0, prefix.size(), prefix) != 0) continue;
    const std::string digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    if (name != prefix + digits + suffix || digits.size() > 6) continue;
    if (digits.find_first_not_of("0123456789") == std::string::npos) out.push_back(std::stoll(digits));
  }
  return out;
}

Error missing(const OpsVectors& file, const std::string& what) {
  return Error(Code::corrupt_data, fmt::format("{}: has no {}", file.path(), what),
               "The schema is described in tests/golden/ops/README.md.");
}

// ------------------------------------------------------------------------------------------------ hyper
struct HyperFile {
  const OpsTensor *h, *fn, *scale, *base, *pre, *post, *comb, *y;
  int64_t rows, n, width;
};

Result<HyperFile> load_hyper(const OpsVectors& file, const std::string& prefix, int64_t n) {
  HyperFile f{};
  RORQUAL_TRY_ASSIGN(f.h, file.need(prefix + "h", 4));
  f.rows = f.h->dim(0) * f.h->dim(1);
  f.n = n;
  f.width = f.h->dim(3);
  if (f.h->dim(2) != n || n < 1 || n > 8 || f.width % 32 != 0)
    return missing(file, prefix + "h of usable shape");
  const int64_t mixes = (2 + n) * n, batch = f.h->dim(0), tokens = f.h->dim(1);
  RORQUAL_TRY_ASSIGN(f.fn, file.need_shape(prefix + "fn", {mixes, n * f.width}));
  RORQUAL_TRY_ASSIGN(f.scale, file.need_shape(prefix + "scale", {3}));
  RORQUAL_TRY_ASSIGN(f.base, file.need_shape(prefix + "base", {mixes}));
  RORQUAL_TRY_ASSIGN(f.pre, file.need_shape(prefix + "pre", {batch, tokens, n}));
  RORQUAL_TRY_ASSIGN(f.post, file.need_shape(prefix + "post", {batch, tokens, n}));
  RORQUAL_TRY_ASSIGN(f.comb, file.need_shape(prefix + "comb", {batch, tokens, n, n}));
  RORQUAL_TRY_ASSIGN(f.y, file.need_shape(prefix + "y", {batch, tokens, f.width}));
  return f;
}

kernels::BoundaryArgs boundary_args(const HyperFile& f, std::vector<float>& streams) {
  kernels::BoundaryArgs args;
  args.num_rows = f.rows;
  args.d_model = f.width;
  args.num_streams = f.n;
  args.norm_eps = kNormEps;
  args.hc_eps = kHyperEps;
  args.sinkhorn_iters = kSinkhornIterations;
  args.streams = streams.data();
  return args;
}

Status check_mixes(OpsCheck& check, const std::string& prefix, const HyperFile& f) {
  RORQUAL_TRY_ASSIGN(const PackedWeight fn,
                     pack(kernels::WeightFormat::f32, f.fn->dim(0), f.fn->dim(1), f.fn->floats.data()));
  const kernels::HyperWeights weights{fn.matrix, f.base->floats.data(), f.scale->floats.data()};
  Workplace work(Numerics::exact);
  std::vector<float> streams = f.h->floats, pre(f.pre->floats.size()), post(pre.size()),
                     comb(f.comb->floats.size());
  kernels::BoundaryArgs args = boundary_args(f, streams);
  args.hyper = &weights;
  args.next_pre = pre.data();
  args.next_post = post.data();
  args.next_comb = comb.data();
  check.kernels.boundary(work.ctx, args);
  // The products are sums of n·D terms whose size is that of fn; each mix is at most a few dozen, so another
  // order moves it by some 2^-23 of that. Sigmoid and Sinkhorn do not enlarge absolute errors of their
  // arguments.
  const double bound = 64 * kF32Step * std::max(1.0, largest(f.scale->floats));
  check.expect_within(prefix + "pre", f.pre->floats, pre, fixed_bound(bound));
  check.expect_within(prefix + "post", f.post->floats, post, fixed_bound(2 * bound));
  check.expect_within(prefix + "comb", f.comb->floats, comb, fixed_bound(2 * bound));
  return {};
}

Status check_collapse_and_expand(OpsCheck& check, const std::string& prefix, const HyperFile& f) {
  for (const Variant& variant : kVariants) {
    Workplace work(variant.numerics);
    const std::string collapse_name = prefix + "collapse." + variant.suffix;
    const std::string expand_name = prefix + "expand." + variant.suffix;
    RORQUAL_TRY_ASSIGN(const OpsTensor* collapse, check.vectors.need(collapse_name, 3));
    RORQUAL_TRY_ASSIGN(const OpsTensor* expand, check.vectors.need_shape(expand_name, f.h->shape));
    std::vector<float> streams = f.h->floats, collapsed(f.y->floats.size());
    kernels::BoundaryArgs args = boundary_args(f, streams);
    args.pre_mix = f.pre->floats.data();
    args.collapsed = collapsed.data();
    check.kernels.boundary(work.ctx, args);
    kernels::BoundaryArgs post = boundary_args(f, streams);
    post.y = f.y->floats.data();
    post.post = f.post->floats.data();
    post.comb = f.comb->floats.data();
    check.kernels.boundary(work.ctx, post);
    // At most n + 1 products of coefficients (below 2 + eps) and values, added in another order or with fewer
    // roundings.
    const double f32 =
        static_cast<double>(f.n + 1) * 2 * kF32Step * std::max(largest(f.h->floats), largest(f.y->floats));
    const bool exact = variant.numerics == Numerics::exact;
    check.expect_within(collapse_name, collapse->floats, collapsed,
                        exact ? fixed_bound(f32) : rounded_bound(collapse->floats, f32));
    check.expect_within(expand_name, expand->floats, streams,
                        exact ? fixed_bound(f32) : rounded_bound(expand->floats, f32));
  }
  return {};
}

Status check_sinkhorn(OpsCheck& check, const std::string& prefix, int64_t n) {
  RORQUAL_TRY_ASSIGN(const OpsTensor* logits, check.vectors.need(prefix + "sinkhorn.logits", 3));
  if (logits->dim(1) != n || logits->dim(2) != n)
    return missing(check.vectors, prefix + "sinkhorn.logits of n x n");
  const std::pair<const char*, int> runs[] = {{"comb", kSinkhornIterations}, {"comb_1iter", 1}};
  for (const auto& [name, iterations] : runs) {
    const std::string full = prefix + "sinkhorn." + name;
    RORQUAL_TRY_ASSIGN(const OpsTensor* want, check.vectors.need_shape(full, logits->shape));
    std::vector<float> comb = logits->floats;
    for (int64_t i = 0; i < logits->dim(0); ++i) {
      check.ops.sinkhorn(comb.data() + i * n * n, n, iterations, kHyperEps);
    }
    // Each of 2·iterations normalisations rounds a few times; entries are at most 1 (and eps).
    check.expect_within(full, want->floats, comb, fixed_bound(2 * iterations * 4 * kF32Step));
  }
  return {};
}

}  // namespace

Status check_ops_hyper(OpsCheck& check) {
  const auto sizes = numbered(check.vectors, "hc", ".h");
  if (sizes.empty()) return missing(check.vectors, "tensors hcN.h");
  for (const int64_t n : sizes) {
    const std::string prefix = fmt::format("hc{}.", n);
    RORQUAL_TRY_ASSIGN(const HyperFile f, load_hyper(check.vectors, prefix, n));
    RORQUAL_TRY(check_mixes(check, prefix, f));
    RORQUAL_TRY(check_collapse_and_expand(check, prefix, f));
    RORQUAL_TRY(check_sinkhorn(check, prefix, n));
  }
  return {};
}

// ------------------------------------------------------------------------------------------------ rope
namespace {

/// cos and sin per position, computed by the stage.
struct Angles {
  std::vector<float> cos, sin;
};

Status check_rotation(OpsCheck& check, const std::string& kind, const OpsTensor& x, const Angles& angles) {
  const int64_t rows = x.dim(1), heads = x.dim(2), width = x.dim(3);
  const int64_t half = static_cast<int64_t>(angles.cos.size()) / rows;
  for (const bool inverse : {false, true}) {
    for (const Variant& variant : kVariants) {
      const std::string name = fmt::format("{}.{}{}", kind, inverse ? "inverse." : "", variant.suffix);
      RORQUAL_TRY_ASSIGN(const OpsTensor* want, check.vectors.need_shape(name, x.shape));
      std::vector<float> got(x.floats.size());
      for (int64_t i = 0; i < rows * heads; ++i) {
        const int64_t t = i / heads;
        check.ops.rope(x.floats.data() + i * width, width, angles.cos.data() + t * half,
                       angles.sin.data() + t * half, half, inverse, variant.numerics == Numerics::reference,
                       got.data() + i * width);
      }
      // cos and sin of the file are within 1.5 steps of the true ones, ours within half a step.
      const double f32 = 4 * kF32Step * largest(x.floats);
      check.expect_within(
          name, want->floats, got,
          variant.numerics == Numerics::exact ? fixed_bound(f32) : rounded_bound(want->floats, f32));
    }
  }
  return {};
}

}  // namespace

Status check_ops_rope(OpsCheck& check) {
  RORQUAL_TRY_ASSIGN(const OpsTensor* pos, check.vectors.need("pos", 1));
  RORQUAL_TRY_ASSIGN(const OpsTensor* x, check.vectors.need("x", 4));
  if (x->dim(0) != 1 || x->dim(1) != pos->dim(0))
    return missing(check.vectors, "x of shape [1, positions, heads, width]");
  Workplace work(Numerics::reference);
  for (const bool compressed : {false, true}) {
    const std::string kind = compressed ? "compressed" : "swa";
    RORQUAL_TRY_ASSIGN(const OpsTensor* inv_freq, check.vectors.need(kind + ".inv_freq", 1));
    const int64_t half = inv_freq->dim(0);
    if (2 * half > x->dim(3)) return missing(check.vectors, kind + ".inv_freq of at most half the width");
    model::Config config = model::release_config();
    config.qk_rope_head_dim = 2 * half;
    check.expect_bits(kind + ".inv_freq", inv_freq->floats, model::rope_inv_freq(config, compressed));

    Angles angles;
    angles.cos.resize(pos->integers.size() * static_cast<size_t>(half));
    angles.sin.resize(angles.cos.size());
    check.kernels.rope_angles(work.ctx, pos->integers, {inv_freq->floats}, angles.cos.data(),
                              angles.sin.data());
    // The generator's F32 functions are within 1.5 steps (of values up to 1), ours are correctly rounded.
    for (const auto& [name, got] : {std::pair("cos", &angles.cos), std::pair("sin", &angles.sin)}) {
      RORQUAL_TRY_ASSIGN(const OpsTensor* want,
                         check.vectors.need_shape(kind + "." + name, {pos->dim(0), half}));
      check.expect_within(kind + "." + name, want->floats, *got, fixed_bound(kF32Step));
    }
    RORQUAL_TRY(check_rotation(check, kind, *x, angles));
  }
  return {};
}

// ------------------------------------------------------------------------------------------------ compressor
namespace {

struct CompressorFile {
  const OpsTensor* x = nullptr;
  const OpsTensor* norm = nullptr;
  PackedWeight wkv, wgate, index_wk;
  std::vector<float> index_norm;
  int64_t ratio = 1, tokens = 0, width = 0, head_dim = 0;
};

Result<CompressorFile> load_compressor(const OpsVectors& file, int64_t ratio) {
  const std::string prefix = fmt::format("r{}.", ratio);
  CompressorFile f;
  f.ratio = ratio;
  RORQUAL_TRY_ASSIGN(f.x, file.need("x", 3));
  RORQUAL_TRY_ASSIGN(const OpsTensor* wkv, file.need(prefix + "wkv.weight", 2));
  f.tokens = f.x->dim(1);
  f.width = f.x->dim(2);
  f.head_dim = wkv->dim(0);
  if (f.x->dim(0) != 1 || wkv->dim(1) != f.width || f.head_dim % 32 != 0)
    return missing(file, "weights that fit x");
  RORQUAL_TRY_ASSIGN(f.norm, file.need_shape(prefix + "norm.weight", {f.head_dim}));
  RORQUAL_TRY_ASSIGN(f.wkv, pack_bf16(*wkv));
  if (ratio > 1) {
    RORQUAL_TRY_ASSIGN(const OpsTensor* gate,
                       file.need_shape(prefix + "wgate.weight", {f.head_dim, f.width}));
    RORQUAL_TRY_ASSIGN(f.wgate, pack_bf16(*gate));
  }
  // The stage also makes index keys, which this topic has no values for: a projection of zeros.
  const std::vector<uint16_t> zeros(static_cast<size_t>(32 * f.head_dim));
  RORQUAL_TRY_ASSIGN(f.index_wk, pack(kernels::WeightFormat::bf16, 32, f.head_dim, zeros.data()));
  f.index_norm.assign(32, 1.0f);
  return f;
}

/// Runs the stage over the tokens cut at `cuts`; entries are F32 (exact) or packed records (reference).
std::vector<std::byte> run_compressor(OpsCheck& check, const CompressorFile& f, Numerics numerics,
                                      const std::vector<int64_t>& cuts) {
  Workplace work(numerics);
  const kernels::CacheFormat format{numerics, f.head_dim, 32};
  int64_t page_entries = 1;
  while (page_entries < f.tokens) page_entries *= 2;
  std::vector<std::byte> kv(static_cast<size_t>(page_entries * format.compressed_bytes()));
  std::vector<std::byte> keys(static_cast<size_t>(page_entries * format.index_bytes()));
  std::vector<float> pending(static_cast<size_t>(8 * 2 * f.head_dim));
  std::byte *kv_page = kv.data(), *key_page = keys.data();
  const std::vector<kernels::CompressedCache> caches = {
      {page_entries, &kv_page, &key_page, pending.data(), 8}};
  kernels::CompressorWeights weights;
  weights.wkv = f.wkv.matrix;
  weights.wgate = f.wgate.matrix;
  weights.norm = f.norm->floats.data();
  weights.index_wk = f.index_wk.matrix;
  weights.index_k_norm = f.index_norm.data();
  int64_t start = 0;
  for (const int64_t count : cuts) {
    std::vector<int64_t> positions(static_cast<size_t>(count));
    std::iota(positions.begin(), positions.end(), start);
    const std::vector<int32_t> sequence_of_row(positions.size(), 0);
    const std::vector<kernels::SequenceRows> sequences = {{0, static_cast<int32_t>(count), start, 0}};
    const kernels::StepPlan plan{static_cast<int32_t>(count), {}, positions, {}, sequence_of_row, sequences};
    kernels::CompressArgs args;
    args.plan = &plan;
    args.shape.d_model = f.width;
    args.shape.head_dim = f.head_dim;
    args.shape.norm_eps = kNormEps;
    args.format = format;
    args.ratio = f.ratio;
    args.weights = &weights;  // no rope: the file holds latents before their rotation
    args.x = f.x->floats.data() + start * f.width;
    args.caches = caches;
    check.kernels.compress(work.ctx, args);
    start += count;
  }
  kv.resize(static_cast<size_t>(f.tokens / f.ratio * format.compressed_bytes()));
  return kv;
}

/// BF16 neighbours of a value, itself included: results that one other rounding can give.
std::vector<float> neighbours(float value) {
  const auto step = static_cast<float>(bf16_step(static_cast<double>(value)));
  return {value, num::bf16_round(value + step), num::bf16_round(value - step)};
}

/// Whether `got` can be the E2M1 x E4M3 quantisation of a group of 16 latents, each exact or one BF16 step
/// off.
bool quantises_to(const float* latent, const float* got) {
  double amax = 0;
  for (int i = 0; i < 16; ++i) amax = std::max(amax, std::fabs(static_cast<double>(latent[i])));
  for (const float top : neighbours(static_cast<float>(amax))) {
    const float floor = 6.0f * 0x1p-9f;
    const float scale = num::e4m3_decode(num::e4m3_encode(std::max(std::fabs(top), floor) / 6.0f));
    bool all = true;
    for (int i = 0; i < 16 && all; ++i) {
      const auto options = neighbours(latent[i]);
      all = std::any_of(options.begin(), options.end(), [&](float v) {
        return num::e2m1_decode(num::e2m1_encode(v / scale)) * scale == got[i];
      });
    }
    if (all) return true;
  }
  return false;
}

void compare_packed(OpsCheck& check, const std::string& name, const OpsTensor& want, const CompressorFile& f,
                    const std::vector<std::byte>& records) {
  const int64_t record_bytes = f.head_dim / 2 + f.head_dim / 16;
  std::vector<int64_t> wrong_groups;
  for (int64_t entry = 0; entry < want.dim(1); ++entry) {
    std::vector<float> got(static_cast<size_t>(f.head_dim));
    check.ops.decode_fp4_e4m3(records.data() + entry * record_bytes, f.head_dim, got.data());
    for (int64_t c = 0; c < f.head_dim; c += 16) {
      const float* latent = want.floats.data() + entry * f.head_dim + c;
      if (!quantises_to(latent, got.data() + c)) wrong_groups.push_back(entry * f.head_dim + c);
    }
  }
  check.expect_integers(name + " (first elements of groups that no neighbouring latent gives)", {},
                        wrong_groups);
}

}  // namespace

Status check_ops_compressor(OpsCheck& check) {
  const auto ratios = numbered(check.vectors, "r", ".wkv.weight");
  if (ratios.empty()) return missing(check.vectors, "tensors rN.wkv.weight");
  for (const int64_t ratio : ratios) {
    if (ratio < 1 || ratio > 8) return missing(check.vectors, "ratio between 1 and 8");
    RORQUAL_TRY_ASSIGN(const CompressorFile f, load_compressor(check.vectors, ratio));
    for (const Variant& variant : kVariants) {
      const std::string name = fmt::format("r{}.latent.{}", ratio, variant.suffix);
      RORQUAL_TRY_ASSIGN(const OpsTensor* want,
                         check.vectors.need_shape(name, {1, f.tokens / ratio, f.head_dim}));
      const auto records = run_compressor(check, f, variant.numerics, {f.tokens});
      std::vector<int64_t> cuts;
      for (int64_t done = 0, next = 1; done < f.tokens; done += cuts.back(), next = next % 4 + 1) {
        cuts.push_back(std::min(next, f.tokens - done));
      }
      const auto cut = run_compressor(check, f, variant.numerics, cuts);
      check.expect_integers(name + " (bytes that differ when cut into steps)", {0}, {records == cut ? 0 : 1});
      if (variant.numerics == Numerics::exact) {
        std::vector<float> got(want->floats.size());
        std::copy_n(records.data(), records.size(), reinterpret_cast<std::byte*>(got.data()));
        // Sums of D products of size one, then a norm that keeps relative errors.
        const double bound = 16 * kF32Step * std::max(1.0, largest(want->floats));
        check.expect_within(name, want->floats, got, fixed_bound(bound));
      } else {
        compare_packed(check, name, *want, f, records);
      }
    }
  }
  return {};
}

// ------------------------------------------------------------------------------------------------ hashing
namespace {

/// The released model's Engram with an identity token map.
Result<model::NgramHasher> release_hasher() {
  model::Config config = model::release_config();
  config.vocab_size = config.engram_compressed_vocab_size;
  std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
  std::iota(map.begin(), map.end(), 0);
  return model::NgramHasher::create(config, map);
}

Status check_hashes(OpsCheck& check, const OpsTensor& ids) {
  RORQUAL_TRY_ASSIGN(const model::NgramHasher hasher, release_hasher());
  std::vector<int32_t> history;
  for (const int64_t id : ids.integers) history.push_back(static_cast<int32_t>(id));
  const int64_t length = ids.dim(1), row = hasher.num_layers() * hasher.columns();
  const auto run = [&](int64_t start) {
    std::vector<int64_t> rows(static_cast<size_t>((length - start) * row));
    hasher.hash(history, start, length - start, rows.data());
    return rows;
  };
  RORQUAL_TRY_ASSIGN(const OpsTensor* all, check.vectors.need("release.hash", 4));
  check.expect_integers("release.hash", all->integers, run(0));
  for (const int64_t start : numbered(check.vectors, "release.hash_from_", "")) {
    const std::string name = fmt::format("release.hash_from_{}", start);
    if (start > length) return missing(check.vectors, name + " within the ids");
    RORQUAL_TRY_ASSIGN(const OpsTensor* part, check.vectors.need(name, 4));
    check.expect_integers(name, part->integers, run(start));
  }
  return {};
}

}  // namespace

Status check_ops_hashing(OpsCheck& check) {
  const model::Config& config = model::release_config();
  RORQUAL_TRY_ASSIGN(const OpsTensor* primes, check.vectors.need("release.primes", 3));
  std::vector<int64_t> got;
  for (const auto& layer :
       model::prime_layout(primes->dim(0), primes->dim(1) * primes->dim(2), config.engram_vocab_size)) {
    got.insert(got.end(), layer.begin(), layer.end());
  }
  check.expect_integers("release.primes", primes->integers, got);

  RORQUAL_TRY_ASSIGN(const OpsTensor* multipliers, check.vectors.need("release.multipliers", 2));
  got.clear();
  for (const int64_t layer : config.engram_layer_ids) {
    const auto m = model::hash_multipliers(layer, multipliers->dim(1), config.engram_compressed_vocab_size);
    got.insert(got.end(), m.begin(), m.end());
  }
  check.expect_integers("release.multipliers", multipliers->integers, got);

  RORQUAL_TRY_ASSIGN(const OpsTensor* ids, check.vectors.need("release.compressed_ids", 2));
  RORQUAL_TRY(check_hashes(check, *ids));
  for (const auto& [name, tensor] : check.vectors.tensors()) {
    long long layer = 0, vocab = 0;
    if (std::sscanf(name.c_str(), "multipliers.layer%lld.vocab%lld", &layer, &vocab) != 2) continue;
    check.expect_integers(name, tensor.integers, model::hash_multipliers(layer, tensor.count(), vocab));
  }
  return {};
}

// ------------------------------------------------------------------------------------------------ attention
namespace {

struct AttentionFile {
  const OpsTensor *q, *kv, *idx, *sink, *scale;
};

/// The operator over the lists of all rows; keys of empty slots are NaN, which must not matter.
std::vector<float> run_attention(OpsCheck& check, const AttentionFile& f, Numerics numerics) {
  const int64_t rows = f.q->dim(1), heads = f.q->dim(2), width = f.q->dim(3), slots = f.idx->dim(2);
  std::vector<float> out(f.q->floats.size());
  std::vector<float> work(static_cast<size_t>(check.ops.attend_workspace(heads, width, slots)));
  for (int64_t t = 0; t < rows; ++t) {
    std::vector<float> keys(static_cast<size_t>(slots * width), std::numeric_limits<float>::quiet_NaN());
    std::vector<uint8_t> valid(static_cast<size_t>(slots));
    for (int64_t s = 0; s < slots; ++s) {
      const int64_t entry = f.idx->integers[static_cast<size_t>(t * slots + s)];
      if (entry < 0 || entry >= f.kv->dim(1)) continue;
      valid[static_cast<size_t>(s)] = 1;
      std::copy_n(f.kv->floats.data() + entry * width, width, keys.data() + s * width);
    }
    check.ops.attend(f.q->floats.data() + t * heads * width, heads, width, keys.data(), valid.data(), slots,
                     f.sink->floats.data(), f.scale->floats[0], numerics, out.data() + t * heads * width,
                     work.data());
  }
  return out;
}

Status check_attend(OpsCheck& check) {
  AttentionFile f{};
  RORQUAL_TRY_ASSIGN(f.q, check.vectors.need("q", 4));
  RORQUAL_TRY_ASSIGN(f.kv, check.vectors.need("kv", 3));
  RORQUAL_TRY_ASSIGN(f.idx, check.vectors.need("idx", 3));
  RORQUAL_TRY_ASSIGN(f.sink, check.vectors.need_shape("sink", {f.q->dim(2)}));
  RORQUAL_TRY_ASSIGN(f.scale, check.vectors.need_shape("scale", {1}));
  if (f.q->dim(0) != 1 || f.kv->dim(0) != 1 || f.idx->dim(1) != f.q->dim(1) || f.kv->dim(2) != f.q->dim(3) ||
      f.q->dim(3) % 32 != 0) {
    return missing(check.vectors, "q, kv and idx that fit each other");
  }
  const double values = largest(f.kv->floats);
  for (const Variant& variant : kVariants) {
    const std::string name = std::string("out.") + variant.suffix;
    RORQUAL_TRY_ASSIGN(const OpsTensor* want, check.vectors.need_shape(name, f.q->shape));
    const auto got = run_attention(check, f, variant.numerics);
    // The result is a mean of values: scores and probabilities are off by some F32 steps. With rounding,
    // probabilities whose BF16 rounding falls the other way move it by 2^-8 of their share; not all do.
    const double f32 = 64 * kF32Step * values;
    if (variant.numerics == Numerics::exact) {
      check.expect_within(name, want->floats, got, fixed_bound(f32));
    } else {
      check.expect_within(name, want->floats, got, rounded_bound(want->floats, f32 + values * 0x1p-10));
    }
  }
  return {};
}

struct Candidates {
  const OpsTensor *score, *lens;
  int64_t rows, width;

  int64_t length(int64_t t) const {
    return std::clamp<int64_t>(lens->integers[static_cast<size_t>(t)], 0, width);
  }

  const float* row(int64_t t) const { return score->floats.data() + t * width; }
};

struct BlockChoice {
  int64_t num_blocks, block_size;
};

void check_mask(OpsCheck& check, const std::string& name, const OpsTensor& want, const Candidates& c,
                const BlockChoice& choice) {
  std::vector<int64_t> got(static_cast<size_t>(c.rows * c.width));
  std::vector<int32_t> ids(static_cast<size_t>(choice.num_blocks));
  for (int64_t t = 0; t < c.rows; ++t) {
    const int64_t kept =
        check.ops.candidate_blocks(c.row(t), c.length(t), choice.block_size, choice.num_blocks, ids.data());
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t begin = ids[static_cast<size_t>(i)] * choice.block_size,
                    end = std::min(c.width, begin + choice.block_size);
      for (int64_t j = begin; j < end; ++j) got[static_cast<size_t>(t * c.width + j)] = 1;
    }
  }
  check.expect_integers(name, want.integers, got);
}

/// The file lists picks by descending score, unreachable positions included; ours are the reachable ones,
/// ascending.
void check_top_k(OpsCheck& check, const std::string& name, const OpsTensor& want, const Candidates& c,
                 int64_t k) {
  std::vector<int64_t> expected, got;
  std::vector<int32_t> picks(static_cast<size_t>(k));
  for (int64_t t = 0; t < c.rows; ++t) {
    std::vector<int64_t> row;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t pick = want.integers[static_cast<size_t>(t * k + i)];
      if (pick >= 0 && pick < c.width && std::isfinite(c.row(t)[pick])) row.push_back(pick);
    }
    std::sort(row.begin(), row.end());
    expected.insert(expected.end(), row.begin(), row.end());
    expected.push_back(-1);
    const int64_t taken = check.ops.top_k(c.row(t), c.width, k, picks.data(), nullptr);
    got.insert(got.end(), picks.begin(), picks.begin() + taken);
    got.push_back(-1);
  }
  check.expect_integers(name, expected, got);
}

}  // namespace

Status check_ops_attention(OpsCheck& check) {
  RORQUAL_TRY(check_attend(check));
  Candidates c{};
  RORQUAL_TRY_ASSIGN(c.score, check.vectors.need("cand.score", 3));
  c.rows = c.score->dim(0) * c.score->dim(1);
  c.width = c.score->dim(2);
  RORQUAL_TRY_ASSIGN(c.lens, check.vectors.need_shape("cand.lens", {c.rows}));
  for (const auto& [name, tensor] : check.vectors.tensors()) {
    long long blocks = 0, size = 0, k = 0;
    if (std::sscanf(name.c_str(), "cand.mask_%lldx%lld", &blocks, &size) == 2) {
      if (tensor.count() != c.rows * c.width || blocks < 1 || size < 1)
        return missing(check.vectors, name + " that fits");
      check_mask(check, name, tensor, c, {std::min<int64_t>(blocks, c.width), size});
    } else if (std::sscanf(name.c_str(), "cand.topk%lld", &k) == 1) {
      if (k < 1 || tensor.count() != c.rows * k) return missing(check.vectors, name + " that fits");
      check_top_k(check, name, tensor, c, k);
    }
  }
  return {};
}

}  // namespace rorqual::tools
