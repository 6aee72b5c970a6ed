// SPDX-License-Identifier: Apache-2.0
#include "format/tensor_source.h"

#include <algorithm>

namespace rorqual::format {

const TensorInfo* TensorSource::find(std::string_view name) const {
  const auto& all = tensors();
  const auto it =
      std::lower_bound(all.begin(), all.end(), name,
                       [](const TensorInfo& info, std::string_view wanted) { return info.name < wanted; });
  return it != all.end() && it->name == name ? &*it : nullptr;
}

}  // namespace rorqual::format
