// SPDX-License-Identifier: Apache-2.0
// Calls of the sinks; what they throw becomes an error of their request.
#include "runtime/delivery.h"

#include <fmt/format.h>

#include <exception>

namespace rorqual::runtime {

namespace {

struct Deliver {
  TokenSink& sink;

  void operator()(const DeliveryQueue::Begin& e) const { sink.on_begin(e.cached_tokens); }

  void operator()(DeliveryQueue::PromptLogprobs& e) const { sink.on_prompt_logprobs(std::move(e.rows)); }

  void operator()(DeliveryQueue::PromptRow& e) const {
    sink.on_prompt_row(e.position, std::move(e.row), e.logits);
  }

  void operator()(DeliveryQueue::Token& e) const { sink.on_token(e.token, std::move(e.logprobs)); }

  void operator()(const FinishInfo& info) const { sink.on_finish(info); }
};

}  // namespace

std::vector<std::pair<RequestId, Error>> DeliveryQueue::flush() {
  std::vector<std::pair<RequestId, Error>> failed;
  while (!events_.empty()) {
    flushing_.clear();
    flushing_.swap(events_);
    for (Item& item : flushing_) {
      const bool is_end = std::holds_alternative<FinishInfo>(item.event);
      if (item.delivery->is_closed && !is_end) continue;
      const auto fail = [&](std::string message) {
        // A sink that throws in on_finish has nothing more to lose.
        if (!is_end) failed.emplace_back(item.delivery->id, Error(Code::internal, std::move(message)));
        item.delivery->is_closed = true;
      };
      try {
        std::visit(Deliver{*item.delivery->sink}, item.event);
      } catch (const std::exception& e) {
        fail(fmt::format("the receiver of the tokens threw: {}", e.what()));
      } catch (...) {
        fail("the receiver of the tokens threw");
      }
    }
    flushing_.clear();
  }
  return failed;
}

}  // namespace rorqual::runtime
