// SPDX-License-Identifier: Apache-2.0
// Rows of the table of limits.
#include "server/limits.h"

#include "api/limits.h"
#include "api/policy.h"
#include "server/answer.h"
#include "server/body_budget.h"
#include "server/json_writer.h"
#include "text/json_text.h"

namespace rorqual::server {

namespace {

int64_t of(size_t value) {
  return static_cast<int64_t>(value);
}

void add_http_rows(const ServerOptions& o, std::vector<LimitRow>& rows) {
  rows.insert(
      rows.end(),
      {{"connections", of(o.max_connections), "connections",
        "503; fewer if the process may not open so many files", ""},
       {"header_bytes", of(o.max_header_bytes), "bytes",
        "431, if the request line is longer 414; of the whole head", ""},
       {"header_fields", of(o.max_headers), "fields", "431", ""},
       {"chunk_line_bytes", of(o.max_header_bytes), "bytes", "400; a chunk's size line, or the trailer", ""},
       {"body_bytes", of(o.max_body_bytes), "bytes", "413", ""},
       {"total_body_bytes", of(o.max_total_body_bytes), "bytes", "503; bodies of all requests in memory", ""},
       {"small_body_bytes", of(kSmallBody_bytes), "bytes",
        "up to it a body is never refused by total_body_bytes", ""},
       {"unsent_bytes", of(o.max_unsent_bytes), "bytes", "closed; of a stream whose client does not read",
        ""},
       {"header_ms", o.header_timeout.count(), "ms", "408, closed if nothing came at all", ""},
       {"body_ms", o.body_timeout.count(), "ms", "408; for each MiB of a body", ""},
       {"idle_ms", o.idle_timeout.count(), "ms", "closed; between requests of one connection", ""},
       {"write_ms", o.write_timeout.count(), "ms", "closed; the client takes nothing", ""}});
}

void add_field_rows(const ServerOptions& o, std::vector<LimitRow>& rows) {
  rows.insert(
      rows.end(),
      {{"json_depth", text::kMaxJsonDepth, "levels", "400", ""},
       {"json_values", of(api::kMaxJsonValues), "values", "400; objects and arrays count, too", ""},
       {"n", o.max_choices, "choices", "400", ""},
       {"prompts", of(api::kMaxPrompts), "prompts", "400; of one completions request", ""},
       {"prompts_times_n", of(kCompletionChoicesMax), "choices", "400", ""},
       {"max_tokens", api::ApiPolicy().max_tokens_limit, "tokens", "400; the context's room counts, too", ""},
       {"logprobs", o.max_logprobs, "tokens", "400; top_logprobs and prompt_logprobs, too", "--max-logprobs"},
       {"stop_strings", of(api::kMaxStops), "strings", "400", ""},
       {"stop_token_ids", of(api::kMaxStopTokenIds), "ids", "400", ""},
       {"bad_words", of(api::kMaxBadWords), "strings", "400", ""},
       {"logit_bias", of(api::kMaxLogitBiases), "entries", "400", ""},
       {"tool_name_bytes", of(api::kMaxToolNameBytes), "bytes", "400", ""},
       {"image_url_bytes", of(api::kMaxImageUrlBytes), "bytes", "400; data URLs are longer", ""},
       {"cache_salt_bytes", of(api::kMaxSaltBytes), "bytes", "400", ""},
       {"speculative_tokens", api::kMaxSpeculativeTokens, "tokens", "400", ""}});
}

}  // namespace

std::vector<LimitRow> limit_rows(const ServerOptions& options) {
  std::vector<LimitRow> rows;
  add_http_rows(options, rows);
  add_field_rows(options, rows);
  rows.push_back({"queued_requests", options.max_num_queued_reqs, "requests", "429; 0 = no limit",
                  "--max-queued-requests"});
  return rows;
}

std::string limits_markdown(const ServerOptions& options) {
  std::string text =
      "# Limits\n"
      "Printed by `rorqual serve --limits` from the values that the program uses; a test compares this page "
      "with "
      "it, and `api.limits` tries each row from outside. With `--json` it is one object, name to value.\n\n"
      "| limit | value | beyond it | option |\n|---|---|---|---|\n";
  for (const LimitRow& row : limit_rows(options)) {
    const std::string option = row.option[0] == 0 ? "" : "`" + std::string(row.option) + "`";
    text += "| " + std::string(row.name) + " | " + std::to_string(row.value) + " " + row.unit + " | " +
            row.beyond + " | " + option + " |\n";
  }
  return text;
}

std::string limits_json(const ServerOptions& options) {
  JsonWriter json;
  json.begin_object();
  for (const LimitRow& row : limit_rows(options)) json.field(row.name, row.value);
  json.end_object();
  return json.take() + "\n";
}

}  // namespace rorqual::server
