// SPDX-License-Identifier: Apache-2.0
#include "kl/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/file.h"

namespace rorqual::kl {
namespace {

constexpr const char* kSchema = "rorqual.kl.run/1";
/// Records of earlier versions do not have them.
constexpr std::array<std::string_view, 3> kNewerFields = {"prompt_compat", "tokenizer_sha256",
                                                          "checkpoint_encoder"};
constexpr int64_t kMaxRecord_bytes = int64_t{1} << 20;

/// Calls `visit(name, field)` for every field, in the order of the file.
template <class Record, class Visit>
void for_each_field(Record& record, const Visit& visit) {
  visit("version", record.version);
  visit("commit", record.commit);
  visit("engine", record.engine);
  visit("model_sha256", record.model_sha256);
  visit("numerics", record.numerics);
  visit("kernels", record.kernels);
  visit("switches", record.switches);
  visit("prompt_compat", record.prompt_compat);
  visit("tokenizer_sha256", record.tokenizer_sha256);
  visit("checkpoint_encoder", record.checkpoint_encoder);
  visit("machine", record.machine);
  visit("threads", record.threads);
  visit("streams", record.streams);
  visit("max_model_len", record.max_model_len);
  visit("speculation", record.speculation);
  visit("prefix_cache", record.prefix_cache);
  visit("started_at", record.started_at);
  visit("finished_at", record.finished_at);
  visit("seconds", record.seconds);
  visit("dump_sha256", record.dump_sha256);
}

}  // namespace

std::string run_record_path(const std::string& dump_path) {
  return dump_path + ".run.json";
}

Status write_run_record(const std::string& dump_path, const RunRecord& record) {
  nlohmann::ordered_json json{{"schema", kSchema}};
  for_each_field(record, [&](const char* name, const auto& value) { json[name] = value; });
  const auto text = json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return write_text_file(run_record_path(dump_path), text + "\n");
}

Result<RunRecord> read_run_record(const std::string& dump_path) {
  const std::string path = run_record_path(dump_path);
  RORQUAL_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxRecord_bytes));
  const auto damaged = [&](const std::string& what) {
    return Error(Code::corrupt_data, fmt::format("run record '{}': {}", path, what),
                 "capture again, or delete the file to compare without it");
  };
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.value("schema", "") != kSchema) {
      return damaged(fmt::format("got schema '{}', expected {}", json.value("schema", ""), kSchema));
    }
    RunRecord record;
    for_each_field(record, [&](const char* name, auto& field) {
      const bool is_newer = std::find(kNewerFields.begin(), kNewerFields.end(), name) != kNewerFields.end();
      if (!is_newer || json.contains(name)) json.at(name).get_to(field);
    });
    return record;
  } catch (const nlohmann::json::exception& e) {
    return damaged(e.what());
  }
}

}  // namespace rorqual::kl
