// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "plan/release.h"

namespace rorqual::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr Tier kTiers[] = {Tier::vram, Tier::ram, Tier::disk};
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string gib(int64_t bytes) {
  const double value = static_cast<double>(bytes) / kGiB;
  return value < 9.95 ? fmt::format("{:.2f}", value) : fmt::format("{:.1f}", value);
}

std::string percent(double ratio) {
  return ratio > 0 && ratio < 0.001 ? "<0.1 %" : fmt::format("{:.1f} %", 100 * ratio);
}

/// Parts of one kind on one tier, whatever their formats.
struct Row {
  PartKind kind = PartKind::work;
  Tier tier = Tier::ram;
  int64_t bytes = 0;
  double share = 0;                                      // of the kind's routed experts, 1 = whole
  std::vector<std::pair<int64_t, std::string>> formats;  // by bytes

  std::string formats_text() const {
    auto sorted = formats;
    std::sort(sorted.rbegin(), sorted.rend());
    std::string text;
    for (const auto& [size, format] : sorted) text += (text.empty() ? "" : ", ") + format;
    return text;
  }
};

std::vector<Row> rows_of(const Placement& placement) {
  std::vector<Row> rows;
  for (const Part& part : placement.parts) {
    auto row = std::find_if(rows.begin(), rows.end(),
                            [&](const Row& r) { return r.kind == part.kind && r.tier == part.tier; });
    if (row == rows.end()) row = rows.insert(rows.end(), Row{part.kind, part.tier, 0, 0, {}});
    row->bytes += part.bytes;
    row->share = std::max(row->share, part.share);
    if (!part.format.empty()) row->formats.emplace_back(part.bytes, part.format);
  }
  return rows;
}

/// What the last column says about a row.
std::string detail(const Plan& plan, const Row& row, int64_t num_gpus) {
  const MemorySettings& s = plan.memory.settings;
  const std::string copies =
      row.tier == Tier::vram && num_gpus > 1 ? fmt::format(", a copy on each GPU") : "";
  switch (row.kind) {
    case PartKind::experts:
      return row.share < 1 ? fmt::format("{} of them; {}", percent(row.share), row.formats_text())
                           : row.formats_text();
    case PartKind::engram_tables:
      return row.tier == Tier::disk ? "fp8, rows read when needed" : "fp8";
    case PartKind::kv_cache:
      return fmt::format("{:.0f} B/token x {} tokens{}", plan.memory.kv_bytes_per_token,
                         format_count(plan.memory.kv_tokens), copies);
    case PartKind::windows:
      return fmt::format("{} sequences{}", s.max_num_seqs, copies);
    case PartKind::prefix_cache:
      return "pages of past requests" + copies;
    case PartKind::swap_space:
      return "at most, for preempted requests";
    case PartKind::work:
      return fmt::format("steps of {} tokens, {} threads{}", s.max_num_batched_tokens, s.threads, copies);
    case PartKind::logits:
      return fmt::format("{} rows{}", std::max(s.max_logit_rows, s.max_num_seqs), copies);
    case PartKind::program:
      return "code, tokenizer, tensor list, HTTP, page rounding";
    default:
      return row.formats_text();
  }
}

std::string limit_note(const Machine& machine) {
  return machine.cgroup_limit_bytes > 0
             ? fmt::format(", cgroup limit {}", format_bytes(machine.cgroup_limit_bytes))
             : "";
}

std::string gpu_text(const Machine& machine) {
  if (machine.gpus.empty()) return machine.is_described ? "no GPU" : "GPUs are not looked for";
  return fmt::format("{} x {}", machine.gpus.size(), machine.gpus.front().name);
}

std::string machine_line(const Machine& machine) {
  return fmt::format("{}: {}, {} threads; {} of {} RAM available{}; {}; disk {} free", machine.name,
                     machine.cpu, machine.threads, format_bytes(machine.ram_available_bytes),
                     format_bytes(machine.ram_total_bytes), limit_note(machine), gpu_text(machine),
                     machine.disk_free_bytes > 0 ? format_bytes(machine.disk_free_bytes) : "unknown");
}

std::string model_line(const Plan& plan) {
  const model::Config& config = plan.memory.config;
  const MemorySettings& s = plan.memory.settings;
  return fmt::format("{}: {} layers, {} experts, {} of tensors; context {} tokens{}, {} sequences",
                     plan.request.model, config.num_hidden_layers, config.n_routed_experts,
                     format_bytes(checkpoint_bytes(config)), format_count(s.max_model_len),
                     plan.request.max_model_len == 0 ? " (auto)" : "", s.max_num_seqs);
}

bool is_release(const Plan& plan) {
  return plan.request.model == kReleaseName;
}

std::vector<std::string> download_lines(const Plan& plan) {
  const int64_t bytes = kReleaseTensor_bytes, free = plan.machine.disk_free_bytes;
  const std::string room =
      free == 0       ? "free disk unknown"
      : free >= bytes ? fmt::format("{} free: enough", format_bytes(free))
                      : fmt::format("{} free: {} short", format_bytes(free), format_bytes(bytes - free));
  return {fmt::format("hf download {} --local-dir DeepSeek-V4.1-Flash", kReleaseRepository),
          fmt::format("{} bytes of tensors = {}; disk {}", format_count(bytes), format_bytes(bytes), room),
          "rorqual inspect DeepSeek-V4.1-Flash --verify"};
}

std::string cure_text(const Cure& cure) {
  const std::string saved =
      cure.saved_bytes > 0 ? fmt::format(" saves {}", format_bytes(cure.saved_bytes)) : "";
  return fmt::format("{}{} -> {}", cure.change, saved,
                     cure.short_bytes > 0 ? format_bytes(cure.short_bytes) + " short" : "fits");
}

/// A word as a shell reads it: quoted where it has signs that mean something there.
std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// The options that make `serve` do what the plan says.
std::string serve_command(const Plan& plan) {
  const MemorySettings& s = plan.memory.settings;
  std::string text = "rorqual serve";
  if (is_release(plan)) {
    text += " DeepSeek-V4.1-Flash";
  } else if (!plan.request.is_embedded) {
    text += " " + shell_word(plan.request.model);
  }
  if (plan.memory.bytes(PartKind::engram_tables) > 0) {
    text += fmt::format(" --engram-placement {}", s.engram_on_disk ? "disk" : "host");
  }
  text += fmt::format(" --max-model-len {} --max-num-seqs {}", s.max_model_len, s.max_num_seqs);
  if (plan.request.threads > 0) text += fmt::format(" --threads {}", s.threads);
  if (s.kv_cache_bytes > 0) text += fmt::format(" --kv-cache-memory-bytes {}", s.kv_cache_bytes);
  text += fmt::format(" --prefix-cache-memory {}", s.prefix_cache_bytes);
  if (s.swap_bytes > 0) {
    const double gib = static_cast<double>(s.swap_bytes) / kGiB;
    text += fmt::format(" --preemption-mode swap --swap-space {}", gib);
  }
  if (s.max_num_batched_tokens != PlanRequest{}.max_num_batched_tokens)
    text += fmt::format(" --max-num-batched-tokens {}", s.max_num_batched_tokens);
  if (s.numerics == kernels::Numerics::exact) text += " --numerics exact";
  for (const auto& spec : model::switch_registry()) {
    const std::string_view value = spec.read(plan.request.switches);
    if (value != spec.exact_value) text += fmt::format(" --{} {}", spec.option, value);
  }
  return text;
}

void add_block(std::string& text, std::string_view title, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    text += fmt::format("{:<10}{}\n", title, line);
    title = "";
  }
}

std::vector<std::string> speed_lines(const Plan& plan, const SpeedEstimate& speed) {
  const auto line = [](const char* what, const PhaseSpeed& phase) {
    std::string text = fmt::format("{} {}", what, speed_text(phase.tokens_per_second));
    if (!phase.limit.empty()) text += fmt::format(", limited by {}", phase.limit);
    if (!phase.unknown.empty()) text += fmt::format(" ({} is not known)", phase.unknown);
    return text;
  };
  return {line("decode ", speed.decode),
          line("prefill", speed.prefill) +
              fmt::format("; one request, {} tokens", format_count(plan.question.prompt_tokens))};
}

Json rate_json(const Rate& rate) {
  if (rate.value <= 0) return nullptr;
  return {{"value", rate.value}, {"spread", rate.spread}, {"is_measured", rate.measured}};
}

Json machine_json(const Machine& machine) {
  Json gpus = Json::array();
  for (const Gpu& gpu : machine.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"memory_bytes", gpu.memory_bytes},
                    {"read_bytes_per_s", rate_json(gpu.read)},
                    {"link_bytes_per_s", rate_json(gpu.link)}});
  }
  return {{"name", machine.name},
          {"is_described", machine.is_described},
          {"cpu", machine.cpu},
          {"threads", machine.threads},
          {"numa_nodes", machine.numa_nodes},
          {"ram_total_bytes", machine.ram_total_bytes},
          {"ram_available_bytes", machine.ram_available_bytes},
          {"cgroup_limit_bytes",
           machine.cgroup_limit_bytes > 0 ? Json(machine.cgroup_limit_bytes) : Json(nullptr)},
          {"ram_read_bytes_per_s", rate_json(machine.ram_read)},
          {"disk_free_bytes", machine.disk_free_bytes > 0 ? Json(machine.disk_free_bytes) : Json(nullptr)},
          {"disk_read_bytes_per_s", rate_json(machine.disk_read)},
          {"gpus", std::move(gpus)}};
}

Json phase_json(const PhaseSpeed& phase) {
  Json stages = Json::array();
  for (const StageTime& stage : phase.stages) {
    stages.push_back({{"stage", stage.name},
                      {"limit", stage.limit},
                      {"seconds", stage.seconds},
                      {"spread", stage.spread}});
  }
  return {{"tokens_per_s", rate_json(phase.tokens_per_second)},
          {"limited_by", phase.limit.empty() ? Json(nullptr) : Json(phase.limit)},
          {"unknown", phase.unknown.empty() ? Json(nullptr) : Json(phase.unknown)},
          {"stages", std::move(stages)}};
}

Json speed_json(const Plan& plan, const SpeedEstimate& speed) {
  return {{"prompt_tokens", plan.question.prompt_tokens},
          {"generate_tokens", plan.question.generate_tokens},
          {"batch", plan.question.batch},
          {"prefill", phase_json(speed.prefill)},
          {"decode", phase_json(speed.decode)}};
}

Json placement_json(const Placement& placement) {
  Json parts = Json::array();
  for (const Part& part : placement.parts) {
    parts.push_back({{"part", part_name(part.kind)},
                     {"format", part.format.empty() ? Json(nullptr) : Json(part.format)},
                     {"tier", tier_name(part.tier)},
                     {"bytes", part.bytes},
                     {"share", part.share},
                     {"bytes_per_token", part.bytes_per_token},
                     {"multiply_adds_per_token", part.madds_per_token}});
  }
  Json tiers = Json::object();
  for (const Tier tier : kTiers) {
    const TierUse& use = placement.of(tier);
    tiers[std::string(tier_name(tier))] = {
        {"needed_bytes", use.needed_bytes},
        {"available_bytes", tier == Tier::disk ? Json(nullptr) : Json(use.available_bytes)},
        {"fits", use.fits()}};
  }
  return {{"name", placement.name},
          {"fits", placement.fits()},
          {"runs_in_this_version", placement.runs_now},
          {"missing", placement.missing.empty() ? Json(nullptr) : Json(placement.missing)},
          {"limiting_tier", tier_name(placement.tightest())},
          {"tiers", std::move(tiers)},
          {"parts", std::move(parts)}};
}

}  // namespace

report::Table placement_table(const Plan& plan, const Placement& placement) {
  report::Table table;
  table.header = {"part", "where", "GiB", "share", ""};
  table.align = {report::Align::left, report::Align::left, report::Align::right, report::Align::right,
                 report::Align::left};
  int64_t total = 0;
  for (const TierUse& use : placement.use) total += use.needed_bytes;
  const auto share = [&](int64_t bytes) {
    return percent(static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(total, 1)));
  };
  const auto gpus = static_cast<int64_t>(plan.machine.gpus.size());
  for (const Row& row : rows_of(placement)) {
    if (row.bytes == 0) continue;
    table.rows.push_back({std::string(part_name(row.kind)), std::string(tier_name(row.tier)), gib(row.bytes),
                          share(row.bytes), detail(plan, row, gpus)});
  }
  for (const Tier tier : kTiers) {
    const TierUse& use = placement.of(tier);
    if (use.needed_bytes == 0) continue;
    const std::string room =
        tier == Tier::disk ? "files of the checkpoint"
                           : fmt::format("of {} usable, {}", gib(use.available_bytes),
                                         use.fits() ? gib(use.available_bytes - use.needed_bytes) + " left"
                                                    : gib(use.needed_bytes - use.available_bytes) + " short");
    table.rows.push_back(
        {"total", std::string(tier_name(tier)), gib(use.needed_bytes), share(use.needed_bytes), room});
  }
  return table;
}

report::Table machines_table(const std::vector<Plan>& plans) {
  report::Table table;
  table.header = {"machine",        "this version", "RAM GiB", "decode", "not in this version",
                  "VRAM + RAM GiB", "decode"};
  const auto used = [](const Placement& placement, Tier tier) {
    const TierUse& use = placement.of(tier);
    return fmt::format("{} of {}", gib(use.needed_bytes), gib(use.available_bytes));
  };
  for (const Plan& plan : plans) {
    std::vector<std::string> row = {
        plan.machine.name, fmt::format("{}: {}", plan.now.name, plan.fits() ? "fits" : "does not fit"),
        used(plan.now, Tier::ram), plan.fits() ? speed_text(plan.speed.decode.tokens_per_second) : "-"};
    if (plan.later) {
      const Placement& later = *plan.later;
      row.push_back(later.name);
      row.push_back(plan.machine.gpus.empty()
                        ? used(later, Tier::ram)
                        : fmt::format("{} + {}", used(later, Tier::vram), used(later, Tier::ram)));
      row.push_back(speed_text(plan.later_speed.decode.tokens_per_second));
    } else {
      row.insert(row.end(), {"-", "-", "-"});
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string verdict_line(const Plan& plan, const Placement& placement) {
  const Tier tier = placement.tightest();
  const TierUse& use = placement.of(tier);
  const std::string numbers = fmt::format("{} of {} {} that can be used", format_bytes(use.needed_bytes),
                                          format_bytes(use.available_bytes), tier_name(tier));
  return fmt::format("{}: {}{}", placement.fits() ? "fits" : "does not fit", numbers,
                     tier == Tier::ram ? limit_note(plan.machine) : "");
}

std::vector<std::string> verdict_lines(const Plan& plan) {
  std::vector<std::string> lines = {verdict_line(plan, plan.now)};
  for (const Cure& cure : plan.cures) lines.push_back(cure_text(cure));
  return lines;
}

std::vector<std::string> start_lines(const Plan& plan) {
  std::vector<std::string> lines;
  std::map<Tier, std::vector<std::string>> words;
  for (const Row& row : rows_of(plan.now)) {
    if (row.bytes < (int64_t{1} << 20) / 2) continue;
    words[row.tier].push_back(fmt::format("{} {}", part_name(row.kind), format_bytes(row.bytes)));
  }
  for (const auto& [tier, parts] : words) {
    lines.push_back(fmt::format("{}: {}", tier_name(tier), fmt::join(parts, ", ")));
  }
  for (std::string& line : verdict_lines(plan)) lines.push_back(std::move(line));
  return lines;
}

std::string plan_text(const Plan& plan) {
  std::string text;
  add_block(text, "model", {model_line(plan)});
  add_block(text, "machine", {machine_line(plan.machine)});
  text += fmt::format("\nThis version ({}):\n{}\n", plan.now.name,
                      report::to_text(placement_table(plan, plan.now)));
  add_block(text, "verdict", {verdict_line(plan, plan.now)});
  if (plan.fits()) add_block(text, "speed", speed_lines(plan, plan.speed));
  std::vector<std::string> cures;
  for (const Cure& cure : plan.cures) cures.push_back(cure_text(cure));
  add_block(text, "cures", cures);
  if (plan.later) {
    text += fmt::format("\nNot in this version ({}: needs {}):\n{}\n", plan.later->name, plan.later->missing,
                        report::to_text(placement_table(plan, *plan.later)));
    add_block(text, "verdict", {verdict_line(plan, *plan.later)});
    add_block(text, "speed", speed_lines(plan, plan.later_speed));
  }
  text += "\n";
  if (is_release(plan)) {
    const auto lines = download_lines(plan);
    add_block(text, "get", {lines[0], lines[1]});
    add_block(text, "check", {lines[2]});
  }
  if (plan.fits()) add_block(text, "run", {serve_command(plan)});
  return text;
}

Json plan_json(const Plan& plan) {
  const MemorySettings& s = plan.memory.settings;
  Json cures = Json::array();
  for (const Cure& cure : plan.cures) {
    cures.push_back({{"change", cure.change},
                     {"saved_bytes", cure.saved_bytes},
                     {"fits", cure.short_bytes == 0},
                     {"short_bytes", cure.short_bytes}});
  }
  const TierUse& ram = plan.now.of(Tier::ram);
  Json out = {{"schema", "rorqual.plan/1"},
              {"model", plan.request.model},
              {"checkpoint_bytes", checkpoint_bytes(plan.memory.config)},
              {"checkpoint_tensors", checkpoint_tensors(plan.memory.config)},
              {"machine", machine_json(plan.machine)},
              {"settings",
               {{"numerics", s.numerics == kernels::Numerics::exact ? "exact" : "reference"},
                {"max_model_len", s.max_model_len},
                {"max_num_seqs", s.max_num_seqs},
                {"max_num_batched_tokens", s.max_num_batched_tokens},
                {"threads", s.threads},
                {"engram_placement", s.engram_on_disk ? "disk" : "host"},
                {"kv_bytes_per_token", plan.memory.kv_bytes_per_token},
                {"kv_tokens", plan.memory.kv_tokens}}},
              {"verdict",
               {{"fits", plan.fits()},
                {"needed_bytes", ram.needed_bytes},
                {"available_bytes", ram.available_bytes},
                {"limiting_tier", tier_name(plan.limiting_tier())},
                {"text", verdict_line(plan, plan.now)}}},
              {"this_version", placement_json(plan.now)},
              {"not_in_this_version", plan.later ? placement_json(*plan.later) : Json(nullptr)},
              {"speed", speed_json(plan, plan.speed)},
              {"speed_not_in_this_version", plan.later ? speed_json(plan, plan.later_speed) : Json(nullptr)},
              {"cures", std::move(cures)}};
  if (is_release(plan)) {
    const auto lines = download_lines(plan);
    out["download"] = {{"command", lines[0]},
                       {"bytes", kReleaseTensor_bytes},
                       {"fits_on_disk", plan.machine.disk_free_bytes > 0
                                            ? Json(plan.machine.disk_free_bytes >= kReleaseTensor_bytes)
                                            : Json(nullptr)},
                       {"verify_command", lines[2]}};
  }
  return out;
}

}  // namespace rorqual::plan
