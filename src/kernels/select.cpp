// SPDX-License-Identifier: Apache-2.0
// The tiers of this build: operator tables, the stages bound to each, and the choice among them.
#include <array>
#include <cstdlib>

#include "base/cpu_info.h"
#include "kernels/cpu/avx2/operators_avx2.h"
#include "kernels/cpu/stages.h"
#include "kernels/kernels.h"
#include "kernels/operators.h"
#include "kernels/ref/operators_ref.h"

namespace rorqual::kernels {
namespace {

// Both tables in one form, so that a new operator cannot be forgotten in one of them.
#define RORQUAL_OPERATORS(tier)                                                                             \
  {                                                                                                         \
    .name = #tier, .linear = tier::linear, .rms_norm = tier::rms_norm, .round_bf16 = tier::round_bf16,      \
    .qdq_fp8 = tier::qdq_fp8, .qdq_fp4_e8m0 = tier::qdq_fp4_e8m0, .qdq_fp4_e4m3 = tier::qdq_fp4_e4m3,       \
    .encode_fp8 = tier::encode_fp8, .decode_fp8 = tier::decode_fp8,                                         \
    .encode_fp4_e8m0 = tier::encode_fp4_e8m0, .decode_fp4_e8m0 = tier::decode_fp4_e8m0,                     \
    .encode_fp4_e4m3 = tier::encode_fp4_e4m3, .decode_fp4_e4m3 = tier::decode_fp4_e4m3, .rope = tier::rope, \
    .hyper_mixes = tier::hyper_mixes, .sinkhorn = tier::sinkhorn, .hyper_collapse = tier::hyper_collapse,   \
    .hyper_expand = tier::hyper_expand, .sum = tier::sum, .sum_squares = tier::sum_squares,                 \
    .dot = tier::dot, .swiglu = tier::swiglu, .route = tier::route, .attend = tier::attend,                 \
    .attend_workspace = tier::attend_workspace, .index_scores = tier::index_scores, .top_k = tier::top_k,   \
    .candidate_blocks = tier::candidate_blocks, .index_scores_int8 = tier::index_scores_int8,               \
  }

constexpr OperatorTable kRef = RORQUAL_OPERATORS(ref);
constexpr OperatorTable kAvx2 = RORQUAL_OPERATORS(avx2);

/// Binds a stage to a table: bind<kRef, moe_args, cpu::moe> is a KernelTable entry.
template <const OperatorTable& Ops, class Args, void (*Stage)(const OperatorTable&, Context&, const Args&)>
void bind(Context& ctx, const Args& args) {
  Stage(Ops, ctx, args);
}

template <const OperatorTable& Ops>
void bind_rope_angles(Context& ctx, std::span<const int64_t> positions, const RopeTable& rope, float* cos,
                      float* sin) {
  cpu::rope_angles(Ops, ctx, positions, rope, cos, sin);
}

template <const OperatorTable& Ops>
constexpr KernelTable kernels_over() {
  return {.name = Ops.name,
          .rope_angles = bind_rope_angles<Ops>,
          .embed = bind<Ops, EmbedArgs, cpu::embed>,
          .engram = bind<Ops, EngramArgs, cpu::engram>,
          .tap = bind<Ops, TapArgs, cpu::tap>,
          .boundary = bind<Ops, BoundaryArgs, cpu::boundary>,
          .attention_inputs = bind<Ops, AttentionInputArgs, cpu::attention_inputs>,
          .compress = bind<Ops, CompressArgs, cpu::compress>,
          .index_select = bind<Ops, IndexArgs, cpu::index_select>,
          .attend = bind<Ops, AttendArgs, cpu::attend>,
          .attention_output = bind<Ops, AttentionOutputArgs, cpu::attention_output>,
          .commit_window = bind<Ops, CommitWindowArgs, cpu::commit_window>,
          .moe = bind<Ops, MoeArgs, cpu::moe>,
          .linear = bind<Ops, LinearArgs, cpu::linear>,
          .norm = bind<Ops, NormArgs, cpu::norm>,
          .head = bind<Ops, HeadArgs, cpu::head>};
}

constexpr KernelTable kRefKernels = kernels_over<kRef>();
constexpr KernelTable kAvx2Kernels = kernels_over<kAvx2>();

constexpr std::array kKernelTables = {&kRefKernels, &kAvx2Kernels};
constexpr std::array kOperatorTables = {&kRef, &kAvx2};

/// The scalar tier is built with FMA as well: its chains are explicit fma, and the program's floor is AVX2 +
/// FMA.
bool cpu_can_run() {
  const CpuFeatures& features = cpu_info().features;
  return features.avx2 && features.fma && features.f16c;
}

}  // namespace

std::span<const KernelTable* const> available_kernels() {
  if (!cpu_can_run()) return {};
  return kKernelTables;
}

std::span<const OperatorTable* const> available_operators() {
  if (!cpu_can_run()) return {};
  return kOperatorTables;
}

const KernelTable* select_kernels(std::string_view name) {
  if (name.empty()) {
    const char* forced = std::getenv("RORQUAL_CPU_ISA");
    if (forced != nullptr) name = forced;
  }
  const auto tables = available_kernels();
  if (tables.empty()) return nullptr;
  if (name.empty()) return tables.back();
  for (const KernelTable* table : tables) {
    if (table->name == name) return table;
  }
  return nullptr;
}

}  // namespace rorqual::kernels
