// SPDX-License-Identifier: Apache-2.0
#include "model/synthetic_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>

#include "base/units.h"
#include "model/engram_hash.h"

namespace rorqual::model {
namespace {

constexpr std::string_view kScheme = "synthetic:";
constexpr std::string_view kFamily = "v41";

/// Keys with a count as value.
struct CountKey {
  std::string_view name;
  int64_t SyntheticSpec::*member;
  int64_t lowest, highest;
};

constexpr std::array<CountKey, 9> kCountKeys = {{
    {"experts", &SyntheticSpec::experts, 6, 4096},
    {"draft-experts", &SyntheticSpec::draft_experts, 3, 4096},
    {"engram-rows", &SyntheticSpec::engram_rows, 16, 16'000'000},
    {"hidden", &SyntheticSpec::hidden, 32, 65536},
    {"heads", &SyntheticSpec::heads, 8, 1024},
    {"vocab", &SyntheticSpec::vocab, 64, 16'777'216},
    {"compressed-vocab", &SyntheticSpec::compressed_vocab, 4, 16'777'216},
    {"index-topk", &SyntheticSpec::index_topk, 1, 65536},
    {"candidate-blocks", &SyntheticSpec::candidate_blocks, 1, 1'048'576},
}};

Error bad_value(std::string_view key, std::string_view value, const std::string& expected) {
  return Error(Code::invalid_argument,
               fmt::format("synthetic model: {}={}, expected {}", key, value, expected),
               "see docs/synthetic.md for the keys and what they may be");
}

Result<int64_t> parse_layer_id(std::string_view list, std::string_view text) {
  int64_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) {
    return bad_value("layers", list, "a number of layers, or layer ids such as 0,1,2,20 or 0-3,20");
  }
  return id;
}

/// Appends "7" or "3-5" to `layers`.
Status append_range(std::string_view list, std::string_view item, std::vector<int64_t>& layers) {
  const int64_t available = release_config().num_hidden_layers;
  const size_t dash = item.find('-', 1);
  RORQUAL_TRY_ASSIGN(const int64_t first, parse_layer_id(list, item.substr(0, dash)));
  int64_t last = first;
  if (dash != std::string_view::npos) {
    RORQUAL_TRY_ASSIGN(last, parse_layer_id(list, item.substr(dash + 1)));
  }
  if (first < 0 || last < first || last >= available) {
    return bad_value("layers", list, fmt::format("layer ids from 0 to {}", available - 1));
  }
  for (int64_t layer = first; layer <= last; ++layer) {
    if (!layers.empty() && layers.back() >= layer) {
      return bad_value("layers", list, fmt::format("ascending ids; {} comes after {}", layer, layers.back()));
    }
    layers.push_back(layer);
  }
  return Ok{};
}

Result<bool> parse_switch(std::string_view key, std::string_view value) {
  if (value == "0" || value == "1") return value == "1";
  return bad_value(key, value, "0 or 1");
}

/// Place of a release's layer in the slice, -1 if it is left out.
int64_t place_of(const std::vector<int64_t>& kept, int64_t layer) {
  const auto found = std::lower_bound(kept.begin(), kept.end(), layer);
  return found != kept.end() && *found == layer ? found - kept.begin() : -1;
}

/// Renumbered ids of the listed layers that are kept.
std::vector<int64_t> renumber(const std::vector<int64_t>& kept, const std::vector<int64_t>& layers) {
  std::vector<int64_t> places;
  for (const int64_t layer : layers) {
    if (const int64_t place = place_of(kept, layer); place >= 0) places.push_back(place);
  }
  return places;
}

Status check_sources(const Config& release, const std::vector<int64_t>& kept) {
  for (const int64_t layer : kept) {
    const int64_t source = release.ratio(layer) > 0 ? release.kv_source_of(layer) : -1;
    if (source >= 0 && place_of(kept, source) < 0) {
      return Error(
          Code::invalid_argument,
          fmt::format("synthetic model: layer {} reads the compressed KV of layer {}, which is not among "
                      "the kept layers {}",
                      layer, source, fmt::join(kept, ",")),
          fmt::format("add layer {} or leave layer {} out", source, layer));
    }
  }
  return Ok{};
}

/// The draft taps that are kept, filled up with the last layers.
std::vector<int64_t> remap_taps(const std::vector<int64_t>& kept, const std::vector<int64_t>& targets) {
  std::vector<int64_t> taps = renumber(kept, targets);
  const size_t wanted = std::min(targets.size(), kept.size());
  for (auto place = static_cast<int64_t>(kept.size()) - 1; taps.size() < wanted; --place) {
    if (std::find(taps.begin(), taps.end(), place) == taps.end()) taps.push_back(place);
  }
  std::sort(taps.begin(), taps.end());
  return taps;
}

void cut_drafts(Config& config) {
  config.num_nextn_predict_layers = 0;
  config.dspark_block_size = 0;
  config.dspark_target_layer_ids.clear();
}

void cut_layers(Config& config, const std::vector<int64_t>& kept, bool with_drafts) {
  const Config& release = release_config();
  config.num_hidden_layers = static_cast<int64_t>(kept.size());
  config.compress_ratios.clear();
  for (const int64_t layer : kept) config.compress_ratios.push_back(release.ratio(layer));
  config.kv_source_layer_ids = renumber(kept, release.kv_source_layer_ids);
  config.index_source_layer_ids = renumber(kept, release.index_source_layer_ids);
  config.engram_layer_ids = renumber(kept, release.engram_layer_ids);
  config.candidate_source_layer_id = place_of(kept, release.candidate_source_layer_id);
  if (config.candidate_source_layer_id < 0) config.candidate_topk_blocks = config.candidate_block_size = 0;
  config.dspark_target_layer_ids = remap_taps(kept, release.dspark_target_layer_ids);
  if (!with_drafts) cut_drafts(config);
  for (int64_t stage = 0; stage < config.num_stages(); ++stage) config.compress_ratios.push_back(0);
  config.layer_origin.clear();
  if (kept.size() != static_cast<size_t>(kept.back()) + 1) config.layer_origin = kept;
}

Status set_vocabulary(Config& config, const SyntheticSpec& spec) {
  if (spec.vocab > 0 && spec.vocab != config.vocab_size) {
    config.vocab_size = spec.vocab;
    config.dspark_noise_token_id = std::min(config.dspark_noise_token_id, spec.vocab - 1);
    config.image_token_id = std::min(config.image_token_id, spec.vocab - 1);
    if (spec.compressed_vocab == 0 && !config.engram_layer_ids.empty()) {
      return Error(
          Code::invalid_argument,
          fmt::format("synthetic model: vocab={} with Engram layers, but no compressed-vocab", spec.vocab),
          "give compressed-vocab=N, the number of distinct ids of the tokenizer's Engram map");
    }
  }
  if (spec.compressed_vocab > 0) config.engram_compressed_vocab_size = spec.compressed_vocab;
  if (config.engram_layer_ids.empty()) {  // unused
    config.engram_compressed_vocab_size = std::min(config.engram_compressed_vocab_size, config.vocab_size);
  }
  if (config.engram_compressed_vocab_size > config.vocab_size) {
    return bad_value("compressed-vocab", std::to_string(config.engram_compressed_vocab_size),
                     fmt::format("at most the vocabulary, {}", config.vocab_size));
  }
  return Ok{};
}

void set_widths(Config& config, const SyntheticSpec& spec) {
  const auto set = [](int64_t& field, int64_t value) {
    if (value > 0) field = value;
  };
  set(config.n_routed_experts, spec.experts);
  config.dspark_n_routed_experts = std::min(config.dspark_n_routed_experts, config.n_routed_experts);
  set(config.dspark_n_routed_experts, spec.draft_experts);
  set(config.hidden_size, spec.hidden);
  set(config.num_attention_heads, spec.heads);
  set(config.index_topk, spec.index_topk);
  if (config.candidate_source_layer_id >= 0) set(config.candidate_topk_blocks, spec.candidate_blocks);
  set(config.engram_vocab_size, spec.engram_rows);
}

/// Row counts of the kept Engram layers: sums of the primes that they have in the full model.
void set_engram_rows(Config& config, const std::vector<int64_t>& kept) {
  const std::vector<int64_t>& all = release_config().engram_layer_ids;
  const auto layout =
      prime_layout(static_cast<int64_t>(all.size()), config.engram_columns(), config.engram_vocab_size);
  config.engram_num_embeddings.clear();
  for (size_t slot = 0; slot < all.size(); ++slot) {
    if (place_of(kept, all[slot]) < 0) continue;
    const std::vector<int64_t>& primes = layout[slot];
    config.engram_num_embeddings.push_back(std::accumulate(primes.begin(), primes.end(), int64_t{0}));
  }
}

}  // namespace

bool is_synthetic(std::string_view model) {
  return model.starts_with(kScheme);
}

Result<std::vector<int64_t>> parse_layer_list(std::string_view text) {
  std::vector<int64_t> layers;
  if (text.find_first_of(",-") == std::string_view::npos) {
    RORQUAL_TRY_ASSIGN(const int64_t count, parse_layer_id(text, text));
    const int64_t available = release_config().num_hidden_layers;
    if (count < 1 || count > available) {
      return bad_value("layers", text, fmt::format("1 to {} layers, or a list of layer ids", available));
    }
    layers.resize(static_cast<size_t>(count));
    std::iota(layers.begin(), layers.end(), 0);
    return layers;
  }
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    RORQUAL_TRY(append_range(text, text.substr(start, end - start), layers));
    start = end + 1;
  }
  return layers;
}

Status set_synthetic_option(SyntheticSpec& spec, std::string_view key, std::string_view value) {
  for (const CountKey& count_key : kCountKeys) {
    if (count_key.name != key) continue;
    const Result<int64_t> count = parse_count(value);
    if (!count.ok() || *count < count_key.lowest || *count > count_key.highest) {
      return bad_value(key, value,
                       fmt::format("a number from {} to {}", count_key.lowest, count_key.highest));
    }
    spec.*count_key.member = *count;
    return Ok{};
  }
  if (key == "layers") {
    RORQUAL_TRY_ASSIGN(spec.layers, parse_layer_list(value));
  } else if (key == "drafts") {
    RORQUAL_TRY_ASSIGN(spec.drafts, parse_switch(key, value));
  } else if (key == "vision") {
    RORQUAL_TRY_ASSIGN(spec.vision, parse_switch(key, value));
  } else if (key == "tokenizer") {
    spec.tokenizer = value;
  } else if (key == "seed") {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), spec.seed);
    if (error != std::errc() || end != value.data() + value.size()) {
      return bad_value(key, value, "a number from 0 to 2^64 - 1");
    }
  } else {
    std::vector<std::string_view> names = {"layers", "seed", "drafts", "vision", "tokenizer"};
    for (const CountKey& count_key : kCountKeys) names.push_back(count_key.name);
    return Error(Code::invalid_argument, fmt::format("synthetic model: unknown key '{}'", key),
                 fmt::format("the keys are {}", fmt::join(names, ", ")));
  }
  return Ok{};
}

Result<SyntheticSpec> parse_synthetic(std::string_view model) {
  if (!is_synthetic(model)) {
    return Error(Code::invalid_argument, fmt::format("'{}' does not begin with '{}'", model, kScheme));
  }
  std::string_view rest = model.substr(kScheme.size());
  const std::string_view family = rest.substr(0, rest.find('?'));
  if (family != kFamily) {
    return Error(Code::invalid_argument,
                 fmt::format("'{}': unknown model '{}', expected '{}'", model, family, kFamily),
                 "write synthetic:v41?layers=4&seed=1");
  }
  SyntheticSpec spec;
  rest.remove_prefix(std::min(rest.size(), family.size() + 1));
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return Error(Code::invalid_argument, fmt::format("'{}': '{}' has no value", model, item),
                   "write key=value, with & between the pairs");
    }
    RORQUAL_TRY(set_synthetic_option(spec, item.substr(0, equals), item.substr(equals + 1)));
  }
  return spec;
}

std::string synthetic_name(const SyntheticSpec& spec) {
  std::string name = fmt::format("{}{}?seed={}", kScheme, kFamily, spec.seed);
  if (!spec.layers.empty()) {
    const bool first_layers = spec.layers.size() == static_cast<size_t>(spec.layers.back()) + 1;
    name += first_layers ? fmt::format("&layers={}", spec.layers.size())
                         : fmt::format("&layers={}{}",
                                       spec.layers.size() == 1 ? fmt::format("{}-", spec.layers[0]) : "",
                                       fmt::join(spec.layers, ","));
  }
  if (spec.drafts) name += fmt::format("&drafts={}", *spec.drafts ? 1 : 0);
  if (spec.vision) name += fmt::format("&vision={}", *spec.vision ? 1 : 0);
  for (const CountKey& key : kCountKeys) {
    if (spec.*key.member > 0) name += fmt::format("&{}={}", key.name, spec.*key.member);
  }
  if (!spec.tokenizer.empty()) name += "&tokenizer=" + spec.tokenizer;
  return name;
}

Result<Config> synthetic_config(const SyntheticSpec& spec) {
  Config config = release_config();
  std::vector<int64_t> kept = spec.layers;
  if (kept.empty()) {
    kept.resize(static_cast<size_t>(config.num_hidden_layers));
    std::iota(kept.begin(), kept.end(), 0);
  }
  RORQUAL_TRY(check_sources(release_config(), kept));
  const bool is_whole = static_cast<int64_t>(kept.size()) == release_config().num_hidden_layers;
  cut_layers(config, kept, spec.drafts.value_or(is_whole));
  if (!spec.vision.value_or(is_whole)) config.vision = {};
  RORQUAL_TRY(set_vocabulary(config, spec));
  set_widths(config, spec);
  set_engram_rows(config, kept);
  Result<Config> checked = parse_config(config_to_json(config));
  if (!checked.ok()) {
    return Error(Code::invalid_argument, "synthetic model: " + checked.error().message(),
                 "see docs/synthetic.md for the keys and what they may be");
  }
  return checked;
}

}  // namespace rorqual::model
