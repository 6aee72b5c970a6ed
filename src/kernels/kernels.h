// SPDX-License-Identifier: Apache-2.0
// The kernel table: the stages of a forward pass as pure functions on views. No files, no globals, no
// logging.
//
// Conventions for all stages
//   Shapes     T rows (tokens of all sequences of this step), D model width, n hyper-connection streams, H
//   heads,
//              Dh head width, Dr rotated width, Di index width, V vocabulary. Row-major, contiguous, F32 on
//              the CPU.
//   Numerics   `reference` rounds at every site of the official code (docs/numerics.md lists the sites);
//   activations
//              are then F32 values that lie on the BF16 (or FP8, FP4) grid. `exact` rounds nowhere.
//   Bits       a row's result depends on that row (and its sequence's cache) only: not on T, its place in the
//   batch,
//              the number of threads, or how a prompt was cut into steps. Sums run in the order of
//              docs/numerics.md.
//   Threads    stages split their work over ctx.pool; they are called from one thread.
//   Aliasing   outputs do not overlap inputs unless a stage says "in place".
//   Errors     none at run time; broken limits are programmer errors (RORQUAL_CHECK).
//   Formulas   docs/model.md, by the section named at each stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/matrix.h"
#include "kernels/scratch.h"

namespace rorqual::kernels {

enum class Numerics : uint8_t { exact, reference };

/// What every stage needs besides its operands.
struct Context {
  ThreadPool* pool = nullptr;
  Scratch* scratch = nullptr;  // temporary memory, released when the stage returns
  Numerics numerics = Numerics::reference;
};

// ------------------------------------------------------------------------------------------------ the step
/// Rows of one sequence in a step: consecutive in the batch and consecutive in position. A sequence may have
/// several such runs in a step (rows between them that nothing reads were left out); each has its own entry
/// in the lists "one per sequence".
struct SequenceRows {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  int64_t start = 0;         // position of row_begin
  int64_t window_begin = 0;  // no row sees a window position below it
};

/// Describes the rows of one step; built once, on a GPU uploaded once. Views stay valid for the whole step.
struct StepPlan {
  int32_t num_rows = 0;
  std::span<const int32_t> token_ids;        // [T]
  std::span<const int64_t> positions;        // [T]
  std::span<const uint8_t> is_image;         // [T], 1 for rows of an image span
  std::span<const int32_t> sequence_of_row;  // [T], index into sequences
  std::span<const SequenceRows> sequences;
};

// ------------------------------------------------------------------------------------------------ caches
/// Sizes of cache records. reference: packed formats of docs/formats.md#caches (window Dh E4M3 + Dh/32 E8M0;
/// compressed Dh/2 E2M1 + Dh/16 E4M3; index key Di/2 E2M1 + Di/32 E8M0). exact: F32 values.
struct CacheFormat {
  Numerics numerics = Numerics::reference;
  int64_t head_dim = 0;
  int64_t index_dim = 0;

  int64_t window_bytes() const {
    return numerics == Numerics::exact ? 4 * head_dim : head_dim + head_dim / 32;
  }

  int64_t compressed_bytes() const {
    return numerics == Numerics::exact ? 4 * head_dim : head_dim / 2 + head_dim / 16;
  }

  int64_t index_bytes() const {
    return numerics == Numerics::exact ? 4 * index_dim : index_dim / 2 + index_dim / 32;
  }
};

inline constexpr int64_t kWindowPageTokens = 64;

/// Sliding-window records of one sequence and layer, in pages of 64 positions: position p is record p % 64 at
/// pages[p / 64 - first_page] + offset. Pages may be missing (null) where no row of the step looks; what is
/// committed there is dropped.
struct WindowCache {
  std::byte* const* pages = nullptr;
  int64_t offset = 0;
  int64_t first_page = 0;
};

/// Compressed KV and index keys of one sequence and KV-source layer, in pages of page_entries entries (a
/// power of two): entry j is record j % page_entries of page j / page_entries. Pages for this step's entries
/// exist before a stage runs.
struct CompressedCache {
  int64_t page_entries = 64;
  std::byte* const* kv_pages = nullptr;
  std::byte* const* index_pages = nullptr;
  /// Projections of tokens whose group is still open (ratio 2), F32 [pending_slots][2][Dh] (kv, then gate),
  /// position p in slot p % pending_slots. Null for ratio 1.
  float* pending = nullptr;
  int64_t pending_slots = 0;
};

// ------------------------------------------------------------------------------------------------ rotary
// tables
/// Frequencies of one kind of layer: f32 [Dr/2].
struct RopeTable {
  std::span<const float> inv_freq;
};

/// cos and sin of position·inv_freq, F32 [T, Dr/2] each; angle = F32 product, cos and sin correctly rounded
/// from it.
struct RopeAngles {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

// ------------------------------------------------------------------------------------------------ stage
// arguments
/// Embedding lookup and stream expansion. §3.1
struct EmbedArgs {
  const StepPlan* plan = nullptr;
  const uint16_t* table_bf16 = nullptr;  // [V, D]
  int64_t d_model = 0, num_streams = 0;
  float* streams = nullptr;  // out [T, n, D]
  float* pre_mix = nullptr;  // out [T, n]: one-hot on stream 0
};

/// Engram: mixes gathered table rows into the streams. §3.10
struct EngramArgs {
  const StepPlan* plan = nullptr;
  int64_t d_model = 0, num_streams = 0;
  int64_t num_columns = 0, head_dim = 0;  // gathered rows per token, width of one
  /// Gathered records per token and column, contiguous: E4M3 [T, num_columns, head_dim] and their E8M0 scales
  /// [T, num_columns, head_dim/32].
  const uint8_t* rows_e4m3 = nullptr;
  const uint8_t* row_scales = nullptr;
  Matrix wkv;                           // fp8 [(n+1)·D, num_columns·head_dim]
  const float* query_weight = nullptr;  // [n, D]
  const float* key_weight = nullptr;    // [n, D]
  float eps = 0;
  float* streams = nullptr;  // in place [T, n, D]
  float* gate = nullptr;     // optional out [T, n] (traces)
};

/// Mean over the streams, for the draft model's taps. §3.2 step 2
struct TapArgs {
  int64_t num_rows = 0, d_model = 0, num_streams = 0;
  const float* streams = nullptr;  // [T, n, D]
  float* out = nullptr;            // [T, ...], row t at out + t·out_stride
  int64_t out_stride = 0;
};

struct HyperWeights {
  Matrix fn;                     // f32 [(2+n)·n, n·D]
  const float* base = nullptr;   // [(2+n)·n]
  const float* scale = nullptr;  // [3]
};

/// One sublayer boundary, each part optional: post of the finished sublayer, then mixes of the new streams,
/// then collapse with the mix handed over, then RMSNorm. §3.2, §3.3
struct BoundaryArgs {
  int64_t num_rows = 0, d_model = 0, num_streams = 0;
  float norm_eps = 0, hc_eps = 0;
  int sinkhorn_iters = 0;
  float* streams = nullptr;  // [T, n, D]; written by post only

  // post: streams[k] = post_k·y + Σ_j comb[j][k]·streams[j]
  const float* y = nullptr;     // [T, D], null = no post
  const float* post = nullptr;  // [T, n]
  const float* comb = nullptr;  // [T, n(from), n(to)]

  // mixes of the streams after post
  const HyperWeights* hyper = nullptr;  // null = none
  float* next_pre = nullptr;            // out [T, n]
  float* next_post = nullptr;           // out [T, n]
  float* next_comb = nullptr;           // out [T, n, n]

  // collapse and norm
  const float* pre_mix = nullptr;      // [T, n], null = no collapse; must not alias next_pre
  const float* norm_weight = nullptr;  // [D], null = collapse only
  float* collapsed = nullptr;          // optional out [T, D] before the norm
  float* x = nullptr;                  // out [T, D] (null iff norm_weight is null)
};

struct AttentionWeights {
  Matrix wq_a, wq_b, wkv;            // fp8
  const float* q_norm = nullptr;     // [q_lora_rank]
  const float* kv_norm = nullptr;    // [Dh]
  const float* attn_sink = nullptr;  // [H]
  Matrix wo_a;                       // fp8 or bf16 [groups·rank, H·Dh/groups], activation not quantised
  Matrix wo_b;                       // fp8 [D, groups·rank]
};

struct AttentionShape {
  int64_t d_model = 0, num_heads = 0, head_dim = 0, rope_dim = 0, q_lora_rank = 0;
  int64_t o_groups = 0, o_lora_rank = 0, window = 0;
  float norm_eps = 0;
};

/// Queries and window records of the step's rows. §3.5, §3.6
struct AttentionInputArgs {
  int64_t num_rows = 0;
  AttentionShape shape;
  const AttentionWeights* weights = nullptr;
  const float* x = nullptr;  // [T, D]
  RopeAngles angles;
  float* qr = nullptr;                  // out [T, q_lora_rank]; null = no queries wanted (then q is null too)
  float* q = nullptr;                   // out [T, H, Dh], rotated
  std::byte* window_records = nullptr;  // out [T, window_bytes]
};

struct CompressorWeights {
  Matrix wkv;                           // bf16 [Dh, D]
  Matrix wgate;                         // bf16 [Dh, D]; data null for ratio 1
  const float* norm = nullptr;          // [Dh]
  Matrix index_wk;                      // bf16 [Di, Dh]
  const float* index_k_norm = nullptr;  // [Di]
};

/// Compressed KV and index keys that become complete in this step, written to their pages; open rows to
/// `pending`. §3.7
struct CompressArgs {
  const StepPlan* plan = nullptr;
  AttentionShape shape;
  CacheFormat format;
  int64_t ratio = 1;
  const CompressorWeights* weights = nullptr;
  RopeTable rope;
  const float* x = nullptr;                 // [T, D]
  std::span<const CompressedCache> caches;  // one per sequence
};

struct IndexWeights {
  Matrix wq_b;          // fp8 [heads·Di, q_lora_rank]
  Matrix weights_proj;  // bf16 [heads, D]
};

/// Candidate blocks of the two-level selection, per row: ascending block ids, -1 padded. count -1 = all
/// blocks.
struct CandidateList {
  int32_t* blocks = nullptr;  // [T, max_blocks]
  int32_t* count = nullptr;   // [T]
  int64_t max_blocks = 0;
  int64_t block_size = 0;
};

/// Index scores and top-k of one index source. §3.8
struct IndexArgs {
  const StepPlan* plan = nullptr;
  AttentionShape shape;
  CacheFormat format;
  int64_t ratio = 1;
  int64_t num_index_heads = 0, index_topk = 0;
  const IndexWeights* weights = nullptr;
  RopeAngles angles;
  const float* x = nullptr;   // [T, D]
  const float* qr = nullptr;  // [T, q_lora_rank]
  std::span<const CompressedCache> caches;
  CandidateList* candidates_out = nullptr;       // filled by the candidate source
  const CandidateList* candidates_in = nullptr;  // restricts a reindex layer
  int32_t* selected = nullptr;                   // out [T, index_topk]: ascending entries, -1 padded
  int32_t* selected_count = nullptr;             // out [T]
  float* topk_gap = nullptr;  // optional out [T]: last selected minus first rejected score (traces)
};

/// Sparse attention with sink over window and selected entries, inverse rotation included. §3.9
struct AttendArgs {
  const StepPlan* plan = nullptr;
  AttentionShape shape;
  CacheFormat format;
  const float* attn_sink = nullptr;             // [H]
  const float* q = nullptr;                     // [T, H, Dh]
  const std::byte* window_records = nullptr;    // this step's rows [T, window_bytes]
  std::span<const WindowCache> windows;         // one per sequence: positions before the step
  std::span<const CompressedCache> compressed;  // one per sequence, empty for ratio 0
  const int32_t* selected = nullptr;            // [T, selected_stride], null for ratio 0
  const int32_t* selected_count = nullptr;      // [T]
  int64_t selected_stride = 0;
  /// Draft blocks: every row sees the `window` positions before the sequence's first row and all rows of its
  /// sequence in this step; only valid entries are listed. Otherwise row p sees p-window+1..p, in `window`
  /// slots.
  bool draft_block = false;
  RopeAngles angles;
  float* out = nullptr;  // [T, H, Dh]
};

/// Grouped low-rank output projection. §3.9
struct AttentionOutputArgs {
  int64_t num_rows = 0;
  AttentionShape shape;
  const AttentionWeights* weights = nullptr;
  const float* attended = nullptr;  // [T, H, Dh]
  float* y = nullptr;               // out [T, D]
};

/// Copies the step's window records into the pages that exist.
struct CommitWindowArgs {
  const StepPlan* plan = nullptr;
  CacheFormat format;
  const std::byte* window_records = nullptr;  // [T, window_bytes]
  std::span<const WindowCache> windows;       // one per sequence
};

struct ExpertWeights {
  Matrix w1, w2, w3;  // gate, down, up
};

enum class Scoring : uint8_t { sqrt_softplus, sigmoid, softmax };

struct MoeWeights {
  Matrix gate;                             // bf16 [E, D]
  const float* bias = nullptr;             // [E]
  const float* bias_vl = nullptr;          // [E], null without vision
  std::span<const ExpertWeights> experts;  // [E] mxfp4
  ExpertWeights shared;                    // fp8
};

/// Router, routed experts and shared expert. §3.11
struct MoeArgs {
  int64_t num_rows = 0, d_model = 0, d_expert = 0;
  int64_t num_active = 0;
  Scoring scoring = Scoring::sqrt_softplus;
  bool normalise_weights = true;
  float routed_scale = 1, gate_temperature = 1, swiglu_limit = 0;  // limit 0 = no clamp
  const MoeWeights* weights = nullptr;
  const uint8_t* is_image = nullptr;  // [T], null = none
  const float* x = nullptr;           // [T, D]
  float* y = nullptr;                 // out [T, D]
  // optional outputs (traces)
  int32_t* router_index = nullptr;  // [T, K] in order of descending score
  float* router_weight = nullptr;   // [T, K]
  float* router_gap = nullptr;      // [T]: last picked minus best rejected selection score
};

/// A linear layer outside the fixed stages (draft projections, Markov head, confidence).
struct LinearArgs {
  int64_t num_rows = 0;
  Matrix weight;
  const float* x = nullptr;     // [T, cols]
  float* y = nullptr;           // out [T, rows]
  bool quantise_input = false;  // FP8 activation rounding in front (reference numerics)
  bool round_output = true;     // BF16 output (reference numerics)
};

/// RMSNorm of rows. §3.0
struct NormArgs {
  int64_t num_rows = 0, width = 0;
  const float* x = nullptr;
  const float* weight = nullptr;
  float eps = 0;
  float* y = nullptr;  // may be x
};

/// Final norm and head on chosen rows. §6
struct HeadArgs {
  int64_t num_rows = 0, d_model = 0;
  float norm_eps = 0;
  const float* hidden = nullptr;       // [R, D] collapsed streams
  const float* norm_weight = nullptr;  // [D]
  Matrix head;              // bf16, or fp8 (a lossy switch: x is not quantised in front of it) [V, D]
  float* logits = nullptr;  // out [R, V] f32
};

// ------------------------------------------------------------------------------------------------ the table
struct KernelTable {
  std::string_view name;

  void (*rope_angles)(Context& ctx, std::span<const int64_t> positions, const RopeTable& rope, float* cos,
                      float* sin);
  void (*embed)(Context& ctx, const EmbedArgs& args);
  void (*engram)(Context& ctx, const EngramArgs& args);
  void (*tap)(Context& ctx, const TapArgs& args);
  void (*boundary)(Context& ctx, const BoundaryArgs& args);
  void (*attention_inputs)(Context& ctx, const AttentionInputArgs& args);
  void (*compress)(Context& ctx, const CompressArgs& args);
  void (*index_select)(Context& ctx, const IndexArgs& args);
  void (*attend)(Context& ctx, const AttendArgs& args);
  void (*attention_output)(Context& ctx, const AttentionOutputArgs& args);
  void (*commit_window)(Context& ctx, const CommitWindowArgs& args);
  void (*moe)(Context& ctx, const MoeArgs& args);
  void (*linear)(Context& ctx, const LinearArgs& args);
  void (*norm)(Context& ctx, const NormArgs& args);
  void (*head)(Context& ctx, const HeadArgs& args);
};

/// Tables this machine can run, lowest first: "ref", then "avx2", ….
std::span<const KernelTable* const> available_kernels();

/// The table named by `name`, or the best one when empty; null if it is unknown or this CPU cannot run it.
const KernelTable* select_kernels(std::string_view name = {});

}  // namespace rorqual::kernels
