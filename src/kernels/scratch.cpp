// SPDX-License-Identifier: Apache-2.0
#include "kernels/scratch.h"

#include <algorithm>

#include "base/check.h"

namespace rorqual::kernels {
namespace {

constexpr int64_t kAlign_bytes = 64;
constexpr int64_t kChunkMin_bytes = int64_t{4} << 20;

}  // namespace

std::byte* Scratch::alloc_bytes(int64_t size_bytes) {
  RORQUAL_CHECK(size_bytes >= 0);
  const int64_t rounded = (size_bytes + kAlign_bytes - 1) / kAlign_bytes * kAlign_bytes;
  while (chunk_ < chunks_.size() && used_ + rounded > chunks_[chunk_].size_bytes()) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    auto buffer = tensor::Buffer::allocate(std::max(rounded, kChunkMin_bytes));
    RORQUAL_CHECK_NOTE(buffer.ok(), "no memory left for work buffers");
    chunks_.push_back(*std::move(buffer));
  }
  std::byte* result = chunks_[chunk_].data() + used_;
  used_ += rounded;
  return result;
}

Status Scratch::reserve(int64_t size_bytes) {
  RORQUAL_CHECK(chunks_.empty());
  if (size_bytes <= 0) return Ok{};
  RORQUAL_TRY_ASSIGN(auto buffer, tensor::Buffer::allocate(std::max(size_bytes, kChunkMin_bytes)));
  chunks_.push_back(std::move(buffer));
  return Ok{};
}

int64_t Scratch::reserved_bytes() const {
  int64_t total = 0;
  for (const auto& chunk : chunks_) total += chunk.size_bytes();
  return total;
}

}  // namespace rorqual::kernels
