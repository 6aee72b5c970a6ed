// SPDX-License-Identifier: Apache-2.0
#include "tools/open_model.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/affinity.h"
#include "base/cpu_info.h"
#include "base/file.h"
#include "kernels/kernels.h"
#include "model/cache.h"
#include "model/synthetic.h"
#include "plan/memory_step.h"
#include "text/token_map.h"
#include "tools/embedded_model.h"
#include "tools/model_identity.h"

namespace rorqual::tools {
namespace {

constexpr int64_t kMaxTokenizer_bytes = int64_t{64} << 20;

bool is_synthetic(const std::string& model) {
  return model.rfind("synthetic:", 0) == 0;
}

Result<std::unique_ptr<format::TensorSource>> open_tensors(const std::string& model) {
  if (model.empty()) return open_embedded_model();
  if (is_synthetic(model)) return model::open_synthetic(model);
  return format::open_checkpoint(model);
}

std::string display_name(const std::string& model) {
  if (model.empty()) return std::string(kEmbeddedModelName);
  if (is_synthetic(model)) return model;
  std::error_code ignored;
  const auto absolute = std::filesystem::weakly_canonical(model, ignored);
  const std::string last = absolute.filename().string();
  return last.empty() ? model : last;
}

Result<std::unique_ptr<text::Tokenizer>> open_tokenizer(const OpenOptions& options,
                                                        const format::TensorSource& source) {
  const bool is_override = !options.tokenizer.empty();
  Result<std::string> json = is_override ? read_text_file(options.tokenizer, kMaxTokenizer_bytes)
                                         : source.read_text("tokenizer.json");
  if (!json.ok()) {
    return Error(
        json.error().code(),
        fmt::format("cannot read the tokenizer of model '{}': {}", source.name(), json.error().message()),
        "put the release's tokenizer.json into the model folder, or name one with --tokenizer FILE");
  }
  auto tokenizer = text::Tokenizer::from_json(*json);
  if (!tokenizer.ok()) {
    return std::move(tokenizer).error().at(is_override ? options.tokenizer
                                                       : source.name() + "/tokenizer.json");
  }
  return std::make_unique<text::Tokenizer>(*std::move(tokenizer));
}

Status check_vocabulary(const OpenedSource& opened) {
  if (opened.tokenizer->vocab_size() <= opened.config.vocab_size) return Ok{};
  return Error(Code::corrupt_data,
               fmt::format("the tokenizer of model '{}' has {} tokens, config.json says vocab_size {}",
                           opened.name, opened.tokenizer->vocab_size(), opened.config.vocab_size),
               "tokenizer.json and config.json are from different models");
}

}  // namespace

Result<OpenedSource> open_source(const OpenOptions& options, bool tokenizer_optional) {
  OpenedSource opened;
  opened.is_embedded = options.model.empty();
  opened.name = display_name(options.model);
  RORQUAL_TRY_ASSIGN(opened.source, open_tensors(options.model));
  RORQUAL_TRY_ASSIGN(const std::string config_text, opened.source->read_text("config.json"));
  auto config = model::parse_config(config_text);
  if (!config.ok()) return std::move(config).error().at(opened.source->name() + "/config.json");
  opened.config = *std::move(config);
  auto tokenizer = open_tokenizer(options, *opened.source);
  if (tokenizer.ok()) {
    opened.tokenizer = *std::move(tokenizer);
    RORQUAL_TRY(check_vocabulary(opened));
  } else if (!tokenizer_optional || tokenizer.error().code() != Code::not_found ||
             (!opened.config.engram_layer_ids.empty() && !is_synthetic(options.model))) {
    return std::move(tokenizer).error();
  }
  return opened;
}

Result<const kernels::KernelTable*> find_kernels(const std::string& tier) {
  if (const auto* table = kernels::select_kernels(tier)) return table;
  const char* forced = std::getenv("RORQUAL_CPU_ISA");
  return Error(Code::unsupported,
               fmt::format("kernel tier '{}' is unknown or not supported by this CPU",
                           tier.empty() && forced != nullptr ? forced : tier),
               "`rorqual doctor` lists the tiers of this machine");
}

namespace {

/// Engram's map of a synthetic model without a tokenizer: as many classes, spread evenly.
std::vector<int32_t> stand_in_token_map(const model::Config& config) {
  std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
  for (size_t i = 0; i < map.size(); ++i) {
    map[i] = static_cast<int32_t>(static_cast<int64_t>(i) % config.engram_compressed_vocab_size);
  }
  return map;
}

/// Address space for work memory: what the plan expects, and some more that is touched only if it is wrong.
int64_t scratch_space_bytes(const model::Config& config, const model::ModelOptions& options) {
  plan::MemorySettings settings;
  settings.numerics = options.numerics;
  settings.max_model_len = options.max_model_len;
  settings.max_num_seqs = options.max_sequences;
  settings.max_num_batched_tokens = options.max_step_rows;
  settings.max_logit_rows = options.max_step_rows;
  settings.threads = options.num_threads;
  settings.with_drafts = options.with_drafts;
  return plan::step_scratch_bytes(config, settings) * 5 / 4;
}

Status check_numerics(const OpenOptions& options) {
  if (options.numerics == "reference" || options.numerics == "exact") return Ok{};
  return Error(Code::invalid_argument,
               fmt::format("--numerics '{}': expected reference or exact", options.numerics));
}

}  // namespace

Result<plan::Plan> plan_engine(const OpenedSource& opened, const OpenOptions& options,
                               const runtime::EngineOptions& engine_options, int64_t prefix_cache_bytes) {
  RORQUAL_TRY(check_numerics(options));
  plan::PlanRequest request;
  request.model = opened.name;
  request.numerics = options.numerics == "exact" ? kernels::Numerics::exact : kernels::Numerics::reference;
  request.max_model_len = options.max_model_len;
  request.max_num_seqs = options.max_num_seqs;
  request.max_num_batched_tokens = options.max_num_batched_tokens;
  request.max_logit_rows =
      std::max(engine_options.max_logit_rows,
               std::min({engine_options.max_num_seqs, engine_options.max_num_batched_tokens,
                         options.max_num_batched_tokens}));
  request.threads = options.threads;
  request.engram_placement = options.engram_placement;
  request.cpu_experts = options.cpu_experts;
  request.is_embedded = opened.is_embedded;
  request.with_drafts = options.with_drafts;
  request.kv_cache_bytes = options.kv_cache_bytes;
  request.prefix_cache_bytes = prefix_cache_bytes;
  request.swap_bytes = engine_options.swap_bytes;
  request.switches = options.switches;
  return plan::make_plan(opened.config, plan::this_machine(options.model), request);
}

Result<std::unique_ptr<model::Model>> open_model(const OpenedSource& opened, const OpenOptions& options,
                                                 const model::LoadProgress& progress) {
  return open_model(opened, options, opened.config, progress);
}

Result<std::unique_ptr<model::Model>> open_model(const OpenedSource& opened, const OpenOptions& options,
                                                 const model::Config& config,
                                                 const model::LoadProgress& progress) {
  model::ModelOptions model_options;
  RORQUAL_TRY(check_numerics(options));
  RORQUAL_TRY(plan::check_cpu_experts(options.cpu_experts));
  RORQUAL_TRY(plan::check_engram_placement(options.engram_placement));
  model_options.numerics =
      options.numerics == "exact" ? kernels::Numerics::exact : kernels::Numerics::reference;
  RORQUAL_TRY_ASSIGN(model_options.kernels, find_kernels(options.kernels));
  model_options.engram_on_disk = options.engram_placement == "disk";
  model_options.num_threads = options.threads > 0 ? options.threads : default_compute_threads(cpu_info());
  model_options.compute_cpus = options.compute_cpus;
  model_options.with_drafts = options.with_drafts;
  model_options.switches = options.switches;
  const int64_t longest = config.max_position_embeddings;
  model_options.max_model_len =
      options.max_model_len > 0 ? options.max_model_len : std::min(longest, plan::kDefaultMaxModelLen);
  model_options.max_step_rows = options.max_num_batched_tokens;
  model_options.max_sequences = options.max_num_seqs;
  model_options.prefix_blocks = options.prefix_blocks;
  model_options.prefix_windows = options.prefix_windows;
  const auto layout = model::make_cache_layout(config, model_options.numerics, model_options.with_drafts);
  model_options.num_blocks =
      layout.running_blocks(options.kv_cache_bytes, model_options.max_model_len, model_options.max_sequences);
  model_options.scratch_bytes = scratch_space_bytes(config, model_options);
  std::vector<int32_t> token_map;
  if (!config.engram_layer_ids.empty()) {
    token_map = opened.tokenizer != nullptr ? text::engram_token_map(*opened.tokenizer).compressed
                                            : stand_in_token_map(config);
    // Embedding rows beyond the tokenizer's ids are never produced; they get the pad token's class.
    if (static_cast<int64_t>(token_map.size()) < config.vocab_size) {
      token_map.resize(static_cast<size_t>(config.vocab_size),
                       token_map[static_cast<size_t>(config.engram_pad_token_id)]);
    }
  }
  return model::Model::load(*opened.source, config, std::move(token_map), model_options, progress);
}

namespace {

/// The plan with drafts; without them if that was left open and only then everything fits.
Result<plan::Plan> plan_with_drafts(const OpenedSource& opened, OpenOptions& options,
                                    const runtime::EngineOptions& engine_options, const ReuseOptions& reuse) {
  const bool has_stages = opened.config.num_stages() > 0;
  options.with_drafts = has_stages && reuse.speculative_tokens != 0;
  RORQUAL_TRY_ASSIGN(plan::Plan plan, plan_engine(opened, options, engine_options, reuse.prefix_cache_bytes));
  if (plan.fits() || !options.with_drafts || reuse.speculative_tokens > 0) return plan;
  options.with_drafts = false;
  return plan_engine(opened, options, engine_options, reuse.prefix_cache_bytes);
}

/// Sizes the pools for the prefix cache as the plan has counted them.
void add_prefix_pages(const plan::Plan& plan, OpenOptions& options) {
  const plan::MemorySettings& settings = plan.memory.settings;
  const auto layout = model::make_cache_layout(plan.memory.config, settings.numerics, settings.with_drafts);
  const model::PrefixPages pages = model::prefix_pages(layout, settings.prefix_cache_bytes);
  options.prefix_blocks = pages.blocks;
  options.prefix_windows = pages.windows;
}

/// `error` is empty when the disk can be written again.
void log_disk_change(const std::string& error) {
  if (error.empty()) {
    spdlog::info("cache  pages of the prefix cache are written to disk again");
  } else {
    spdlog::warn("cache  pages of the prefix cache stay in memory only, the disk fails: {}", error);
  }
}

/// A disk that cannot be used costs the server nothing but its help.
void open_disk_tier(const ReuseOptions& reuse, runtime::EngineOptions& options, OpenedEngine& result) {
  if (reuse.prefix_cache_dir.empty()) return;
  if (options.prefix_cache_bytes == 0) {
    result.warnings.push_back("--prefix-cache-dir has no effect: the prefix cache in memory is off");
    return;
  }
  auto disk = prefix::DiskTier::open({.directory = reuse.prefix_cache_dir,
                                      .model_identity = options.model_identity,
                                      .max_bytes = reuse.prefix_disk_bytes,
                                      .on_change = log_disk_change});
  if (disk.ok()) {
    options.prefix_disk = *std::move(disk);
  } else {
    result.warnings.push_back(fmt::format("prefix cache without its disk: {}{}{}", disk.error().message(),
                                          disk.error().hint().empty() ? "" : "; ", disk.error().hint()));
  }
}

/// One token through everything, drafts included, before anybody is told that the model is ready: what cannot
/// compute fails here and not in the first request.
Status run_first_step(model::Model& model, const std::string& name) {
  const auto refuse = [&](const char* what) {
    return Error(Code::corrupt_data, fmt::format("the first step of model '{}' gives {}", name, what),
                 "`rorqual inspect --verify MODEL` lists tensors with values that are not finite");
  };
  const auto is_bad = [](float value) { return !std::isfinite(value); };
  RORQUAL_TRY_ASSIGN(const model::SequenceId sequence, model.open_sequence());
  if (!model.reserve(sequence, 1)) return Error(Code::out_of_memory, "no cache block for the first step");
  const int32_t token = 0, offset = 0;
  model::StepSlice slice;
  slice.sequence = sequence;
  slice.tokens = {&token, 1};
  slice.logit_offsets = {&offset, 1};
  std::vector<float> logits(static_cast<size_t>(model.vocab_size()));
  RORQUAL_TRY(model.forward({&slice, 1}, logits));
  if (std::any_of(logits.begin(), logits.end(), is_bad)) return refuse("logits that are not finite");
  if (model.max_drafts() > 0) {
    const model::DraftSlice next{sequence, token};
    int32_t draft = 0;
    float confidence = 0;
    RORQUAL_TRY(model.draft({&next, 1}, 1, {&draft, 1}, {&confidence, 1}));
    if (is_bad(confidence)) return refuse("a draft whose confidence is not finite");
  }
  model.close_sequence(sequence);
  return Ok{};
}

/// What of the reuse options goes to the engine.
runtime::EngineOptions engine_with_reuse(const runtime::EngineOptions& engine_options,
                                         const OpenOptions& options, const ReuseOptions& reuse,
                                         OpenedEngine& result) {
  runtime::EngineOptions engine = engine_options;
  engine.are_drafts_adaptive = reuse.speculative_tokens < 0;
  engine.drafts = !options.with_drafts         ? 0
                  : engine.are_drafts_adaptive ? kAdaptiveDrafts
                                               : reuse.speculative_tokens;
  engine.replay_trim = options.switches.replay_trim;
  engine.prefix_cache_bytes = result.prefix_cache_bytes;
  if (engine.prefix_cache_bytes > 0) engine.model_identity = model_identity(result.opened, options);
  open_disk_tier(reuse, engine, result);
  return engine;
}

}  // namespace

Result<OpenedEngine> open_engine(const OpenOptions& options, const runtime::EngineOptions& engine_options,
                                 const model::LoadProgress& progress, const PlanShown& show_plan,
                                 const ReuseOptions& reuse) {
  OpenedEngine result;
  OpenOptions chosen = options;
  RORQUAL_TRY_ASSIGN(result.opened, open_source(options));
  const int64_t trained = result.opened.config.max_position_embeddings;
  if (!options.may_exceed_positions && options.max_model_len > trained) {
    return Error(Code::invalid_argument, fmt::format("--max-model-len {}: the model's config allows {}",
                                                     options.max_model_len, trained))
        .by(Limit::model_len);
  }
  RORQUAL_TRY_ASSIGN(const plan::Plan plan, plan_with_drafts(result.opened, chosen, engine_options, reuse));
  if (show_plan) show_plan(plan);
  RORQUAL_TRY(plan::check_plan(plan));
  chosen.max_model_len = plan.memory.settings.max_model_len;
  chosen.engram_placement = plan.memory.settings.engram_on_disk ? "disk" : "host";
  add_prefix_pages(plan, chosen);
  const std::vector<int> cpus = thread_cpus();
  RORQUAL_TRY_ASSIGN(auto model, open_model(result.opened, chosen, progress));
  RORQUAL_TRY(run_first_step(*model, result.opened.name));
  // This thread computed and stayed with the compute threads; those that the engine makes belong to the rest.
  if (!options.compute_cpus.empty()) set_thread_cpus(cpus);
  result.host_bytes = model->weights().host_bytes();
  result.cache_tokens = (model->pages().pages_total(model::PageKind::block) - chosen.prefix_blocks) *
                        model->pages().page_tokens();
  result.prefix_cache_bytes = plan.memory.settings.prefix_cache_bytes;
  if (chosen.max_model_len > trained) {
    result.warnings.push_back(
        fmt::format("--max-model-len {}: the model was made for {} positions; answers "
                    "beyond them are untested",
                    chosen.max_model_len, trained));
  }
  if (reuse.speculative_tokens > 0 && !chosen.with_drafts) {
    result.warnings.push_back("--speculative-tokens has no effect: this model has no draft stages");
  }
  const runtime::EngineOptions engine = engine_with_reuse(engine_options, chosen, reuse, result);
  runtime::EngineInfo info;
  info.model_name = result.opened.name;
  info.numerics = options.numerics;
  info.kernels = std::string(model->kernel_name());
  info.switches = model::describe_switches(options.switches);
  info.vocab_size = model->vocab_size();
  info.max_model_len = model->max_model_len();
  info.eos_token_id = static_cast<int32_t>(result.opened.config.eos_token_id);
  info.block_tokens = model->pages().page_tokens();
  info.max_drafts = std::min<int64_t>(engine.drafts, model->max_drafts());
  RORQUAL_TRY_ASSIGN(result.engine, runtime::make_local_engine(std::move(model), std::move(info), engine));
  return result;
}

}  // namespace rorqual::tools
