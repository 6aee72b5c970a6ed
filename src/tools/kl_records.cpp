// SPDX-License-Identifier: Apache-2.0
#include "tools/kl_records.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/sha256.h"

namespace rorqual::tools {

Result<std::optional<kl::RunRecord>> read_checked_record(const std::string& dump_path) {
  auto record = kl::read_run_record(dump_path);
  if (!record.ok()) {
    if (record.error().code() == Code::not_found) return std::optional<kl::RunRecord>();
    return std::move(record).error();
  }
  if (!record->dump_sha256.empty()) {
    RORQUAL_TRY_ASSIGN(const std::string actual, sha256_of_file(dump_path));
    if (actual != record->dump_sha256) {
      return Error(Code::corrupt_data,
                   fmt::format("{}: SHA-256 is {}, its run record has {}", dump_path, actual.substr(0, 16),
                               record->dump_sha256.substr(0, 16)),
                   "the capture was replaced or changed after it was made; capture it again");
    }
  }
  return std::optional<kl::RunRecord>(*std::move(record));
}

Status check_same_prompts(const std::optional<kl::RunRecord>& a, const std::optional<kl::RunRecord>& b) {
  if (!a || !b || a->prompt_compat == b->prompt_compat) return Ok{};
  const auto names = [](const kl::RunRecord& record) {
    return record.prompt_compat.empty() ? std::string("none") : record.prompt_compat;
  };
  return Error(Code::invalid_argument,
               fmt::format("the captures were rendered with different prompt switches: {} and {}", names(*a),
                           names(*b)),
               "capture both with the same --prompt-compat, or give --force");
}

std::string settings_text(const kl::RunRecord& record) {
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  };
  add(record.commit.empty() ? record.version : record.version + " " + record.commit.substr(0, 7));
  if (record.engine != "local") add(record.engine);
  add(record.numerics);
  add(record.kernels);
  add(record.switches);
  if (!record.prompt_compat.empty()) add("prompts " + record.prompt_compat);
  return text;
}

std::string dump_json(const nlohmann::ordered_json& document) {
  return document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace rorqual::tools
