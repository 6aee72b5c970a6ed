// SPDX-License-Identifier: Apache-2.0
// A machine as the planner sees it: what it can hold and how fast each tier is. Read from this machine, or
// described in words ("ram=512G,gpu=24G,disk=4T").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_info.h"
#include "base/result.h"

namespace rorqual::plan {

/// A speed with its uncertainty: the truth is expected in value · (1 ± spread).
struct Rate {
  double value = 0;       // bytes/s or operations/s; 0 = unknown
  double spread = 0;      // relative
  bool measured = false;  // on this machine, now; else described or assumed
};

/// Name of the KernelRate of the attention's output products (FP8), measured as a stage.
inline constexpr const char* kAttentionOutput = "attention output";

/// How fast the CPU kernels go through weights of one format, all threads together, at real widths.
struct KernelRate {
  std::string format;  // "mxfp4", "fp8", "bf16", "f32"; or kAttentionOutput, whose products have their own
  Rate one_row;        // bytes of weights per second with one row of activations (decode)
  Rate few_rows;       // multiply-adds per second with four rows (batched decode, sparse experts)
  Rate many_rows;      // multiply-adds per second with many rows (prefill)
};

/// How fast the stages are that are no plain matrix product, all threads together, at the release's widths.
/// Stages: "boundary" (sublayer boundaries), "attend" (rows over a full window), "attend_slot" (further
/// selected entries of a row), "index_key" (keys scored for a row), "layer_row" (a row's way through a layer
/// beside all this: norms, roundings, routing), "region" (parallel sections).
struct StageRate {
  std::string stage;
  Rate one_row;    // per second when a step has one row
  Rate many_rows;  // per second when a step has many
};

struct Gpu {
  std::string name;
  int64_t memory_bytes = 0;
  Rate read;        // bytes/s of its memory
  Rate arithmetic;  // dense multiply-adds per second of the tensor cores in the formats we use
  Rate link;        // bytes/s from host memory
};

struct Machine {
  std::string name;  // "this machine", or the description
  bool is_described = false;
  std::string cpu;
  int threads = 0;  // compute threads that a plan assumes
  int numa_nodes = 1;
  int64_t ram_total_bytes = 0;
  int64_t ram_available_bytes = 0;
  int64_t cgroup_limit_bytes = 0;  // 0 = none; already applied to ram_available_bytes
  Rate ram_read;
  std::vector<KernelRate> kernels;  // empty = derive from ram_read and threads
  std::vector<StageRate> stages;    // likewise
  int64_t disk_free_bytes = 0;      // where the model lies or would lie
  Rate disk_read;                   // sequential
  Rate disk_random;                 // random 4 KiB reads per second
  std::vector<Gpu> gpus;
};

/// "ram=512G,gpu=24G,disk=4T,…": keys ram, cores, threads, ram-bandwidth, disk, disk-bandwidth, gpu (size,
/// "2x96G" or a known name such as "8xh20"), gpu-bandwidth, link, cgroup; or the name of a built-in machine.
/// Errors: invalid_argument with the key, its value and what is allowed.
Result<Machine> describe_machine(std::string_view text);

/// Total memory of a described machine of which, beside what its system keeps, `available_bytes` are left.
int64_t ram_total_for(int64_t available_bytes);

/// Machines with names, for `plan --machine NAME`.
struct NamedMachine {
  std::string_view name;
  std::string_view description;  // as describe_machine reads it
  std::string_view summary;
};

const std::vector<NamedMachine>& named_machines();

/// What this process may use now: memory with the cgroup's room, threads, free disk where `folder` is (or
/// will be; empty = the working folder). Measures nothing: all rates are unknown, and no GPU is looked for.
Machine this_machine(const std::string& folder);

/// Lowers ram_available_bytes to the room of a cgroup limit.
void apply_cgroup(Machine& machine, const CgroupLimits& limits);

}  // namespace rorqual::plan
