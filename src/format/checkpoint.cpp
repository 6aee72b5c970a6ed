// SPDX-License-Identifier: Apache-2.0
// A model folder as a tensor source: index, shards, side files. Everything is cross-checked before any weight
// is read, and all bad shards are reported together. docs/formats.md#checkpoint.
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "format/byte_file.h"
#include "format/shard.h"
#include "format/tensor_source.h"

namespace rorqual::format {
namespace {

constexpr int64_t kMaxSideFile_bytes = 100'000'000;
constexpr size_t kMaxShards = 4096;
constexpr size_t kMaxProblemsShown = 100;

struct Index {
  std::map<std::string, std::string, std::less<>> weight_map;  // tensor -> file
  std::optional<int64_t> total_bytes;
};

struct OpenShard {
  std::string file_name;
  std::unique_ptr<ByteFile> file;
  std::vector<TensorInfo> tensors;
};

Error index_error(std::string what) {
  return Error(Code::corrupt_data, fmt::format("{}: {}", kIndexFileName, what),
               "index and shards must be of one revision; fetch the index again");
}

/// "2 problems: a; b" - one line whatever the number of problems.
std::string join_problems(const std::vector<std::string>& problems) {
  const size_t count = std::min(problems.size(), kMaxProblemsShown);
  std::string text = fmt::format(
      "{}", fmt::join(problems.begin(), problems.begin() + static_cast<std::ptrdiff_t>(count), "; "));
  if (count < problems.size()) text += fmt::format("; and {} more", problems.size() - count);
  return text;
}

Result<Index> parse_index(std::string_view text) {
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  if (const auto error = parser.parse(text.data(), text.size()).get(root); error != simdjson::SUCCESS) {
    return index_error(fmt::format("not a JSON object: {}", simdjson::error_message(error)));
  }
  Index index;
  bool has_map = false;
  for (const auto field : root) {
    simdjson::dom::object object;
    if (field.key == "metadata" && field.value.get(object) == simdjson::SUCCESS) {
      int64_t total = 0;
      simdjson::dom::element value;
      if (object["total_size"].get(value) != simdjson::SUCCESS) continue;
      if (value.get(total) != simdjson::SUCCESS || total < 0)
        return index_error("metadata.total_size is not a size");
      index.total_bytes = total;
    }
    if (field.key != "weight_map") continue;
    if (has_map) return index_error("'weight_map' is given twice");
    has_map = true;
    if (field.value.get(object) != simdjson::SUCCESS) return index_error("'weight_map' is not an object");
    for (const auto entry : object) {
      std::string_view file;
      if (!is_valid_tensor_name(entry.key))
        return index_error("a tensor name is empty, too long or has control characters");
      if (entry.value.get(file) != simdjson::SUCCESS) {
        return index_error(fmt::format("the file of tensor '{}' is not a string", entry.key));
      }
      if (!is_plain_file_name(file) || !file.ends_with(".safetensors")) {
        return index_error(
            fmt::format("tensor '{}' is said to be in '{}', expected the plain name of a .safetensors file",
                        entry.key, shown(file)));
      }
      if (!index.weight_map.emplace(entry.key, file).second) {
        return index_error(fmt::format("tensor '{}' is given twice", entry.key));
      }
    }
  }
  if (index.weight_map.empty()) return index_error("'weight_map' is missing or empty");
  return index;
}

class Checkpoint final : public TensorSource {
 public:
  explicit Checkpoint(std::unique_ptr<Folder> folder) : folder_(std::move(folder)) {}

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }

  Status read(const TensorInfo& tensor, int64_t offset, std::span<std::byte> dst) const override {
    RORQUAL_CHECK(is_inside(tensor, offset, dst.size()));
    const auto shard =
        std::lower_bound(shards_.begin(), shards_.end(), tensor.file,
                         [](const OpenShard& s, const std::string& name) { return s.file_name < name; });
    RORQUAL_CHECK(shard != shards_.end() && shard->file_name == tensor.file);
    auto status = shard->file->read(tensor.file_offset + offset, dst);
    if (status.ok()) return Ok{};
    return std::move(status).error().at(fmt::format("tensor '{}'", tensor.name));
  }

  Result<std::string> read_text(std::string_view file_name) const override {
    if (!folder_->contains(file_name)) {
      return Error(Code::not_found, fmt::format("model '{}' has no {}", folder_->name(), file_name),
                   "the folder is incomplete, or it is not a model folder");
    }
    auto file = folder_->open(file_name);
    auto text = file.ok() ? read_all_text(**file, kMaxSideFile_bytes) : Result<std::string>(file.error());
    if (text.ok()) return text;
    return std::move(text).error().at(fmt::format("model '{}': {}", folder_->name(), file_name));
  }

  std::string name() const override { return folder_->name(); }

  /// Reads index and headers; nothing else may be called before it has succeeded.
  Status load();

 private:
  Result<Index> read_index() const;
  Status open_shards(std::vector<std::string> file_names);
  Status check_against(const Index& index) const;
  Status check_total(const Index& index) const;

  std::unique_ptr<Folder> folder_;
  std::vector<OpenShard> shards_;  // sorted by file name
  std::vector<TensorInfo> tensors_;
};

Result<Index> Checkpoint::read_index() const {
  auto file = folder_->open(kIndexFileName);
  if (!file.ok()) return std::move(file).error().at(std::string(kIndexFileName));
  auto text = read_all_text(**file, kMaxSideFile_bytes);
  if (!text.ok()) return std::move(text).error().at(std::string(kIndexFileName));
  return parse_index(*text);
}

/// Opens every shard before giving up, so that one run tells all that is wrong.
Status Checkpoint::open_shards(std::vector<std::string> file_names) {
  if (file_names.size() > kMaxShards) {
    return Error(Code::corrupt_data,
                 fmt::format("{} shards, expected at most {}", file_names.size(), kMaxShards));
  }
  std::sort(file_names.begin(), file_names.end());
  std::vector<std::string> problems;
  size_t missing = 0;
  std::string hint = "the copy is incomplete or damaged; fetch these files again";
  for (const std::string& name : file_names) {
    if (!folder_->contains(name)) {
      problems.push_back(name + ": missing");
      ++missing;
      continue;
    }
    auto file = folder_->open(name);
    auto header = file.ok() ? read_safetensors_header(**file, EmptyTensors::refused)
                            : Result<SafetensorsHeader>(file.error());
    if (!header.ok()) {
      problems.push_back(fmt::format("{}: {}", name, header.error().message()));
      if (!header.error().hint().empty()) hint = header.error().hint();
      continue;
    }
    for (TensorInfo& tensor : header->tensors) tensor.file = name;
    shards_.push_back({name, *std::move(file), std::move(header->tensors)});
  }
  if (problems.empty()) return Ok{};
  const Code code = missing == problems.size() ? Code::not_found : Code::corrupt_data;
  if (file_names.size() == 1) return Error(code, join_problems(problems), hint);
  return Error(code,
               fmt::format("{} of {} shards cannot be used: {}", problems.size(), file_names.size(),
                           join_problems(problems)),
               hint);
}

/// Index and headers must tell the same story, tensor by tensor.
Status Checkpoint::check_against(const Index& index) const {
  std::vector<std::string> problems;
  size_t found = 0;
  for (const TensorInfo& tensor : tensors_) {
    const auto it = index.weight_map.find(tensor.name);
    if (it == index.weight_map.end()) {
      problems.push_back(fmt::format("tensor '{}' of {} is not in the index", tensor.name, tensor.file));
    } else if (it->second != tensor.file) {
      problems.push_back(
          fmt::format("tensor '{}' is in {}, the index says {}", tensor.name, tensor.file, it->second));
    } else {
      ++found;
    }
  }
  if (found != index.weight_map.size()) {
    for (const auto& [name, file] : index.weight_map) {
      if (find(name) == nullptr) problems.push_back(fmt::format("tensor '{}' is not in {}", name, file));
    }
  }
  if (problems.empty()) return Ok{};
  problems.resize(std::min<size_t>(problems.size(), 10));
  return index_error("it does not match the shards: " + join_problems(problems));
}

Status Checkpoint::check_total(const Index& index) const {
  int64_t total = 0;  // the sum of real file parts: it cannot overflow
  for (const TensorInfo& tensor : tensors_) total += tensor.size_bytes;
  if (!index.total_bytes || *index.total_bytes == total) return Ok{};
  return index_error(fmt::format("total_size is {}, the shards hold {} bytes", *index.total_bytes, total));
}

Status Checkpoint::load() {
  Index index;
  const bool has_index = folder_->contains(kIndexFileName);
  std::vector<std::string> file_names;
  if (has_index) {
    RORQUAL_TRY_ASSIGN(index, read_index());
    for (const auto& [tensor, file] : index.weight_map) file_names.push_back(file);
    std::sort(file_names.begin(), file_names.end());
    file_names.erase(std::unique(file_names.begin(), file_names.end()), file_names.end());
  } else if (folder_->contains(kSingleFileName)) {
    file_names = {std::string(kSingleFileName)};
  } else {
    const auto names = folder_->list();
    const bool has_shards = std::any_of(names.begin(), names.end(),
                                        [](const std::string& n) { return n.ends_with(".safetensors"); });
    return Error(Code::not_found, fmt::format("neither {} nor {} is there", kIndexFileName, kSingleFileName),
                 has_shards
                     ? "the index is missing beside the shards; fetch it again"
                     : "give the folder that holds config.json, the *.safetensors files and tokenizer.json");
  }
  RORQUAL_TRY(open_shards(std::move(file_names)));
  for (OpenShard& shard : shards_) {
    std::move(shard.tensors.begin(), shard.tensors.end(), std::back_inserter(tensors_));
    shard.tensors = {};
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(tensors_.begin(), tensors_.end(),
                         [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (twice != tensors_.end()) {
    return Error(Code::corrupt_data, fmt::format("tensor '{}' is in {} and in {}", twice->name, twice->file,
                                                 std::next(twice)->file));
  }
  if (!has_index) return Ok{};
  RORQUAL_TRY(check_against(index));
  return check_total(index);
}

Result<std::unique_ptr<TensorSource>> load_from(std::unique_ptr<Folder> folder) {
  const std::string name = folder->name();
  auto checkpoint = std::make_unique<Checkpoint>(std::move(folder));
  auto status = checkpoint->load();
  if (!status.ok()) return std::move(status).error().at(fmt::format("cannot open model '{}'", name));
  return std::unique_ptr<TensorSource>(std::move(checkpoint));
}

}  // namespace

Result<std::unique_ptr<TensorSource>> open_checkpoint(const std::string& directory) {
  RORQUAL_TRY_ASSIGN(auto folder, open_disk_folder(directory));
  return load_from(std::move(folder));
}

Result<std::unique_ptr<TensorSource>> open_checkpoint_in_memory(std::string name,
                                                                std::vector<MemoryFile> files) {
  return load_from(memory_folder(std::move(name), std::move(files)));
}

}  // namespace rorqual::format
