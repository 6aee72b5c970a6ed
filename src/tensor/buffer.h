// SPDX-License-Identifier: Apache-2.0
// Owned memory that knows where it lives. Devices other than the host are provided by the backend that has
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/result.h"

namespace rorqual::tensor {

/// Where bytes live. `disk` names memory that is read on demand through a file, never mapped writable.
enum class MemoryKind : uint8_t { host, pinned_host, device, disk };

/// Move-only block of zeroed host memory, 64-byte aligned; 2 MiB aligned and advised huge from 2 MiB on.
class Buffer {
 public:
  Buffer() = default;

  Buffer(Buffer&& other) noexcept { swap(other); }

  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  ~Buffer();

  /// Errors: out_of_memory with the size; unsupported for kinds that no backend of this build provides.
  static Result<Buffer> allocate(int64_t size_bytes, MemoryKind kind = MemoryKind::host);

  std::byte* data() { return data_; }

  const std::byte* data() const { return data_; }

  int64_t size_bytes() const { return size_bytes_; }

  MemoryKind kind() const { return kind_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(kind_, other.kind_);
  }

  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  int64_t mapped_bytes_ = 0;
  MemoryKind kind_ = MemoryKind::host;
};

}  // namespace rorqual::tensor
