// SPDX-License-Identifier: Apache-2.0
// Checks and steps on the way from a request body to the engine that chat, completions and tokenize share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "api/request.h"
#include "server/error_body.h"
#include "server/http.h"
#include "server/service.h"

namespace rorqual::server {

/// The context error for a text of `num_bytes` that cannot fit even if every token were the longest one.
std::optional<api::ApiError> refuse_long_text(size_t num_bytes, int64_t max_tokens, const Backend& backend);

/// Cuts the prompt as the request wants it; `max_tokens` must still fit behind it.
void truncate_prompt(std::vector<int32_t>& ids, const api::PromptFields& fields, int64_t max_tokens,
                     const Backend& backend);

/// Best tokens to report beside the chosen one: none if the request lists the tokens that it wants.
int32_t num_top_logprobs(const api::SamplingFields& fields);

/// Bytes of the longest text that refuse_long_text lets pass.
size_t longest_text_bytes(const Backend& backend);

/// The API's -1 (whole vocabulary) as the engine spells it.
int32_t engine_logprobs(int32_t k, const Backend& backend);

/// Runs `body`; an exception (memory, a third-party library) becomes a 500 answer.
template <class Body>
void answer_guarded(Exchange& exchange, const Body& body) {
  try {
    body();
  } catch (const std::bad_alloc&) {
    exchange.respond(
        error_response(http_error(Error(Code::out_of_memory, "Not enough memory to prepare this request.")),
                       exchange.request()));
  } catch (const std::exception& e) {
    exchange.respond(error_response(
        http_error(Error(Code::internal, std::string("The request could not be prepared: ") + e.what())),
        exchange.request()));
  }
}

}  // namespace rorqual::server
