// SPDX-License-Identifier: Apache-2.0
// Event queue between the engine's thread and the text workers.
#include "server/generation.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

namespace rorqual::server {

/// Keeps the generation alive until the engine lets go of it.
class Generation::Sink : public runtime::TokenSink {
 public:
  Sink(std::shared_ptr<Generation> generation, size_t choice)
      : generation_(std::move(generation)), choice_(choice) {}

  void on_begin(int64_t cached_tokens) override {
    GenerationEvent event = make(GenerationEvent::Kind::begin);
    event.cached_tokens = cached_tokens;
    generation_->add(std::move(event));
  }

  void on_prompt_logprobs(std::vector<std::optional<runtime::PositionLogprobs>> rows) override {
    GenerationEvent event = make(GenerationEvent::Kind::prompt_logprobs);
    event.prompt_rows =
        std::make_unique<std::vector<std::optional<runtime::PositionLogprobs>>>(std::move(rows));
    generation_->add(std::move(event));
  }

  void on_token(int32_t token, std::optional<runtime::PositionLogprobs> logprobs) override {
    GenerationEvent event = make(GenerationEvent::Kind::token);
    event.token = token;
    event.logprobs = std::move(logprobs);
    generation_->add(std::move(event));
  }

  void on_finish(const runtime::FinishInfo& info) override {
    GenerationEvent event = make(GenerationEvent::Kind::finish);
    event.info = std::make_unique<runtime::FinishInfo>(info);
    generation_->add(std::move(event));
  }

 private:
  GenerationEvent make(GenerationEvent::Kind kind) const {
    GenerationEvent event;
    event.kind = kind;
    event.choice = choice_;
    event.time = std::chrono::steady_clock::now();
    return event;
  }

  std::shared_ptr<Generation> generation_;
  size_t choice_;
};

Status Generation::submit(std::vector<runtime::Request> requests) {
  {
    const std::lock_guard lock(mutex_);
    ids_.resize(requests.size());
    finished_.resize(requests.size(), false);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    auto id = engine_.submit(std::move(requests[i]), std::make_shared<Sink>(shared_from_this(), i));
    if (!id.ok()) {
      detach();
      cancel_all();
      return std::move(id).error();
    }
    const std::lock_guard lock(mutex_);
    ids_[i] = *id;
  }
  return Ok{};
}

void Generation::release(std::unique_ptr<GenerationConsumer> consumer) {
  const std::lock_guard lock(mutex_);
  if (is_detached_) return;
  consumer_ = std::move(consumer);
  is_released_ = true;
  if (!events_.empty()) schedule();
}

/// With mutex_ held, so that nothing is posted after detach().
void Generation::schedule() {
  is_scheduled_ = true;
  pool_.post([self = shared_from_this()] { self->deliver(); });
}

void Generation::add(GenerationEvent event) {
  const std::lock_guard lock(mutex_);
  if (event.kind == GenerationEvent::Kind::finish) finished_[event.choice] = true;
  if (is_detached_) return;
  events_.push_back(std::move(event));
  if (is_released_ && !is_scheduled_) schedule();
}

void Generation::deliver() {
  std::vector<GenerationEvent> events;
  {
    const std::lock_guard lock(mutex_);
    if (is_detached_) return;
    events.swap(events_);
  }
  try {
    consumer_->on_events(*this, std::move(events));
  } catch (const std::exception& e) {
    detach();
    cancel_all();
    consumer_->on_failure(Error(Code::internal, std::string("the answer could not be built: ") + e.what()));
    return;
  }
  const std::lock_guard lock(mutex_);
  is_scheduled_ = false;
  if (!events_.empty() && !is_detached_) schedule();
}

void Generation::cancel(size_t choice) {
  std::optional<runtime::RequestId> id;
  {
    const std::lock_guard lock(mutex_);
    if (choice < ids_.size() && !finished_[choice]) id = ids_[choice];
  }
  if (id) engine_.cancel(*id);  // outside the lock: the engine may call the sink from here
}

void Generation::cancel_all() {
  size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    count = ids_.size();
  }
  for (size_t i = 0; i < count; ++i) cancel(i);
}

void Generation::detach() {
  const std::lock_guard lock(mutex_);
  is_detached_ = true;
  events_.clear();
}

void Generation::drop_consumer() {
  const std::lock_guard lock(mutex_);
  consumer_.reset();
}

bool Generation::is_finished() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(finished_.begin(), finished_.end(), [](bool f) { return f; });
}

}  // namespace rorqual::server
