// SPDX-License-Identifier: Apache-2.0
// The complete tensor list that a config implies: names, dtypes, shapes, groups, sharding.
// docs/model.md#tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "format/tensor_source.h"
#include "model/config.h"
#include "tensor/collective.h"
#include "tensor/dtype.h"

namespace rorqual::model {

/// Byte accounting groups, in print order.
enum class TensorGroup : uint8_t {
  embedding,
  head,
  norms,
  attention,
  compressor,
  indexer,
  router,
  routed_experts,
  shared_experts,
  hyper_connections,
  engram_tables,
  engram_mix,
  draft,
  vision,
};
const char* group_name(TensorGroup group);

/// How tensor and expert parallelism cut a tensor over ranks.
enum class ShardRule : uint8_t { replicated, rows, columns, by_expert };

struct ManifestEntry {
  std::string name;
  tensor::DType dtype;
  std::vector<int64_t> shape;
  TensorGroup group;
  ShardRule shard = ShardRule::replicated;
  int64_t shard_multiple =
      32;               // rows or columns are cut at multiples of this: whole scale blocks, heads, groups
  int64_t expert = -1;  // expert id for by_expert

  int64_t size_bytes() const;
};

/// All tensors of the checkpoint, vision included when the config has a tower. Sorted by name.
std::vector<ManifestEntry> manifest(const Config& config);

/// Half-open range of rows (rule rows), columns (columns) or experts (by_expert) that `shard` holds of
/// `count` items. Remainders go to the first ranks; `multiple` keeps block scales whole (32 for FP8).
struct Range {
  int64_t begin = 0, end = 0;
};

Range shard_range(int64_t count, int64_t multiple, tensor::Shard shard);

/// Rows and columns of a 1-D or 2-D tensor that `shard` holds; columns counted in stored elements. by_expert
/// and replicated tensors are whole (experts of other ranks are not asked for).
struct Part {
  Range rows, columns;
};

Part shard_part(const ManifestEntry& entry, tensor::Shard shard);

/// Every expected tensor is there with its dtype and shape, and no other. The error lists up to 10
/// differences.
Status check_manifest(const format::TensorSource& source, const std::vector<ManifestEntry>& expected);

}  // namespace rorqual::model
