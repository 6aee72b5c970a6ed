// SPDX-License-Identifier: Apache-2.0
#include "plan/speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "model/config.h"

namespace rorqual::plan {
namespace {

constexpr int64_t kFewRows = 4, kManyRows = 48;  // rows of KernelRate's samples
constexpr double kStageRows = 64;                // of StageRate's many
constexpr int64_t kAttendBlock = 64;             // entries that attention takes at a time
constexpr int64_t kRegionsPerLayer = 20;         // parallel sections of one layer
constexpr double kModelError = 0.07;             // of the prediction itself, when all rates are measured

// Assumed machines. Per thread, AVX2 at 2.6 GHz (spec of the figures: docs/plan.md#speed).
constexpr double kAssumedSpread = 0.5;
constexpr double kKernelShareOfRam = 0.7;     // of the memory's bandwidth that the best kernels reach
constexpr double kAssumedThreadReads = 10e3;  // random 4 KiB reads per second and thread, one at a time
// GPUs, none of which this version uses: share of memory bandwidth and of tensor-core peak.
constexpr double kGpuReadEfficiency = 0.6, kGpuArithmeticEfficiency = 0.35;
constexpr double kGpuLayerSeconds = 30e-6;       // launches of one layer
constexpr double kGpuExchangeSeconds = 40e-6;    // two reductions over several cards, per layer
constexpr double kHostRoundTripSeconds = 30e-6;  // GPU to CPU experts and back, per layer

struct AssumedKernel {
  const char* format;
  double one_row, few_rows, many_rows;  // per thread; bytes/s, multiply-adds/s
};

constexpr AssumedKernel kAssumedKernels[] = {{"mxfp4", 7.8e9, 20e9, 29e9},
                                             {"fp8", 9.5e9, 17e9, 28e9},
                                             {"bf16", 14e9, 18e9, 28e9},
                                             {"f32", 25e9, 15e9, 26e9}};

struct AssumedStage {
  const char* stage;
  double one_row, many_rows;  // per thread and second
};

constexpr AssumedStage kAssumedStages[] = {{"boundary", 2500, 15000},   {"attend", 1500, 2500},
                                           {"attend_slot", 3e5, 4.5e5}, {"index_key", 2.5e6, 5e6},
                                           {"layer_row", 3000, 4500},   {"region", 2e5, 2e5}};

const KernelRate* find_kernel(const std::vector<KernelRate>& rates, std::string_view format) {
  const auto found =
      std::find_if(rates.begin(), rates.end(), [&](const KernelRate& rate) { return rate.format == format; });
  return found == rates.end() ? nullptr : &*found;
}

double bytes_per_weight(std::string_view format) {
  if (format == "mxfp4") return 0.5 + 1.0 / 32;
  if (format == "fp8" || format == kAttentionOutput) return 1.0 + 1.0 / 512;
  return format == "bf16" ? 2 : 4;
}

double ratio_of(int64_t a, int64_t b) {
  return static_cast<double>(a) / static_cast<double>(b);
}

double divide(double amount, double rate) {
  return rate > 0 ? amount / rate : 0;
}

}  // namespace

// ------------------------------------------------------------------------------------------------ products
double seconds_per_weight(const KernelRate& rate, int64_t rows) {
  if (rows <= 0 || rate.one_row.value <= 0 || rate.few_rows.value <= 0 || rate.many_rows.value <= 0) return 0;
  const double one = bytes_per_weight(rate.format) / rate.one_row.value;
  const double few = kFewRows / rate.few_rows.value;
  const double many = kManyRows / rate.many_rows.value;
  const auto line = [](double low, double high, double share) { return low + (high - low) * share; };
  if (rows <= kFewRows) return line(one, few, static_cast<double>(rows - 1) / (kFewRows - 1));
  const auto tile = [&](int64_t count) {
    if (count <= kFewRows) return seconds_per_weight(rate, count);
    return line(few, many, static_cast<double>(count - kFewRows) / (kManyRows - kFewRows));
  };
  return static_cast<double>(rows / kManyRows) * many + tile(rows % kManyRows);
}

double expected_distinct_experts(int64_t rows, int64_t active, int64_t experts) {
  if (experts <= 0) return 0;
  const double missed = 1 - static_cast<double>(active) / static_cast<double>(experts);
  return static_cast<double>(experts) * (1 - std::pow(missed, static_cast<double>(rows)));
}

double expected_expert_seconds(const KernelRate& rate, int64_t rows, int64_t active, int64_t experts) {
  if (rows <= 0 || experts <= 0) return 0;
  if (active >= experts) return seconds_per_weight(rate, rows);
  const double p = static_cast<double>(active) / static_cast<double>(experts);
  // P(n) by logarithms: (1-p)^rows underflows for long steps.
  double log_chance = static_cast<double>(rows) * std::log1p(-p), sum = 0;
  for (int64_t n = 1; n <= rows; ++n) {
    log_chance +=
        std::log(static_cast<double>(rows - n + 1) / static_cast<double>(n)) + std::log(p) - std::log1p(-p);
    sum += std::exp(log_chance) * seconds_per_weight(rate, n);
  }
  return sum;
}

// ------------------------------------------------------------------------------------------------ assumed
std::vector<KernelRate> assumed_kernel_rates(const Machine& machine) {
  if (machine.threads <= 0 || machine.ram_read.value <= 0) return {};
  const auto rate = [](double value) {
    return Rate{.value = value, .spread = kAssumedSpread, .measured = false};
  };
  std::vector<KernelRate> rates;
  for (const auto& kernel : kAssumedKernels) {
    const double bytes =
        std::min(kernel.one_row * machine.threads, kKernelShareOfRam * machine.ram_read.value);
    const double weights = bytes / bytes_per_weight(kernel.format);
    rates.push_back({.format = kernel.format,
                     .one_row = rate(bytes),
                     .few_rows = rate(std::min(kernel.few_rows * machine.threads, weights * kFewRows)),
                     .many_rows = rate(std::min(kernel.many_rows * machine.threads, weights * kManyRows))});
  }
  return rates;
}

std::vector<StageRate> assumed_stage_rates(const Machine& machine) {
  if (machine.threads <= 0) return {};
  std::vector<StageRate> rates;
  for (const auto& stage : kAssumedStages) {
    const double threads = std::string_view(stage.stage) == "region" ? 1 : machine.threads;
    const auto rate = [&](double value) {
      return Rate{.value = value * threads, .spread = kAssumedSpread, .measured = false};
    };
    rates.push_back(
        {.stage = stage.stage, .one_row = rate(stage.one_row), .many_rows = rate(stage.many_rows)});
  }
  return rates;
}

// ------------------------------------------------------------------------------------------------ one step
namespace {

/// The rows of a step: how many, and how much context they see.
struct StepRows {
  int64_t rows = 0;        // in all
  int64_t logit_rows = 0;  // that need the head
  /// Rows by position: begin positions of `sequences` runs of equal length.
  int64_t sequences = 1;
  int64_t begin = 0, count = 0;  // positions [begin, begin + count) of each sequence
};

class StepClock {
 public:
  StepClock(const MemoryPlan& plan, std::span<const Part> parts, const Machine& machine)
      : plan_(plan), config_(plan.config), parts_(parts), machine_(machine) {
    kernels_ = machine.kernels.empty() ? assumed_kernel_rates(machine) : machine.kernels;
    stages_ = machine.stages.empty() ? assumed_stage_rates(machine) : machine.stages;
    for (const Part& part : parts_) {
      if (part.madds_per_token > 0 && part.tier == Tier::vram) uses_gpu_ = true;
      if (part.kind == PartKind::attention && part.format == "fp8") attention_tier_ = part.tier;
      if (part.kind == PartKind::experts && part.tier == Tier::ram) has_cpu_experts_ = true;
    }
  }

  /// Adds the stages of one step, `times` times.
  void add(const StepRows& step, double times);

  PhaseSpeed finish(double tokens);

 private:
  void add_time(std::string name, std::string limit, double seconds, double spread);

  void miss(std::string rate) {
    if (unknown_.empty()) unknown_ = std::move(rate);
  }

  void add_part(const Part& part, const StepRows& step);
  void add_cpu_part(const Part& part, const StepRows& step, double madds);
  void add_gpu_part(const Part& part, const StepRows& step, double madds);
  void add_disk_part(const Part& part, const StepRows& step);
  double part_seconds(const Part& part, const KernelRate& rate, const StepRows& step, double madds) const;
  void add_attention(const StepRows& step);
  void add_stage(const char* name, std::string_view stage, const StepRows& step, double units);
  void add_overheads(const StepRows& step);
  double output_madds(const Part& part) const;
  double unneeded_index_madds(const Part& part, const StepRows& step) const;
  double scored_share(int64_t layer, const StepRows& step) const;

  const MemoryPlan& plan_;
  const model::Config& config_;
  std::span<const Part> parts_;
  const Machine& machine_;
  std::vector<KernelRate> kernels_;
  std::vector<StageRate> stages_;
  bool uses_gpu_ = false, has_cpu_experts_ = false;
  Tier attention_tier_ = Tier::ram;
  double times_ = 1;
  std::vector<StageTime> sums_;
  std::string unknown_;
};

void StepClock::add_time(std::string name, std::string limit, double seconds, double spread) {
  seconds *= times_;
  if (seconds <= 0) return;
  for (StageTime& sum : sums_) {
    if (sum.name != name || sum.limit != limit) continue;
    sum.spread = (sum.spread * sum.seconds + spread * seconds) / (sum.seconds + seconds);
    sum.seconds += seconds;
    return;
  }
  sums_.push_back({std::move(name), std::move(limit), seconds, spread});
}

/// Rows that one expert, or one dense matrix, sees decide what a weight costs.
double StepClock::part_seconds(const Part& part, const KernelRate& rate, const StepRows& step,
                               double madds) const {
  if (part.kind == PartKind::head) return madds * seconds_per_weight(rate, step.logit_rows);
  if (part.kind != PartKind::experts) return madds * seconds_per_weight(rate, step.rows);
  // madds of a token are those of its K experts; all E of them together are madds · E / K.
  const int64_t experts = config_.n_routed_experts, active = config_.num_experts_per_tok;
  const double all = madds * static_cast<double>(experts) / static_cast<double>(active);
  return all * expected_expert_seconds(rate, step.rows, active, experts);
}

void StepClock::add_cpu_part(const Part& part, const StepRows& step, double madds) {
  const KernelRate* rate = find_kernel(kernels_, part.format);
  if (rate == nullptr || seconds_per_weight(*rate, 1) <= 0) {
    return miss(fmt::format("speed of the {} kernels", part.format));
  }
  const bool is_one = step.rows == 1;
  const double spread =
      is_one ? rate->one_row.spread : std::max(rate->few_rows.spread, rate->many_rows.spread);
  std::string limit = "CPU kernels, " + part.format;
  if (machine_.kernels.empty() &&
      rate->one_row.value >= kKernelShareOfRam * machine_.ram_read.value * 0.999 && is_one) {
    limit = "RAM bandwidth";
  }
  const double output = output_madds(part);
  double seconds = part_seconds(part, *rate, step, madds - output);
  if (output > 0) seconds += output * seconds_per_weight(*find_kernel(kernels_, kAttentionOutput), step.rows);
  add_time(std::string(part_name(part.kind)), limit, seconds, spread);
}

/// Multiply-adds of the attention's output products in this part; 0 if they have no rate of their own.
double StepClock::output_madds(const Part& part) const {
  if (part.kind != PartKind::attention || part.format != "fp8") return 0;
  const KernelRate* rate = find_kernel(kernels_, kAttentionOutput);
  if (rate == nullptr || seconds_per_weight(*rate, 1) <= 0) return 0;
  const int64_t rank = config_.o_groups * config_.o_lora_rank;
  const int64_t inputs =
      config_.num_attention_heads * config_.head_dim / std::max<int64_t>(config_.o_groups, 1);
  const int64_t madds = config_.num_hidden_layers * rank * (inputs + config_.hidden_size);
  return std::min(static_cast<double>(madds) * part.share, part.madds_per_token);
}

void StepClock::add_gpu_part(const Part& part, const StepRows& step, double madds) {
  double read = 0, arithmetic = 0, spread = 0;
  for (const Gpu& gpu : machine_.gpus) {
    read += gpu.read.value;
    arithmetic += gpu.arithmetic.value;
    spread = std::max(spread, gpu.read.spread);
  }
  if (read <= 0) return miss("bandwidth of the GPU's memory");
  const auto rows = static_cast<double>(part.kind == PartKind::head ? step.logit_rows : step.rows);
  double bytes = part.bytes_per_token;
  if (part.kind == PartKind::experts) {
    bytes *= expected_distinct_experts(step.rows, config_.num_experts_per_tok, config_.n_routed_experts) /
             static_cast<double>(config_.num_experts_per_tok);
  }
  if (rows <= 0) return;
  const double reading = bytes / (read * kGpuReadEfficiency);
  const double computing = divide(madds * rows, arithmetic * kGpuArithmeticEfficiency);
  add_time(std::string(part_name(part.kind)), computing > reading ? "GPU arithmetic" : "VRAM bandwidth",
           std::max(reading, computing), std::max(spread, kAssumedSpread));
}

void StepClock::add_disk_part(const Part& part, const StepRows& step) {
  if (part.random_reads > 0) {
    Rate random = machine_.disk_random;
    if (random.value <= 0 && machine_.is_described && machine_.threads > 0) {
      random = {.value = kAssumedThreadReads * machine_.threads, .spread = kAssumedSpread, .measured = false};
    }
    if (random.value <= 0) return miss("random reads of the disk");
    const auto reads = static_cast<double>(part.random_reads * step.rows);
    return add_time(std::string(part_name(part.kind)), "disk, random reads", reads / random.value,
                    std::max(random.spread, kAssumedSpread));
  }
  if (part.madds_per_token <= 0) return;
  if (machine_.disk_read.value <= 0) return miss("bandwidth of the disk");
  double bytes = part.bytes_per_token;
  if (part.kind == PartKind::experts) {
    bytes *= expected_distinct_experts(step.rows, config_.num_experts_per_tok, config_.n_routed_experts) /
             static_cast<double>(config_.num_experts_per_tok);
  }
  add_time(std::string(part_name(part.kind)), "disk, reading", bytes / machine_.disk_read.value,
           std::max(machine_.disk_read.spread, kAssumedSpread));
}

void StepClock::add_part(const Part& part, const StepRows& step) {
  if (part.kind == PartKind::drafts || part.kind == PartKind::vision) return;
  // The F32 matrices are the hyper-connections' and run inside the boundary stage.
  if (part.tier != Tier::vram && part.kind == PartKind::mixing && part.format == "f32") return;
  const double madds = part.madds_per_token - unneeded_index_madds(part, step) * part.share;
  if (part.tier == Tier::disk) {
    add_disk_part(part, step);
    if (part.madds_per_token > 0) add_cpu_part(part, step, madds);
  } else if (madds > 0) {
    part.tier == Tier::vram ? add_gpu_part(part, step, madds) : add_cpu_part(part, step, madds);
  }
}

// ------------------------------------------------------------------------------------------------ attention
/// Visible compressed entries of a row.
int64_t visible(int64_t position, int64_t ratio) {
  return ratio > 0 ? (position + 1) / ratio : 0;
}

/// Share of the step's rows that need index scores in this layer.
double StepClock::scored_share(int64_t layer, const StepRows& step) const {
  const int64_t ratio = config_.ratio(layer);
  if (step.count <= 0 || ratio <= 0) return 0;
  const int64_t first = config_.index_topk * ratio + ratio - 1;  // first position that sees more than top-k
  const int64_t scored = std::clamp<int64_t>(step.begin + step.count - first, 0, step.count);
  return static_cast<double>(scored) / static_cast<double>(step.count);
}

/// Projections of index queries run only for rows that are scored; the parts count them always.
double StepClock::unneeded_index_madds(const Part& part, const StepRows& step) const {
  if (part.kind != PartKind::attention) return 0;
  double madds = 0;
  for (const int64_t layer : config_.index_source_layer_ids) {
    const double skipped = 1 - scored_share(layer, step);
    if (part.format == "fp8") {
      madds +=
          skipped * static_cast<double>(config_.index_n_heads * config_.index_head_dim * config_.q_lora_rank);
    } else if (part.format == "bf16") {
      madds += skipped * static_cast<double>(config_.index_n_heads * config_.hidden_size);
    }
  }
  return madds;
}

/// `units` of one row of the step, times what a unit of so many rows costs: straight between the two samples,
/// even beyond.
void StepClock::add_stage(const char* name, std::string_view stage, const StepRows& step, double units) {
  if (units <= 0) return;
  const auto found = std::find_if(stages_.begin(), stages_.end(),
                                  [&](const StageRate& rate) { return rate.stage == stage; });
  if (found == stages_.end() || found->one_row.value <= 0 || found->many_rows.value <= 0) {
    return miss(fmt::format("speed of the stage '{}'", stage));
  }
  const auto rows = static_cast<double>(step.rows);
  const double one = 1 / found->one_row.value, all = kStageRows / found->many_rows.value;
  const double share = (rows - 1) / (kStageRows - 1);
  const double seconds = rows <= kStageRows ? one + (all - one) * share : all * rows / kStageRows;
  add_time(name, "CPU", units * seconds, (step.rows == 1 ? found->one_row : found->many_rows).spread);
}

/// Rows over windows and selected entries, and keys that are scored, all layers.
void StepClock::add_attention(const StepRows& step) {
  double windows = 0, slots = 0, keys = 0;
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const int64_t ratio = config_.ratio(layer);
    const auto role = config_.role(layer);
    const bool is_source = role == model::LayerRole::full || role == model::LayerRole::reindex;
    const bool is_restricted =
        config_.candidate_source_layer_id >= 0 && layer > config_.candidate_source_layer_id;
    const int64_t pool = config_.candidate_topk_blocks * config_.candidate_block_size;
    for (int64_t p = step.begin; p < step.begin + step.count; ++p) {
      const int64_t filled = std::min(p + 1, config_.sliding_window);
      const int64_t blocks = (filled + kAttendBlock - 1) / kAttendBlock;
      windows += static_cast<double>(blocks * kAttendBlock) / static_cast<double>(config_.sliding_window);
      if (ratio == 0) continue;
      const int64_t seen = visible(p, ratio);
      const int64_t taken = std::min(seen, config_.index_topk);
      slots += static_cast<double>((taken + kAttendBlock - 1) / kAttendBlock * kAttendBlock);
      if (is_source && seen > config_.index_topk) {
        keys += static_cast<double>(is_restricted ? std::min(seen, pool) : seen);
      }
    }
  }
  const model::Config& release = model::release_config();  // whose widths the rates are of
  const auto count = static_cast<double>(step.count);
  const double width = ratio_of(config_.num_attention_heads * config_.head_dim,
                                release.num_attention_heads * release.head_dim);
  const double index_width = ratio_of(config_.index_n_heads * config_.index_head_dim,
                                      release.index_n_heads * release.index_head_dim);
  add_stage("attention over entries", "attend", step, windows / count * width);
  add_stage("attention over entries", "attend_slot", step, slots / count * width);
  add_stage("index scores", "index_key", step, keys / count * index_width);
}

void StepClock::add_overheads(const StepRows& step) {
  const auto layers = static_cast<double>(config_.num_hidden_layers);
  if (attention_tier_ == Tier::vram) {
    double seconds = kGpuLayerSeconds;
    if (machine_.gpus.size() > 1) seconds += kGpuExchangeSeconds;
    if (has_cpu_experts_) seconds += kHostRoundTripSeconds;
    return add_time("launches and exchange", "latency", layers * seconds, kAssumedSpread);
  }
  add_attention(step);
  const model::Config& release = model::release_config();
  add_stage(
      "sublayer boundaries", "boundary", step,
      2 * layers * ratio_of(config_.hc_mult * config_.hidden_size, release.hc_mult * release.hidden_size));
  add_stage("row work of layers", "layer_row", step,
            layers * ratio_of(config_.hidden_size, release.hidden_size));
  StepRows section = step;  // costs the same for any number of rows
  section.rows = 1;
  add_stage("parallel sections", "region", section, layers * kRegionsPerLayer);
}

void StepClock::add(const StepRows& step, double times) {
  times_ = times;
  for (const Part& part : parts_) add_part(part, step);
  add_overheads(step);
}

PhaseSpeed StepClock::finish(double tokens) {
  PhaseSpeed phase;
  phase.unknown = unknown_;
  if (!unknown_.empty()) return phase;
  std::stable_sort(sums_.begin(), sums_.end(),
                   [](const StageTime& a, const StageTime& b) { return a.seconds > b.seconds; });
  bool is_measured = !machine_.kernels.empty();
  double error = 0;
  for (const StageTime& sum : sums_) {
    phase.seconds += sum.seconds;
    error += sum.spread * sum.seconds;  // as if all rates were off the same way: on a busy machine they are
  }
  phase.stages = std::move(sums_);
  if (phase.seconds <= 0) {
    phase.unknown = "parts";
    return phase;
  }
  phase.limit = phase.stages.front().name + ": " + phase.stages.front().limit;
  for (const Part& part : parts_) is_measured = is_measured && part.tier != Tier::vram;
  const double spread = error / phase.seconds + kModelError;
  phase.tokens_per_second = {
      .value = tokens / phase.seconds, .spread = std::min(spread, 0.9), .measured = is_measured};
  return phase;
}

// ------------------------------------------------------------------------------------------------ phases
/// Prompts one after another, cut into steps of the token budget; several sequences share a step when they
/// fit.
PhaseSpeed predict_prefill(StepClock clock, const MemoryPlan& plan, const SpeedQuestion& question) {
  const int64_t budget = std::max<int64_t>(plan.settings.max_num_batched_tokens, 1);
  const int64_t prompt = question.prompt_tokens;
  if (prompt * 2 <= budget && question.batch > 1) {
    const int64_t together = std::min(budget / prompt, question.batch);
    const auto add = [&](int64_t sequences, double times) {
      if (sequences <= 0) return;
      clock.add(
          {.rows = sequences * prompt, .logit_rows = sequences, .sequences = sequences, .count = prompt},
          times);
    };
    add(together, static_cast<double>(question.batch / together));
    add(question.batch % together, 1);
  } else {
    for (int64_t begin = 0; begin < prompt; begin += budget) {
      const int64_t rows = std::min(budget, prompt - begin);
      clock.add({.rows = rows, .logit_rows = begin + rows == prompt ? 1 : 0, .begin = begin, .count = rows},
                static_cast<double>(question.batch));
    }
  }
  return clock.finish(static_cast<double>(prompt * question.batch));
}

PhaseSpeed predict_decode(StepClock clock, const SpeedQuestion& question) {
  const int64_t steps = std::max<int64_t>(question.generate_tokens - 1, 1);
  // Cost grows evenly with the position: the middle one stands for all.
  clock.add({.rows = question.batch,
             .logit_rows = question.batch,
             .sequences = question.batch,
             .begin = question.prompt_tokens + steps / 2,
             .count = 1},
            static_cast<double>(steps));
  return clock.finish(static_cast<double>(steps * question.batch));
}

}  // namespace

SpeedEstimate predict_speed(const MemoryPlan& plan, std::span<const Part> parts, const Machine& machine,
                            const SpeedQuestion& question) {
  const StepClock clock(plan, parts, machine);
  return {.prefill = predict_prefill(clock, plan, question), .decode = predict_decode(clock, question)};
}

std::string speed_text(const Rate& tokens_per_second) {
  const double value = tokens_per_second.value;
  if (value <= 0) return "unknown";
  const double low = value * (1 - tokens_per_second.spread), high = value * (1 + tokens_per_second.spread);
  return high < 10    ? fmt::format("{:.2f} to {:.2f} tok/s", low, high)
         : high < 100 ? fmt::format("{:.1f} to {:.1f} tok/s", low, high)
                      : fmt::format("{:.0f} to {:.0f} tok/s", low, high);
}

}  // namespace rorqual::plan
