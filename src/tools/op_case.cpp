// SPDX-License-Identifier: Apache-2.0
#include "tools/op_case.h"

#include "base/cpu_info.h"

namespace rorqual::tools {

std::unique_ptr<OpCase> make_op_case(std::string_view name, const OpSettings& settings) {
  using Maker = std::unique_ptr<OpCase> (*)(const OpSettings&);
  constexpr Maker kMakers[] = {make_moe_case, make_dense_case,  make_attention_case, make_indexer_case,
                               make_mhc_case, make_engram_case, make_head_case};
  static_assert(std::size(kMakers) == std::size(kOpNames));
  for (size_t i = 0; i < std::size(kOpNames); ++i) {
    if (kOpNames[i] == name) return kMakers[i](settings);
  }
  return nullptr;
}

Peak product_peak(Activations activations, std::string_view tier) {
  const bool has_tiles = tier.find("amx") != std::string_view::npos;
  if (activations == Activations::int8) return has_tiles ? Peak::int8_tile : Peak::int8_dot;
  return has_tiles && activations == Activations::reference ? Peak::bf16_tile : Peak::f32_fma;
}

}  // namespace rorqual::tools
