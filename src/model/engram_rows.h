// SPDX-License-Identifier: Apache-2.0
// Rows of Engram tables for the tokens of a step: copied from memory, or read from disk by threads of their
// own that begin before the first layer, so that the disk works while the layers below compute.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/weights.h"

namespace rorqual::model {

/// What is wanted of one table.
struct EngramRows {
  const EngramTable* table = nullptr;
  std::span<const int32_t> tokens;  // token numbers whose rows are wanted
  const int64_t* rows = nullptr;    // table rows of token t at rows + t·stride
  int64_t stride = 0, columns = 0;
  uint8_t* values = nullptr;  // out [tokens, columns, head_dim]
  uint8_t* scales = nullptr;  // out [tokens, columns, head_dim/32]
};

/// Copies rows of a table that is in memory.
void copy_engram_rows(const EngramRows& wanted, ThreadPool& pool);

/// Threads that read tables on disk. Requests of a batch are served in order; the reads of each are sorted by
/// offset, equal rows are read once and neighbours together.
class EngramReader {
 public:
  /// Reads under way. Destruction gives up what has not begun and waits for the rest, so the buffers of the
  /// requests must outlive it.
  class Batch {
   public:
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    /// Blocks until the rows of a request are there. Errors: those of TensorSource::read.
    Status wait(size_t request);

   private:
    friend class EngramReader;
    struct Part;  // one tensor of one request

    explicit Batch(EngramReader& reader);

    EngramReader& reader_;
    std::vector<std::unique_ptr<Part>> parts_;  // values and scales of request 0, of request 1, …
  };

  explicit EngramReader(int num_threads);
  ~EngramReader();
  EngramReader(const EngramReader&) = delete;
  EngramReader& operator=(const EngramReader&) = delete;

  /// Begins to read. One batch at a time. The requests' spans and buffers stay valid until it is destroyed.
  std::unique_ptr<Batch> start(std::span<const EngramRows> requests);

 private:
  void run();
  bool work(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable has_work_, has_result_;
  Batch* batch_ = nullptr;  // that is being read
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace rorqual::model
