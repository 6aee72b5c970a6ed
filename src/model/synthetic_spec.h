// SPDX-License-Identifier: Apache-2.0
// What a synthetic model is asked to be: "synthetic:v41?layers=4&seed=1&experts=16" or the options of
// `convert --synthesize`. Turns it into a Config: the release's, cut to some of its layers.
// docs/synthetic.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace rorqual::model {

/// 0 and empty mean the release's value.
struct SyntheticSpec {
  std::vector<int64_t> layers;  // layer ids of the release, ascending; empty = all
  uint64_t seed = 1;
  std::optional<bool> drafts;  // default: only when no layer is left out
  std::optional<bool> vision;  // likewise
  int64_t experts = 0;         // routed experts per layer
  int64_t draft_experts = 0;   // default: the release's, but not more than `experts`
  int64_t engram_rows = 0;     // start of the prime search: rows of each hash column, about
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t vocab = 0;
  int64_t compressed_vocab =
      0;  // distinct ids of the tokenizer's Engram map; must be given with another `vocab`
  int64_t index_topk = 0;
  int64_t candidate_blocks = 0;
  std::string tokenizer;  // folder with tokenizer.json; empty = the model has none
};

/// Does `model` name a synthetic model rather than a folder?
bool is_synthetic(std::string_view model);

/// "synthetic:v41?key=value&…"; keys are the option names of `convert --synthesize`: layers, seed, drafts,
/// vision, experts, draft-experts, engram-rows, hidden, heads, vocab, compressed-vocab, index-topk,
/// candidate-blocks, tokenizer. Errors: invalid_argument with the key, its value and what is allowed.
Result<SyntheticSpec> parse_synthetic(std::string_view model);

/// Sets one key of the list above. Errors: invalid_argument.
Status set_synthetic_option(SyntheticSpec& spec, std::string_view key, std::string_view value);

/// "4" = the first four layers; "0,1,2,20,24", "0-3,20" = these layers of the release, ascending.
Result<std::vector<int64_t>> parse_layer_list(std::string_view text);

/// The inverse of parse_synthetic: only what differs from the defaults.
std::string synthetic_name(const SyntheticSpec& spec);

/// The config of the slice. Sources, Engram layers and draft taps are renumbered, layer_origin keeps the
/// release's ids, taps on missing layers move to the last kept ones. Errors: invalid_argument, naming a layer
/// that is needed and missing, or the impossible override.
Result<Config> synthetic_config(const SyntheticSpec& spec);

}  // namespace rorqual::model
