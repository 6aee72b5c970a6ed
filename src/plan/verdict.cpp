// SPDX-License-Identifier: Apache-2.0
#include "plan/verdict.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"

namespace rorqual::plan {
namespace {

constexpr int64_t kAutoStep = 1024;  // an automatic context is a multiple of this

Status check_request(const PlanRequest& request) {
  RORQUAL_TRY(check_cpu_experts(request.cpu_experts));
  return check_engram_placement(request.engram_placement);
}

MemorySettings settings_of(const Machine& machine, const PlanRequest& request) {
  MemorySettings settings;
  settings.numerics = request.numerics;
  settings.max_num_seqs = std::max<int64_t>(request.max_num_seqs, 1);
  settings.max_num_batched_tokens = std::max<int64_t>(request.max_num_batched_tokens, 1);
  settings.max_logit_rows = request.max_logit_rows;
  settings.threads = std::max(request.threads > 0 ? request.threads : machine.threads, 1);
  settings.is_embedded = request.is_embedded;
  settings.with_drafts = request.with_drafts;
  settings.kv_cache_bytes = request.kv_cache_bytes;
  settings.prefix_cache_bytes = std::max<int64_t>(request.prefix_cache_bytes, 0);
  settings.swap_bytes = request.swap_bytes;
  settings.head_fp8 = request.switches.lm_head == model::HeadFormat::fp8;
  settings.engram_on_disk = request.engram_placement == "disk";
  return settings;
}

/// Tries settings in the order of preference and keeps the first that fit; else the first of all.
class Chooser {
 public:
  Chooser(const model::Config& config, const Machine& machine) : config_(config), machine_(machine) {}

  bool fits(const MemorySettings& settings) const {
    return place_on_cpu(plan_memory(config_, settings), machine_).fits();
  }

  /// The longest context in [least, most] that fits, in steps of kAutoStep; 0 if none does.
  int64_t longest_context(MemorySettings settings, int64_t least, int64_t most) const {
    settings.max_model_len = most;
    if (fits(settings)) return most;
    settings.max_model_len = least;
    if (least >= most || !fits(settings)) return 0;
    int64_t low = least / kAutoStep, high = (most + kAutoStep - 1) / kAutoStep;  // low fits, high does not
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      settings.max_model_len = middle * kAutoStep;
      (fits(settings) ? low : high) = middle;
    }
    return low * kAutoStep;
  }

 private:
  const model::Config& config_;
  const Machine& machine_;
};

/// Of what is left beside `settings`, a quarter for the prefix cache, but not more than twice what the
/// running requests have, and nothing rather than too little to be of use.
int64_t auto_prefix_bytes(const model::Config& config, const Machine& machine, MemorySettings settings) {
  constexpr int64_t kMost_bytes = int64_t{16} << 30, kLeast_bytes = int64_t{64} << 20;
  const Chooser chooser(config, machine);
  const MemoryPlan plan = plan_memory(config, settings);
  const int64_t running = plan.bytes(PartKind::kv_cache) + plan.bytes(PartKind::windows);
  for (int64_t bytes = std::clamp(2 * running, kLeast_bytes, kMost_bytes); bytes >= kLeast_bytes;
       bytes /= 2) {
    settings.prefix_cache_bytes = 4 * bytes;
    if (chooser.fits(settings)) return bytes;
  }
  return 0;
}

MemorySettings choose(const model::Config& config, const Machine& machine, const PlanRequest& request) {
  const Chooser chooser(config, machine);
  MemorySettings settings = settings_of(machine, request);
  const bool is_auto_length = request.max_model_len == 0;
  const int64_t most =
      is_auto_length ? std::min(config.max_position_embeddings, kDefaultMaxModelLen) : request.max_model_len;
  settings.max_model_len = most;
  if (chooser.fits(settings)) return settings;
  MemorySettings relaxed = settings;
  if (request.engram_placement == "auto" && !config.engram_layer_ids.empty()) {
    relaxed.engram_on_disk = true;
    if (chooser.fits(relaxed)) return relaxed;
  }
  if (is_auto_length) {
    const int64_t length = chooser.longest_context(relaxed, std::min(kLeastAutoModelLen, most), most);
    if (length > 0) {
      relaxed.max_model_len = length;
      return relaxed;
    }
  }
  return relaxed;  // does not fit: show the smaller of the automatic choices
}

}  // namespace

Status check_engram_placement(const std::string& placement) {
  if (placement == "auto" || placement == "host" || placement == "disk") return Ok();
  if (placement == "gpu") {
    return Error(Code::unsupported, "--engram-placement gpu: this version has no GPU kernels",
                 "host and disk work now; GPU placement comes with the GPU backend");
  }
  return Error(Code::invalid_argument,
               fmt::format("--engram-placement '{}': expected auto, host or disk", placement));
}

Status check_cpu_experts(const std::string& which) {
  if (which == "auto" || which == "all") return Ok();
  const bool is_number = !which.empty() && which.find_first_not_of("0123456789") == std::string::npos;
  if (is_number || which == "none") {
    return Error(Code::unsupported,
                 fmt::format("--cpu-experts {}: this version computes all experts on the CPU", which),
                 "auto and all work now; experts on a GPU come with the GPU backend, `rorqual plan` shows "
                 "what will fit");
  }
  return Error(Code::invalid_argument,
               fmt::format("--cpu-experts '{}': expected auto, all, none or a number of layers", which));
}

Result<Plan> make_plan(const model::Config& config, const Machine& machine, const PlanRequest& request) {
  RORQUAL_TRY(check_request(request));
  Plan plan;
  plan.request = request;
  plan.machine = machine;
  MemorySettings settings = choose(config, machine, request);
  if (request.prefix_cache_bytes < 0) {
    settings.prefix_cache_bytes = auto_prefix_bytes(config, machine, settings);
  }
  plan.memory = plan_memory(config, settings);
  plan.now = place_on_cpu(plan.memory, machine);
  if (!machine.gpus.empty()) {
    // GPU placements decide about the tables themselves.
    MemorySettings tables = plan.memory.settings;
    tables.engram_on_disk = request.engram_placement == "disk";
    Placement gpus = place_on_gpus(plan_memory(config, tables), machine);
    if (gpus.fits()) plan.later = std::move(gpus);
  }
  if (!plan.later && !plan.now.fits()) {
    Placement disk = place_experts_on_disk(plan.memory, machine);
    if (disk.fits()) plan.later = std::move(disk);
  }
  if (!plan.now.fits()) plan.cures = find_cures(plan.memory, machine);
  return plan;
}

void add_speed(Plan& plan) {
  constexpr int64_t kPrompt_tokens = 2048, kGenerate_tokens = 128;
  plan.question.prompt_tokens =
      std::clamp<int64_t>(plan.memory.settings.max_model_len / 2, 1, kPrompt_tokens);
  plan.question.generate_tokens = std::min(plan.question.prompt_tokens, kGenerate_tokens);
  plan.question.batch = 1;
  plan.speed = predict_speed(plan.memory, plan.now.parts, plan.machine, plan.question);
  if (plan.later) {
    plan.later_speed = predict_speed(plan.memory, plan.later->parts, plan.machine, plan.question);
  }
}

Status check_plan(const Plan& plan) {
  if (plan.fits()) return Ok();
  const TierUse& ram = plan.now.of(Tier::ram);
  std::string hint;
  for (const Cure& cure : plan.cures) {
    if (!hint.empty()) hint += "; or ";
    hint += cure.change;
    if (cure.saved_bytes > 0) hint += fmt::format(" saves {}", format_bytes(cure.saved_bytes));
    hint += cure.short_bytes > 0 ? fmt::format(": still {} short", format_bytes(cure.short_bytes)) : ": fits";
  }
  const std::string limit =
      plan.machine.cgroup_limit_bytes > 0
          ? fmt::format(" (cgroup limit {})", format_bytes(plan.machine.cgroup_limit_bytes))
          : "";
  return Error(Code::out_of_memory,
               fmt::format("model '{}' needs {} of memory, {} can be used{}", plan.request.model,
                           format_bytes(ram.needed_bytes), format_bytes(ram.available_bytes), limit),
               hint);
}

}  // namespace rorqual::plan
