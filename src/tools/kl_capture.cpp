// SPDX-License-Identifier: Apache-2.0
#include "tools/kl_capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/sha256.h"
#include "base/units.h"
#include "kl/capture.h"
#include "kl/capture_parts.h"
#include "kl/corpus.h"
#include "kl/dump.h"
#include "kl/full_logits.h"
#include "kl/run_record.h"
#include "tools/kl_files.h"
#include "tools/row_progress.h"

namespace rorqual::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxCorpus_bytes = int64_t{256} << 20;
constexpr const char* kBos = "<｜begin▁of▁sentence｜>";

bool has_extension(const std::string& path, std::string_view extension) {
  return std::filesystem::path(path).extension() == extension;
}

Status check(const KlCaptureOptions& options) {
  if (!has_extension(options.out, ".npz") && !has_extension(options.out, ".safetensors")) {
    return Error(
        Code::invalid_argument,
        fmt::format("--out '{}': got another extension, expected .npz or .safetensors", options.out));
  }
  if (!options.logits.empty() && !has_extension(options.logits, ".safetensors")) {
    return Error(Code::invalid_argument,
                 fmt::format("--logits '{}': got another extension, expected .safetensors", options.logits));
  }
  if (!options.logits.empty() && options.logits == options.out) {
    return Error(Code::invalid_argument, "--logits and --out name the same file",
                 "the file of logits holds the dump's arrays as well; give --out another name");
  }
  if (!options.logits.empty() && !options.engine.remote.url.empty()) {
    return Error(Code::unsupported, "a server gives log-probabilities only, no logits",
                 "leave --logits or --url out");
  }
  RORQUAL_TRY(check_output("--out", options.out));
  return options.logits.empty() ? Ok() : check_output("--logits", options.logits);
}

Result<kl::Corpus> cut_remotely(const RemoteEngine& engine, std::string name, const std::string& text,
                                const kl::CutOptions& cut) {
  RORQUAL_TRY_ASSIGN(const auto bos, engine.tokenize(kBos));
  if (bos.size() != 1) {
    return Error(Code::unsupported, fmt::format("the server's tokenizer has no token '{}'", kBos),
                 "give the model's tokenizer.json by --tokenizer");
  }
  RORQUAL_TRY_ASSIGN(const auto ids, engine.tokenize(text));
  return kl::cut_ids(bos.front(), ids, std::move(name), text, cut);
}

int64_t longest_window(const kl::Corpus& corpus) {
  int64_t longest = 0;
  for (const auto& window : corpus.windows)
    longest = std::max(longest, static_cast<int64_t>(window.ids.size()));
  return longest;
}

double perplexity(const kl::Dump& dump) {
  double sum = 0;
  for (const float logprob : dump.token_logprob) sum += static_cast<double>(logprob);
  return std::exp(-sum / static_cast<double>(dump.num_rows()));
}

struct Opened {
  KlEngine engine;
  kl::Corpus corpus;
};

/// What is not a panel, a capture or another program's panel is a text.
bool is_text(const std::string& path) {
  for (const auto* extension : {".json", ".tsv", ".npy", ".npz", ".safetensors"}) {
    if (has_extension(path, extension)) return false;
  }
  return true;
}

Result<kl::Corpus> read_windows(const std::string& path) {
  if (has_extension(path, ".json")) {
    auto panel = kl::read_panel(path);
    if (panel.ok() || panel.error().code() != Code::corrupt_data) return panel;
    auto external = kl::read_external_panel(path, 1);
    if (!external.ok()) return panel;  // what was wrong with it as our own panel says more
    return kl::corpus_of(external->dump);
  }
  RORQUAL_TRY_ASSIGN(const auto external, kl::read_capture_or_panel(path, 1));
  RORQUAL_TRY_ASSIGN(auto corpus, kl::corpus_of(external.dump));
  if (const auto record = kl::read_run_record(path); record.ok())
    corpus.prompt_compat = record->prompt_compat;
  return corpus;
}

/// Corpus first where that needs no engine: a text that is too short should not cost a loaded model.
Result<Opened> open_all(const KlCaptureOptions& options) {
  std::optional<kl::Corpus> corpus;
  std::string text;
  const std::string name = std::filesystem::path(options.corpus).stem().string();
  const kl::CutOptions cut{options.context, options.windows};
  if (!is_text(options.corpus)) {
    RORQUAL_TRY_ASSIGN(corpus, read_windows(options.corpus));
    if (const auto count = static_cast<size_t>(options.windows); corpus->windows.size() > count)
      corpus->windows.resize(count);
  } else {
    RORQUAL_TRY_ASSIGN(text, read_text_file(options.corpus, kMaxCorpus_bytes));
    RORQUAL_TRY(check_utf8(fmt::format("corpus '{}'", options.corpus), text));
    RORQUAL_TRY_ASSIGN(const auto tokenizer, open_kl_tokenizer(options.engine));
    if (tokenizer) {
      RORQUAL_TRY_ASSIGN(corpus, kl::cut_windows(*tokenizer, name, text, cut));
    }
  }
  const int64_t needed = corpus ? longest_window(*corpus) + 1 : options.context + 1;
  RORQUAL_TRY_ASSIGN(KlEngine engine,
                     open_kl_engine(options.engine, needed, is_text(options.corpus) ? "--context" : ""));
  if (!corpus) {
    RORQUAL_TRY_ASSIGN(corpus, cut_remotely(*engine.remote, name, text, cut));
  }
  return Opened{std::move(engine), *std::move(corpus)};
}

kl::CaptureOptions capture_options(const KlCaptureOptions& options, const kl::RunRecord& record) {
  kl::CaptureOptions capture;
  capture.top_k = options.top_k;
  capture.streams = options.engine.streams;
  capture.logits_path = options.logits;
  capture.parts_path = options.out + ".part";
  capture.parts_identity =
      fmt::format("engine {}\nprogram {} {}\nmodel {}\nnumerics {}\nswitches {}", record.engine,
                  record.version, record.commit, record.model_sha256, record.numerics, record.switches);
  capture.discards_parts = options.force;
  return capture;
}

void print_result(const KlCaptureOptions& options, const kl::Dump& dump, const kl::RunRecord& record) {
  const kl::DumpInfo& info = dump.info;
  if (options.as_json) {
    const nlohmann::ordered_json json{
        {"schema", "rorqual.kl.capture/1"},
        {"dump", options.out},
        {"sha256", record.dump_sha256},
        {"logits",
         options.logits.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(options.logits)},
        {"model", info.model},
        {"corpus", info.corpus},
        {"context", info.context},
        {"windows", info.num_windows},
        {"rows", dump.num_rows()},
        {"top_k", info.top_k},
        {"perplexity", perplexity(dump)},
        {"numerics", record.numerics},
        {"switches", record.switches},
        {"prompt_compat", record.prompt_compat},
        {"streams", record.streams},
        {"seconds", record.seconds}};
    fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return;
  }
  fmt::print("corpus      {}: {} windows{}, {} positions, top {}\n", info.corpus, info.num_windows,
             info.context > 0 ? fmt::format(" of {} tokens", format_count(info.context)) : "",
             format_count(dump.num_rows()), info.top_k);
  fmt::print("model       {}{}{}\n", info.model,
             record.numerics.empty() ? "" : ", " + record.numerics + " numerics",
             record.switches.empty() ? "" : ", " + record.switches);
  fmt::print("perplexity  {:.4f}\n", perplexity(dump));
  fmt::print("time        {:.1f} s, {:.1f} positions/s\n", record.seconds,
             static_cast<double>(dump.num_rows()) / std::max(record.seconds, 1e-9));
  fmt::print("dump        {}  sha256 {}\n", options.out, record.dump_sha256);
}

}  // namespace

Status run_kl_capture(const KlCaptureOptions& options) {
  RORQUAL_TRY(check(options));
  RORQUAL_TRY_ASSIGN(Opened opened, open_all(options));
  kl::RunRecord record = opened.engine.record;
  record.prompt_compat = opened.corpus.prompt_compat;
  const kl::CaptureOptions capture = capture_options(options, record);
  record.started_at = utc_now();
  const auto begin = Clock::now();
  RowProgress progress("capture " + opened.corpus.name, "rows");
  auto dump = kl::capture(opened.engine.engine(), opened.corpus, capture, [&](int64_t done, int64_t total) {
    if (!options.as_json) progress.update(done, total);
  });
  progress.finish();
  if (!dump.ok()) return std::move(dump).error();
  record.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  record.finished_at = utc_now();
  kl::Dump public_dump = *std::move(dump);
  RORQUAL_TRY(kl::write_dump(options.out, public_dump));
  RORQUAL_TRY_ASSIGN(record.dump_sha256, sha256_of_file(options.out));
  RORQUAL_TRY(kl::write_run_record(options.out, record));
  if (!options.logits.empty()) {
    kl::RunRecord of_logits = record;
    RORQUAL_TRY_ASSIGN(of_logits.dump_sha256, sha256_of_file(options.logits));
    RORQUAL_TRY(kl::write_run_record(options.logits, of_logits));
  }
  kl::remove_parts(capture.parts_path);
  print_result(options, public_dump, record);
  return Ok();
}

}  // namespace rorqual::tools
