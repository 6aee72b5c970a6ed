// SPDX-License-Identifier: Apache-2.0
// The options of every command that opens a model: one description each, and one way from values to
// tools::OpenOptions.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/option.h"
#include "cli/values.h"
#include "text/prompt_compat.h"
#include "tools/open_model.h"

namespace rorqual::cli {

/// Positional MODEL; tokenizer, threads, numerics, engram-placement; the lossy switches with exact-switches
/// and fast.
std::vector<OptionSpec> model_options();

/// Only the lossy switches with exact-switches and fast, from model/switches.h (model_options has them).
std::vector<OptionSpec> switch_options();

/// max-model-len, max-num-seqs, max-num-batched-tokens, long-prefill-token-threshold, max-queued-requests,
/// max-num-queued-tokens, max-queue-wait, scheduling-policy, kv-cache-memory-bytes, seed.
std::vector<OptionSpec> limit_options();

/// max-model-len alone.
OptionSpec max_model_len_option();

/// max-num-batched-tokens alone.
OptionSpec max_num_batched_tokens_option();

/// A number of a bench's workload.
OptionSpec workload_option(std::string_view name, std::string_view help, std::string_view value,
                           double least);

/// kernels: tier by name.
OptionSpec kernels_option();

/// prompt-compat: the prompt's form of an earlier release or another server.
OptionSpec prompt_compat_option();

/// Errors: invalid_argument (unknown name).
Result<text::PromptCompat> prompt_compat_value(const Values& values);

void append(std::vector<OptionSpec>& options, std::vector<OptionSpec> more);

/// Reads whatever of the above the command has. Errors: invalid_argument (switches that contradict each
/// other).
Result<tools::OpenOptions> open_options(const Values& values);

/// The lossy switches that the values ask for.
Result<model::Switches> switch_values(const Values& values);

}  // namespace rorqual::cli
