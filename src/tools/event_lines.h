// SPDX-License-Identifier: Apache-2.0
// Server-sent events, as far as OpenAI-style servers use them: data lines, and "[DONE]" at the end.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace rorqual::tools {

/// Takes a body in any pieces and gives the data of each event. One thread.
class EventLines {
 public:
  /// Calls `on_data` (Status of a std::string_view) with every data line that is complete now, up to
  /// "[DONE]". Comments and other fields are skipped. Errors: those of on_data.
  template <class OnData>
  Status add(std::string_view bytes, const OnData& on_data) {
    pending_ += bytes;
    size_t begin = 0;
    for (size_t end = pending_.find('\n'); end != std::string::npos && !is_done_;
         end = pending_.find('\n', begin)) {
      auto line = std::string_view(pending_).substr(begin, end - begin);
      begin = end + 1;
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line.rfind("data:", 0) != 0) continue;
      line.remove_prefix(line.size() > 5 && line[5] == ' ' ? 6 : 5);
      if (line == "[DONE]") {
        is_done_ = true;
      } else {
        RORQUAL_TRY(on_data(line));
      }
    }
    pending_.erase(0, begin);
    return Ok();
  }

  /// "[DONE]" has come.
  bool is_done() const { return is_done_; }

 private:
  std::string pending_;
  bool is_done_ = false;
};

}  // namespace rorqual::tools
