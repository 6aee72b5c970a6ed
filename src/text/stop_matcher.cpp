// SPDX-License-Identifier: Apache-2.0
// Aho-Corasick automaton over the stop strings.
#include "text/stop_matcher.h"

namespace rorqual::text {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) : stops_(stops), nodes_(1) {
  for (size_t i = 0; i < stops_.size(); ++i) {
    if (!stops_[i].empty()) add(stops_[i], static_cast<int32_t>(i));
  }
  link();
}

int32_t StopMatcher::child(int32_t node, char byte) const {
  for (const auto& [key, target] : nodes_[static_cast<size_t>(node)].next) {
    if (key == byte) return target;
  }
  return -1;
}

void StopMatcher::add(std::string_view stop, int32_t index) {
  int32_t node = 0;
  for (const char byte : stop) {
    int32_t target = child(node, byte);
    if (target < 0) {
      target = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({});
      nodes_.back().depth = nodes_[static_cast<size_t>(node)].depth + 1;
      nodes_[static_cast<size_t>(node)].next.emplace_back(byte, target);
    }
    node = target;
  }
  int32_t& output = nodes_[static_cast<size_t>(node)].output;
  if (output < 0) output = index;
}

/// Failure links, breadth first; a node inherits the better output of its suffix.
void StopMatcher::link() {
  std::vector<int32_t> queue = {0};
  for (size_t head = 0; head < queue.size(); ++head) {
    const int32_t node = queue[head];
    for (const auto& [byte, target] : nodes_[static_cast<size_t>(node)].next) {
      int32_t fail = nodes_[static_cast<size_t>(node)].fail;
      while (fail != 0 && child(fail, byte) < 0) fail = nodes_[static_cast<size_t>(fail)].fail;
      const int32_t suffix = node == 0 ? 0 : child(fail, byte);
      Node& entry = nodes_[static_cast<size_t>(target)];
      entry.fail = suffix < 0 ? 0 : suffix;
      const int32_t inherited = nodes_[static_cast<size_t>(entry.fail)].output;
      if (inherited >= 0 && (entry.output < 0 || inherited < entry.output)) entry.output = inherited;
      queue.push_back(target);
    }
  }
}

size_t StopMatcher::step(char byte) {
  while (state_ != 0 && child(state_, byte) < 0) state_ = nodes_[static_cast<size_t>(state_)].fail;
  const int32_t target = child(state_, byte);
  state_ = target < 0 ? 0 : target;
  const Node& node = nodes_[static_cast<size_t>(state_)];
  if (node.output >= 0 && !is_ignoring_) {
    matched_ = node.output;
    return matched().size();
  }
  return static_cast<size_t>(node.depth);
}

std::string StopMatcher::push(std::string_view text) {
  for (const char byte : text) {
    if (is_matched()) break;
    held_ += byte;
    const size_t kept = step(byte);
    if (is_matched()) {
      held_.resize(held_.size() - kept);
      return std::exchange(held_, {});
    }
  }
  if (is_matched()) return {};
  const size_t kept = static_cast<size_t>(nodes_[static_cast<size_t>(state_)].depth);
  std::string out = held_.substr(0, held_.size() - kept);
  held_.erase(0, held_.size() - kept);
  return out;
}

std::string StopMatcher::flush() {
  state_ = 0;
  return std::exchange(held_, {});
}

}  // namespace rorqual::text
