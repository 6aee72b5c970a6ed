// SPDX-License-Identifier: Apache-2.0
#include "plan/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/units.h"

namespace rorqual::plan {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;
constexpr int64_t kLeastSize = kMiB;  // below: a forgotten suffix
constexpr int kMaxGpus = 64;
constexpr double kWide = 0.5;    // spread of what is assumed
constexpr double kSheet = 0.15;  // spread of data sheets: what kernels reach lies below them

// What a description leaves out: an ordinary server.
constexpr int kDefaultCores = 32;
constexpr double kDefaultRamRead = 200e9, kDefaultDiskRead = 3e9, kDefaultDiskRandom = 200e3;

/// Data sheet figures; memory is what the driver reports. Arithmetic: BF16, dense, in multiply-adds.
struct KnownGpu {
  std::string_view name, title;
  int64_t memory_mib;
  double read, arithmetic, link;
};

constexpr KnownGpu kKnownGpus[] = {
    {"h20", "H20 96 GB", 97871, 4.0e12, 74e12, 55e9},
    {"h100", "H100 80 GB", 81559, 3.35e12, 395e12, 55e9},
    {"h200", "H200 141 GB", 143771, 4.8e12, 395e12, 55e9},
    {"a100", "A100 80 GB", 81920, 2.0e12, 156e12, 25e9},
    {"pro6000", "RTX PRO 6000 96 GB", 97887, 1.79e12, 200e12, 50e9},
    {"5090", "RTX 5090 32 GB", 32607, 1.79e12, 105e12, 50e9},
    {"4090", "RTX 4090 24 GB", 24564, 1.01e12, 82e12, 25e9},
    {"3090", "RTX 3090 24 GB", 24576, 0.94e12, 36e12, 25e9},
};
constexpr KnownGpu kOtherGpu = {"", "", 0, 0.9e12, 75e12, 25e9};

Error bad_value(std::string_view key, std::string_view value, std::string_view expected) {
  return Error(
      Code::invalid_argument, fmt::format("--machine {}={}: expected {}", key, value, expected),
      "example: --machine ram=512G,cores=64,gpu=2x24G,disk=4T; names: `rorqual plan --machine list`");
}

/// Bytes or operations per second: "300G", "1.8T", "300GB/s"; powers of ten.
std::optional<double> parse_rate(std::string_view text) {
  for (const std::string_view unit : {"/s", "B"}) {
    if (text.ends_with(unit)) text.remove_suffix(unit.size());
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value) || value <= 0) return std::nullopt;
  const std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
  if (suffix.empty()) return value;
  if (suffix == "M" || suffix == "m") return value * 1e6;
  if (suffix == "G" || suffix == "g") return value * 1e9;
  if (suffix == "T" || suffix == "t") return value * 1e12;
  return std::nullopt;
}

Result<int64_t> parse_size(std::string_view key, std::string_view value) {
  std::string_view number = value;
  if (number.ends_with("iB")) number.remove_suffix(2);
  if (number.ends_with("B")) number.remove_suffix(1);
  const Result<int64_t> size = parse_count(number);
  constexpr int64_t kMost = int64_t{1} << 56;
  if (size.ok() && *size >= kLeastSize && *size <= kMost) return size;
  return bad_value(key, value, "a whole size of at least 1M, such as 512G (2^30 bytes each) or 4T");
}

Rate described(double value, double spread) {
  return {.value = value, .spread = spread, .measured = false};
}

/// "24G", "2x96G", "h200", "8xh20".
Status set_gpus(Machine& machine, std::string_view value) {
  std::string_view what = value;
  int count = 1;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  const bool has_count = error == std::errc() && end != value.data() + value.size() && *end == 'x';
  if (has_count) {
    what = value.substr(static_cast<size_t>(end - value.data()) + 1);
  } else {
    count = 1;
  }
  if (what == "none" || what == "0") {
    machine.gpus.clear();
    return Ok();
  }
  if (count < 1 || count > kMaxGpus) return bad_value("gpu", value, "1 to 64 GPUs");
  const auto known = std::find_if(std::begin(kKnownGpus), std::end(kKnownGpus),
                                  [&](const KnownGpu& gpu) { return gpu.name == what; });
  Gpu gpu;
  if (known != std::end(kKnownGpus)) {
    gpu.name = known->title;
    gpu.memory_bytes = known->memory_mib * kMiB;
  } else {
    const auto size = parse_size("gpu", what);
    if (!size.ok()) {
      return bad_value(
          "gpu", value,
          "a size (24G), several (2x96G), or a known card (h20, h100, h200, a100, pro6000, 5090, "
          "4090, 3090)");
    }
    gpu.name = format_bytes(*size) + " card";
    gpu.memory_bytes = *size;
  }
  const KnownGpu& figures = known != std::end(kKnownGpus) ? *known : kOtherGpu;
  const double spread = known != std::end(kKnownGpus) ? kSheet : kWide;
  gpu.read = described(figures.read, spread);
  gpu.arithmetic = described(figures.arithmetic, kWide);
  gpu.link = described(figures.link, spread);
  machine.gpus.assign(static_cast<size_t>(count), gpu);
  return Ok();
}

Status set_number(int& field, std::string_view key, std::string_view value) {
  const Result<int64_t> count = parse_count(value);
  if (!count.ok() || *count < 1 || *count > 4096) return bad_value(key, value, "a number from 1 to 4096");
  field = static_cast<int>(*count);
  return Ok();
}

Status set_rate(Rate& rate, std::string_view key, std::string_view value) {
  const auto parsed = parse_rate(value);
  if (!parsed) return bad_value(key, value, "bytes per second such as 300G (10^9 each)");
  rate = described(*parsed, kSheet);
  return Ok();
}

/// Keys that the rest depends on are read first, whatever their order in the text.
struct Description {
  int cores = kDefaultCores;
  int64_t cgroup_bytes = 0;
  std::string_view gpu_bandwidth, link;
};

Status set_key(Machine& machine, Description& rest, std::string_view key, std::string_view value) {
  if (key == "ram") {
    RORQUAL_TRY_ASSIGN(machine.ram_total_bytes, parse_size(key, value));
  } else if (key == "disk") {
    RORQUAL_TRY_ASSIGN(machine.disk_free_bytes, parse_size(key, value));
  } else if (key == "cgroup") {
    RORQUAL_TRY_ASSIGN(rest.cgroup_bytes, parse_size(key, value));
  } else if (key == "cores") {
    return set_number(rest.cores, key, value);
  } else if (key == "threads") {
    return set_number(machine.threads, key, value);
  } else if (key == "ram-bandwidth") {
    return set_rate(machine.ram_read, key, value);
  } else if (key == "disk-bandwidth") {
    return set_rate(machine.disk_read, key, value);
  } else if (key == "gpu") {
    return set_gpus(machine, value);
  } else if (key == "gpu-bandwidth") {
    rest.gpu_bandwidth = value;
  } else if (key == "link") {
    rest.link = value;
  } else {
    return Error(Code::invalid_argument, fmt::format("--machine: unknown key '{}'", key),
                 "keys: ram, cores, threads, ram-bandwidth, disk, disk-bandwidth, gpu, gpu-bandwidth, link, "
                 "cgroup; names: `rorqual plan --machine list`");
  }
  return Ok();
}

Status refuse_repeated(std::vector<std::string_view>& seen, std::string_view key) {
  if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
    return Error(Code::invalid_argument, fmt::format("--machine: '{}' is given twice", key),
                 "several equal GPUs are written gpu=2x24G; different ones cannot be planned");
  }
  seen.push_back(key);
  return Ok();
}

/// What the system and its services keep.
int64_t system_share_bytes(int64_t total) {
  return std::min(std::max(2 * kGiB, total / 25), total / 4);
}

Status set_gpu_rates(Machine& machine, const Description& rest) {
  for (const auto& [key, value] :
       {std::pair{"gpu-bandwidth", rest.gpu_bandwidth}, std::pair{"link", rest.link}}) {
    if (value.empty()) continue;
    if (machine.gpus.empty()) return bad_value(key, value, "a GPU beside it, such as gpu=24G");
    Rate rate;
    RORQUAL_TRY(set_rate(rate, key, value));
    for (Gpu& gpu : machine.gpus) (key == std::string_view("link") ? gpu.link : gpu.read) = rate;
  }
  return Ok();
}

Status complete(Machine& machine, const Description& rest) {
  if (machine.ram_total_bytes == 0) {
    return Error(Code::invalid_argument, fmt::format("--machine {}: no ram", machine.name),
                 "give the memory, as in ram=512G");
  }
  machine.cpu = fmt::format("{} cores", rest.cores);
  if (machine.threads == 0) machine.threads = rest.cores;
  machine.ram_available_bytes = machine.ram_total_bytes - system_share_bytes(machine.ram_total_bytes);
  if (rest.cgroup_bytes > 0)
    apply_cgroup(machine, {.memory_bytes = rest.cgroup_bytes, .memory_used_bytes = 0});
  if (machine.ram_read.value == 0) machine.ram_read = described(kDefaultRamRead, kWide);
  if (machine.disk_read.value == 0) machine.disk_read = described(kDefaultDiskRead, kWide);
  machine.disk_random = described(kDefaultDiskRandom, kWide);
  return set_gpu_rates(machine, rest);
}

int count_numa_nodes() {
  std::error_code ignored;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("node") && name.size() > 4 && name.find_first_not_of("0123456789", 4) == name.npos) {
      ++count;
    }
  }
  return std::max(count, 1);
}

/// Free bytes of the file system that holds `folder`, or its nearest parent that exists.
int64_t free_bytes(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path path = fs::absolute(folder.empty() ? "." : folder, error);
  for (int depth = 0; depth < 64 && !path.empty(); ++depth) {
    const fs::space_info space = fs::space(path, error);
    if (!error) return static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX));
    if (path == path.parent_path()) break;
    path = path.parent_path();
  }
  return 0;
}

}  // namespace

const std::vector<NamedMachine>& named_machines() {
  static const std::vector<NamedMachine> kMachines = {
      {"8xh20", "ram=1T,cores=96,ram-bandwidth=400G,gpu=8xh20,disk=7T,disk-bandwidth=6G",
       "eight H20 96 GB, 1 TiB RAM"},
      {"8xh200", "ram=2T,cores=96,ram-bandwidth=500G,gpu=8xh200,disk=14T,disk-bandwidth=6G",
       "eight H200 141 GB, 2 TiB RAM"},
      {"2xpro6000", "ram=512G,cores=32,ram-bandwidth=250G,gpu=2xpro6000,disk=4T,disk-bandwidth=6G",
       "two RTX PRO 6000 96 GB, 512 GiB RAM"},
      {"h200-256", "ram=256G,cores=24,ram-bandwidth=250G,gpu=h200,disk=4T,disk-bandwidth=6G",
       "one H200 141 GB, 256 GiB RAM"},
      {"4090-512", "ram=512G,cores=32,ram-bandwidth=200G,gpu=4090,disk=4T,disk-bandwidth=6G",
       "one 24 GB card, 512 GiB RAM"},
      {"cpu-768", "ram=768G,cores=64,ram-bandwidth=400G,disk=4T,disk-bandwidth=6G", "CPU only, 768 GiB RAM"},
      {"cpu-384", "ram=384G,cores=32,ram-bandwidth=200G,disk=4T,disk-bandwidth=6G", "CPU only, 384 GiB RAM"},
      {"cpu-128", "ram=128G,cores=16,ram-bandwidth=80G,disk=2T,disk-bandwidth=6G", "CPU only, 128 GiB RAM"},
  };
  return kMachines;
}

int64_t ram_total_for(int64_t available_bytes) {
  // system_share_bytes takes the larger of two shares, but never more than a quarter.
  const int64_t larger = std::max(available_bytes + 2 * kGiB, available_bytes + available_bytes / 24 + 1);
  return std::min(larger, available_bytes + available_bytes / 3 + 1);
}

void apply_cgroup(Machine& machine, const CgroupLimits& limits) {
  if (!limits.memory_bytes) return;
  machine.cgroup_limit_bytes = *limits.memory_bytes;
  const int64_t room = std::max<int64_t>(0, *limits.memory_bytes - limits.memory_used_bytes.value_or(0));
  machine.ram_available_bytes = std::min(machine.ram_available_bytes, room);
}

Machine this_machine(const std::string& folder) {
  Machine machine;
  machine.name = "this machine";
  const CpuInfo& cpu = cpu_info();
  machine.cpu = cpu.model_name.empty() ? "unknown CPU" : cpu.model_name;
  machine.threads = default_compute_threads(cpu);
  machine.numa_nodes = count_numa_nodes();
  const MemoryInfo memory = memory_info();  // the cgroup's room is in available_bytes already
  machine.ram_total_bytes = memory.total_bytes;
  machine.ram_available_bytes = memory.available_bytes;
  machine.cgroup_limit_bytes = memory.cgroup_limit_bytes.value_or(0);
  machine.disk_free_bytes = free_bytes(folder);
  return machine;
}

Result<Machine> describe_machine(std::string_view text) {
  Machine machine;
  machine.name = text;
  machine.is_described = true;
  std::string_view rest = text;
  for (const NamedMachine& named : named_machines()) {
    if (named.name == text) rest = named.description;
  }
  Description description;
  std::vector<std::string_view> seen;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return Error(
          Code::invalid_argument,
          fmt::format("--machine '{}': '{}' is no name of a machine and has no value", text, item),
          "write key=value with commas, as in ram=512G,gpu=24G; names: `rorqual plan --machine list`");
    }
    RORQUAL_TRY(refuse_repeated(seen, item.substr(0, equals)));
    RORQUAL_TRY(set_key(machine, description, item.substr(0, equals), item.substr(equals + 1)));
  }
  RORQUAL_TRY(complete(machine, description));
  return machine;
}

}  // namespace rorqual::plan
