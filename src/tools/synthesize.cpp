// SPDX-License-Identifier: Apache-2.0
#include "tools/synthesize.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/cpu_info.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "format/safetensors_writer.h"
#include "model/synthetic.h"
#include "text/token_map.h"
#include "text/tokenizer.h"

namespace rorqual::tools {
namespace {

namespace fs = std::filesystem;
using format::TensorInfo;

constexpr int64_t kChunkBytes = 1 << 20;
constexpr int64_t kBufferBytes = 64 << 20;
constexpr int64_t kMaxTokenizerBytes = 64 << 20;

// ---- which tensor goes into which shard

bool is_engram(const std::string& name) {
  return name.find(".engram.") != std::string::npos;
}

/// Reading order of the network; Engram comes last, one layer after the other.
std::tuple<int, int64_t> place_of(const std::string& name) {
  int64_t layer = 0;
  if (name.starts_with("layers.")) std::from_chars(name.data() + 7, name.data() + name.size(), layer);
  if (is_engram(name)) return {5, layer};
  if (name.starts_with("embed.")) return {0, 0};
  if (name.starts_with("layers.")) return {1, layer};
  if (name.starts_with("mtp.")) return {3, 0};
  if (name.starts_with("vision.") || name.starts_with("aligner.") || name.starts_with("image_"))
    return {4, 0};
  return {2, 0};
}

/// Tensors of one unit share a shard: a weight and its scale, all tensors of an expert, of an Engram layer.
std::string unit_of(const std::string& name) {
  const size_t expert = name.find(".experts.");
  if (expert != std::string::npos) return name.substr(0, name.find('.', expert + 9));
  const size_t engram = name.find(".engram.");
  if (engram != std::string::npos) return name.substr(0, engram + 7);
  return name.substr(0, name.rfind('.'));
}

using Shard = std::vector<const TensorInfo*>;

std::vector<Shard> plan_shards(const std::vector<TensorInfo>& tensors, int64_t shard_bytes) {
  Shard ordered;
  for (const TensorInfo& info : tensors) ordered.push_back(&info);
  std::stable_sort(ordered.begin(), ordered.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return place_of(a->name) < place_of(b->name);
  });
  std::vector<Shard> shards(1);
  int64_t filled = 0;
  for (size_t i = 0; i < ordered.size();) {
    const std::string unit = unit_of(ordered[i]->name);
    size_t end = i;
    int64_t unit_bytes = 0;
    for (; end < ordered.size() && unit_of(ordered[end]->name) == unit; ++end)
      unit_bytes += ordered[end]->size_bytes;
    const bool starts_shard = is_engram(ordered[i]->name) || filled + unit_bytes > shard_bytes;
    if (starts_shard && !shards.back().empty()) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().insert(shards.back().end(), ordered.begin() + static_cast<int64_t>(i),
                         ordered.begin() + static_cast<int64_t>(end));
    filled += unit_bytes;
    i = end;
  }
  return shards;
}

// ---- messages

class Progress {
 public:
  Progress(std::FILE* log, int64_t total_bytes)
      : log_(log), total_bytes_(total_bytes), is_terminal_(log != nullptr && isatty(fileno(log)) == 1) {}

  void add(int64_t bytes) {
    done_bytes_ += bytes;
    if (log_ == nullptr || total_bytes_ == 0) return;
    const auto now = std::chrono::steady_clock::now();
    const auto percent =
        static_cast<int>(100.0 * static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_));
    const bool is_due =
        is_terminal_ ? now - shown_ > std::chrono::milliseconds(200) : percent / 10 > percent_ / 10;
    if (!is_due && done_bytes_ < total_bytes_) return;
    shown_ = now;
    percent_ = percent;
    const double elapsed_s = std::chrono::duration<double>(now - start_).count();
    const double rate = static_cast<double>(done_bytes_) / std::max(elapsed_s, 1e-3);
    fmt::print(log_, "{}writing   {:3d} %  {} of {}  {}/s  {:.0f} s left{}", is_terminal_ ? "\r" : "",
               percent, format_bytes(done_bytes_), format_bytes(total_bytes_),
               format_bytes(static_cast<int64_t>(rate)),
               static_cast<double>(total_bytes_ - done_bytes_) / rate, is_terminal_ ? "  " : "\n");
    if (is_terminal_ && done_bytes_ >= total_bytes_) fmt::print(log_, "\n");
    std::fflush(log_);
  }

  double elapsed_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::FILE* log_;
  int64_t total_bytes_, done_bytes_ = 0;
  bool is_terminal_;
  int percent_ = -1;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), shown_{};
};

// ---- checks before anything is written

struct Tokenizer {
  std::string json, config;  // empty config: the folder has none
};

/// Reads the tokenizer and fits the spec's vocabulary fields to it where they were left open.
Result<Tokenizer> read_tokenizer(model::SyntheticSpec& spec) {
  Tokenizer files;
  if (spec.tokenizer.empty()) return files;
  RORQUAL_TRY_ASSIGN(files.json, read_text_file(spec.tokenizer + "/tokenizer.json", kMaxTokenizerBytes));
  Result<std::string> config = read_text_file(spec.tokenizer + "/tokenizer_config.json", kMaxTokenizerBytes);
  if (config.ok()) files.config = *std::move(config);
  Result<text::Tokenizer> tokenizer = text::Tokenizer::from_json(files.json);
  if (!tokenizer.ok()) return std::move(tokenizer).error().at(spec.tokenizer + "/tokenizer.json");
  const int64_t vocab = spec.vocab > 0 ? spec.vocab : model::release_config().vocab_size;
  if (tokenizer->vocab_size() != vocab) {
    return Error(Code::invalid_argument,
                 fmt::format("the tokenizer in '{}' has {} ids, the model's vocabulary is {}", spec.tokenizer,
                             format_count(tokenizer->vocab_size()), format_count(vocab)),
                 fmt::format("use --vocab {}", tokenizer->vocab_size()));
  }
  const int64_t compressed = text::engram_token_map(*tokenizer).num_compressed;
  if (spec.compressed_vocab > 0 && spec.compressed_vocab != compressed) {
    return Error(Code::invalid_argument,
                 fmt::format("--compressed-vocab {}, but the tokenizer in '{}' gives {}",
                             spec.compressed_vocab, spec.tokenizer, compressed),
                 "leave the option out: it follows from the tokenizer");
  }
  spec.compressed_vocab = compressed;
  return files;
}

/// Also what a killed run left of such a file: atomic writing appends .tmp-… until it is complete.
bool belongs_to_model(std::string file_name) {
  file_name.resize(std::min(file_name.size(), file_name.find(".tmp-")));
  return file_name == "config.json" || file_name == "model.safetensors.index.json" ||
         (file_name.starts_with("model") && file_name.ends_with(".safetensors"));
}

Status prepare_folder(const SynthesizeOptions& options) {
  std::error_code error;
  fs::create_directories(options.output, error);
  if (error || !is_directory(options.output)) {
    return Error(Code::io, fmt::format("cannot make folder '{}': {}", options.output,
                                       error ? error.message() : "it is a file"));
  }
  std::vector<fs::path> old_files;
  for (fs::directory_iterator it(options.output, error), end; !error && it != end; it.increment(error)) {
    if (!options.force) {
      return Error(Code::invalid_argument, fmt::format("folder '{}' is not empty", options.output),
                   "choose another folder, or --force to replace the model in it");
    }
    if (belongs_to_model(it->path().filename().string())) old_files.push_back(it->path());
  }
  // config.json first: from here on the folder is no model until the new one is complete.
  std::sort(old_files.begin(), old_files.end());
  for (const fs::path& file : old_files) {
    if (!error) fs::remove(file, error);
  }
  if (error)
    return Error(Code::io, fmt::format("cannot clear folder '{}': {}", options.output, error.message()));
  return Ok{};
}

Status check_disk(const std::string& output, int64_t needed_bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(output, error);
  if (error)
    return Error(Code::io, fmt::format("cannot read the free space of '{}': {}", output, error.message()));
  const auto free_bytes = static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX));
  if (needed_bytes <= free_bytes) return Ok{};
  return Error(Code::io,
               fmt::format("the model needs {}, the disk of '{}' has {} free", format_bytes(needed_bytes),
                           output, format_bytes(free_bytes)),
               "fewer --layers, --experts or --engram-rows, or synthetic:v41?… in place of a folder, which "
               "needs no disk");
}

// ---- writing

class ShardFiller {
 public:
  ShardFiller(const format::TensorSource& source, int num_threads, Progress& progress)
      : source_(source),
        threads_(num_threads),
        progress_(progress),
        buffer_(static_cast<size_t>(kBufferBytes)) {}

  Status write(const std::string& path, const Shard& shard,
               const std::vector<format::TensorDeclaration>& declared) {
    RORQUAL_TRY_ASSIGN(format::SafetensorsWriter writer, format::SafetensorsWriter::create(path, declared));
    for (const TensorInfo* info : shard) {
      for (int64_t offset = 0; offset < info->size_bytes; offset += kBufferBytes) {
        const int64_t length = std::min(kBufferBytes, info->size_bytes - offset);
        RORQUAL_TRY(fill(*info, offset, length));
        RORQUAL_TRY(writer.append(std::span(buffer_.data(), static_cast<size_t>(length))));
        progress_.add(length);
      }
    }
    return writer.finish();
  }

 private:
  /// Generates bytes [offset, offset + length) of a tensor into the buffer, on all threads.
  Status fill(const TensorInfo& info, int64_t offset, int64_t length) {
    const int64_t num_chunks = (length + kChunkBytes - 1) / kChunkBytes;
    std::vector<Status> results(static_cast<size_t>(num_chunks));
    threads_.parallel_for(num_chunks, [&](int64_t chunk, int) {
      const int64_t begin = chunk * kChunkBytes;
      const int64_t size = std::min(kChunkBytes, length - begin);
      results[static_cast<size_t>(chunk)] =
          source_.read(info, offset + begin, std::span(buffer_.data() + begin, static_cast<size_t>(size)));
    });
    for (Status& result : results) RORQUAL_TRY(std::move(result));
    return Ok{};
  }

  const format::TensorSource& source_;
  ThreadPool threads_;
  Progress& progress_;
  std::vector<std::byte> buffer_;
};

Status write_shards(const SynthesizeOptions& options, const format::TensorSource& source,
                    const std::vector<Shard>& shards, Progress& progress) {
  const int num_threads = options.num_threads > 0 ? options.num_threads : default_compute_threads(cpu_info());
  ShardFiller filler(source, num_threads, progress);
  std::vector<format::ShardContents> contents;
  for (size_t i = 0; i < shards.size(); ++i) {
    format::ShardContents content;
    content.file_name =
        format::shard_file_name(static_cast<int64_t>(i) + 1, static_cast<int64_t>(shards.size()));
    for (const TensorInfo* info : shards[i])
      content.tensors.push_back({info->name, info->dtype, info->shape});
    RORQUAL_TRY(filler.write(options.output + "/" + content.file_name, shards[i], content.tensors));
    contents.push_back(std::move(content));
  }
  return format::write_shard_index(options.output, contents);
}

Status write_side_files(const SynthesizeOptions& options, const Tokenizer& tokenizer,
                        const format::TensorSource& source) {
  if (!tokenizer.json.empty())
    RORQUAL_TRY(write_text_file(options.output + "/tokenizer.json", tokenizer.json));
  if (!tokenizer.config.empty()) {
    RORQUAL_TRY(write_text_file(options.output + "/tokenizer_config.json", tokenizer.config));
  }
  RORQUAL_TRY_ASSIGN(const std::string config, source.read_text("config.json"));
  return write_text_file(options.output + "/config.json", config);
}

}  // namespace

Status run_synthesize(const SynthesizeOptions& options, std::FILE* log, SynthesizeSummary* summary) {
  if (options.family != "v41") {
    return Error(Code::invalid_argument,
                 fmt::format("--synthesize {}: unknown model, expected v41", options.family));
  }
  model::SyntheticSpec spec = options.spec;
  RORQUAL_TRY_ASSIGN(const Tokenizer tokenizer, read_tokenizer(spec));
  RORQUAL_TRY_ASSIGN(const model::Config config, model::synthetic_config(spec));
  const std::string name = model::synthetic_name(spec);
  const auto source =
      model::make_synthetic(config, {.seed = spec.seed, .name = name, .tokenizer_folder = spec.tokenizer});
  int64_t total_bytes = 0;
  for (const TensorInfo& info : source->tensors()) total_bytes += info.size_bytes;
  const std::vector<Shard> shards = plan_shards(source->tensors(), options.shard_bytes);
  if (summary != nullptr) {
    *summary = {.model = name,
                .tensors = static_cast<int64_t>(source->tensors().size()),
                .bytes = total_bytes,
                .shards = static_cast<int64_t>(shards.size())};
  }
  if (log != nullptr) {
    fmt::print(log, "model     {}\n          {} layers, {} tensors, {}, {} shards -> {}\n", name,
               config.num_hidden_layers, format_count(static_cast<int64_t>(source->tensors().size())),
               format_bytes(total_bytes), shards.size(), options.output);
  }
  if (options.dry_run) return Ok{};
  RORQUAL_TRY(prepare_folder(options));
  RORQUAL_TRY(check_disk(options.output, total_bytes + total_bytes / 1000));
  Progress progress(log, total_bytes);
  RORQUAL_TRY(write_shards(options, *source, shards, progress));
  RORQUAL_TRY(write_side_files(options, tokenizer, *source));
  if (log != nullptr)
    fmt::print(log, "done      {} in {:.1f} s\n", format_bytes(total_bytes), progress.elapsed_s());
  return Ok{};
}

}  // namespace rorqual::tools
