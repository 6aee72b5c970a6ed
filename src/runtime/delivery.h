// SPDX-License-Identifier: Apache-2.0
// Events on their way to the sinks. A step queues them; they are delivered, in order, while the next step
// runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "runtime/engine.h"

namespace rorqual::runtime {

/// A request's line to its sink.
struct Delivery {
  RequestId id = 0;
  std::shared_ptr<TokenSink> sink;
  bool is_closed = false;  // only on_finish may follow: cancelled, or the sink threw
};

/// One thread.
class DeliveryQueue {
 public:
  struct Begin {
    int64_t cached_tokens = 0;
  };

  struct PromptLogprobs {
    std::vector<std::optional<PositionLogprobs>> rows;
  };

  struct PromptRow {
    int64_t position = 0;
    PositionLogprobs row;
    std::span<const float> logits;  // valid until the next step
  };

  struct Token {
    int32_t token = 0;
    std::optional<PositionLogprobs> logprobs;
  };

  using Event = std::variant<Begin, PromptLogprobs, PromptRow, Token, FinishInfo>;

  void push(std::shared_ptr<Delivery> delivery, Event event) {
    events_.push_back({std::move(delivery), std::move(event)});
  }

  bool is_empty() const { return events_.empty(); }

  /// Calls the sinks. Returns the requests whose sink threw, with what; they are closed.
  std::vector<std::pair<RequestId, Error>> flush();

 private:
  struct Item {
    std::shared_ptr<Delivery> delivery;
    Event event;
  };

  std::vector<Item> events_, flushing_;
};

}  // namespace rorqual::runtime
