// SPDX-License-Identifier: Apache-2.0
#include "tools/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "base/sha256.h"
#include "base/units.h"
#include "format/safetensors.h"
#include "model/config.h"
#include "model/manifest.h"
#include "model/synthetic.h"
#include "model/synthetic_spec.h"
#include "text/chat_encoder.h"
#include "text/tokenizer.h"
#include "tools/checkpoint_encoder.h"
#include "tools/embedded_model.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;
using format::TensorInfo;
using format::TensorSource;

struct Sum {
  int64_t tensors = 0, elements = 0, bytes = 0;

  void add(const TensorInfo& tensor) {
    ++tensors;
    elements += tensor.size_bytes / tensor::dtype_bytes(tensor.dtype);
    bytes += tensor.size_bytes;
  }
};

struct Opened {
  std::unique_ptr<TensorSource> source;
  std::optional<model::Config> config;  // none for a single file
};

struct Problem {
  const TensorInfo* tensor;
  TensorScan scan;
};

/// All that the report says, whatever its form.
struct Report {
  const TensorSource* source = nullptr;
  const model::Config* config = nullptr;
  std::set<std::string> files;
  Sum total;
  std::vector<std::pair<std::string, Sum>> groups;  // in print order
  std::map<std::string, Sum> dtypes;
  std::optional<std::string> mismatch;         // between tensors and config.json
  std::string tokenizer_sha256;                // of the folder's tokenizer.json; empty = none
  std::string encoder;                         // the prompt encoder in the folder, with its digest
  std::optional<std::string> tokenizer_fault;  // why the folder's own tokenizer cannot be used
  bool is_verified = false;
  std::vector<TensorScan> scans;  // one per tensor, if verified
  std::vector<Problem> problems;
  int64_t zero_scales = 0;
  std::string content_sha256;
};

Result<Opened> open(const std::string& path) {
  Opened opened;
  if (path.ends_with(".safetensors")) {
    RORQUAL_TRY_ASSIGN(auto file, format::open_safetensors(path));
    opened.source = std::move(file);
    return opened;
  }
  if (path.empty()) {
    RORQUAL_TRY_ASSIGN(opened.source, open_embedded_model());
  } else if (model::is_synthetic(path)) {
    RORQUAL_TRY_ASSIGN(opened.source, model::open_synthetic(path));
  } else {
    RORQUAL_TRY_ASSIGN(opened.source, format::open_checkpoint(path));
  }
  RORQUAL_TRY_ASSIGN(const std::string text, opened.source->read_text("config.json"));
  auto config = model::parse_config(text);
  if (!config.ok()) return std::move(config).error().at(fmt::format("model '{}'", opened.source->name()));
  opened.config = *std::move(config);
  return opened;
}

/// Sums by group; tensors that the architecture does not know come last.
void sum_groups(Report& report, const std::vector<model::ManifestEntry>& entries) {
  std::map<model::TensorGroup, Sum> known;
  Sum unknown;
  auto entry = entries.begin();
  for (const TensorInfo& tensor : report.source->tensors()) {
    while (entry != entries.end() && entry->name < tensor.name) ++entry;
    if (entry != entries.end() && entry->name == tensor.name) {
      known[entry->group].add(tensor);
    } else {
      unknown.add(tensor);
    }
  }
  for (const auto& [group, sum] : known) report.groups.emplace_back(model::group_name(group), sum);
  if (unknown.tensors > 0) report.groups.emplace_back("(unknown)", unknown);
}

/// Tensors in name order feed one hash, so that it does not depend on how they lie in files.
Status verify(Report& report) {
  Sha256 content;
  for (const TensorInfo& tensor : report.source->tensors()) {
    RORQUAL_TRY_ASSIGN(TensorScan scan, scan_tensor(*report.source, tensor));
    const std::string line = fmt::format("{} {} [{}] {}\n", tensor.name, tensor::dtype_name(tensor.dtype),
                                         fmt::join(tensor.shape, ","), scan.sha256);
    content.update(std::as_bytes(std::span(line)));
    report.zero_scales += scan.zero_scales;
    if (scan.not_finite > 0) report.problems.push_back({&tensor, scan});
    report.scans.push_back(std::move(scan));
  }
  report.content_sha256 = content.hex();
  report.is_verified = true;
  return Ok{};
}

/// Nothing if serve and chat can use the tokenizer of the model. A slice without one is still sound.
std::optional<std::string> find_tokenizer_fault(const TensorSource& source, const model::Config& config) {
  const auto json = source.read_text("tokenizer.json");
  if (!json.ok()) return json.error().message();
  const auto tokenizer = text::Tokenizer::from_json(*json);
  if (!tokenizer.ok()) return tokenizer.error().message();
  if (tokenizer->vocab_size() <= config.vocab_size) return std::nullopt;
  return fmt::format("tokenizer.json has {} tokens, config.json says vocab_size {}", tokenizer->vocab_size(),
                     config.vocab_size);
}

Result<Report> make_report(const Opened& opened, const InspectOptions& options) {
  Report report;
  report.source = opened.source.get();
  for (const TensorInfo& tensor : report.source->tensors()) {
    report.total.add(tensor);
    report.dtypes[std::string(tensor::dtype_name(tensor.dtype))].add(tensor);
    if (!tensor.file.empty()) report.files.insert(tensor.file);
  }
  if (opened.config) {
    report.config = &*opened.config;
    const auto entries = model::manifest(*opened.config);
    sum_groups(report, entries);
    const auto status = model::check_manifest(*report.source, entries);
    if (!status.ok()) report.mismatch = status.error().message();
    report.tokenizer_fault = find_tokenizer_fault(*report.source, *opened.config);
    if (const auto json = report.source->read_text("tokenizer.json"); json.ok())
      report.tokenizer_sha256 = sha256_hex(std::as_bytes(std::span(*json)));
    report.encoder = checkpoint_encoder(options.path);
  }
  if (options.verify) RORQUAL_TRY(verify(report));
  return report;
}

int64_t count_role(const model::Config& config, model::LayerRole role) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    count += config.role(layer) == role ? 1 : 0;
  return count;
}

void print_config(const model::Config& config, std::string& out) {
  using model::LayerRole;
  const auto line = [&out](const char* name, const std::string& text) {
    out += fmt::format("{:<11}{}\n", name, text);
  };
  line("layers",
       fmt::format("{}: {} window-only, {} full, {} reindex, {} reuse; hidden {}, {} residual streams",
                   config.num_hidden_layers, count_role(config, LayerRole::window_only),
                   count_role(config, LayerRole::full), count_role(config, LayerRole::reindex),
                   count_role(config, LayerRole::reuse), config.hidden_size, config.hc_mult));
  line("attention",
       fmt::format(
           "{} heads of {} ({} rotary), window {}, top {} of the compressed entries; {} index heads of {}",
           config.num_attention_heads, config.head_dim, config.qk_rope_head_dim, config.sliding_window,
           config.index_topk, config.index_n_heads, config.index_head_dim));
  line("experts",
       fmt::format("{} per layer, {} per token, {} shared; width {}", config.n_routed_experts,
                   config.num_experts_per_tok, config.n_shared_experts, config.moe_intermediate_size));
  if (!config.engram_layer_ids.empty()) {
    line("engram",
         fmt::format("layers {}; rows {}; {} rows of {} per token", fmt::join(config.engram_layer_ids, ", "),
                     fmt::join(config.engram_num_embeddings, ", "), config.engram_columns(),
                     config.engram_head_dim));
  }
  if (config.num_stages() > 0) {
    line("drafts", fmt::format("{} stages, block {}, taps {}; {} experts, {} per token", config.num_stages(),
                               config.dspark_block_size, fmt::join(config.dspark_target_layer_ids, ", "),
                               config.num_experts(config.num_hidden_layers),
                               config.num_active_experts(config.num_hidden_layers)));
  }
  if (config.vision.num_hidden_layers > 0) {
    line("vision", fmt::format("{} layers, hidden {}, patch {}", config.vision.num_hidden_layers,
                               config.vision.hidden_size, config.vision.patch_size));
  }
  line("text", fmt::format("vocabulary {}, {} positions", format_count(config.vocab_size),
                           format_count(config.max_position_embeddings)));
  if (!config.layer_origin.empty())
    line("slice of", fmt::format("layers {}", fmt::join(config.layer_origin, ", ")));
}

void print_sum(const std::string& name, const Sum& sum, std::string& out) {
  out += fmt::format("{:<20}{:>10}{:>20}{:>20}  {:>10}\n", name, format_count(sum.tensors),
                     format_count(sum.elements), format_count(sum.bytes), format_bytes(sum.bytes));
}

void print_text(const Report& report, bool list_tensors, std::string& out) {
  out += fmt::format("{:<11}{}: {} tensors in {} files, {} bytes ({})\n", "model", report.source->name(),
                     format_count(report.total.tensors), report.files.size(),
                     format_count(report.total.bytes), format_bytes(report.total.bytes));
  if (report.config != nullptr) print_config(*report.config, out);
  if (report.tokenizer_fault)
    out += fmt::format("{:<11}unusable: {}\n", "tokenizer", *report.tokenizer_fault);
  if (!report.tokenizer_sha256.empty()) {
    const std::string origin = published_tokenizer(report.tokenizer_sha256);
    out += fmt::format("{:<11}sha256 {}{}\n", "tokenizer", report.tokenizer_sha256,
                       origin.empty() ? "" : ", " + origin);
  }
  if (!report.encoder.empty()) out += fmt::format("{:<11}{}\n", "encoder", report.encoder);
  const auto print_header = [&out](const char* name) {
    out += fmt::format("\n{:<20}{:>10}{:>20}{:>20}\n", name, "tensors", "elements", "bytes");
  };
  if (!report.groups.empty()) {
    print_header("group");
    for (const auto& [name, sum] : report.groups) print_sum(name, sum, out);
    print_sum("total", report.total, out);
  }
  print_header("dtype");
  for (const auto& [name, sum] : report.dtypes) print_sum(name, sum, out);
  if (list_tensors) {
    out += '\n';
    const auto& tensors = report.source->tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TensorInfo& tensor = tensors[i];
      out += fmt::format("{:<44} {:<8} {:<18} {:>15}  {}", tensor.name, tensor::dtype_name(tensor.dtype),
                         fmt::format("[{}]", fmt::join(tensor.shape, ", ")), format_count(tensor.size_bytes),
                         tensor.file);
      if (report.is_verified) out += "  sha256 " + report.scans[i].sha256;
      out += '\n';
    }
  }
  if (report.is_verified) {
    out += '\n';
    for (const Problem& problem : report.problems) {
      out += fmt::format("damaged    {} ({}): {} of its {} values are not finite\n", problem.tensor->name,
                         problem.tensor->file, format_count(problem.scan.not_finite),
                         tensor::dtype_name(problem.tensor->dtype));
    }
    out += fmt::format(
        "verified   {} bytes read, {} tensors with values that are not finite, {} scales of 2^-127\n",
        format_count(report.total.bytes), report.problems.size(), format_count(report.zero_scales));
    out += fmt::format("content    sha256 {}\n", report.content_sha256);
  }
}

Json sum_json(const Sum& sum) {
  return {{"tensors", sum.tensors}, {"elements", sum.elements}, {"bytes", sum.bytes}};
}

Json tensor_json(const TensorInfo& tensor, const TensorScan* scan) {
  Json json = {{"name", tensor.name},   {"dtype", tensor::dtype_name(tensor.dtype)},
               {"shape", tensor.shape}, {"bytes", tensor.size_bytes},
               {"file", tensor.file},   {"file_offset", tensor.file_offset}};
  if (scan != nullptr) {
    json["sha256"] = scan->sha256;
    json["not_finite"] = scan->not_finite;
  }
  return json;
}

void print_json(const Report& report, bool list_tensors, std::string& out) {
  Json json;
  json["schema"] = "rorqual.inspect/1";
  json["model"] = report.source->name();
  json["files"] = report.files;
  json["total"] = sum_json(report.total);
  if (report.config != nullptr) {
    json["config"] = Json::parse(model::config_to_json(*report.config));
    json["groups"] = Json::object();
    for (const auto& [name, sum] : report.groups) json["groups"][name] = sum_json(sum);
    json["matches_config"] = !report.mismatch.has_value();
    json["mismatch"] = report.mismatch ? Json(*report.mismatch) : Json(nullptr);
    json["prompt_encoding"] = text::kPromptEncodingRevision;
    json["tokenizer_sha256"] =
        report.tokenizer_sha256.empty() ? Json(nullptr) : Json(report.tokenizer_sha256);
    json["checkpoint_encoder"] = report.encoder.empty() ? Json(nullptr) : Json(report.encoder);
    json["tokenizer_fault"] = report.tokenizer_fault ? Json(*report.tokenizer_fault) : Json(nullptr);
  }
  json["dtypes"] = Json::object();
  for (const auto& [name, sum] : report.dtypes) json["dtypes"][name] = sum_json(sum);
  const auto& tensors = report.source->tensors();
  if (list_tensors) {
    json["tensors"] = Json::array();
    for (size_t i = 0; i < tensors.size(); ++i) {
      json["tensors"].push_back(tensor_json(tensors[i], report.is_verified ? &report.scans[i] : nullptr));
    }
  }
  if (report.is_verified) {
    Json damaged = Json::array();
    for (const Problem& problem : report.problems)
      damaged.push_back(tensor_json(*problem.tensor, &problem.scan));
    json["verify"] = {
        {"damaged", damaged}, {"zero_scales", report.zero_scales}, {"content_sha256", report.content_sha256}};
  }
  out += json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

Status run_inspect(const InspectOptions& options, std::string& out) {
  RORQUAL_TRY_ASSIGN(const Opened opened, open(options.path));
  RORQUAL_TRY_ASSIGN(const Report report, make_report(opened, options));
  if (options.as_json) {
    print_json(report, options.list_tensors, out);
  } else {
    print_text(report, options.list_tensors, out);
  }
  if (report.mismatch) {
    return Error(Code::corrupt_data, *report.mismatch,
                 "checkpoint and config.json are from different revisions, or the checkpoint is not in the "
                 "official format");
  }
  if (!report.problems.empty()) {
    const Problem& first = report.problems.front();
    return Error(
        Code::corrupt_data,
        fmt::format(
            "model '{}' has {} tensors with values that are not finite; the first is '{}' in {}: {} values",
            report.source->name(), report.problems.size(), first.tensor->name, first.tensor->file,
            first.scan.not_finite),
        "the files are damaged; fetch them again");
  }
  return Ok{};
}

}  // namespace rorqual::tools
