// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/cpu_info.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "kernels/kernels.h"
#include "tools/disk_measure.h"
#include "tools/kernel_self_test.h"
#include "tools/machine_ceilings.h"
#include "tools/machine_measure.h"
#include "tools/measured_machine.h"
#include "tools/rate_json.h"
#include "tools/version.h"

namespace rorqual::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kNodeReadBytes = int64_t{256} << 20;

/// First line of a small system file, empty if there is none.
std::string system_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<std::string> feature_names(const CpuFeatures& features) {
  const std::pair<bool, const char*> all[] = {
      {features.avx2, "avx2"},         {features.fma, "fma"},           {features.f16c, "f16c"},
      {features.avx_vnni, "avx_vnni"}, {features.avx512f, "avx512f"},   {features.avx512bw, "avx512bw"},
      {features.avx512vl, "avx512vl"}, {features.avx512dq, "avx512dq"}, {features.avx512_vnni, "vnni"},
      {features.avx512_vbmi, "vbmi"},  {features.avx512_bf16, "bf16"},  {features.avx512_fp16, "fp16"},
      {features.amx_tile, "amx_tile"}, {features.amx_int8, "amx_int8"}, {features.amx_bf16, "amx_bf16"},
  };
  std::vector<std::string> names;
  for (const auto& [has, name] : all) {
    if (has) names.emplace_back(name);
  }
  return names;
}

Json cpu_json() {
  const auto& info = cpu_info();
  return {{"model", info.model_name},
          {"features", feature_names(info.features)},
          {"logical_cpus", info.logical_cpus},
          {"physical_cores", info.physical_cores},
          {"usable_cpus", info.usable_cpus},
          {"usable_cores", info.usable_cores},
          {"cgroup_cpus", info.cgroup_cpus > 0 ? Json(info.cgroup_cpus) : Json(nullptr)},
          {"l2_bytes", info.l2_bytes},
          {"l3_bytes", info.l3_bytes},
          {"default_threads", default_compute_threads(info)}};
}

int numa_nodes() {
  std::error_code error;
  int nodes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", error)) {
    const auto name = entry.path().filename().string();
    if (name.rfind("node", 0) == 0 && name.size() > 4 &&
        name.find_first_not_of("0123456789", 4) == std::string::npos) {
      ++nodes;
    }
  }
  return std::max(nodes, 1);
}

/// The chosen word of "always [madvise] never".
std::string transparent_huge_pages() {
  const auto line = system_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const auto begin = line.find('['), end = line.find(']');
  return begin == std::string::npos || end == std::string::npos ? "unknown"
                                                                : line.substr(begin + 1, end - begin - 1);
}

Json memory_json() {
  const auto memory = memory_info();
  return {
      {"total_bytes", memory.total_bytes},
      {"available_bytes", memory.available_bytes},
      {"cgroup_limit_bytes", memory.cgroup_limit_bytes ? Json(*memory.cgroup_limit_bytes) : Json(nullptr)},
      {"transparent_huge_pages", transparent_huge_pages()},
      {"numa_nodes", numa_nodes()}};
}

Json limit_json(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return nullptr;  // null = no limit
  return limit.rlim_cur;
}

Json limits_json() {
  return {{"open_files", limit_json(RLIMIT_NOFILE)},
          {"locked_memory_bytes", limit_json(RLIMIT_MEMLOCK)},
          {"address_space_bytes", limit_json(RLIMIT_AS)},
          {"core_file_bytes", limit_json(RLIMIT_CORE)}};
}

Json kernels_json() {
  std::vector<std::string> available;
  for (const auto* table : kernels::available_kernels()) available.emplace_back(table->name);
  const auto* chosen = kernels::select_kernels();
  return {{"available", available}, {"chosen", chosen == nullptr ? Json(nullptr) : Json(chosen->name)}};
}

/// Rates of the kernels and stages; names say the units.
Json kernel_rates_json(const plan::Machine& machine) {
  auto rows = Json::array();
  for (const auto& rate : machine.kernels) {
    rows.push_back({{"weights", rate.format},
                    {"one_row_bytes_per_second", rate_json(rate.one_row)},
                    {"four_rows_madds_per_second", rate_json(rate.few_rows)},
                    {"many_rows_madds_per_second", rate_json(rate.many_rows)}});
  }
  return rows;
}

Json stage_rates_json(const plan::Machine& machine) {
  auto rows = Json::array();
  for (const auto& rate : machine.stages) {
    rows.push_back({{"stage", rate.stage},
                    {"one_row_per_second", rate_json(rate.one_row)},
                    {"many_rows_per_second", rate_json(rate.many_rows)}});
  }
  return rows;
}

Json nodes_json() {
  auto rows = Json::array();
  for (const auto& node : measure_node_bandwidth(kNodeReadBytes)) {
    rows.push_back(
        {{"node", node.node}, {"threads", node.threads}, {"read_bytes_per_second", rate_json(node.read)}});
  }
  return rows;
}

/// The disk may be out of reach; that is told and no failure.
Json disk_json(ThreadPool& pool, const std::string& path) {
  const auto disk = measure_disk(pool, path);
  if (!disk.ok()) return {{"error", disk.error().message()}};
  return {{"path", disk->is_model ? Json(disk->path) : Json(nullptr)},
          {"page_cache_bypassed", disk->direct},
          {"read_bytes_per_second", rate_json(disk->sequential)},
          {"random_4k_reads_per_second", rate_json(disk->random)}};
}

Json gpus_json() {
  const GpuList gpus = list_gpus();
  return {{"names", gpus.names}, {"link_bytes_per_second", nullptr}, {"note", gpus.note}};
}

/// Operations per second of each unit; unknown where this CPU has none.
std::array<plan::Rate, kNumPeaks> measure_peaks(ThreadPool& pool) {
  std::array<plan::Rate, kNumPeaks> peaks;
  for (int i = 0; i < kNumPeaks; ++i) {
    std::vector<double> samples;
    for (int sample = 0; sample < kMeasureRepeats; ++sample) {
      const double rate = sample_peak(pool, static_cast<Peak>(i));
      if (rate > 0) samples.push_back(rate);
    }
    peaks[static_cast<size_t>(i)] = rate_of(std::move(samples));
  }
  return peaks;
}

Result<Json> measure_json(int threads, const std::string& disk) {
  int samples = 0;
  RORQUAL_TRY_ASSIGN(const plan::Machine machine,
                     measure_machine("", threads, kernels::Numerics::reference, &samples));
  ThreadPool pool(threads);
  return Json{{"threads", threads},
              {"repeats", samples},
              {"read_bytes_per_second", rate_json(machine.ram_read)},
              {"numa_nodes", nodes_json()},
              {"peaks", peaks_json(measure_peaks(pool))},
              {"kernels", kernel_rates_json(machine)},
              {"stages", stage_rates_json(machine)},
              {"disk", disk_json(pool, disk)},
              {"gpus", gpus_json()}};
}

Json self_test_json(bool& passed) {
  auto rows = Json::array();
  for (const auto& row : run_kernel_self_test()) {
    passed = passed && row.is_equal;
    rows.push_back({{"tier", row.tier},
                    {"weights", row.format},
                    {"equal_bits", row.is_equal},
                    {"difference", row.difference}});
  }
  return rows;
}

std::string joined(const Json& list) {
  std::string text;
  for (const auto& item : list) text += (text.empty() ? "" : " ") + item.get<std::string>();
  return text;
}

std::string limit_text(const Json& limit, bool is_bytes) {
  if (limit.is_null()) return "none";
  const auto value = limit.get<int64_t>();
  return is_bytes ? format_bytes(value) : format_count(value);
}

void print_machine(const Json& report) {
  const auto& cpu = report["cpu"];
  const auto& memory = report["memory"];
  fmt::print("system    {} {}\n", report["system"]["kernel"].get<std::string>(),
             report["system"]["release"].get<std::string>());
  fmt::print("cpu       {}\n          {}\n", cpu["model"].get<std::string>(), joined(cpu["features"]));
  fmt::print(
      "cores     {} logical, {} physical; usable {} logical, {} physical; quota {}; {} compute threads by "
      "default\n",
      cpu["logical_cpus"].get<int>(), cpu["physical_cores"].get<int>(), cpu["usable_cpus"].get<int>(),
      cpu["usable_cores"].get<int>(), cpu["cgroup_cpus"].is_null() ? "none" : cpu["cgroup_cpus"].dump(),
      cpu["default_threads"].get<int>());
  fmt::print("caches    L2 {}, L3 {}\n", format_bytes(cpu["l2_bytes"].get<int64_t>()),
             format_bytes(cpu["l3_bytes"].get<int64_t>()));
  fmt::print("memory    {} total, {} available; cgroup limit {}; huge pages {}; {} NUMA node{}\n",
             format_bytes(memory["total_bytes"].get<int64_t>()),
             format_bytes(memory["available_bytes"].get<int64_t>()),
             limit_text(memory["cgroup_limit_bytes"], true),
             memory["transparent_huge_pages"].get<std::string>(), memory["numa_nodes"].get<int>(),
             memory["numa_nodes"].get<int>() == 1 ? "" : "s");
  const auto& limits = report["limits"];
  fmt::print("limits    open files {}, locked memory {}, address space {}\n",
             limit_text(limits["open_files"], false), limit_text(limits["locked_memory_bytes"], true),
             limit_text(limits["address_space_bytes"], true));
}

/// "48.8", with "±12 %" behind it; "unknown" without a value.
std::string rate_text(const Json& rate, double unit, const char* unit_name) {
  if (rate["value"].is_null()) return "unknown";
  return fmt::format("{:.1f} {} ±{:.0f} %", rate["value"].get<double>() / unit, unit_name,
                     rate["spread"].get<double>() * 100);
}

void print_measures(const Json& measure) {
  fmt::print("measured  medians of {} on {} threads, half their range behind ±\n",
             measure["repeats"].get<int>(), measure["threads"].get<int>());
  fmt::print("  memory  read {}", rate_text(measure["read_bytes_per_second"], 1e9, "GB/s"));
  for (const auto& node : measure["numa_nodes"]) {
    fmt::print("; node {} {}", node["node"].get<int>(),
               rate_text(node["read_bytes_per_second"], 1e9, "GB/s"));
  }
  fmt::print("\n");
  for (const auto& row : measure["peaks"]) {
    if (row["operations_per_second"]["value"].is_null()) continue;
    fmt::print("  arith.  {} {} ({})\n", row["unit"].get<std::string>(),
               rate_text(row["operations_per_second"], 1e9, "GOP/s"), row["instructions"].get<std::string>());
  }
  for (const auto& row : measure["kernels"]) {
    fmt::print("  {:<7} 1 row {}; 4 rows {}; many rows {}\n", row["weights"].get<std::string>(),
               rate_text(row["one_row_bytes_per_second"], 1e9, "GB/s"),
               rate_text(row["four_rows_madds_per_second"], 1e9, "GMAC/s"),
               rate_text(row["many_rows_madds_per_second"], 1e9, "GMAC/s"));
  }
  const auto& disk = measure["disk"];
  if (disk.contains("error")) {
    fmt::print("  disk    not measured: {}\n", disk["error"].get<std::string>());
  } else {
    fmt::print("  disk    read {}, random 4 KiB {}{}\n",
               rate_text(disk["read_bytes_per_second"], 1e9, "GB/s"),
               rate_text(disk["random_4k_reads_per_second"], 1e3, "k/s"),
               disk["page_cache_bypassed"].get<bool>() ? "" : " (through the page cache)");
  }
  const auto& gpus = measure["gpus"];
  fmt::print("  GPU     {}{}{}\n", joined(gpus["names"]), gpus["names"].empty() ? "" : "; ",
             gpus["note"].get<std::string>());
}

void print_kernels(const Json& report, bool passed) {
  const auto& chosen = report["kernels"]["chosen"];
  fmt::print("kernels   {} (available: {})\n", chosen.is_null() ? "none" : chosen.get<std::string>(),
             joined(report["kernels"]["available"]));
  if (report.contains("measure")) print_measures(report["measure"]);
  for (const auto& row : report["self_test"]) {
    if (!row["equal_bits"].get<bool>()) {
      fmt::print("          {} {}: {}\n", row["tier"].get<std::string>(), row["weights"].get<std::string>(),
                 row["difference"].get<std::string>());
    }
  }
  const auto count = report["self_test"].size();
  fmt::print("self-test {}\n",
             !passed      ? "FAILED: kernel tiers disagree"
             : count == 0 ? "nothing to compare: only the scalar kernels run here"
                          : fmt::format("passed: {} comparisons with the scalar kernels, equal bits", count));
}

}  // namespace

Status run_doctor(const DoctorOptions& options) {
  utsname system{};
  uname(&system);
  RORQUAL_TRY_ASSIGN(const auto build, version_json());
  Json report = {
      {"schema", "rorqual.doctor/1"},
      {"system", {{"kernel", system.sysname}, {"release", system.release}, {"machine", system.machine}}},
      {"cpu", cpu_json()},
      {"memory", memory_json()},
      {"limits", limits_json()},
      {"kernels", kernels_json()}};
  const int threads = options.threads > 0 ? options.threads : default_compute_threads(cpu_info());
  if (options.measure) {
    RORQUAL_TRY_ASSIGN(report["measure"], measure_json(threads, options.disk));
  }
  bool passed = true;
  report["self_test"] = self_test_json(passed);
  report["build"] = Json::parse(build);
  if (options.as_json) {
    fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    fmt::print("{}\n", version_line());
    print_machine(report);
    print_kernels(report, passed);
  }
  if (!passed)
    return Error(Code::gate, "kernel tiers disagree on this machine",
                 "please report the output of `rorqual doctor --json`");
  return Ok();
}

}  // namespace rorqual::tools
