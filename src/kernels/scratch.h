// SPDX-License-Identifier: Apache-2.0
// Temporary memory of stages: a stack of aligned blocks that grows to the largest step and is then reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "tensor/buffer.h"

namespace rorqual::kernels {

/// One thread. Memory from alloc() is valid until the enclosing Frame ends; contents are undefined.
/// Grows by whole chunks and aborts when the machine has no memory left: the plan reserves for it before
/// loading.
class Scratch {
 public:
  /// `count` elements of T, 64-byte aligned.
  template <class T>
  T* alloc(int64_t count) {
    return reinterpret_cast<T*>(alloc_bytes(count * static_cast<int64_t>(sizeof(T))));
  }

  /// Makes the first chunk, before any alloc(): address space for steps of any size, of which only what is
  /// written becomes memory. Without it, steps that grow leave chunks behind that are too small. Errors:
  /// out_of_memory.
  Status reserve(int64_t size_bytes);

  int64_t reserved_bytes() const;

  class Frame {
   public:
    explicit Frame(Scratch& scratch) : scratch_(scratch), chunk_(scratch.chunk_), used_(scratch.used_) {}

    ~Frame() {
      scratch_.chunk_ = chunk_;
      scratch_.used_ = used_;
    }

    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Scratch& scratch_;
    size_t chunk_;
    int64_t used_;
  };

 private:
  std::byte* alloc_bytes(int64_t size_bytes);

  std::vector<tensor::Buffer> chunks_;
  size_t chunk_ = 0;  // index of the chunk in use
  int64_t used_ = 0;  // bytes used of it
};

}  // namespace rorqual::kernels
