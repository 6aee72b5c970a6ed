// SPDX-License-Identifier: Apache-2.0
#include "kl/kl_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/units.h"
#include "kl/report_rows.h"
#include "kl/token_class.h"
#include "report/svg.h"
#include "report/table.h"

namespace rorqual::kl {
namespace {

using Json = nlohmann::ordered_json;
using report::Align;
using report::Chart;
using report::Mark;
using report::Scale;
using report::Table;
using report::Tone;

constexpr int64_t kPositionBins = 32;
constexpr size_t kMapWindows = 64;  // heat maps of more windows would fill pages

constexpr std::string_view kWorstCss = R"(
.worst{border:1px solid var(--rule);border-radius:6px;margin:.5rem 0;padding:.3rem .8rem}
.worst summary{cursor:pointer;padding:.15rem 0;overflow-wrap:anywhere}.worst b{font-variant-numeric:tabular-nums}
code{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,monospace;font-size:.92em;background:var(--box);
border:1px solid var(--rule);border-radius:3px;padding:0 .2em;white-space:pre-wrap}
.context{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,monospace;font-size:.84rem;white-space:pre-wrap;
overflow-wrap:anywhere;max-width:none;background:var(--box);border-radius:4px;padding:.5rem .7rem}
mark{background:var(--hit);color:var(--hit-text);border-radius:2px}
.tops th{text-align:left;padding:.1rem .6rem;color:var(--soft);font-weight:500}
.tops td{padding:.1rem .6rem;border-bottom:1px solid var(--rule);min-width:2.5rem}
.tops .hit code{background:var(--hit);color:var(--hit-text)}.tops .alone code{border-style:dashed;border-color:var(--soft)}
.tops .p{min-width:7rem;font-variant-numeric:tabular-nums;
background:linear-gradient(to right,var(--bar) var(--p),transparent var(--p)) no-repeat}
@media (max-width:40rem){.tops th,.tops td{padding:.1rem .25rem}.tops .p{min-width:3.2rem}}
:root{--bar:#cfe3f5}@media (prefers-color-scheme:dark){:root{--bar:#1f4768}}
@media print{:root{--bar:#ddd}}
)";

size_t at(int64_t index) {
  return static_cast<size_t>(index);
}

/// Nats: "0.0522", "3.1e-06".
std::string nats(double value) {
  if (value == 0) return "0";
  return std::fabs(value) >= 0.001 ? fmt::format("{:.4f}", value) : fmt::format("{:.1e}", value);
}

std::string percent(double share) {
  return fmt::format("{:.2f} %", 100 * share);
}

std::string interval_text(const Interval& interval, double factor = 1) {
  const auto text = [&](double value) {
    return factor == 1 ? nats(value) : fmt::format("{:+.2f}", factor * value);
  };
  if (!std::isfinite(interval.low) || !std::isfinite(interval.high)) return "–";
  return fmt::format("{} to {}", text(interval.low), text(interval.high));
}

std::string id_set_text(IdSet id_set) {
  switch (id_set) {
    case IdSet::both_top_k:
      return "ids in the best lists of all captures compared, one bucket for the rest: a lower bound";
    case IdSet::candidate_top_k:
      return "ids in the candidate's best list, one bucket for the rest: a lower bound";
    case IdSet::full:
      return "the whole vocabulary: exact";
  }
  return {};
}

std::vector<std::string> limits_of(const ReportInput& input) {
  std::vector<std::string> limits;
  bool is_bound = false, has_panel = false;
  int64_t context = 0;
  for (const auto& corpus : input.corpora) {
    for (const auto& candidate : corpus.candidates) is_bound |= candidate.comparison.id_set != IdSet::full;
    context = std::max(context, corpus.reference->info.context);
    has_panel |= corpus.reference->info.context == 0;
  }
  if (is_bound) {
    limits.emplace_back(
        "The KL divergence is a lower bound: outside the ids that both captures list, all tokens count as "
        "one. "
        "The shared probability mass says how much lies inside.");
  }
  limits.emplace_back(
      "The intervals come from resampling windows. They do not contain differences from run to run; compare "
      "with "
      "the noise floor, a second run of the reference.");
  if (context > 0) {
    limits.push_back(
        fmt::format("Windows have {} tokens: nothing is said about longer contexts.", format_count(context)));
  }
  if (has_panel)
    limits.emplace_back("A panel scores given continuations, not what the candidate would write itself.");
  limits.emplace_back(
      "All tokens are given, none is sampled: small differences here can grow in generated text, and the "
      "corpora are "
      "not your texts.");
  return limits;
}

report::PageHead head_of(const ReportInput& input) {
  report::PageHead head;
  head.title = fmt::format("KL report: {} against {}", fmt::join(input.labels, ", "), input.reference_label);
  head.lead = fmt::format(
      "How far the next-token distributions of {} are from those of {}: Kullback-Leibler divergence "
      "KL(reference || candidate) in nats per token, on the same tokens.",
      fmt::join(input.labels, " and "), input.reference_label);
  head.facts = input.facts;
  std::string scored;
  for (const auto& corpus : input.corpora) {
    const auto& info = corpus.reference->info;
    scored +=
        fmt::format("{}{}: {} positions in {} windows{}", scored.empty() ? "" : "; ", info.corpus,
                    format_count(info.scored_positions), format_count(info.num_windows),
                    info.context > 0 ? fmt::format(" of {}", format_count(info.context)) : std::string());
  }
  head.facts.emplace_back("Scored", scored);
  if (!input.corpora.empty() && !input.corpora[0].candidates.empty()) {
    head.facts.emplace_back("KL over", id_set_text(input.corpora[0].candidates[0].comparison.id_set));
    head.facts.emplace_back(
        "Best lists", fmt::format("{} tokens of {}", format_count(input.corpora[0].reference->info.top_k),
                                  format_count(input.corpora[0].reference->info.vocab_size)));
  }
  head.limits = limits_of(input);
  return head;
}

/// Rows: measures; a column per configuration, so that it fits narrow screens.
Table summary_table(const ReportInput& input, const ReportCorpus& corpus) {
  Table table;
  table.header = {"measure"};
  table.rows = {{"mean KL"},          {"95 % interval"},          {"median KL"},
                {"90th percentile"},  {"95th percentile"},        {"99th percentile"},
                {"largest KL"},       {"best token equal"},       {"perplexity, reference"},
                {"perplexity, this"}, {"mean |Δ log p| of token"}};
  const auto add = [&](const std::string& name, const Summary& summary) {
    table.header.push_back(name);
    const std::vector<std::string> cells = {nats(summary.mean_kl),
                                            interval_text(summary.mean_kl_ci),
                                            nats(summary.median),
                                            nats(summary.p90),
                                            nats(summary.p95),
                                            nats(summary.p99),
                                            nats(summary.max),
                                            percent(summary.top1),
                                            fmt::format("{:.4f}", summary.reference_perplexity),
                                            fmt::format("{:.4f}", summary.candidate_perplexity),
                                            nats(summary.mean_abs_token_delta)};
    for (size_t i = 0; i < cells.size(); ++i) table.rows[i].push_back(cells[i]);
  };
  for (size_t i = 0; i < corpus.candidates.size(); ++i)
    add(input.labels[i], corpus.candidates[i].comparison.summary);
  if (corpus.floor) add("noise floor", *corpus.floor);
  table.align.assign(table.header.size(), Align::right);
  table.align[0] = Align::left;
  return table;
}

/// Rows: configurations; a column per corpus, "0.0522 · 92.80 %".
void add_overview(report::Page& page, const ReportInput& input) {
  Table table;
  table.header = {"configuration"};
  table.align = {Align::left};
  for (const auto& corpus : input.corpora) {
    table.header.push_back(corpus.reference->info.corpus);
    table.align.push_back(Align::right);
  }
  const auto cell = [](const Summary& summary) {
    return nats(summary.mean_kl) + " · " + percent(summary.top1);
  };
  for (size_t i = 0; i < input.labels.size(); ++i) {
    auto& row = table.rows.emplace_back(std::vector<std::string>{input.labels[i]});
    for (const auto& corpus : input.corpora) row.push_back(cell(corpus.candidates[i].comparison.summary));
  }
  std::vector<std::string> floor_row = {"noise floor (reference, second run)"};
  bool has_floor = false;
  for (const auto& corpus : input.corpora) {
    has_floor |= corpus.floor.has_value();
    floor_row.push_back(corpus.floor ? cell(*corpus.floor) : "–");
  }
  if (has_floor) table.rows.push_back(floor_row);

  Chart chart{.title = "Mean KL by corpus",
              .description =
                  "Mean KL divergence of each configuration on each corpus with 95 % intervals; the table "
                  "has the same numbers."};
  chart.y.label = "nats per token";
  chart.y.min = 0;
  chart.height = 280;
  for (const auto& corpus : input.corpora) chart.x.categories.push_back(corpus.reference->info.corpus);
  const auto add = [&](const std::string& name,
                       const std::function<const Summary*(const ReportCorpus&)>& pick) {
    report::Series series{.name = name, .mark = Mark::points};
    for (size_t c = 0; c < input.corpora.size(); ++c) {
      const auto* summary = pick(input.corpora[c]);
      if (summary == nullptr) continue;
      series.x.push_back(static_cast<double>(c));
      series.y.push_back(std::max(0.0, summary->mean_kl));
      series.low.push_back(std::max(0.0, summary->mean_kl_ci.low));
      series.high.push_back(std::max(0.0, summary->mean_kl_ci.high));
    }
    chart.series.push_back(std::move(series));
  };
  for (size_t i = 0; i < input.labels.size(); ++i)
    add(input.labels[i],
        [i](const ReportCorpus& corpus) { return &corpus.candidates[i].comparison.summary; });
  if (has_floor)
    add("noise floor", [](const ReportCorpus& corpus) { return corpus.floor ? &*corpus.floor : nullptr; });

  page.section("Overview");
  page.table(table, "Mean KL in nats · share of positions where the best token is the same.");
  page.figure(to_svg(chart), "");
}

void add_checks(report::Page& page, const ReportInput& input, const ReportCorpus& corpus) {
  for (size_t i = 0; i < corpus.candidates.size(); ++i) {
    const auto& comparison = corpus.candidates[i].comparison;
    const auto& summary = comparison.summary;
    if (summary.overshoot_reference + summary.overshoot_candidate > 0) {
      page.notice(
          Tone::bad,
          fmt::format(
              "{}: stored probabilities add up to more than 1.0001 in {} rows of the reference and {} of "
              "the candidate; such captures are damaged or rounded.",
              input.labels[i], format_count(summary.overshoot_reference),
              format_count(summary.overshoot_candidate)));
    }
    if (comparison.id_set != IdSet::full) {
      page.paragraph(fmt::format(
          "{}: shared probability mass median {:.5f}, 1st percentile {:.5f}, minimum {:.5f}.",
          input.labels[i], summary.common_mass_median, summary.common_mass_p1, summary.common_mass_min));
    }
    const auto& kl = comparison.positions.kl;
    const bool is_zero = std::all_of(kl.begin(), kl.end(), [](double value) { return value == 0; });
    if (is_zero && !kl.empty())
      page.notice(Tone::good, fmt::format("{}: KL is exactly 0 at every position.", input.labels[i]));
  }
}

void add_classes(report::Page& page, const ReportInput& input, const ReportCorpus& corpus, Json& data) {
  if (input.tokenizer == nullptr) return;
  Table table;
  table.header = {"class of the actual token", "positions"};
  table.align = {Align::left, Align::right};
  for (size_t i = 0; i < corpus.candidates.size(); ++i) {
    for (const char* column : {": mean KL", ": share of all KL", ": top-1 equal"}) {
      table.header.push_back(corpus.candidates.size() > 1 ? input.labels[i] + column
                                                          : std::string(column + 2));
      table.align.push_back(Align::right);
    }
    // The classes depend on the tokens only: the same rows for every candidate.
    const auto rows =
        split_by_class(*input.tokenizer, corpus.reference->token, corpus.candidates[i].comparison.positions);
    table.rows.resize(rows.size());
    auto& list = data["candidates"][i]["token_classes"] = Json::array();
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto& row = rows[r];
      const std::string name(token_class_name(row.token_class));
      auto& cells = table.rows[r];
      if (cells.empty()) cells = {name, format_count(row.positions)};
      cells.insert(cells.end(), {nats(row.mean_kl), percent(row.kl_share), percent(row.top1)});
      list.push_back({{"class", name},
                      {"positions", row.positions},
                      {"mean_kl", row.mean_kl},
                      {"kl_share", row.kl_share},
                      {"top1", row.top1}});
    }
  }
  page.subsection("By class of token");
  page.table(table, "");
}

void add_position_plots(report::Page& page, const ReportInput& input, const ReportCorpus& corpus,
                        Json& data) {
  Chart chart{.title = "KL by position in the window",
              .description =
                  fmt::format("Mean KL in {} bins of the scored positions, with 95 % bands.", kPositionBins)};
  chart.x.label = "position (tokens before the predicted one)";
  chart.y.label = "nats per token";
  chart.y.min = 0;
  std::vector<PositionBins> all;
  for (size_t i = 0; i < corpus.candidates.size(); ++i) {
    const auto& bins = all.emplace_back(
        bin_by_position(*corpus.reference, corpus.candidates[i].comparison.positions.kl, kPositionBins));
    report::Series series{
        .name = input.labels[i], .mark = Mark::line, .y = bins.mean, .low = bins.low, .high = bins.high};
    for (size_t bin = 0; bin < bins.mean.size(); ++bin)
      series.x.push_back((bins.edges[bin] + bins.edges[bin + 1]) / 2);
    for (auto& value : series.y) value = value < 0 ? 0 : value;
    for (auto& value : series.low) value = value < 0 ? 0 : value;
    chart.series.push_back(std::move(series));
    data["candidates"][i]["by_position"] = {{"edges", bins.edges}, {"mean_kl", bins.mean}};
  }
  page.figure(to_svg(chart), "Bands: 1.96 standard errors, positions taken as independent.");

  for (size_t i = 0; i < all.size(); ++i) {
    const auto& bins = all[i];
    if (corpus.reference->info.context == 0 || bins.by_window.size() < 2 ||
        bins.by_window.size() > kMapWindows)
      continue;
    report::HeatMap map{
        .title = fmt::format("KL by window and position: {}", input.labels[i]),
        .description = "One row per window, one column per bin of positions, darker is higher."};
    map.x_label = "position in the window";
    map.y_label = "window";
    map.value_label = "mean KL";
    map.scale = Scale::logarithmic;
    for (size_t bin = 0; bin < bins.mean.size(); ++bin)
      map.x_ticks.push_back(bin % 8 == 0 ? report::tick_text(std::round(bins.edges[bin])) : std::string());
    for (size_t window = 0; window < bins.by_window.size(); ++window) {
      map.y_ticks.push_back(window % 4 == 0 ? std::to_string(window) : std::string());
      map.values.insert(map.values.end(), bins.by_window[window].begin(), bins.by_window[window].end());
    }
    page.figure(to_svg(map), "Colours are logarithmic; grey: no value above zero.");
  }
}

void add_histogram(report::Page& page, const ReportInput& input, const ReportCorpus& corpus, Json& data) {
  Chart chart{.title = "Histogram of KL per position",
              .description = "Number of positions by size of their KL, both axes logarithmic."};
  chart.x.label = "KL in nats";
  chart.x.scale = Scale::logarithmic;
  chart.y.label = "positions";
  chart.y.scale = Scale::logarithmic;
  std::string below;
  for (size_t i = 0; i < corpus.candidates.size(); ++i) {
    const auto histogram = histogram_of(corpus.candidates[i].comparison.positions.kl);
    report::Series series{
        .name = input.labels[i], .mark = Mark::histogram, .x = histogram.edges, .y = histogram.counts};
    if (corpus.candidates.size() > 1 && !series.y.empty()) {  // outlines instead of bars that hide each other
      series.mark = Mark::step;
      series.y.push_back(series.y.back());
    }
    chart.series.push_back(std::move(series));
    below += fmt::format("{}{}: {} of {} positions are below {:.0e} and not drawn", below.empty() ? "" : "; ",
                         input.labels[i], format_count(histogram.below),
                         format_count(corpus.reference->num_rows()), kSmallestKl);
    data["candidates"][i]["histogram"] = {
        {"edges", histogram.edges}, {"counts", histogram.counts}, {"below", histogram.below}};
  }
  page.figure(to_svg(chart), below + ".");
}

void add_windows(report::Page& page, const ReportInput& input, const ReportCorpus& corpus) {
  Chart chart{.title = "Mean KL of each window",
              .description = "Mean KL of every window with 95 % intervals from the spread of its positions."};
  chart.x.label = "window";
  chart.x.min = -0.5;
  chart.x.max = static_cast<double>(corpus.reference->info.num_windows) - 0.5;
  chart.y.label = "nats per token";
  chart.y.min = 0;
  const auto candidates = static_cast<double>(corpus.candidates.size());
  for (size_t i = 0; i < corpus.candidates.size(); ++i) {
    const auto& comparison = corpus.candidates[i].comparison;
    report::Series series{.name = input.labels[i], .mark = Mark::points};
    const double shift = 0.5 * (static_cast<double>(i) - (candidates - 1) / 2) / candidates;
    for (size_t window = 0; window < comparison.summary.window_means.size(); ++window) {
      const auto interval =
          window_interval(*corpus.reference, comparison.positions.kl, static_cast<int64_t>(window));
      series.x.push_back(static_cast<double>(window) + shift);
      series.y.push_back(std::max(0.0, comparison.summary.window_means[window]));
      series.low.push_back(std::max(0.0, interval.low));
      series.high.push_back(std::max(0.0, interval.high));
    }
    chart.series.push_back(std::move(series));
    chart.lines.push_back({candidates > 1 ? "" : "mean", std::max(0.0, comparison.summary.mean_kl)});
  }
  page.figure(to_svg(chart),
              "Dotted: mean of all windows. Bars: 1.96 standard errors, positions taken as independent.");
}

void add_pairs(report::Page& page, const ReportInput& input, const ReportCorpus& corpus, Json& data) {
  if (corpus.pairs.empty()) return;
  Table table;
  table.header = {"A",       "B", "KL(A) - KL(B)", "95 % interval", "change %", "95 % interval of change",
                  "P(A > B)"};
  table.align.assign(table.header.size(), Align::right);
  table.align[0] = table.align[1] = Align::left;
  page.subsection("Paired comparison");
  for (const auto& pair : corpus.pairs) {
    const auto& name = input.labels[pair.candidate];
    table.rows.push_back(
        {name, input.labels[0], nats(pair.mean_difference), interval_text(pair.difference_ci),
         std::isfinite(pair.relative_change) ? fmt::format("{:+.2f}", 100 * pair.relative_change) : "from 0",
         interval_text(pair.relative_ci, 100), fmt::format("{:.4f}", pair.probability_greater)});
    data["pairs"].push_back({{"a", name},
                             {"b", input.labels[0]},
                             {"mean_difference", pair.mean_difference},
                             {"difference_ci", {pair.difference_ci.low, pair.difference_ci.high}},
                             {"relative_change", pair.relative_change},
                             {"relative_ci", {pair.relative_ci.low, pair.relative_ci.high}},
                             {"probability_a_greater", pair.probability_greater}});
  }
  page.table(table, "The same ids and windows for both; an interval with 0 in it: no difference found.");
}

void add_worst(report::Page& page, const ReportInput& input, const ReportCorpus& corpus, Json& data) {
  for (size_t i = 0; i < corpus.candidates.size(); ++i) {
    const auto& candidate = corpus.candidates[i];
    const auto& kl = candidate.comparison.positions.kl;
    const auto rows = worst_rows(kl, input.num_worst);
    page.subsection(fmt::format("The {} worst positions: {}", rows.size(), input.labels[i]));
    if (i == 0) {
      page.paragraph(
          "Text before and after the actual token (marked), and the best tokens of both sides. Filled: the "
          "actual token. "
          "Dashed: not among the other side's ten.");
    }
    page.markup(worst_html(*corpus.reference, *candidate.dump, candidate.comparison, input.tokenizer, rows));
    auto& list = data["candidates"][i]["worst"] = Json::array();
    for (const int64_t row : rows) {
      const auto [window, position] = place_of(*corpus.reference, row);
      list.push_back({{"kl", kl[at(row)]},
                      {"window", window},
                      {"position", position},
                      {"token", corpus.reference->token[at(row)]}});
    }
  }
}

Json summary_json(const Summary& summary) {
  return {{"positions", summary.positions},
          {"windows", summary.windows},
          {"mean_kl", summary.mean_kl},
          {"mean_kl_ci", {summary.mean_kl_ci.low, summary.mean_kl_ci.high}},
          {"median", summary.median},
          {"p90", summary.p90},
          {"p95", summary.p95},
          {"p99", summary.p99},
          {"max", summary.max},
          {"top1", summary.top1},
          {"reference_perplexity", summary.reference_perplexity},
          {"candidate_perplexity", summary.candidate_perplexity},
          {"mean_abs_token_delta", summary.mean_abs_token_delta},
          {"common_mass_median", summary.common_mass_median},
          {"common_mass_p1", summary.common_mass_p1},
          {"common_mass_min", summary.common_mass_min},
          {"window_means", summary.window_means}};
}

Json add_corpus(report::Page& page, const ReportInput& input, const ReportCorpus& corpus) {
  Json data = {{"corpus", corpus.reference->info.corpus}, {"candidates", Json::array()}};
  for (size_t i = 0; i < corpus.candidates.size(); ++i) {
    data["candidates"].push_back(
        {{"name", input.labels[i]}, {"summary", summary_json(corpus.candidates[i].comparison.summary)}});
  }
  if (corpus.floor) data["noise_floor"] = summary_json(*corpus.floor);
  page.section(corpus.reference->info.corpus);
  page.table(summary_table(input, corpus), "KL in nats per token.");
  add_checks(page, input, corpus);
  add_pairs(page, input, corpus, data);
  add_classes(page, input, corpus, data);
  add_position_plots(page, input, corpus, data);
  add_histogram(page, input, corpus, data);
  add_windows(page, input, corpus);
  add_worst(page, input, corpus, data);
  return data;
}

}  // namespace

Status add_window_ids(Dump& dump, const Corpus& corpus) {
  std::vector<int32_t> scored, ids;
  std::vector<int64_t> begin = {0}, first_scored, rows = {0};
  for (const auto& window : corpus.windows) {
    ids.insert(ids.end(), window.ids.begin(), window.ids.end());
    scored.insert(scored.end(), window.ids.begin() + window.first_scored, window.ids.end());
    begin.push_back(static_cast<int64_t>(ids.size()));
    rows.push_back(static_cast<int64_t>(scored.size()));
    first_scored.push_back(window.first_scored);
  }
  if (rows != dump.window_rows || scored != dump.token) {
    const auto differs = std::mismatch(scored.begin(), scored.end(), dump.token.begin(), dump.token.end());
    return Error(
        Code::corrupt_data,
        fmt::format("corpus '{}' gives {} scored tokens in {} windows, the capture has {} in {}; the first "
                    "difference is in row {}",
                    corpus.name, scored.size(), corpus.windows.size(), dump.token.size(),
                    dump.window_rows.size() - 1, differs.first - scored.begin()),
        "give the text and the tokenizer that the capture was made with");
  }
  dump.window_ids = std::move(ids);
  dump.window_begin = std::move(begin);
  dump.window_first_scored = std::move(first_scored);
  return Ok();
}

report::Page kl_report(const ReportInput& input) {
  for (const auto& corpus : input.corpora) RORQUAL_CHECK(corpus.candidates.size() == input.labels.size());
  report::Page page(head_of(input));
  page.style(kWorstCss);
  add_overview(page, input);
  Json data = {
      {"schema", "rorqual.kl.report/1"}, {"reference", input.reference_label}, {"corpora", Json::array()}};
  for (const auto& corpus : input.corpora) data["corpora"].push_back(add_corpus(page, input, corpus));
  page.data(data.dump(-1, ' ', false, Json::error_handler_t::replace));
  return page;
}

}  // namespace rorqual::kl
