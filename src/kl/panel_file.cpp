// SPDX-License-Identifier: Apache-2.0
// Panels as JSON: written with one case per line, read with every field checked.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/sha256.h"
#include "kl/panel.h"

namespace rorqual::kl {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "rorqual.kl.panel/1";
constexpr int64_t kMaxPanel_bytes = int64_t{256} << 20;

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json json_of(const PanelCase& c) {
  return Json{
      {"id", c.id},         {"message", c.message},           {"reply", c.reply},       {"finish", c.finish},
      {"prompt", c.prompt}, {"continuation", c.continuation}, {"logprobs", c.logprobs}, {"gaps", c.gaps}};
}

/// Fault of one case, or empty.
std::string case_fault(const PanelCase& c, int64_t vocab_size) {
  const size_t length = c.continuation.size();
  if (c.prompt.empty()) return "prompt is empty";
  if (c.logprobs.size() != length || c.gaps.size() != length) {
    return fmt::format("{} continuation tokens, {} logprobs, {} gaps: expected the same number", length,
                       c.logprobs.size(), c.gaps.size());
  }
  for (const auto* ids : {&c.prompt, &c.continuation}) {
    for (const int32_t id : *ids) {
      if (id < 0 || id >= vocab_size) return fmt::format("token {}, expected 0 to {}", id, vocab_size - 1);
    }
  }
  for (size_t i = 0; i < length; ++i) {
    if (!(c.logprobs[i] <= 0) || !(c.gaps[i] >= 0)) {
      return fmt::format(
          "token {} of the continuation: logprob {}, gap {}: expected at most 0 and at least 0", i,
          c.logprobs[i], c.gaps[i]);
    }
  }
  if (c.finish != "stop" && c.finish != "length")
    return fmt::format("finish is '{}', expected stop or length", c.finish);
  return {};
}

/// Throws nlohmann's exceptions.
Panel panel_of(const nlohmann::json& json) {
  Panel panel;
  json.at("model").get_to(panel.model);
  json.at("numerics").get_to(panel.numerics);
  json.at("switches").get_to(panel.switches);
  panel.prompt_compat = json.value("prompt_compat", "");
  json.at("vocab_size").get_to(panel.vocab_size);
  json.at("max_tokens").get_to(panel.max_tokens);
  json.at("sha256").get_to(panel.sha256);
  for (const auto& entry : json.at("cases")) {
    PanelCase& c = panel.cases.emplace_back();
    entry.at("id").get_to(c.id);
    entry.at("message").get_to(c.message);
    entry.at("reply").get_to(c.reply);
    entry.at("finish").get_to(c.finish);
    entry.at("prompt").get_to(c.prompt);
    entry.at("continuation").get_to(c.continuation);
    entry.at("logprobs").get_to(c.logprobs);
    entry.at("gaps").get_to(c.gaps);
  }
  return panel;
}

template <class T>
void add_value(Sha256& hash, const T& value) {
  hash.update(std::as_bytes(std::span(&value, 1)));
}

}  // namespace

std::string panel_sha256(const Panel& panel) {
  Sha256 hash;
  for (const PanelCase& c : panel.cases) {
    for (const auto* ids : {&c.prompt, &c.continuation}) {
      add_value(hash, static_cast<int64_t>(ids->size()));
      hash.update(std::as_bytes(std::span(*ids)));
    }
  }
  return hash.hex();
}

Status write_panel(const std::string& path, const Panel& panel) {
  Json head{{"schema", kSchema},
            {"model", panel.model},
            {"numerics", panel.numerics},
            {"switches", panel.switches},
            {"vocab_size", panel.vocab_size},
            {"max_tokens", panel.max_tokens},
            {"sha256", panel_sha256(panel)}};
  if (!panel.prompt_compat.empty()) head["prompt_compat"] = panel.prompt_compat;
  std::string text = dumped(head);
  text.pop_back();
  text += ",\n\"cases\":[";
  for (size_t i = 0; i < panel.cases.size(); ++i) {
    text += i == 0 ? "\n" : ",\n";
    text += dumped(json_of(panel.cases[i]));
  }
  text += "\n]}\n";
  return write_text_file(path, text);
}

Result<Panel> read_panel_file(const std::string& path) {
  RORQUAL_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxPanel_bytes));
  const auto damaged = [&](const std::string& what) {
    return Error(Code::corrupt_data, fmt::format("panel '{}': {}", path, what),
                 "make a panel with `rorqual kl panel --out FILE.json`");
  };
  Panel panel;
  try {
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_discarded()) return damaged("not JSON, or not all of it");
    const std::string schema = json.is_object() ? json.value("schema", "") : "";
    if (schema != kSchema) return damaged(fmt::format("got schema '{}', expected {}", schema, kSchema));
    panel = panel_of(json);
  } catch (const nlohmann::json::exception& e) {
    const std::string_view what = e.what();  // "[json.exception.out_of_range.403] key 'model' not found"
    return damaged(std::string(what.substr(what.find("] ") == what.npos ? 0 : what.find("] ") + 2)));
  }
  if (panel.vocab_size < 1) return damaged(fmt::format("vocab_size is {}", panel.vocab_size));
  std::set<std::string> ids;
  for (const PanelCase& c : panel.cases) {
    if (!ids.insert(c.id).second) return damaged(fmt::format("case '{}' appears twice", c.id));
    if (const auto fault = case_fault(c, panel.vocab_size); !fault.empty())
      return damaged(fmt::format("case '{}': {}", c.id, fault));
  }
  if (const auto actual = panel_sha256(panel); actual != panel.sha256)
    return damaged(fmt::format("sha256 is {}, its token ids have {}", panel.sha256, actual));
  return panel;
}

Corpus panel_corpus(const Panel& panel) {
  Corpus corpus;
  corpus.name = "panel";
  corpus.sha256 = panel_sha256(panel);
  corpus.prompt_compat = panel.prompt_compat;
  for (const PanelCase& c : panel.cases) {
    if (c.continuation.empty()) continue;
    Window& window = corpus.windows.emplace_back();
    window.first_scored = static_cast<int64_t>(c.prompt.size());
    window.ids = c.prompt;
    window.ids.insert(window.ids.end(), c.continuation.begin(), c.continuation.end());
  }
  return corpus;
}

}  // namespace rorqual::kl
