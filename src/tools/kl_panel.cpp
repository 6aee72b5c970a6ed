// SPDX-License-Identifier: Apache-2.0
#include "tools/kl_panel.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/units.h"
#include "kl/panel.h"
#include "kl/panel_prompts.h"
#include "tools/kl_files.h"
#include "tools/row_progress.h"

namespace rorqual::tools {
namespace {

constexpr int64_t kMaxPrompts_bytes = int64_t{64} << 20;
constexpr int64_t kPromptTokens = 8192;  // room for the longest prompt when no context is asked for

/// Prompts of a file, or the built-in ones.
Result<std::vector<std::string>> prompts_of(const KlPanelOptions& options) {
  std::vector<std::string> prompts;
  if (options.prompts.empty()) {
    for (const std::string_view prompt : kl::panel_prompts()) prompts.emplace_back(prompt);
  } else {
    RORQUAL_TRY_ASSIGN(const std::string text, read_text_file(options.prompts, kMaxPrompts_bytes));
    RORQUAL_TRY(check_utf8(fmt::format("--prompts {}", options.prompts), text));
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_array() && std::filesystem::path(options.prompts).extension() == ".json") {
      return Error(Code::corrupt_data,
                   fmt::format("--prompts {}: expected a JSON list of strings", options.prompts),
                   "one prompt per line is read from files of other names");
    }
    if (json.is_array()) {
      for (const auto& entry : json) {
        if (!entry.is_string()) {
          return Error(Code::corrupt_data, fmt::format("--prompts {}: entry {} is {}, expected a string",
                                                       options.prompts, prompts.size(), entry.type_name()));
        }
        prompts.push_back(entry.get<std::string>());
      }
    } else {
      for (size_t begin = 0; begin < text.size();) {
        const auto end = std::min(text.find_first_of("\r\n", begin), text.size());
        if (end > begin) prompts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
      }
    }
  }
  if (options.num_prompts > 0 && static_cast<size_t>(options.num_prompts) < prompts.size())
    prompts.resize(static_cast<size_t>(options.num_prompts));
  if (!prompts.empty()) return prompts;
  return Error(Code::invalid_argument, fmt::format("--prompts {}: holds no prompt", options.prompts),
               "write a JSON list of strings, or one prompt per line");
}

void print_result(const KlPanelOptions& options, const kl::Panel& panel, double seconds) {
  int64_t tokens = 0;
  int64_t stopped = 0;
  for (const kl::PanelCase& c : panel.cases) {
    tokens += static_cast<int64_t>(c.continuation.size());
    stopped += c.finish == "stop" ? 1 : 0;
  }
  if (options.as_json) {
    const nlohmann::ordered_json json{{"schema", "rorqual.kl.panel.made/1"},
                                      {"panel", options.out},
                                      {"sha256", panel.sha256},
                                      {"model", panel.model},
                                      {"numerics", panel.numerics},
                                      {"switches", panel.switches},
                                      {"cases", panel.cases.size()},
                                      {"tokens", tokens},
                                      {"stopped", stopped},
                                      {"seconds", seconds}};
    fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return;
  }
  fmt::print("panel   {} cases, {} continuation tokens, {} ended by themselves, {:.1f} s\n",
             panel.cases.size(), format_count(tokens), stopped, seconds);
  fmt::print("file    {}  sha256 of its ids {}\n", options.out, panel.sha256);
}

}  // namespace

Status run_kl_panel(const KlPanelOptions& options) {
  RORQUAL_TRY(check_output("--out", options.out));
  RORQUAL_TRY_ASSIGN(const auto prompts, prompts_of(options));
  RORQUAL_TRY_ASSIGN(const auto tokenizer, open_kl_tokenizer(options.engine));
  if (!tokenizer) {
    return Error(Code::invalid_argument, "--url needs --tokenizer: the prompts are rendered here",
                 "give the model's tokenizer.json");
  }
  const int64_t needed = kPromptTokens + options.max_tokens;
  RORQUAL_TRY_ASSIGN(KlEngine opened, open_kl_engine(options.engine, needed, "--max-tokens"));
  const std::vector<std::string_view> views(prompts.begin(), prompts.end());
  kl::PanelOptions panel_options;
  panel_options.max_tokens = options.max_tokens;
  panel_options.prompt_compat = options.prompt_compat;
  panel_options.streams = options.engine.streams;
  const auto begin = std::chrono::steady_clock::now();
  RowProgress progress("panel", "cases");
  auto panel =
      kl::make_panel(opened.engine(), *tokenizer, views, panel_options, [&](int64_t done, int64_t total) {
        if (!options.as_json) progress.update(done, total);
      });
  progress.finish();
  if (!panel.ok()) return std::move(panel).error();
  RORQUAL_TRY(kl::write_panel(options.out, *panel));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  print_result(options, *panel, seconds);
  return Ok();
}

}  // namespace rorqual::tools
