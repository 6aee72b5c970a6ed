// SPDX-License-Identifier: Apache-2.0
// The attention stages over small caches: results must not depend on the number of threads, on how sequences
// are cut into steps, on what else is in the batch, or on the tier.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/operators.h"
#include "num/formats.h"

namespace rorqual::kernels {
namespace {

constexpr uint32_t kSeed = 424242;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Shape {
  int64_t d_model = 64, heads = 3, head_dim = 64, rope_dim = 16, q_rank = 32, window = 9;
  int64_t index_heads = 3, index_dim = 32, topk = 6, ratio = 2;
  int64_t candidate_blocks = 4, block_size = 3;
  int64_t page_entries = 8, window_slack = 3, pending_slots = 4;
};

std::vector<float> normals(uint32_t seed, int64_t count, float scale) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& v : out) v = num::bf16_round(normal(engine));
  return out;
}

class PackedMatrix {
 public:
  PackedMatrix(uint32_t seed, int64_t rows, int64_t cols) {
    const auto values = normals(seed, rows * cols, 1.0f / std::sqrt(static_cast<float>(cols)));
    std::vector<uint16_t> codes;
    for (const float v : values) codes.push_back(num::bf16_encode(v));
    data_ = tensor::Buffer::allocate(packed_data_bytes(WeightFormat::bf16, rows, cols));
    matrix_ = pack_matrix(WeightFormat::bf16, rows, cols, reinterpret_cast<const std::byte*>(codes.data()),
                          nullptr, (*data_).data(), nullptr);
  }

  const Matrix& matrix() const { return matrix_; }

 private:
  Result<tensor::Buffer> data_ = Error(Code::internal, "empty");
  Matrix matrix_;
};

/// Weights of one layer that owns KV and index.
struct Layer {
  explicit Layer(const Shape& s)
      : wq_a(1, s.q_rank, s.d_model),
        wq_b(2, s.heads * s.head_dim, s.q_rank),
        wkv(3, s.head_dim, s.d_model),
        c_wkv(4, s.head_dim, s.d_model),
        c_wgate(5, s.head_dim, s.d_model),
        index_wk(6, s.index_dim, s.head_dim),
        index_wq(7, s.index_heads * s.index_dim, s.q_rank),
        index_w(8, s.index_heads, s.d_model),
        norm(normals(9, 512, 0.2f)),
        sink(normals(10, s.heads, 1.0f)) {
    for (float& v : norm) v += 1.0f;
    for (int64_t i = 0; i < s.rope_dim / 2; ++i) {
      inv_freq.push_back(1.0f / static_cast<float>(1 + 3 * i));
    }
    attention.wq_a = wq_a.matrix();
    attention.wq_b = wq_b.matrix();
    attention.wkv = wkv.matrix();
    attention.q_norm = attention.kv_norm = norm.data();
    attention.attn_sink = sink.data();
    compressor.wkv = c_wkv.matrix();
    compressor.wgate = c_wgate.matrix();
    compressor.norm = compressor.index_k_norm = norm.data();
    compressor.index_wk = index_wk.matrix();
    index.wq_b = index_wq.matrix();
    index.weights_proj = index_w.matrix();
  }

  PackedMatrix wq_a, wq_b, wkv, c_wkv, c_wgate, index_wk, index_wq, index_w;
  std::vector<float> norm, sink, inv_freq;
  AttentionWeights attention;
  CompressorWeights compressor;
  IndexWeights index;
};

/// One sequence: caches, and everything computed for its rows so far.
struct Sequence {
  Sequence(const Shape& s, const CacheFormat& format, uint32_t id_in) : id(id_in) {
    window_pages.resize(kPages, nullptr);
    for (auto& page : windows)
      page.resize(static_cast<size_t>(kOffset + kWindowPageTokens * format.window_bytes()));
    pending.resize(static_cast<size_t>(s.pending_slots * 2 * s.head_dim));
    for (int i = 0; i < 32; ++i) {
      kv.emplace_back(static_cast<size_t>(s.page_entries * format.compressed_bytes()));
      keys.emplace_back(static_cast<size_t>(s.page_entries * format.index_bytes()));
    }
    for (auto& page : kv) kv_pages.push_back(page.data());
    for (auto& page : keys) index_pages.push_back(page.data());
  }

  /// Holds the pages that rows from `start` on and their successors look at, and no others.
  void turn_pages(const Shape& s, int64_t start, int64_t count) {
    for (int64_t page = 0; page < kPages; ++page) {
      const int64_t begin = page * kWindowPageTokens, end = begin + kWindowPageTokens;
      const bool is_read = end > start - s.window - s.window_slack && begin < start;
      const bool is_kept = end > start + count - s.window - s.window_slack && begin < start + count;
      std::byte*& held = window_pages[static_cast<size_t>(page)];
      if (held == nullptr && is_kept) held = windows[static_cast<size_t>(page)].data();
      if (!is_read && !is_kept) held = nullptr;
    }
  }

  void truncate(const Shape& s, int64_t to) {
    const auto keep = [to](auto& v, int64_t width) { v.resize(static_cast<size_t>(to * width)); };
    keep(out, s.heads * s.head_dim);
    keep(selected, s.topk);
    keep(reselected, s.topk);
    keep(candidates, s.candidate_blocks);
    keep(gaps, 1);
    length = to;
  }

  uint32_t id;
  int64_t length = 0;
  int64_t wrong_from = kNever;                         // rows from here on are other tokens
  static constexpr int64_t kPages = 2, kOffset = 192;  // the layer's records begin inside a page
  std::array<std::vector<std::byte>, kPages> windows;
  std::vector<std::byte*> window_pages;
  std::vector<float> pending;
  std::vector<std::vector<std::byte>> kv, keys;
  std::vector<std::byte*> kv_pages, index_pages;
  std::vector<float> out, gaps;
  std::vector<int32_t> selected, reselected, candidates;
};

struct Slice {
  Sequence* sequence;
  int64_t count;
};

class Runner {
 public:
  Runner(const Shape& shape, const KernelTable& table, int threads, Numerics numerics)
      : shape_(shape), layer_(shape), table_(table), pool_(threads) {
    ctx_ = {&pool_, &scratch_, numerics};
    format_ = {numerics, shape.head_dim, shape.index_dim};
  }

  std::unique_ptr<Sequence> open(uint32_t id) const {
    return std::make_unique<Sequence>(shape_, format_, id);
  }

  /// Runs all stages for the next rows of the sequences and appends the results to them.
  void step(const std::vector<Slice>& slices) {
    build_plan(slices);
    const int64_t rows = plan_.num_rows, half = shape_.rope_dim / 2;
    std::vector<float> cos(static_cast<size_t>(rows * half)), sin(cos.size());
    std::vector<float> qr(static_cast<size_t>(rows * shape_.q_rank));
    std::vector<float> q(static_cast<size_t>(rows * shape_.heads * shape_.head_dim)), out(q.size());
    std::vector<std::byte> records(static_cast<size_t>(rows * format_.window_bytes()));
    table_.rope_angles(ctx_, positions_, {layer_.inv_freq}, cos.data(), sin.data());
    const RopeAngles angles{cos.data(), sin.data()};

    AttentionInputArgs in;
    in.num_rows = rows;
    in.shape = attention_shape();
    in.weights = &layer_.attention;
    in.x = x_.data();
    in.angles = angles;
    in.qr = qr.data();
    in.q = q.data();
    in.window_records = records.data();
    table_.attention_inputs(ctx_, in);

    CompressArgs c;
    c.plan = &plan_;
    c.shape = attention_shape();
    c.format = format_;
    c.ratio = shape_.ratio;
    c.weights = &layer_.compressor;
    c.rope = {layer_.inv_freq};
    c.x = x_.data();
    c.caches = caches_;
    table_.compress(ctx_, c);

    run_index(angles, qr.data(), rows);

    AttendArgs a;
    a.plan = &plan_;
    a.shape = attention_shape();
    a.format = format_;
    a.attn_sink = layer_.sink.data();
    a.q = q.data();
    a.window_records = records.data();
    a.windows = windows_;
    a.compressed = caches_;
    a.selected = selected_.data();
    a.selected_count = count_.data();
    a.selected_stride = shape_.topk;
    a.angles = angles;
    a.out = out.data();
    table_.attend(ctx_, a);
    table_.commit_window(ctx_, {&plan_, format_, records.data(), windows_});
    collect(slices, out);
  }

 private:
  AttentionShape attention_shape() const {
    AttentionShape s;
    s.d_model = shape_.d_model;
    s.num_heads = shape_.heads;
    s.head_dim = shape_.head_dim;
    s.rope_dim = shape_.rope_dim;
    s.q_lora_rank = shape_.q_rank;
    s.window = shape_.window;
    s.norm_eps = 1e-20f;
    return s;
  }

  void build_plan(const std::vector<Slice>& slices) {
    positions_.clear();
    sequence_of_row_.clear();
    sequences_.clear();
    caches_.clear();
    windows_.clear();
    x_.clear();
    for (size_t s = 0; s < slices.size(); ++s) {
      Sequence& q = *slices[s].sequence;
      sequences_.push_back(
          {static_cast<int32_t>(positions_.size()), static_cast<int32_t>(slices[s].count), q.length, 0});
      q.turn_pages(shape_, q.length, slices[s].count);
      for (int64_t i = 0; i < slices[s].count; ++i) {
        const int64_t p = q.length + i;
        const uint32_t seed =
            kSeed + q.id * 1000 + static_cast<uint32_t>(p) + (p >= q.wrong_from ? 500u : 0u);
        const auto row = normals(seed, shape_.d_model, 1.0f);
        x_.insert(x_.end(), row.begin(), row.end());
        positions_.push_back(p);
        sequence_of_row_.push_back(static_cast<int32_t>(s));
      }
      caches_.push_back({shape_.page_entries, q.kv_pages.data(), q.index_pages.data(), q.pending.data(),
                         shape_.pending_slots});
      windows_.push_back({q.window_pages.data(), Sequence::kOffset});
    }
    plan_ = {static_cast<int32_t>(positions_.size()), {}, positions_, {}, sequence_of_row_, sequences_};
  }

  /// Selection of a candidate source, then that of a layer restricted to its candidates.
  void run_index(const RopeAngles& angles, const float* qr, int64_t rows) {
    const auto n = static_cast<size_t>(rows);
    selected_.assign(n * static_cast<size_t>(shape_.topk), -9);
    reselected_ = selected_;
    count_.assign(n, -9);
    gaps_.assign(n, 0);
    blocks_.assign(n * static_cast<size_t>(shape_.candidate_blocks), -9);
    block_count_.assign(n, -9);
    std::vector<int32_t> recount(n);
    CandidateList list{blocks_.data(), block_count_.data(), shape_.candidate_blocks, shape_.block_size};
    IndexArgs args;
    args.plan = &plan_;
    args.shape = attention_shape();
    args.format = format_;
    args.ratio = shape_.ratio;
    args.num_index_heads = shape_.index_heads;
    args.index_topk = shape_.topk;
    args.weights = &layer_.index;
    args.angles = angles;
    args.x = x_.data();
    args.qr = qr;
    args.caches = caches_;
    args.candidates_out = &list;
    args.selected = selected_.data();
    args.selected_count = count_.data();
    args.topk_gap = gaps_.data();
    table_.index_select(ctx_, args);
    args.candidates_out = nullptr;
    args.candidates_in = &list;
    args.selected = reselected_.data();
    args.selected_count = recount.data();
    args.topk_gap = nullptr;
    table_.index_select(ctx_, args);
  }

  void collect(const std::vector<Slice>& slices, const std::vector<float>& out) {
    int64_t row = 0;
    const auto append = [&](auto& to, const auto& from, int64_t width, int64_t count) {
      to.insert(to.end(), from.begin() + row * width, from.begin() + (row + count) * width);
    };
    for (const Slice& slice : slices) {
      append(slice.sequence->out, out, shape_.heads * shape_.head_dim, slice.count);
      append(slice.sequence->selected, selected_, shape_.topk, slice.count);
      append(slice.sequence->reselected, reselected_, shape_.topk, slice.count);
      append(slice.sequence->candidates, blocks_, shape_.candidate_blocks, slice.count);
      append(slice.sequence->gaps, gaps_, 1, slice.count);
      slice.sequence->length += slice.count;
      row += slice.count;
    }
  }

  Shape shape_;
  Layer layer_;
  const KernelTable& table_;
  ThreadPool pool_;
  Scratch scratch_;
  Context ctx_;
  CacheFormat format_;
  StepPlan plan_;
  std::vector<int64_t> positions_;
  std::vector<int32_t> sequence_of_row_;
  std::vector<SequenceRows> sequences_;
  std::vector<CompressedCache> caches_;
  std::vector<WindowCache> windows_;
  std::vector<float> x_, gaps_;
  std::vector<int32_t> selected_, reselected_, count_, blocks_, block_count_;
};

void expect_equal(const Sequence& got, const Sequence& want, const std::string& what) {
  ASSERT_EQ(got.out.size(), want.out.size()) << what;
  for (size_t i = 0; i < got.out.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got.out[i]), std::bit_cast<uint32_t>(want.out[i]))
        << what << ", value " << i;
  }
  EXPECT_EQ(got.selected, want.selected) << what;
  EXPECT_EQ(got.reselected, want.reselected) << what;
  EXPECT_EQ(got.candidates, want.candidates) << what;
  for (size_t i = 0; i < got.gaps.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got.gaps[i]), std::bit_cast<uint32_t>(want.gaps[i]))
        << what << ", gap " << i;
  }
}

constexpr int64_t kLength = 83;  // past the first window page

struct Mode {
  int64_t ratio;
  Numerics numerics;
};

class AttentionStages : public testing::TestWithParam<Mode> {
 protected:
  Shape shape() const {
    Shape s;
    s.ratio = GetParam().ratio;
    return s;
  }

  /// The whole sequence in one step on one thread of the scalar tier.
  std::unique_ptr<Sequence> whole(uint32_t id) const {
    Runner runner(shape(), *available_kernels()[0], 1, GetParam().numerics);
    auto sequence = runner.open(id);
    runner.step({{sequence.get(), kLength}});
    return sequence;
  }
};

TEST_P(AttentionStages, GiveTheSameBitsForEveryTierAndThreadCount) {
  const auto want = whole(1);
  for (const KernelTable* table : available_kernels()) {
    for (const int threads : {1, 2, 3}) {
      Runner runner(shape(), *table, threads, GetParam().numerics);
      const auto got = runner.open(1);
      runner.step({{got.get(), kLength}});
      expect_equal(*got, *want, std::string(table->name) + " threads " + std::to_string(threads));
    }
  }
}

TEST_P(AttentionStages, GiveTheSameBitsHoweverASequenceIsCutIntoSteps) {
  const auto want = whole(1);
  for (const KernelTable* table : available_kernels()) {
    for (const int64_t chunk : {1, 3, 8, 32}) {
      Runner runner(shape(), *table, 2, GetParam().numerics);
      const auto got = runner.open(1);
      while (got->length < kLength) runner.step({{got.get(), std::min(chunk, kLength - got->length)}});
      expect_equal(*got, *want, std::string(table->name) + " chunk " + std::to_string(chunk));
    }
  }
}

TEST_P(AttentionStages, GiveTheSameBitsWhateverElseIsInTheBatch) {
  const auto want_1 = whole(1), want_2 = whole(2), want_3 = whole(3);
  std::mt19937 engine(kSeed);
  for (const KernelTable* table : available_kernels()) {
    Runner runner(shape(), *table, 2, GetParam().numerics);
    const auto a = runner.open(1), b = runner.open(2), c = runner.open(3);
    std::vector<Sequence*> open = {a.get(), b.get(), c.get()};
    while (!open.empty()) {
      std::shuffle(open.begin(), open.end(), engine);
      std::vector<Slice> slices;
      for (Sequence* s : open) {
        const int64_t count = std::min<int64_t>(static_cast<int64_t>(engine() % 9), kLength - s->length);
        if (count > 0) slices.push_back({s, count});
      }
      if (!slices.empty()) runner.step(slices);
      std::erase_if(open, [](const Sequence* s) { return s->length == kLength; });
    }
    expect_equal(*a, *want_1, "first, seed " + std::to_string(kSeed));
    expect_equal(*b, *want_2, "second, seed " + std::to_string(kSeed));
    expect_equal(*c, *want_3, "third, seed " + std::to_string(kSeed));
  }
}

TEST_P(AttentionStages, ForgetRowsThatWereRunButNotAccepted) {
  const auto want = whole(1);
  Runner runner(shape(), *available_kernels().back(), 2, GetParam().numerics);
  const auto got = runner.open(1);
  while (got->length < kLength) {
    const int64_t start = got->length;
    got->wrong_from = start + 1;  // one accepted row, then two drafts that are rejected
    runner.step({{got.get(), std::min<int64_t>(3, kLength - start)}});
    got->wrong_from = kNever;
    got->truncate(shape(), start + 1);
  }
  expect_equal(*got, *want, "after rejected rows");
}

TEST_P(AttentionStages, SelectEverythingWhileItFitsAndCandidatesOnlyAfterwards) {
  const auto sequence = whole(1);
  const Shape s = shape();
  EXPECT_TRUE(
      std::all_of(sequence->out.begin(), sequence->out.end(), [](float v) { return std::isfinite(v); }));
  EXPECT_GT(std::count_if(sequence->out.begin(), sequence->out.end(), [](float v) { return v != 0.0f; }),
            static_cast<int64_t>(sequence->out.size()) / 2);
  for (int64_t p = 0; p < kLength; ++p) {
    const int64_t visible = (p + 1) / s.ratio;
    const int32_t* selected = sequence->selected.data() + p * s.topk;
    for (int64_t i = 0; i < s.topk; ++i) {
      if (i >= visible) {
        EXPECT_EQ(selected[i], -1);
        continue;
      }
      ASSERT_GE(selected[i], 0);
      ASSERT_LT(selected[i], visible);
      if (i > 0) {
        EXPECT_LT(selected[i - 1], selected[i]);
      }
      if (visible <= s.topk) {
        EXPECT_EQ(selected[i], i);
      }
    }
    if (visible <= s.candidate_blocks * s.block_size) continue;
    const int32_t* blocks = sequence->candidates.data() + p * s.candidate_blocks;
    EXPECT_EQ(blocks[s.candidate_blocks - 1], (visible - 1) / s.block_size);
    for (int64_t i = 0; i < s.topk; ++i) {
      const int32_t entry = sequence->reselected[static_cast<size_t>(p * s.topk + i)];
      EXPECT_TRUE(std::find(blocks, blocks + s.candidate_blocks, entry / s.block_size) !=
                  blocks + s.candidate_blocks);
    }
  }
}

// ------------------------------------------------------------------------------------------------ lists of
// attend
struct ListCase {
  bool draft_block;
  int64_t window_begin;
};

/// The attend stage against the operator over a list written down by hand: sequence at position 66, four
/// rows.
class AttendLists : public testing::TestWithParam<ListCase> {
 protected:
  static constexpr int64_t kHeads = 3, kDim = 32, kWindow = 5, kStart = 66, kRows = 4, kHalf = 4;

  std::vector<float> key(int64_t position) const {
    return normals(static_cast<uint32_t>(900 + position), kDim, 1.0f);
  }

  std::vector<int64_t> listed(int64_t row) const {
    std::vector<int64_t> out;
    const int64_t position = kStart + row;
    const int64_t first = GetParam().draft_block ? kStart - kWindow : position - kWindow + 1;
    const int64_t last = GetParam().draft_block ? kStart + kRows - 1 : position;
    for (int64_t p = std::max(first, GetParam().window_begin); p <= last; ++p) out.push_back(p);
    return out;
  }

  std::vector<float> expected(const OperatorTable& ops, const std::vector<float>& q,
                              const std::vector<float>& sink, const std::vector<float>& cos,
                              const std::vector<float>& sin) const {
    std::vector<float> out(q.size());
    for (int64_t t = 0; t < kRows; ++t) {
      std::vector<float> keys;
      for (const int64_t p : listed(t)) {
        const auto k = key(p);
        keys.insert(keys.end(), k.begin(), k.end());
      }
      const auto count = static_cast<int64_t>(listed(t).size());
      const std::vector<uint8_t> valid(static_cast<size_t>(count), 1);
      std::vector<float> work(static_cast<size_t>(ops.attend_workspace(kHeads, kDim, count)));
      float* row = out.data() + t * kHeads * kDim;
      ops.attend(q.data() + t * kHeads * kDim, kHeads, kDim, keys.data(), valid.data(), count, sink.data(),
                 1.0f / std::sqrt(32.0f), Numerics::exact, row, work.data());
      for (int64_t h = 0; h < kHeads; ++h) {
        float* head = row + h * kDim;
        ops.rope(head, kDim, cos.data() + t * kHalf, sin.data() + t * kHalf, kHalf, true, false, head);
      }
    }
    return out;
  }
};

TEST_P(AttendLists, AreTheWindowOfEachRowOrTheWholeDraftBlock) {
  const auto q = normals(1, kRows * kHeads * kDim, 1.0f), sink = normals(2, kHeads, 1.0f);
  const auto cos = normals(3, kRows * kHalf, 1.0f), sin = normals(4, kRows * kHalf, 1.0f);
  constexpr int64_t kPageBytes = kWindowPageTokens * kDim * 4;
  std::vector<std::byte> cache(static_cast<size_t>(2 * kPageBytes)),
      records(static_cast<size_t>(kRows * kDim * 4));
  for (int64_t p = 0; p < kStart + kRows; ++p) {
    const auto k = key(p);
    std::byte* to = p < kStart ? cache.data() + p * kDim * 4 : records.data() + (p - kStart) * kDim * 4;
    std::memcpy(to, k.data(), k.size() * sizeof(float));
  }
  const std::vector<int64_t> positions = {66, 67, 68, 69};
  const std::vector<int32_t> sequence_of_row(4, 0);
  const std::vector<SequenceRows> sequences = {{0, 4, kStart, GetParam().window_begin}};
  const StepPlan plan{4, {}, positions, {}, sequence_of_row, sequences};
  const std::vector<std::byte*> pages = {cache.data(), cache.data() + kPageBytes};
  const std::vector<WindowCache> windows = {{pages.data(), 0}};
  AttendArgs args;
  args.plan = &plan;
  args.shape.num_heads = kHeads;
  args.shape.head_dim = kDim;
  args.shape.rope_dim = 2 * kHalf;
  args.shape.window = kWindow;
  args.format = {Numerics::exact, kDim, 0};
  args.attn_sink = sink.data();
  args.q = q.data();
  args.window_records = records.data();
  args.windows = windows;
  args.draft_block = GetParam().draft_block;
  args.angles = {cos.data(), sin.data()};
  for (size_t tier = 0; tier < available_kernels().size(); ++tier) {
    for (const int threads : {1, 8}) {
      ThreadPool pool(threads);
      Scratch scratch;
      Context ctx{&pool, &scratch, Numerics::exact};
      std::vector<float> out(q.size(), -1.0f);
      args.out = out.data();
      available_kernels()[tier]->attend(ctx, args);
      const auto want = expected(*available_operators()[tier], q, sink, cos, sin);
      for (size_t i = 0; i < out.size(); ++i)
        ASSERT_EQ(out[i], want[i]) << "threads " << threads << " value " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttendLists,
                         testing::Values(ListCase{false, 0}, ListCase{false, 64}, ListCase{true, 0},
                                         ListCase{true, 63}));

INSTANTIATE_TEST_SUITE_P(All, AttentionStages,
                         testing::Values(Mode{1, Numerics::reference}, Mode{2, Numerics::reference},
                                         Mode{1, Numerics::exact}, Mode{2, Numerics::exact}),
                         [](const testing::TestParamInfo<Mode>& mode) {
                           return "ratio_" + std::to_string(mode.param.ratio) +
                                  (mode.param.numerics == Numerics::exact ? "_exact" : "_reference");
                         });

}  // namespace
}  // namespace rorqual::kernels
