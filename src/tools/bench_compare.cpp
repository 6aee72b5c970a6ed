// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/file.h"
#include "report/table.h"
#include "tools/machine_measure.h"
#include "tools/peer_rows.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostBytes = 64 << 20;

/// Samples of microseconds by number of tokens.
using Times = std::map<int64_t, std::vector<double>>;

/// What the reports time; equal in all of them.
struct Ours {
  std::string op, shape, tier, activations;
  int64_t threads = 0, experts = 0;
  bool shared_expert = false;

  bool operator==(const Ours&) const = default;
};

struct Peer {
  Times times;
  std::set<int64_t> experts;
};

struct Inputs {
  Ours ours;
  Times times;
  std::map<std::string, Peer> peers;
};

Error bad_report(const std::string& path) {
  return Error(Code::corrupt_data, fmt::format("{}: no report of `bench op`", path),
               "write one with `rorqual bench op --json`");
}

Status add_report(const std::string& path, const std::string& text, bool is_first, Inputs& inputs) {
  const Json report = Json::parse(text, nullptr, false);
  if (report.is_discarded() || !report.is_object() || report.value("schema", "") != "rorqual.bench.op/1")
    return bad_report(path);
  try {
    const Ours ours{.op = report.at("op"),
                    .shape = report.at("shape"),
                    .tier = report.at("tier"),
                    .activations = report.at("activations"),
                    .threads = report.at("threads"),
                    .experts = report.value("experts", int64_t{0}),
                    .shared_expert = report.value("shared_expert", false)};
    if (is_first) inputs.ours = ours;
    if (ours != inputs.ours) {
      return Error(Code::invalid_argument,
                   fmt::format("{}: times something else than the first report", path),
                   "compare reports of one operation, shape, tier and number of threads");
    }
    for (const Json& row : report.at("rows")) inputs.times[row.at("tokens")].push_back(row.at("us_median"));
  } catch (const Json::exception&) {
    return bad_report(path);
  }
  return Ok();
}

Status read_inputs(const BenchCompareOptions& options, Inputs& inputs) {
  bool has_report = false;
  std::vector<PeerRow> peers;
  for (const std::string& path : options.files) {
    RORQUAL_TRY_ASSIGN(const std::string text, read_text_file(path, kMostBytes));
    if (path.ends_with(".json")) {
      RORQUAL_TRY(add_report(path, text, !has_report, inputs));
      has_report = true;
      continue;
    }
    RORQUAL_TRY_ASSIGN(auto rows, parse_peer_rows(path, text));
    peers.insert(peers.end(), std::make_move_iterator(rows.begin()), std::make_move_iterator(rows.end()));
  }
  if (!has_report || peers.empty()) {
    return Error(Code::invalid_argument, "no rows to compare",
                 "rorqual bench compare OURS.json PEERS.csv, each with at least one row");
  }
  for (const PeerRow& row : peers) {
    if (row.threads != inputs.ours.threads || !row.op.starts_with(inputs.ours.op + "_")) continue;
    Peer& peer = inputs.peers[fmt::format("{} {}", row.peer, row.op)];
    peer.times[row.tokens].push_back(row.us_median);
    if (row.experts > 0) peer.experts.insert(row.experts);
  }
  if (inputs.peers.empty()) {
    return Error(Code::invalid_argument,
                 fmt::format("no peer has rows of {} with {} threads", inputs.ours.op, inputs.ours.threads));
  }
  return Ok();
}

/// One peer: its times and how many times ours they are, for the numbers of tokens that both have.
Json peer_json(const std::string& name, const Peer& peer, const Inputs& inputs) {
  auto rows = Json::array();
  for (const auto& [tokens, samples] : inputs.times) {
    const auto found = peer.times.find(tokens);
    if (found == peer.times.end()) continue;
    const double us = rate_of(found->second).value;
    rows.push_back({{"tokens", tokens}, {"us_median", us}, {"ratio", us / rate_of(samples).value}});
  }
  return {{"peer", name}, {"experts", peer.experts}, {"rows", std::move(rows)}};
}

Json report_json(const Inputs& inputs) {
  const Ours& ours = inputs.ours;
  Json report = {{"schema", "rorqual.bench.compare/1"},
                 {"op", ours.op},
                 {"shape", ours.shape},
                 {"tier", ours.tier},
                 {"activations", ours.activations},
                 {"threads", ours.threads},
                 {"experts", ours.experts},
                 {"shared_expert", ours.shared_expert},
                 {"ours", Json::array()},
                 {"peers", Json::array()},
                 {"best_peer", Json::array()}};
  for (const auto& [tokens, samples] : inputs.times)
    report["ours"].push_back({{"tokens", tokens}, {"us_median", rate_of(samples).value}});
  std::map<int64_t, std::pair<double, std::string>> best;
  for (const auto& [name, peer] : inputs.peers) {
    report["peers"].push_back(peer_json(name, peer, inputs));
    for (const Json& row : report["peers"].back()["rows"]) {
      const int64_t tokens = row["tokens"];
      const double ratio = row["ratio"];
      const auto place = best.find(tokens);
      if (place == best.end() || ratio < place->second.first) best[tokens] = {ratio, name};
    }
  }
  for (const auto& [tokens, entry] : best)
    report["best_peer"].push_back({{"tokens", tokens}, {"peer", entry.second}, {"ratio", entry.first}});
  return report;
}

/// What a line of the table shows.
struct Cell {
  const char* key;
  double unit;
  const char* suffix;
};

constexpr Cell kTime{"us_median", 1e3, ""}, kRatio{"ratio", 1, "x"};

/// A line of cells, one for each number of tokens of ours; "-" where there is none.
std::vector<std::string> line(std::string title, const Json& rows, const Json& ours, const Cell& cell) {
  std::vector<std::string> cells = {std::move(title)};
  for (const Json& column : ours) {
    const auto found = std::find_if(rows.begin(), rows.end(),
                                    [&](const Json& row) { return row["tokens"] == column["tokens"]; });
    cells.push_back(found == rows.end()
                        ? "-"
                        : fmt::format("{:.2f}{}", (*found)[cell.key].get<double>() / cell.unit, cell.suffix));
  }
  return cells;
}

void print_report(const Json& report) {
  fmt::print("{} {}, {} tier, {} activations, {} threads, {} experts{}; times in ms, then theirs over ours\n",
             report["op"].get<std::string>(), report["shape"].get<std::string>(),
             report["tier"].get<std::string>(), report["activations"].get<std::string>(),
             report["threads"].get<int64_t>(), report["experts"].get<int64_t>(),
             report["shared_expert"].get<bool>() ? " and the shared one" : "");
  const Json& ours = report["ours"];
  report::Table table;
  table.header = {"tokens"};
  table.align = {report::Align::left};
  for (const Json& row : ours) {
    table.header.push_back(std::to_string(row["tokens"].get<int64_t>()));
    table.align.push_back(report::Align::right);
  }
  table.rows.push_back(line("ours", ours, ours, kTime));
  for (const Json& peer : report["peers"]) {
    std::string name = peer["peer"].get<std::string>();
    const Json& experts = peer["experts"];
    if (!experts.empty() && (experts.size() > 1 || experts[0] != report["experts"]))
      name += fmt::format(" (experts {})", experts.dump());
    table.rows.push_back(line(std::move(name), peer["rows"], ours, kTime));
    table.rows.push_back(line("  over ours", peer["rows"], ours, kRatio));
  }
  table.rows.push_back(line("best peer over ours", report["best_peer"], ours, kRatio));
  fmt::print("{}", report::to_text(table));
}

}  // namespace

Status run_bench_compare(const BenchCompareOptions& options) {
  Inputs inputs;
  RORQUAL_TRY(read_inputs(options, inputs));
  const Json report = report_json(inputs);
  if (options.as_json) {
    fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_report(report);
  }
  return Ok();
}

}  // namespace rorqual::tools
