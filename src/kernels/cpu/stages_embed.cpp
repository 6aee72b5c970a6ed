// SPDX-License-Identifier: Apache-2.0
// Embedding lookup and expansion to the hyper-connection streams.
#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/stages.h"
#include "num/formats.h"

namespace rorqual::kernels::cpu {

void embed(const OperatorTable&, Context& ctx, const EmbedArgs& args) {
  const StepPlan& plan = *args.plan;
  const int64_t width = args.d_model;
  const int64_t streams = args.num_streams;
  RORQUAL_CHECK(static_cast<int64_t>(plan.token_ids.size()) == plan.num_rows);
  ctx.pool->parallel_for(plan.num_rows, [&](int64_t row, int) {
    const uint16_t* source = args.table_bf16 + plan.token_ids[static_cast<size_t>(row)] * width;
    float* first = args.streams + row * streams * width;
    for (int64_t c = 0; c < width; ++c) first[c] = num::bf16_decode(source[c]);
    for (int64_t stream = 1; stream < streams; ++stream) std::copy_n(first, width, first + stream * width);
    for (int64_t stream = 0; stream < streams; ++stream) {
      args.pre_mix[row * streams + stream] = stream == 0 ? 1.0f : 0.0f;
    }
  });
}

}  // namespace rorqual::kernels::cpu
