// SPDX-License-Identifier: Apache-2.0
// From what the user wrote as MODEL to a loaded model or a running engine: the one place where weights,
// tokenizer and engine are put together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "format/tensor_source.h"
#include "model/config.h"
#include "model/model.h"
#include "model/switches.h"
#include "plan/verdict.h"
#include "runtime/engine.h"
#include "runtime/local_engine.h"
#include "text/tokenizer.h"

namespace rorqual::tools {

struct OpenOptions {
  std::string model;      // directory, "synthetic:v41?…", or empty for the embedded model
  std::string tokenizer;  // tokenizer.json to use instead of the model's own
  std::string numerics = "reference";
  std::string kernels;                    // tier, empty = best (or RORQUAL_CPU_ISA)
  std::string engram_placement = "auto";  // auto | host | disk; gpu is refused
  std::string cpu_experts = "auto";       // auto | all; none or a number of layers is refused
  model::Switches switches;               // lossy ones; all off
  int threads = 0;                        // 0 = what this process may use
  std::vector<int> compute_cpus;          // that compute threads keep to; empty = wherever the process may
  int64_t max_model_len = 0;              // 0 = the config's, at most 32768 (engines: and what fits)
  bool may_exceed_positions = true;  // engines: a context beyond the config's is a warning; false: an error
  int64_t max_num_seqs = 8;
  int64_t max_num_batched_tokens = 512;
  bool with_drafts = false;
  int64_t kv_cache_bytes = 0;  // of running requests, 0 = enough for all of them at their longest
  int64_t prefix_blocks = 0, prefix_windows = 0;  // further pages, for the prefix cache
};

/// A model's files before any weight is read. `tokenizer` is null if the source has none and none was needed.
struct OpenedSource {
  std::string name;  // to show and to serve under
  bool is_embedded = false;
  std::unique_ptr<format::TensorSource> source;
  model::Config config;
  std::unique_ptr<text::Tokenizer> tokenizer;
};

/// Errors: not_found, corrupt_data, invalid_argument (synthetic spec). A missing tokenizer is an error unless
/// `tokenizer_optional` and the config has no Engram layers, or the model is synthetic: then a stand-in maps
/// token ids for Engram.
Result<OpenedSource> open_source(const OpenOptions& options, bool tokenizer_optional = false);

/// The kernel table of `tier`; if that is empty, the one that the environment asks for, or the best. Errors:
/// unsupported.
Result<const kernels::KernelTable*> find_kernels(const std::string& tier);

/// What an engine with these options will need and get on this machine, now. Errors: invalid_argument,
/// unsupported (placements that this version does not have); too little memory is not an error here.
Result<plan::Plan> plan_engine(const OpenedSource& opened, const OpenOptions& options,
                               const runtime::EngineOptions& engine_options, int64_t prefix_cache_bytes = 0);

/// Loads the weights of `opened`, which must outlive the model (Engram tables may stay on disk).
Result<std::unique_ptr<model::Model>> open_model(const OpenedSource& opened, const OpenOptions& options,
                                                 const model::LoadProgress& progress = {});

/// The same with a changed config (checks only); names and shapes of the tensors must not depend on the
/// change.
Result<std::unique_ptr<model::Model>> open_model(const OpenedSource& opened, const OpenOptions& options,
                                                 const model::Config& config,
                                                 const model::LoadProgress& progress = {});

/// What a server or a chat adds to a model: reuse of prefixes and speculation. As made, all are off.
struct ReuseOptions {
  int64_t prefix_cache_bytes = 0;  // -1 = the plan chooses
  std::string prefix_cache_dir;    // empty = memory only
  int64_t prefix_disk_bytes = int64_t{16} << 30;
  int32_t speculative_tokens =
      0;  // most drafts of a step; -1 = adaptive, if the model has stages and they fit
};

/// Adaptive speculation drafts at most so many: the block that the stages were trained on.
inline constexpr int32_t kAdaptiveDrafts = 5;

/// Everything that a server or a chat needs. Members are destroyed in reverse order: the engine first.
struct OpenedEngine {
  OpenedSource opened;
  int64_t host_bytes = 0;    // weights in memory
  int64_t cache_tokens = 0;  // tokens that the KV cache of running requests holds
  int64_t prefix_cache_bytes = 0;
  std::vector<std::string> warnings;  // for the log, one line each
  std::unique_ptr<runtime::Engine> engine;
};

/// Called with the plan before the first weight is read, also when it does not fit.
using PlanShown = std::function<void(const plan::Plan&)>;

/// Plans, then loads. The plan chooses the context length and the place of the Engram tables where the
/// options leave them open. Errors: out_of_memory before anything is loaded, with both numbers and the cures.
Result<OpenedEngine> open_engine(const OpenOptions& options, const runtime::EngineOptions& engine_options,
                                 const model::LoadProgress& progress = {}, const PlanShown& show_plan = {},
                                 const ReuseOptions& reuse = {});

}  // namespace rorqual::tools
