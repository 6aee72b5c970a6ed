// SPDX-License-Identifier: Apache-2.0
#include "tools/kl_agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/units.h"
#include "kl/agree.h"
#include "report/table.h"
#include "tools/row_progress.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kListedDisagreements = 10;

std::string dumped(const Json& json, bool is_ascii = false) {
  return json.dump(-1, ' ', is_ascii, Json::error_handler_t::replace);
}

/// --require, read.
struct Requirement {
  bool is_identical = false;
  std::optional<double> forced_percent;
};

Result<Requirement> parse_requirement(const KlAgreeOptions& options) {
  Requirement result;
  const std::string& text = options.require;
  if (text.empty()) return result;
  if (text == "identical") {
    result.is_identical = true;
    return result;
  }
  double percent = 0;
  const char* end = text.data() + text.size() - (text.back() == '%' ? 1 : 0);
  const auto parsed = std::from_chars(text.data(), end, percent);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(percent >= 0 && percent <= 100)) {
    return Error(Code::invalid_argument,
                 fmt::format("--require: got '{}', expected identical or a percentage such as 99.5%", text));
  }
  if (!options.engine.remote.url.empty()) {
    return Error(
        Code::invalid_argument,
        fmt::format("--require {}: tokens cannot be forced through --url, only outputs compared", text),
        "use --require identical, or load the model in this process");
  }
  result.forced_percent = percent;
  return result;
}

/// Tokens of the longest prompt with its continuation, and one that is never generated.
int64_t longest_sequence(const kl::Panel& panel) {
  size_t longest = 0;
  for (const auto& c : panel.cases) longest = std::max(longest, c.prompt.size());
  return static_cast<int64_t>(longest) + panel.max_tokens + 1;
}

struct Outcome {
  const KlAgreeOptions& options;
  const kl::Panel& panel;
  const kl::Agreement& agreement;
  const runtime::EngineInfo& engine;
  const text::Tokenizer* tokenizer;  // null behind a URL
  std::string url;                   // without user and password; empty = in this process

  /// "1234 "text"" of a token.
  std::string token(int32_t id) const {
    if (tokenizer == nullptr) return fmt::format("{}", id);
    const int32_t ids[] = {id};
    return fmt::format("{} {}", id, dumped(tokenizer->decode(ids, false)));
  }
};

Json json_of(const Outcome& outcome) {
  const auto& [options, panel, agreement, engine, tokenizer, url] = outcome;
  Json differing = Json::array(), disagreements = Json::array();
  for (const auto& c : agreement.cases) {
    if (!c.is_identical()) differing.push_back({{"id", c.id}, {"position", c.first_difference}});
    for (const auto& d : c.disagreements) {
      disagreements.push_back({{"id", c.id},
                               {"position", d.position},
                               {"expected", d.expected},
                               {"best", d.best},
                               {"gap", d.gap},
                               {"logprob_a", d.logprob_a},
                               {"logprob_b", d.logprob_b},
                               {"near_tie", d.is_near_tie()}});
    }
  }
  Json forced = nullptr;
  if (agreement.is_forced) {
    forced = {{"tokens", agreement.tokens},
              {"matches", agreement.matches},
              {"share", agreement.forced_share()},
              {"mean_logprob_delta", agreement.mean_logprob_delta},
              {"disagreements", agreement.disagreements()},
              {"near_ties", agreement.near_ties},
              {"near_tie_gap", kl::kNearTieGap},
              {"items", std::move(disagreements)}};
  }
  return {{"schema", "rorqual.kl.agree/1"},
          {"panel",
           {{"path", options.panel},
            {"sha256", panel.sha256},
            {"model", panel.model},
            {"numerics", panel.numerics},
            {"switches", panel.switches},
            {"cases", agreement.cases.size()},
            {"tokens", agreement.tokens}}},
          {"engine",
           {{"model", engine.model_name},
            {"numerics", engine.numerics},
            {"kernels", engine.kernels},
            {"switches", engine.switches},
            {"url", url.empty() ? Json(nullptr) : Json(url)}}},
          {"identical",
           {{"cases", agreement.identical},
            {"share", agreement.identical_share()},
            {"differing", std::move(differing)}}},
          {"forced", std::move(forced)}};
}

std::string configuration(const std::string& model, const std::string& numerics,
                          const std::string& switches) {
  return fmt::format("{}, {} numerics, lossy switches: {}", model, numerics.empty() ? "unknown" : numerics,
                     switches.empty() ? "none" : switches);
}

std::string percent(double share) {
  return fmt::format("{:.2f} %", 100 * share);
}

std::string disagreement_table(const Outcome& outcome) {
  report::Table table;
  table.header = {"case", "position", "A wrote", "B prefers", "A's gap", "lp A", "lp B"};
  using report::Align;
  table.align = {Align::left,  Align::right, Align::left, Align::left,
                 Align::right, Align::right, Align::right};
  for (const auto& c : outcome.agreement.cases) {
    for (const auto& d : c.disagreements) {
      if (table.rows.size() == kListedDisagreements) break;
      table.rows.push_back({c.id, fmt::format("{}", d.position), outcome.token(d.expected),
                            outcome.token(d.best),
                            fmt::format("{:.4f}{}", d.gap, d.is_near_tie() ? " (near tie)" : ""),
                            fmt::format("{:.4f}", d.logprob_a), fmt::format("{:.4f}", d.logprob_b)});
    }
  }
  return report::to_text(table);
}

std::string text_of(const Outcome& outcome) {
  const auto& [options, panel, agreement, engine, tokenizer, url] = outcome;
  std::string text = fmt::format(
      "A  panel {}: {} cases, {} tokens; {}\n"
      "B  {}{}\n",
      options.panel, agreement.cases.size(), format_count(agreement.tokens),
      configuration(panel.model, panel.numerics, panel.switches),
      configuration(engine.model_name, engine.numerics, engine.switches),
      url.empty() ? "" : fmt::format(" at {}", url));
  text += fmt::format("identical outputs   {} ({} of {} prompts)\n", percent(agreement.identical_share()),
                      agreement.identical, agreement.cases.size());
  size_t listed = 0;
  for (const auto& c : agreement.cases) {
    if (c.is_identical() || listed++ >= kListedDisagreements) continue;
    text += fmt::format("  {} differs from token {} of {} on\n", c.id, c.first_difference, c.tokens);
  }
  if (!agreement.is_forced) {
    return text +
           "forced agreement    not measured: tokens cannot be forced through a URL; load the model in this "
           "process\n";
  }
  text += fmt::format(
      "forced agreement    {} ({} of {} tokens), mean log-probability A - B {:.6f} nat\n"
      "disagreements       {}, of these {} near ties (A's two best tokens less than {} nat apart)\n",
      percent(agreement.forced_share()), format_count(agreement.matches), format_count(agreement.tokens),
      agreement.mean_logprob_delta, agreement.disagreements(), agreement.near_ties, kl::kNearTieGap);
  if (agreement.disagreements() > 0) text += disagreement_table(outcome);
  return text;
}

Status check_requirement(const Requirement& requirement, const kl::Agreement& agreement) {
  if (requirement.is_identical && (agreement.identical_share() < 1 || agreement.disagreements() > 0)) {
    return Error(Code::gate,
                 fmt::format("{} of {} outputs are identical and {} forced tokens disagree, "
                             "expected identical outputs and no disagreement",
                             agreement.identical, agreement.cases.size(), agreement.disagreements()));
  }
  if (requirement.forced_percent && 100 * agreement.forced_share() < *requirement.forced_percent) {
    return Error(Code::gate, fmt::format("forced agreement is {:.4f} %, expected at least {} %",
                                         100 * agreement.forced_share(), *requirement.forced_percent));
  }
  return Ok();
}

}  // namespace

Status run_kl_agree(const KlAgreeOptions& options) {
  RORQUAL_TRY_ASSIGN(const auto requirement, parse_requirement(options));
  RORQUAL_TRY_ASSIGN(const auto panel, kl::read_panel_file(options.panel));
  RORQUAL_TRY_ASSIGN(auto candidate, open_kl_engine(options.engine, longest_sequence(panel)));
  RowProgress progress("agree", "requests");
  const kl::AgreeOptions agree_options{options.engine.streams, candidate.remote == nullptr};
  auto agreement = kl::agree(candidate.engine(), panel, agree_options, [&](int64_t done, int64_t total) {
    if (!options.as_json) progress.update(done, total);
  });
  progress.finish();
  if (!agreement.ok()) return std::move(agreement).error();
  const text::Tokenizer* tokenizer = candidate.remote ? nullptr : candidate.local.opened.tokenizer.get();
  const Outcome outcome{options,    panel,
                        *agreement, candidate.engine().info(),
                        tokenizer,  candidate.remote ? candidate.remote->server().url : std::string()};
  const std::string text = options.as_json ? dumped(json_of(outcome)) + "\n" : text_of(outcome);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return check_requirement(requirement, *agreement);
}

}  // namespace rorqual::tools
