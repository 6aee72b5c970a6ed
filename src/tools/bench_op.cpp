// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/cpu_info.h"
#include "base/units.h"
#include "report/table.h"
#include "tools/bench_model.h"
#include "tools/busy_neighbour.h"
#include "tools/embedded_model.h"
#include "tools/machine_measure.h"
#include "tools/rate_json.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLeastRounds = 3, kMostRounds = 1000;
constexpr double kSliceSeconds = 0.02;  // of one row in one round
constexpr int kMostCalls = 64;          // of one row in one round

// ------------------------------------------------------------------------------------------------
// preparation
Result<model::Config> config_of(const std::string& shape) {
  if (shape == "v41") return model::release_config();
  if (shape == "mini") {
    RORQUAL_TRY_ASSIGN(const auto source, open_embedded_model());
    RORQUAL_TRY_ASSIGN(const std::string text, source->read_text("config.json"));
    return model::parse_config(text);
  }
  return Error(Code::invalid_argument, fmt::format("--shape {}: expected v41 or mini", shape));
}

Result<std::unique_ptr<OpCase>> case_of(const BenchOpOptions& options, const model::Config& config) {
  if (options.activations == Activations::int8) {
    return Error(Code::unsupported, "int8 activations are not in this build", "use --activations reference");
  }
  OpSettings settings;
  settings.config = &config;
  settings.activations = options.activations;
  settings.experts = options.experts;
  settings.shared_expert = options.shared_expert;
  settings.context = options.context;
  settings.max_tokens = *std::max_element(options.tokens.begin(), options.tokens.end());
  auto op = make_op_case(options.op, settings);
  if (op == nullptr) return Error(Code::invalid_argument, fmt::format("--op {}: unknown", options.op));
  return op;
}

Status check_memory(int64_t forecast_bytes) {
  const int64_t available = memory_info().available_bytes;
  if (forecast_bytes <= available) return Ok();
  return Error(Code::out_of_memory,
               fmt::format("the operands take {}, {} are available", format_bytes(forecast_bytes),
                           format_bytes(available)),
               "lower --experts, --tokens or --context");
}

// ------------------------------------------------------------------------------------------------
// measurement
struct Times {
  std::vector<double> calls;   // seconds
  std::vector<double> rounds;  // median of each round
};

struct Row {
  int64_t tokens = 0;
  Times alone, beside;  // beside: with the busy processes
  OpWork work;          // sums over the calls alone
};

double median_of(std::vector<double> values) {
  return rate_of(std::move(values)).value;
}

class Measurement {
 public:
  Measurement(const BenchOpOptions& options, OpCase& op, const kernels::KernelTable& table, ThreadPool& pool)
      : options_(options), op_(op), table_(table), random_(static_cast<uint64_t>(options.seed)) {
    ctx_ = {&pool, &scratch_, numerics_of(options.activations)};
    for (const int64_t tokens : options.tokens) {
      rows_.emplace_back();
      rows_.back().tokens = tokens;
    }
  }

  /// Rows in turn, ceilings before each round, until the time is spent.
  void run(CeilingSampler& ceilings, const BusyNeighbours& neighbours) {
    for (const Row& row : rows_) call(row.tokens);
    const double end = seconds_now() + options_.seconds;
    while (num_rounds_ < kLeastRounds || (seconds_now() < end && num_rounds_ < kMostRounds)) {
      ceilings.sample(*ctx_.pool);
      for (Row& row : rows_) {
        slice(row.tokens, row.alone, &row.work);
        if (neighbours.count() == 0) continue;
        neighbours.resume();
        call(row.tokens);
        slice(row.tokens, row.beside, nullptr);
        neighbours.pause();
      }
      ++num_rounds_;
    }
  }

  const std::vector<Row>& rows() const { return rows_; }

  int num_rounds() const { return num_rounds_; }

 private:
  double call(int64_t tokens) {
    op_.prepare(tokens, random_);
    const double start = seconds_now();
    op_.run(ctx_, table_);
    return seconds_now() - start;
  }

  void slice(int64_t tokens, Times& times, OpWork* work) {
    std::vector<double> round;
    for (double spent = 0; round.empty() || (spent < kSliceSeconds && round.size() < kMostCalls);) {
      round.push_back(call(tokens));
      spent += round.back();
      if (work == nullptr) continue;
      const OpWork done = op_.work();
      work->bytes += done.bytes;
      work->operations += done.operations;
      work->experts += done.experts;
    }
    times.calls.insert(times.calls.end(), round.begin(), round.end());
    times.rounds.push_back(median_of(std::move(round)));
  }

  const BenchOpOptions& options_;
  OpCase& op_;
  const kernels::KernelTable& table_;
  FastRandom random_;
  kernels::Scratch scratch_;
  kernels::Context ctx_;
  std::vector<Row> rows_;
  int num_rounds_ = 0;
};

// ------------------------------------------------------------------------------------------------ report
Json ceilings_json(const Ceilings& ceilings) {
  return {{"read_bytes_per_second", rate_json(ceilings.read)},
          {"read_from_bytes", ceilings.read_bytes},
          {"exceeds_caches", ceilings.exceeds_caches},
          {"peaks", peaks_json(ceilings.peaks)}};
}

Json times_json(const Times& times) {
  const double best = *std::min_element(times.calls.begin(), times.calls.end());
  return {{"us_median", median_of(times.calls) * 1e6},
          {"us_best", best * 1e6},
          {"spread", rate_of(times.rounds).spread},
          {"calls", times.calls.size()}};
}

/// A row with the least time that its bytes and operations allow on this machine.
/// The share is the median over the rounds, each with its own ceilings: then it does not matter whether the
/// machine's load changes between them.
Json row_json(const Row& row, const CeilingSampler& sampler, Peak peak) {
  const Ceilings ceilings = sampler.result();
  const auto calls = static_cast<double>(row.alone.calls.size());
  const double bytes = row.work.bytes / calls, operations = row.work.operations / calls;
  const double seconds = median_of(row.alone.calls);
  const double bytes_s = bytes / ceilings.read.value;
  const double rate = ceilings.peak(peak).value;
  const double operations_s = rate > 0 ? operations / rate : 0;
  std::vector<double> shares;
  for (size_t round = 0; round < row.alone.rounds.size(); ++round) {
    shares.push_back(sampler.limit_seconds(round, bytes, operations, peak) / row.alone.rounds[round]);
  }
  Json json = {{"tokens", row.tokens}};
  json.update(times_json(row.alone));
  if (row.work.experts > 0) json["experts"] = static_cast<double>(row.work.experts) / calls;
  json.update({{"bytes", bytes},
               {"operations", operations},
               {"bytes_per_second", bytes / seconds},
               {"operations_per_second", operations / seconds},
               {"us_of_bytes", bytes_s * 1e6},
               {"us_of_operations", operations_s * 1e6},
               {"limit", bytes_s >= operations_s ? "bytes" : "operations"},
               {"share_of_limit", median_of(std::move(shares))}});
  if (row.beside.calls.empty()) return json;
  Json beside = times_json(row.beside);
  beside["slowdown"] = beside["us_median"].get<double>() / json["us_median"].get<double>();
  json["competing"] = std::move(beside);
  return json;
}

void print_ceilings(const Json& ceilings) {
  fmt::print("ceilings  read {:.1f} GB/s ±{:.0f} % (from {}{})",
             ceilings["read_bytes_per_second"]["value"].get<double>() / 1e9,
             ceilings["read_bytes_per_second"]["spread"].get<double>() * 100,
             format_bytes(ceilings["read_from_bytes"].get<int64_t>()),
             ceilings["exceeds_caches"].get<bool>() ? "" : ", not far beyond the caches");
  for (const Json& peak : ceilings["peaks"]) {
    const Json& rate = peak["operations_per_second"];
    if (rate["value"].is_null()) continue;
    fmt::print("; {} {:.0f} GOP/s ±{:.0f} %", peak["unit"].get<std::string>(),
               rate["value"].get<double>() / 1e9, rate["spread"].get<double>() * 100);
  }
  fmt::print("\n");
}

std::string milliseconds(const Json& us) {
  return fmt::format("{:.3f}", us.get<double>() / 1e3);
}

void print_report(const Json& report) {
  fmt::print("op        {} {}, {} tier, {} activations, {} threads, operands {}, {} rounds, load {}\n",
             report["op"].get<std::string>(), report["shape"].get<std::string>(),
             report["tier"].get<std::string>(), report["activations"].get<std::string>(),
             report["threads"].get<int>(), format_bytes(report["forecast_bytes"].get<int64_t>()),
             report["rounds"].get<int>(),
             report["load_average"].empty() ? 0.0 : report["load_average"][0].get<double>());
  print_ceilings(report["ceilings"]);
  report::Table table;
  table.header = {"tokens", "experts", "ms", "best", "± %", "GB/s", "GOP/s", "limit ms", "by", "share %"};
  const bool competes = report["compete"].get<int>() > 0;
  if (competes) table.header.insert(table.header.end(), {"competing ms", "slower"});
  table.align.assign(table.header.size(), report::Align::right);
  for (const Json& row : report["rows"]) {
    const double limit_us = std::max(row["us_of_bytes"].get<double>(), row["us_of_operations"].get<double>());
    table.rows.push_back({std::to_string(row["tokens"].get<int64_t>()),
                          row.contains("experts") ? fmt::format("{:.1f}", row["experts"].get<double>()) : "",
                          milliseconds(row["us_median"]), milliseconds(row["us_best"]),
                          fmt::format("{:.0f}", row["spread"].get<double>() * 100),
                          fmt::format("{:.1f}", row["bytes_per_second"].get<double>() / 1e9),
                          fmt::format("{:.1f}", row["operations_per_second"].get<double>() / 1e9),
                          fmt::format("{:.3f}", limit_us / 1e3), row["limit"].get<std::string>(),
                          fmt::format("{:.0f}", row["share_of_limit"].get<double>() * 100)});
    if (!competes) continue;
    table.rows.back().push_back(milliseconds(row["competing"]["us_median"]));
    table.rows.back().push_back(fmt::format("{:.2f}x", row["competing"]["slowdown"].get<double>()));
  }
  fmt::print("{}", report::to_text(table));
}

const char* activations_name(Activations activations) {
  constexpr const char* kNames[] = {"reference", "exact", "int8"};
  return kNames[static_cast<size_t>(activations)];
}

}  // namespace

Status run_bench_op(const BenchOpOptions& options) {
  const auto* table = kernels::select_kernels(options.tier);
  if (table == nullptr) {
    return Error(Code::unsupported, fmt::format("no kernel tier '{}' on this machine", options.tier),
                 "`rorqual doctor` lists those that it has");
  }
  RORQUAL_TRY_ASSIGN(const model::Config config, config_of(options.shape));
  RORQUAL_TRY_ASSIGN(const auto op, case_of(options, config));
  const int64_t forecast = op->forecast_bytes() + ReadProbe::default_bytes();
  RORQUAL_TRY(check_memory(forecast));
  BusyNeighbours neighbours;
  RORQUAL_TRY(neighbours.start(options.compete));
  ThreadPool pool(options.threads > 0 ? options.threads : default_compute_threads(cpu_info()));
  const ScopedFlushToZero flush;
  RORQUAL_TRY_ASSIGN(auto ceilings, CeilingSampler::create(pool, ReadProbe::default_bytes()));
  RORQUAL_TRY(op->allocate(pool));
  Measurement measurement(options, *op, *table, pool);
  measurement.run(ceilings, neighbours);

  const Ceilings measured = ceilings.result();
  const Peak peak = op->peak(table->name);
  Json report = {{"schema", "rorqual.bench.op/1"},
                 {"cpu", cpu_info().model_name},
                 {"op", options.op},
                 {"shape", options.shape},
                 {"tier", table->name},
                 {"activations", activations_name(options.activations)},
                 {"threads", pool.num_threads()},
                 {"forecast_bytes", forecast},
                 {"rounds", measurement.num_rounds()},
                 {"seed", options.seed},
                 {"compete", options.compete},
                 {"load_average", load_average()},
                 {"unit", peak_name(peak)},
                 {"ceilings", ceilings_json(measured)},
                 {"rows", Json::array()}};
  if (options.op == "moe") {
    report["experts"] = options.experts;
    report["shared_expert"] = options.shared_expert;
  }
  if (options.op == "attention" || options.op == "indexer") report["context"] = options.context;
  for (const Row& row : measurement.rows()) report["rows"].push_back(row_json(row, ceilings, peak));
  if (options.as_json) {
    fmt::print("{}\n", report.dump(2));
  } else {
    print_report(report);
  }
  return Ok();
}

}  // namespace rorqual::tools
