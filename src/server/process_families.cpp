// SPDX-License-Identifier: Apache-2.0
// Figures of the process from the system, under the names that all Prometheus clients use.
#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "server/metric_families.h"

namespace rorqual::server {

namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

struct ProcessFigures {
  double cpu_s = 0, resident_bytes = 0, virtual_bytes = 0, open_files = 0, max_files = 0, start_time_s = 0;
};

double start_time() {
  std::ifstream stat("/proc/self/stat");
  std::string line;
  std::getline(stat, line);
  const size_t close = line.rfind(')');  // the name before it may hold spaces
  double ticks = 0;
  if (close != std::string::npos) {
    size_t at = close + 1;
    for (int field = 2; field < 21 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
    if (at != std::string::npos) ticks = std::strtod(line.c_str() + at, nullptr);
  }
  double boot_s = 0;
  std::ifstream boot("/proc/stat");
  while (std::getline(boot, line)) {
    if (line.rfind("btime ", 0) == 0) boot_s = std::strtod(line.c_str() + 6, nullptr);
  }
  return boot_s + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

ProcessFigures process_figures() {
  ProcessFigures figures;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  figures.cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  std::ifstream statm("/proc/self/statm");
  double pages = 0, resident = 0;
  if (statm >> pages >> resident) {
    const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
    figures.virtual_bytes = pages * page_bytes;
    figures.resident_bytes = resident * page_bytes;
  }
  if (DIR* directory = opendir("/proc/self/fd")) {
    while (readdir(directory) != nullptr) figures.open_files += 1;
    closedir(directory);
    figures.open_files -= 3;  // ".", ".." and the directory itself
  }
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  figures.max_files = static_cast<double>(limit.rlim_cur);
  static const double kStart_s = start_time();
  figures.start_time_s = kStart_s;
  return figures;
}

}  // namespace

std::vector<MetricFamily> process_families() {
  const ProcessFigures f = process_figures();
  std::vector<MetricFamily> families;
  const auto add = [&families](const char* name, const char* help, MetricType type, double value) {
    MetricFamily family{name, help, type, {}};
    family.metric.emplace_back();
    (type == MetricType::Counter ? family.metric.back().counter.value : family.metric.back().gauge.value) =
        value;
    families.push_back(std::move(family));
  };
  add("process_cpu_seconds_total", "User and system time.", MetricType::Counter, f.cpu_s);
  add("process_resident_memory_bytes", "Resident memory.", MetricType::Gauge, f.resident_bytes);
  add("process_virtual_memory_bytes", "Virtual memory.", MetricType::Gauge, f.virtual_bytes);
  add("process_open_fds", "Open file descriptors.", MetricType::Gauge, f.open_files);
  add("process_max_fds", "Limit of open file descriptors.", MetricType::Gauge, f.max_files);
  add("process_start_time_seconds", "Start of the process, seconds since 1970.", MetricType::Gauge,
      f.start_time_s);
  return families;
}

}  // namespace rorqual::server
