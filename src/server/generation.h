// SPDX-License-Identifier: Apache-2.0
// The running part of a request: one engine request per choice, their events brought from the engine's thread
// to a text worker, in order and one batch at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/result.h"
#include "runtime/engine.h"
#include "server/worker_pool.h"

namespace rorqual::server {

using SteadyTime = std::chrono::steady_clock::time_point;

struct GenerationEvent {
  enum class Kind : uint8_t { begin, prompt_logprobs, token, finish };
  Kind kind = Kind::token;
  size_t choice = 0;
  SteadyTime time{};  // when the engine reported it
  int32_t token = 0;
  int64_t cached_tokens = 0;  // begin
  std::optional<runtime::PositionLogprobs> logprobs;
  /// Of the two rare kinds; null for tokens, of which there are many.
  std::unique_ptr<std::vector<std::optional<runtime::PositionLogprobs>>> prompt_rows;
  std::unique_ptr<runtime::FinishInfo> info;
};

class Generation;

/// Turns events into an answer. Called by one worker at a time.
class GenerationConsumer {
 public:
  virtual ~GenerationConsumer() = default;
  virtual void on_events(Generation& generation, std::vector<GenerationEvent> events) = 0;
  /// The answer cannot be completed (a bug, or memory): nothing follows.
  virtual void on_failure(const Error& error) = 0;
};

/// Any thread.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(runtime::Engine& engine, Executor& pool) : engine_(engine), pool_(pool) {}

  /// Submits all choices. On an error none of them runs on. No event is delivered before release().
  Status submit(std::vector<runtime::Request> requests);

  /// Starts the delivery to `consumer`.
  void release(std::unique_ptr<GenerationConsumer> consumer);

  /// Ends one choice early (a stop string); its finish event still follows.
  void cancel(size_t choice);

  /// Ends all choices, the client having gone or the server stopping.
  void cancel_all();

  /// After this the engine's events are dropped and the pool is not used any more.
  void detach();

  /// Only after detach() and the end of the pool: lets go of the client's connection.
  void drop_consumer();

  bool is_finished() const;

 private:
  class Sink;
  void add(GenerationEvent event);
  void schedule();
  void deliver();

  runtime::Engine& engine_;
  Executor& pool_;
  mutable std::mutex mutex_;
  std::vector<std::optional<runtime::RequestId>> ids_;
  std::vector<bool> finished_;
  std::vector<GenerationEvent> events_;
  std::unique_ptr<GenerationConsumer> consumer_;
  bool is_released_ = false, is_scheduled_ = false, is_detached_ = false;
};

}  // namespace rorqual::server
