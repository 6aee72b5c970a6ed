// SPDX-License-Identifier: Apache-2.0
// An engine behind a URL: any server with OpenAI's /v1/completions and vLLM's extensions (prompts of token
// ids, prompt_logprobs, return_token_ids), rorqual itself among them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtime/engine.h"

namespace rorqual::tools {

struct RemoteOptions {
  std::string url;            // http://host:port, with or without /v1
  std::string api_key;        // empty = none
  std::string model;          // name to ask for; empty = the first that the server lists
  int64_t connections = 8;    // requests in flight; more wait here
  double timeout_s = 3600;    // of silence; 0 = never
  int64_t vocab_size = 0;     // of servers that do not tell; 0 = unknown
  bool is_streaming = false;  // tokens are passed on as they come; a busy server is not asked again
};

/// What is known of the server besides EngineInfo; empty where it does not tell.
struct RemoteServer {
  bool is_rorqual = false;
  std::string version, commit;
  std::string url;  // without user name and password
};

/// Differences from the local engine: rows, and tokens unless is_streaming, arrive together at a request's
/// end; a cancelled request's connection is closed; no logits rows; prompt_logprobs requests ask other
/// servers for one token, because they refuse max_tokens 0; forced_tokens, bad_token_sequences,
/// logprob_token_ids and constraints are refused (unsupported). 429 and 503 are tried again after the
/// Retry-After that the server names, a few times, unless the answer is passed on as it comes (is_streaming);
/// nothing else is.
class RemoteEngine final : public runtime::Engine {
 public:
  /// Asks for models and version. Errors: unavailable, invalid_argument (URL; model that is not served;
  /// unknown vocabulary size), unsupported (https).
  static Result<std::unique_ptr<RemoteEngine>> connect(const RemoteOptions& options);
  ~RemoteEngine() override;  // ends what is unfinished

  const runtime::EngineInfo& info() const override;
  Result<runtime::RequestId> submit(runtime::Request request,
                                    std::shared_ptr<runtime::TokenSink> sink) override;
  void cancel(runtime::RequestId id) override;
  runtime::EngineStats stats() const override;
  bool drain(std::chrono::milliseconds timeout) override;

  const RemoteServer& server() const;

  /// Ids of a text by the server's /tokenize: added tokens recognised, none added. Blocks.
  Result<std::vector<int32_t>> tokenize(std::string_view text) const;

 private:
  struct Impl;
  explicit RemoteEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rorqual::tools
