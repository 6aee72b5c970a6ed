// SPDX-License-Identifier: Apache-2.0
#include "tensor/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

namespace rorqual::tensor {
namespace {

constexpr int64_t kHugePage_bytes = int64_t{2} << 20;

}  // namespace

Buffer::~Buffer() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(mapped_bytes_));
}

Result<Buffer> Buffer::allocate(int64_t size_bytes, MemoryKind kind) {
  if (kind != MemoryKind::host) {
    return Error(Code::unsupported, "memory kind other than host is not available in this build",
                 "use a build with the backend that provides it");
  }
  Buffer buffer;
  if (size_bytes <= 0) return buffer;
  const int64_t page = size_bytes >= kHugePage_bytes ? kHugePage_bytes : 4096;
  if (size_bytes > INT64_MAX - 2 * kHugePage_bytes) {
    return Error(Code::out_of_memory, fmt::format("cannot allocate {} bytes", size_bytes));
  }
  // Over-map by one page and give back the ends, so that the block starts on a (huge) page boundary.
  const int64_t rounded = (size_bytes + page - 1) / page * page;
  const int64_t total = rounded + (page > 4096 ? page : 0);
  void* raw =
      ::mmap(nullptr, static_cast<size_t>(total), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) {
    return Error(Code::out_of_memory, fmt::format("cannot allocate {} bytes of host memory", size_bytes),
                 "free memory, lower --max-model-len or --max-num-seqs, or use --engram-placement disk");
  }
  auto address = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (address + static_cast<uintptr_t>(page) - 1) / static_cast<uintptr_t>(page) *
                            static_cast<uintptr_t>(page);
  const int64_t head = static_cast<int64_t>(aligned - address);
  const int64_t tail = total - head - rounded;
  if (head > 0) ::munmap(raw, static_cast<size_t>(head));
  if (tail > 0)
    ::munmap(reinterpret_cast<void*>(aligned + static_cast<uintptr_t>(rounded)), static_cast<size_t>(tail));
  buffer.data_ = reinterpret_cast<std::byte*>(aligned);
  buffer.size_bytes_ = size_bytes;
  buffer.mapped_bytes_ = rounded;
  buffer.kind_ = kind;
  if (page == kHugePage_bytes) ::madvise(buffer.data_, static_cast<size_t>(rounded), MADV_HUGEPAGE);
  return buffer;
}

}  // namespace rorqual::tensor
