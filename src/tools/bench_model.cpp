// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_model.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace rorqual::tools {
namespace {

/// A line of /proc/self/status in bytes, 0 if there is none.
int64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(key + ":", 0) == 0) return std::atoll(line.c_str() + key.size() + 1) * 1024;
  }
  return 0;
}

}  // namespace

Result<PlannedModel> open_planned(OpenOptions open, int64_t tokens) {
  PlannedModel result;
  result.open = std::move(open);
  if (result.open.max_model_len == 0) result.open.max_model_len = tokens;
  if (result.open.max_model_len < tokens) {
    return Error(Code::invalid_argument,
                 fmt::format("--max-model-len {} is shorter than prompt and answer together, {} tokens",
                             result.open.max_model_len, tokens));
  }
  RORQUAL_TRY_ASSIGN(result.opened, open_source(result.open, true));
  runtime::EngineOptions engine;
  engine.max_num_seqs = engine.max_logit_rows = result.open.max_num_seqs;
  RORQUAL_TRY_ASSIGN(result.plan, plan_engine(result.opened, result.open, engine));
  RORQUAL_TRY(plan::check_plan(result.plan));
  result.open.engram_placement = result.plan.memory.settings.engram_on_disk ? "disk" : "host";
  const double start = seconds_now();
  RORQUAL_TRY_ASSIGN(result.model, open_model(result.opened, result.open));
  result.load_s = seconds_now() - start;
  return result;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<double> load_average() {
  std::vector<double> loads(3, 0.0);
  if (getloadavg(loads.data(), 3) != 3) loads.clear();
  return loads;
}

int64_t resident_bytes() {
  return status_bytes("VmRSS");
}

int64_t peak_resident_bytes() {
  return status_bytes("VmHWM");
}

}  // namespace rorqual::tools
