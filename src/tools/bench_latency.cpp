// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "model/switches.h"
#include "model/synthetic_spec.h"
#include "plan/speed.h"
#include "tools/bench_model.h"
#include "tools/machine_measure.h"
#include "tools/measured_machine.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Sequences of random tokens through the model: all prompts, then one token each per step.
class Workload {
 public:
  Workload(model::Model& model, const BenchLatencyOptions& options)
      : model_(model), options_(options), random_(model.vocab_size()) {
    logits_.resize(static_cast<size_t>(options.batch * model.vocab_size()));
  }

  struct Times {
    double prefill_s = 0, decode_s = 0;
  };

  /// One repetition on fresh sequences.
  Result<Times> run();

 private:
  Status open_sequences();
  void close_sequences();
  Status prefill();
  Status decode();

  model::Model& model_;
  const BenchLatencyOptions& options_;
  RandomTokens random_;
  std::vector<model::SequenceId> sequences_;
  std::vector<float> logits_;
};

Status Workload::open_sequences() {
  for (int64_t i = 0; i < options_.batch; ++i) {
    RORQUAL_TRY_ASSIGN(const model::SequenceId id, model_.open_sequence());
    sequences_.push_back(id);
    if (!model_.reserve(id, options_.prompt_tokens + options_.generate_tokens)) {
      return Error(Code::out_of_memory, "the KV cache does not hold the batch", "raise --max-model-len");
    }
  }
  return Ok();
}

void Workload::close_sequences() {
  for (const model::SequenceId id : sequences_) model_.close_sequence(id);
  sequences_.clear();
}

/// Prompts in order, cut into steps of the token budget as the scheduler does for prompts alone.
Status Workload::prefill() {
  std::vector<std::vector<int32_t>> prompts(sequences_.size());
  for (auto& prompt : prompts) {
    prompt.resize(static_cast<size_t>(options_.prompt_tokens));
    for (int32_t& token : prompt) token = random_.next();
  }
  const int64_t budget = model_.max_step_rows();
  int64_t begin = 0;  // of the first unfinished prompt
  for (size_t first = 0; first < sequences_.size();) {
    std::vector<model::StepSlice> slices;
    std::vector<std::vector<int32_t>> offsets(sequences_.size());
    int64_t rows = 0, finished = 0;
    while (first < sequences_.size() && rows < budget) {
      const int64_t count = std::min(budget - rows, options_.prompt_tokens - begin);
      const bool is_last = begin + count == options_.prompt_tokens;
      if (is_last) offsets[first].push_back(static_cast<int32_t>(count - 1));
      slices.push_back(
          {.sequence = sequences_[first],
           .tokens =
               std::span(prompts[first]).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
           .is_image = {},
           .logit_offsets = offsets[first],
           .window_targets = {},
           .is_replay = false});
      rows += count;
      begin = is_last ? 0 : begin + count;
      if (!is_last) break;
      ++finished;
      ++first;
    }
    const auto floats = static_cast<size_t>(finished * model_.vocab_size());
    RORQUAL_TRY(model_.forward(slices, std::span(logits_).first(floats)));
  }
  return Ok();
}

Status Workload::decode() {
  constexpr int32_t kOnlyRow = 0;
  std::vector<int32_t> tokens(sequences_.size());
  for (int64_t step = 1; step < options_.generate_tokens; ++step) {
    std::vector<model::StepSlice> slices;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      tokens[i] = random_.next();
      slices.push_back({.sequence = sequences_[i],
                        .tokens = {&tokens[i], 1},
                        .is_image = {},
                        .logit_offsets = {&kOnlyRow, 1},
                        .window_targets = {},
                        .is_replay = false});
    }
    RORQUAL_TRY(model_.forward(slices, logits_));
  }
  return Ok();
}

Result<Workload::Times> Workload::run() {
  RORQUAL_TRY(open_sequences());
  Times times;
  const double start = seconds_now();
  RORQUAL_TRY(prefill());
  const double middle = seconds_now();
  RORQUAL_TRY(decode());
  times.prefill_s = middle - start;
  times.decode_s = seconds_now() - middle;
  close_sequences();
  return times;
}

// ------------------------------------------------------------------------------------------------ report
struct Measured {
  double load_s = 0;
  int64_t rss_loaded_bytes = 0, rss_peak_bytes = 0;
  std::vector<double> prefill, decode;  // tokens per second
  std::vector<double> load_average;
};

Json stages_json(const plan::PhaseSpeed& phase) {
  auto rows = Json::array();
  for (const plan::StageTime& stage : phase.stages) {
    rows.push_back({{"stage", stage.name}, {"limit", stage.limit}, {"seconds", stage.seconds}});
  }
  return rows;
}

Json phase_json(const std::vector<double>& samples, const plan::PhaseSpeed& planned) {
  const plan::Rate measured = rate_of(samples);
  const plan::Rate& rate = planned.tokens_per_second;
  const bool is_known = rate.value > 0;
  return {{"tokens_per_second", measured.value},
          {"spread", measured.spread},
          {"samples", samples},
          {"planned",
           {{"tokens_per_second", is_known ? Json(rate.value) : Json(nullptr)},
            {"low", is_known ? Json(rate.value * (1 - rate.spread)) : Json(nullptr)},
            {"high", is_known ? Json(rate.value * (1 + rate.spread)) : Json(nullptr)},
            {"limit", planned.limit},
            {"unknown", planned.unknown},
            {"stages", stages_json(planned)}}},
          {"planned_to_measured_ratio",
           is_known && measured.value > 0 ? Json(rate.value / measured.value) : Json(nullptr)}};
}

Json rates_json(const plan::Machine& machine) {
  Json kernels = Json::array();
  for (const auto& rate : machine.kernels) {
    kernels.push_back({{"weights", rate.format},
                       {"one_row_bytes_per_second", rate.one_row.value},
                       {"four_rows_madds_per_second", rate.few_rows.value},
                       {"many_rows_madds_per_second", rate.many_rows.value},
                       {"spread", std::max(rate.one_row.spread, rate.many_rows.spread)}});
  }
  Json stages = Json::array();
  for (const auto& rate : machine.stages) {
    stages.push_back({{"stage", rate.stage},
                      {"one_row_per_second", rate.one_row.value},
                      {"many_rows_per_second", rate.many_rows.value}});
  }
  return {{"cpu", machine.cpu},
          {"threads", machine.threads},
          {"read_bytes_per_second", machine.ram_read.value},
          {"kernels", std::move(kernels)},
          {"stages", std::move(stages)}};
}

Json report_json(const BenchLatencyOptions& options, const std::string& name, const plan::Plan& plan,
                 const plan::Machine& machine, const Measured& measured) {
  const plan::SpeedQuestion question{.prompt_tokens = options.prompt_tokens,
                                     .generate_tokens = options.generate_tokens,
                                     .batch = options.batch};
  const auto speed = plan::predict_speed(plan.memory, plan.now.parts, machine, question);
  const int64_t planned_bytes = plan.now.of(plan::Tier::ram).needed_bytes;
  return {{"schema", "rorqual.bench.latency/1"},
          {"model", name},
          {"numerics", options.open.numerics},
          {"switches", model::describe_switches(options.open.switches)},
          {"prompt_tokens", options.prompt_tokens},
          {"generate_tokens", options.generate_tokens},
          {"batch", options.batch},
          {"repeats", options.repeats},
          {"load_average", measured.load_average},
          {"load_seconds", measured.load_s},
          {"memory",
           {{"rss_loaded_bytes", measured.rss_loaded_bytes},
            {"rss_peak_bytes", measured.rss_peak_bytes},
            {"planned_bytes", planned_bytes},
            {"planned_to_measured_ratio",
             static_cast<double>(planned_bytes) / static_cast<double>(measured.rss_peak_bytes)}}},
          {"machine", rates_json(machine)},
          {"prefill", phase_json(measured.prefill, speed.prefill)},
          {"decode", phase_json(measured.decode, speed.decode)}};
}

void print_phase(const char* name, const Json& phase) {
  fmt::print("{:<9} {:.2f} tok/s ±{:.0f} %", name, phase["tokens_per_second"].get<double>(),
             phase["spread"].get<double>() * 100);
  const auto& planned = phase["planned"];
  if (planned["tokens_per_second"].is_null()) {
    fmt::print("; planned: unknown ({})\n", planned["unknown"].get<std::string>());
    return;
  }
  fmt::print("; planned {:.2f} ({:.2f} to {:.2f}), ratio {:.2f}; limit {}\n",
             planned["tokens_per_second"].get<double>(), planned["low"].get<double>(),
             planned["high"].get<double>(), phase["planned_to_measured_ratio"].get<double>(),
             planned["limit"].get<std::string>());
}

void print_report(const Json& report) {
  const auto& memory = report["memory"];
  const auto& machine = report["machine"];
  fmt::print("model     {}\n", report["model"].get<std::string>());
  fmt::print("run       prompt {}, answer {}, batch {}, {} repetitions, {} threads, {} numerics{}{}\n",
             report["prompt_tokens"].get<int64_t>(), report["generate_tokens"].get<int64_t>(),
             report["batch"].get<int64_t>(), report["repeats"].get<int>(), machine["threads"].get<int>(),
             report["numerics"].get<std::string>(), report["switches"].get<std::string>().empty() ? "" : ", ",
             report["switches"].get<std::string>());
  fmt::print("loaded    in {:.1f} s; resident {}, peak {}; planned {}, ratio {:.3f}\n",
             report["load_seconds"].get<double>(), format_bytes(memory["rss_loaded_bytes"].get<int64_t>()),
             format_bytes(memory["rss_peak_bytes"].get<int64_t>()),
             format_bytes(memory["planned_bytes"].get<int64_t>()),
             memory["planned_to_measured_ratio"].get<double>());
  print_phase("prefill", report["prefill"]);
  print_phase("decode", report["decode"]);
}

// ------------------------------------------------------------------------------------------------ the run
/// A first run unmeasured, which touches all memory; then repetitions and samples of the rates in turn.
Status measure(model::Model& model, const BenchLatencyOptions& options, plan::Machine& machine,
               Measured& measured) {
  Workload workload(model, options);
  RORQUAL_TRY_ASSIGN(const auto first, workload.run());
  static_cast<void>(first);
  measured.rss_peak_bytes = peak_resident_bytes();
  RORQUAL_TRY_ASSIGN(const auto* table, find_kernels(options.open.kernels));
  ThreadPool pool(machine.threads);
  const auto probe = ReadProbe::create(pool, ReadProbe::default_bytes());
  std::vector<RateSample> samples;
  for (int i = 0; i < options.repeats; ++i) {
    RORQUAL_TRY_ASSIGN(auto sample,
                       sample_rates(pool, probe.ok() ? &*probe : nullptr, *table, model.options().numerics));
    samples.push_back(std::move(sample));
    RORQUAL_TRY_ASSIGN(const auto times, workload.run());
    measured.prefill.push_back(static_cast<double>(options.batch * options.prompt_tokens) / times.prefill_s);
    measured.decode.push_back(static_cast<double>(options.batch * (options.generate_tokens - 1)) /
                              times.decode_s);
  }
  apply_samples(machine, samples);
  if (!model::is_synthetic(options.open.model)) measure_model_disk(machine, pool, options.open.model);
  measured.load_average = load_average();
  return Ok();
}

}  // namespace

Status run_bench_latency(const BenchLatencyOptions& options) {
  OpenOptions open = options.open;
  open.max_num_seqs = options.batch;
  RORQUAL_TRY_ASSIGN(const PlannedModel planned,
                     open_planned(open, options.prompt_tokens + options.generate_tokens));
  plan::Machine machine = planned.plan.machine;
  if (open.threads > 0) machine.threads = open.threads;
  Measured measured;
  measured.load_s = planned.load_s;
  measured.rss_loaded_bytes = resident_bytes();
  RORQUAL_TRY(measure(*planned.model, options, machine, measured));
  const Json report = report_json(options, planned.opened.name, planned.plan, machine, measured);
  if (options.as_json) {
    fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_report(report);
  }
  return Ok();
}

}  // namespace rorqual::tools
