// SPDX-License-Identifier: Apache-2.0
#include "tools/version.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/cpu_info.h"
#include "base/sha256.h"
#include "kernels/kernels.h"
#include "tools/build_info.h"

namespace rorqual::tools {
namespace {

std::string short_commit() {
  const auto& info = build_info();
  return fmt::format("{}{}", info.commit.substr(0, 9), info.dirty ? "+changes" : "");
}

/// Name of the kernel table in use; "none" if RORQUAL_CPU_ISA names one that this CPU cannot run.
std::string kernel_tier() {
  const auto* table = kernels::select_kernels();
  return table == nullptr ? "none" : std::string(table->name);
}

}  // namespace

Result<std::string> program_sha256() {
  auto hash = sha256_of_file("/proc/self/exe");
  if (!hash.ok()) return std::move(hash).error().at("cannot hash the running program");
  return hash;
}

Result<std::string> version_json() {
  const auto& info = build_info();
  RORQUAL_TRY_ASSIGN(const auto sha256, program_sha256());
  nlohmann::ordered_json libraries;
  for (const auto& [name, version] : info.libraries) libraries[std::string(name)] = version;
  const nlohmann::ordered_json document = {{"schema", "rorqual.version/1"}, {"version", info.version},
                                           {"commit", info.commit},         {"commit_date", info.commit_date},
                                           {"dirty", info.dirty},           {"compiler", info.compiler},
                                           {"flags", info.flags},           {"build_type", info.build_type},
                                           {"sanitizers", info.sanitizers}, {"libraries", libraries},
                                           {"kernels", kernel_tier()},      {"cpu", cpu_info().model_name},
                                           {"program_sha256", sha256}};
  return document.dump(2);
}

std::string version_line() {
  const auto& info = build_info();
  return fmt::format("rorqual {} ({}, {}, kernels {})", info.version, short_commit(), info.compiler,
                     kernel_tier());
}

Status run_version(bool as_json) {
  if (as_json) {
    RORQUAL_TRY_ASSIGN(const auto text, version_json());
    fmt::print("{}\n", text);
    return Ok();
  }
  const auto& info = build_info();
  fmt::print("{}\n  commit    {} of {}{}\n  compiler  {} {}\n", version_line(), info.commit, info.commit_date,
             info.dirty ? ", with uncommitted changes" : "", info.compiler, info.flags);
  fmt::print("  libraries ");
  for (const auto& [name, version] : info.libraries) fmt::print(" {} {}", name, version);
  fmt::print("\n");
  return Ok();
}

}  // namespace rorqual::tools
