// SPDX-License-Identifier: Apache-2.0
// Index scores of FP4 values as integers, scalar: the same bits as index_scores over their F32 values.
#include <cstdint>

#include "kernels/ref/operators_ref.h"
#include "num/formats.h"

namespace rorqual::kernels::ref {

void index_scores_int8(const IndexQuery& query, const IndexKeys& keys, int64_t count, float* scores) {
  const int64_t dim = query.index_dim, blocks = dim / 32;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t group = i / kIndexKeyLanes, lane = i % kIndexKeyLanes;
    float sum = 0;
    for (int64_t h = 0; h < query.heads; ++h) {
      float dot = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        int32_t total = 0;
        for (int64_t d = 32 * b; d < 32 * b + 32; ++d) {
          const uint8_t code = keys.codes[((group * dim + d / 4 * 4) * kIndexKeyLanes) + lane * 4 + d % 4];
          total += query.codes[h * dim + d] * (code - kIndexKeyZero);
        }
        const float scale =
            query.scales[h * blocks + b] * keys.scales[(group * blocks + b) * kIndexKeyLanes + lane];
        dot += static_cast<float>(total) * scale;
      }
      dot = num::bf16_round(dot);
      dot = dot > 0.0f ? dot : 0.0f;
      sum += num::bf16_round(dot * query.weights[h]);
    }
    scores[i] = num::bf16_round(sum);
  }
}

}  // namespace rorqual::kernels::ref
