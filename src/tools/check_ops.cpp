// SPDX-License-Identifier: Apache-2.0
#include "tools/check_ops.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "base/thread_pool.h"
#include "tools/check_ops_vectors.h"

namespace rorqual::tools {
namespace {

/// A topic, its file name, and a tensor that only its files have.
struct Topic {
  std::string_view name;
  std::string_view mark;
  Status (*check)(OpsCheck& check);
};

constexpr Topic kTopics[] = {
    {"tables", "e4m3", check_ops_tables},
    {"weights", "fp8row.w", check_ops_weights},
    {"activations", "fp8.q", check_ops_activations},
    {"linear", "fp8.official", check_ops_linear},
    {"norm", "eps", check_ops_norm},
    {"hyper", "hc4.fn", check_ops_hyper},
    {"rope", "swa.inv_freq", check_ops_rope},
    {"compressor", "r1.wkv.weight", check_ops_compressor},
    {"hashing", "release.primes", check_ops_hashing},
    {"mlp", "router.idx", check_ops_mlp},
    {"attention", "out.official", check_ops_attention},
};

/// What the file holds decides; its name only where it has no telling tensor.
Result<const Topic*> topic_of(const OpsVectors& vectors) {
  for (const Topic& topic : kTopics) {
    if (vectors.has(std::string(topic.mark))) return &topic;
  }
  const std::string stem = std::filesystem::path(vectors.path()).stem().string();
  for (const Topic& topic : kTopics) {
    if (stem == topic.name) return &topic;
  }
  return Error(
      Code::unsupported,
      fmt::format("{}: neither its name nor its tensors belong to a known topic", vectors.path()),
      "topics: tables, weights, activations, linear, norm, hyper, rope, compressor, hashing, mlp, attention");
}

Status check_file(const std::string& path, CheckReport& report) {
  RORQUAL_TRY_ASSIGN(const OpsVectors vectors, OpsVectors::open(path));
  RORQUAL_TRY_ASSIGN(const Topic* topic, topic_of(vectors));
  const auto tables = kernels::available_kernels();
  const auto operators = kernels::available_operators();
  for (size_t tier = 0; tier < operators.size(); ++tier) {
    const int64_t before = report.passed() + report.failed();
    OpsCheck check(vectors, *operators[tier], *tables[tier], report);
    const ScopedFlushToZero flush;
    RORQUAL_TRY(topic->check(check));
    if (report.passed() + report.failed() == before) {
      return Error(Code::corrupt_data, fmt::format("{}: nothing to check for topic '{}'", path, topic->name));
    }
  }
  return Ok{};
}

}  // namespace

Status check_ops(const std::vector<std::string>& files, CheckReport& report) {
  if (kernels::available_operators().empty()) {
    return Error(Code::unsupported, "this CPU lacks AVX2, FMA or F16C, which every kernel tier needs",
                 "run on an x86-64-v3 CPU; `rorqual doctor` shows what this one has");
  }
  for (const std::string& file : files) RORQUAL_TRY(check_file(file, report));
  return Ok{};
}

}  // namespace rorqual::tools
