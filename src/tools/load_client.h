// SPDX-License-Identifier: Apache-2.0
// Many streamed requests at a time from one thread: each on its own connection, its events timed as they
// arrive. The load of bench serve and bench agent. docs/load.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/http_client.h"

namespace rorqual::tools {

/// How a client leaves before its answer is complete.
enum class Leaving : uint8_t {
  close,       // closes the socket
  reset,       // closes it so that the peer gets a reset
  half_close,  // closes the sending half and reads on
};

struct LoadCall {
  std::string path;  // "/v1/completions"
  std::string body;  // JSON with "stream": true
  /// Leave once so many tokens have arrived; 0 = as soon as the headers are there, before any token.
  std::optional<int64_t> leave_after_tokens;
  Leaving leaving = Leaving::close;
};

enum class LoadOutcome : uint8_t {
  success,     // complete answer
  refused,     // 429 or 503
  error,       // any other status, an error event, a broken or silent connection
  left,        // the client left on purpose (leave_after_tokens)
  incomplete,  // cut off at the end of the run
};

/// "success", …
std::string_view outcome_name(LoadOutcome outcome);

/// Tokens that arrived with one event.
struct TokenArrival {
  double time_s = 0;
  int64_t tokens = 0;
};

/// What became of one call. Times are unix_now_s(); 0 = did not happen.
struct LoadRecord {
  LoadOutcome outcome = LoadOutcome::error;
  unsigned status = 0;       // HTTP
  double start_s = 0;        // before the connection is made
  double header_s = 0;       // headers of the answer
  double first_token_s = 0;  // first event with text
  double last_token_s = 0;   // last event with text
  double end_s = 0;
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;  // of the last usage
  std::optional<double> retry_after_s;
  std::string error;  // outcome error: why
  std::string finish_reason;
  std::vector<TokenArrival> arrivals;
  std::vector<int32_t> prompt_ids, output_ids;  // where the server gives them (return_token_ids)
  std::string usage;                            // the last usage object, as JSON

  double latency_s() const { return end_s - start_s; }
};

/// All calls and callbacks on the thread that calls run().
class LoadClient {
 public:
  /// Resolves the name once. `silence_s`: a call without any byte for so long is an error, 0 = never.
  /// Errors: unavailable.
  static Result<std::unique_ptr<LoadClient>> create(const HttpClient& server, double silence_s);
  ~LoadClient();

  /// Begins a call; `on_end` is called once from run().
  void start(LoadCall call, std::function<void(LoadRecord)> on_end);

  /// Calls `action` from run() after so many seconds.
  void after(double seconds, std::function<void()> action);

  /// Ends all calls as incomplete; their connections are closed.
  void cut_off();

  /// Until no call and no action is left, or stop(). Once.
  void run();

  /// Ends run(); what is left never happens.
  void stop();

 private:
  friend class LoadStream;
  struct Impl;
  explicit LoadClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rorqual::tools
