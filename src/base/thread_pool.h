// SPDX-License-Identifier: Apache-2.0
// Fixed pool of compute threads. One parallel_for at a time, started by one owner thread, which works too.
// Who has nothing to do spins for some tens of microseconds and then sleeps in the kernel, so that a step's
// stages follow each other without system calls and other programs get the core when a step waits.
// Every compute thread runs with FTZ and DAZ set (docs/numerics.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace rorqual {

/// Sets flush-to-zero and denormals-are-zero in the calling thread until destroyed.
class ScopedFlushToZero {
 public:
  ScopedFlushToZero();
  ~ScopedFlushToZero();
  ScopedFlushToZero(const ScopedFlushToZero&) = delete;
  ScopedFlushToZero& operator=(const ScopedFlushToZero&) = delete;

 private:
  unsigned saved_;
};

/// Owns num_threads - 1 workers. Thread rule: parallel_for from one thread at a time; no nesting.
class ThreadPool {
 public:
  /// `cpus`: the workers may run on these only; empty = wherever the process may.
  explicit ThreadPool(int num_threads, std::vector<int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  /// Puts the calling thread onto the pool's CPUs too, if there are any. For the thread that computes most of
  /// its life; one that owns the pool for a moment stays where it is. Cheap when it was called before.
  void bind_owner() const;

  /// Calls body(chunk_index, thread_index) once for each chunk in [0, num_chunks); returns when all are done.
  /// Chunks are handed out dynamically, so results must not depend on which thread runs which chunk.
  template <class Body>
  void parallel_for(int64_t num_chunks, const Body& body) {
    run(
        num_chunks,
        [](const void* context, int64_t chunk, int thread) {
          (*static_cast<const Body*>(context))(chunk, thread);
        },
        &body);
  }

 private:
  using Function = void (*)(const void* context, int64_t chunk, int thread);

  void run(int64_t num_chunks, Function function, const void* context);
  bool claim(int64_t& chunk);
  void work(int thread);
  void wait_until_done(int64_t num_chunks);
  void worker_main(int thread);

  int num_threads_;
  std::vector<int> cpus_;
  std::vector<std::thread> workers_;
  uint64_t id_;  // of the pool; 0 is none
  // The job. Written only while no chunk is claimed, read only after claiming one.
  Function function_ = nullptr;
  const void* context_ = nullptr;
  /// Chunks of the job in the upper half, the next one to hand out in the lower half. A worker that comes
  /// late finds them equal and goes: nobody waits for a thread that has no chunk.
  std::atomic<uint64_t> claims_{0};
  std::atomic<int64_t> chunks_done_{0};
  /// Sleepers wait for a change of these words; the flags tell whether anyone sleeps on them.
  std::atomic<uint32_t> job_word_{0}, done_word_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> owner_waits_{false};
  std::atomic<bool> stop_{false};
};

}  // namespace rorqual
