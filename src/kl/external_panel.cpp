// SPDX-License-Identifier: Apache-2.0
// Panels that other programs made: {token ids, first scored position, F32 logits} per case, in whatever file
// numpy or torch users write. The accepted forms are listed in docs/fidelity.md#panel-files.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/file.h"
#include "format/safetensors.h"
#include "kl/dump_rows.h"
#include "kl/full_logits.h"
#include "kl/npz.h"
#include "runtime/logprobs.h"

namespace rorqual::kl {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxManifest_bytes = 256 << 20;
constexpr int64_t kMaxVocabulary = 1 << 24;
constexpr int64_t kMaxTokens = 1 << 26;
constexpr double kShiftGain_nats =
    1.0;  // a row off by one makes the tokens far more probable than as declared
constexpr int64_t kShiftMinRows = 16;

// ---- arrays in files ----

/// One array of some file. `shape` and whole rows of F32, or the integers of a small one.
class ArrayFile {
 public:
  virtual ~ArrayFile() = default;

  struct Info {
    std::vector<int64_t> shape;
    std::string dtype;  // "f32", "i32", "i64" or something else
  };

  virtual std::vector<std::string> names() const = 0;
  virtual Result<Info> info(const std::string& name) const = 0;
  virtual Status read(const std::string& name, int64_t offset, std::span<std::byte> dst) const = 0;
};

std::string dtype_of(std::string_view numpy) {
  return numpy == "<f4" ? "f32" : numpy == "<i4" ? "i32" : numpy == "<i8" ? "i64" : std::string(numpy);
}

class NpzSource final : public ArrayFile {
 public:
  explicit NpzSource(std::unique_ptr<NpzFile> file) : file_(std::move(file)) {}

  std::vector<std::string> names() const override { return file_->names(); }

  Result<Info> info(const std::string& name) const override {
    RORQUAL_TRY_ASSIGN(const NpzArray array, file_->find(name));
    return Info{array.header.shape, dtype_of(array.header.dtype)};
  }

  Status read(const std::string& name, int64_t offset, std::span<std::byte> dst) const override {
    RORQUAL_TRY_ASSIGN(const NpzArray* array, known(name));
    return file_->read(*array, offset, dst);
  }

 private:
  Result<const NpzArray*> known(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    auto found = arrays_.find(name);
    if (found == arrays_.end()) {
      RORQUAL_TRY_ASSIGN(NpzArray array, file_->find(name));
      found = arrays_.emplace(name, std::move(array)).first;
    }
    return &found->second;
  }

  std::unique_ptr<NpzFile> file_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, NpzArray> arrays_;
};

/// A bare .npy: one array without a name.
class NpySource final : public ArrayFile {
 public:
  NpySource(File file, NpyHeader header) : file_(std::move(file)), header_(std::move(header)) {}

  static Result<std::unique_ptr<ArrayFile>> open(const std::string& path) {
    RORQUAL_TRY_ASSIGN(File file, File::open(path));
    std::vector<std::byte> bytes(static_cast<size_t>(std::min<int64_t>(
        file.size_bytes(), kMaxNpyHeader_bytes + static_cast<int64_t>(kNpyPreamble_bytes))));
    RORQUAL_TRY(file.read(0, bytes));
    auto header = parse_npy_header(bytes, file.size_bytes());
    if (!header.ok()) return std::move(header).error().at(path);
    return std::unique_ptr<ArrayFile>(std::make_unique<NpySource>(std::move(file), *std::move(header)));
  }

  std::vector<std::string> names() const override { return {""}; }

  Result<Info> info(const std::string&) const override {
    return Info{header_.shape, dtype_of(header_.dtype)};
  }

  Status read(const std::string&, int64_t offset, std::span<std::byte> dst) const override {
    return file_.read(header_.data_offset + offset, dst);
  }

 private:
  File file_;
  NpyHeader header_;
};

class SafetensorsSource final : public ArrayFile {
 public:
  explicit SafetensorsSource(std::unique_ptr<format::SafetensorsFile> file) : file_(std::move(file)) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& tensor : file_->tensors()) names.push_back(tensor.name);
    return names;
  }

  Result<Info> info(const std::string& name) const override {
    const auto* tensor = file_->find(name);
    if (tensor == nullptr)
      return Error(Code::not_found, fmt::format("{}: no tensor '{}'", file_->name(), name));
    const std::string dtype = tensor->dtype == tensor::DType::f32   ? "f32"
                              : tensor->dtype == tensor::DType::i32 ? "i32"
                              : tensor->dtype == tensor::DType::i64
                                  ? "i64"
                                  : std::string(tensor::dtype_name(tensor->dtype));
    return Info{tensor->shape, dtype};
  }

  Status read(const std::string& name, int64_t offset, std::span<std::byte> dst) const override {
    const auto* tensor = file_->find(name);
    RORQUAL_CHECK(tensor != nullptr);
    return file_->read(*tensor, offset, dst);
  }

 private:
  std::unique_ptr<format::SafetensorsFile> file_;
};

Result<std::shared_ptr<ArrayFile>> open_arrays(const std::string& path) {
  const auto extension = std::filesystem::path(path).extension();
  if (extension == ".npz") {
    RORQUAL_TRY_ASSIGN(auto file, NpzFile::open(path));
    return std::shared_ptr<ArrayFile>(std::make_shared<NpzSource>(std::move(file)));
  }
  if (extension == ".npy") {
    RORQUAL_TRY_ASSIGN(auto file, NpySource::open(path));
    return std::shared_ptr<ArrayFile>(std::move(file));
  }
  if (extension == ".safetensors") {
    RORQUAL_TRY_ASSIGN(auto file, format::open_safetensors(path));
    return std::shared_ptr<ArrayFile>(std::make_shared<SafetensorsSource>(std::move(file)));
  }
  return Error(Code::invalid_argument,
               fmt::format("'{}': logits come from .npy, .npz or .safetensors files", path));
}

// ---- cases ----

struct PanelCase {
  std::string id;
  std::vector<int32_t> ids;
  int64_t first_scored = 0;
  std::string logits;                // "file" or "file:array", relative to the manifest
  std::optional<int64_t> first_row;  // row that predicts the first scored token
  int64_t index = 0;                 // in an array [cases, positions, V]
};

/// Where a case's rows lie.
struct CaseRows {
  std::shared_ptr<ArrayFile> file;
  std::string array;
  int64_t first = 0;  // row of [.., V] that predicts the first scored token
  int64_t count = 0;
};

class PanelRows final : public LogitRows {
 public:
  PanelRows(std::vector<CaseRows> cases, int64_t vocab) : cases_(std::move(cases)), vocab_(vocab) {
    for (const auto& item : cases_) begins_.push_back(begins_.back() + item.count);
  }

  int64_t num_rows() const override { return begins_.back(); }

  int64_t vocab_size() const override { return vocab_; }

  Status read(int64_t row, std::span<float> out) const override {
    RORQUAL_CHECK(row >= 0 && row < num_rows() && static_cast<int64_t>(out.size()) == vocab_);
    const auto next = std::upper_bound(begins_.begin(), begins_.end(), row);
    const auto index = static_cast<size_t>(next - begins_.begin()) - 1;
    const CaseRows& item = cases_[index];
    return item.file->read(item.array, (item.first + row - begins_[index]) * vocab_ * 4,
                           std::as_writable_bytes(out));
  }

 private:
  std::vector<CaseRows> cases_;
  std::vector<int64_t> begins_ = {0};
  int64_t vocab_;
};

Error bad_case(const std::string& path, const std::string& id, const std::string& what) {
  return Error(Code::corrupt_data, fmt::format("{}: case '{}': {}", path, id, what),
               "the accepted forms: docs/fidelity.md#panel-files");
}

Status check_case(const std::string& path, const PanelCase& item, int64_t vocab) {
  const auto length = static_cast<int64_t>(item.ids.size());
  if (item.first_scored < 1 || item.first_scored >= length) {
    return bad_case(path, item.id,
                    fmt::format("first_scored is {}, expected 1 to {} ({} tokens)", item.first_scored,
                                length - 1, length));
  }
  for (const int32_t id : item.ids) {
    if (id < 0 || id >= vocab)
      return bad_case(path, item.id, fmt::format("token id {}, expected 0 to {}", id, vocab - 1));
  }
  return Ok();
}

/// Finds the rows of a case in its array, by the number of its positions.
Result<CaseRows> place_rows(const std::string& path, const PanelCase& item, const ArrayFile::Info& info,
                            int64_t vocab) {
  const auto length = static_cast<int64_t>(item.ids.size());
  const int64_t scored = length - item.first_scored;
  const size_t rank = info.shape.size();
  const int64_t positions = info.shape[rank - 2];
  if (rank == 3 && (item.index < 0 || item.index >= info.shape[0])) {
    return bad_case(path, item.id,
                    fmt::format("logits are {}, there is no case {}", shape_text(info.shape), item.index));
  }
  int64_t first = 0;
  if (item.first_row) {
    first = *item.first_row;
  } else if (positions == length || positions == length - 1) {
    first = item.first_scored - 1;  // a row per token, each predicting the next one
  } else if (positions != scored && rank == 2) {
    return bad_case(path, item.id,
                    fmt::format("logits are {}, expected {} rows (scored positions), {} or {} (all tokens)",
                                shape_text(info.shape), scored, length - 1, length));
  }
  if (first < 0 || first > positions - scored) {
    return bad_case(
        path, item.id,
        fmt::format("rows {} to {} of logits {}", first, first + scored - 1, shape_text(info.shape)));
  }
  CaseRows rows;
  rows.first = first + (rank == 3 ? item.index * positions : 0);
  rows.count = scored;
  RORQUAL_CHECK(vocab == info.shape[rank - 1]);
  return rows;
}

// ---- manifests ----

Result<std::vector<int32_t>> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  if (!list.is_array()) return Error(Code::corrupt_data, "token ids are no list");
  for (const auto& item : list) {
    if (!item.is_number_integer() || item.get<int64_t>() < 0 || item.get<int64_t>() >= kMaxVocabulary)
      return Error(Code::corrupt_data, "'" + item.dump(-1, ' ', true).substr(0, 40) + "' is no token id");
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

Result<int64_t> integer_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer())
    return Error(Code::corrupt_data, fmt::format("no integer field '{}'", key));
  return found->get<int64_t>();
}

Result<PanelCase> json_case(const Json& object, int64_t index) {
  PanelCase item;
  item.id = fmt::format("{}", index);
  item.index = index;
  if (!object.is_object()) return Error(Code::corrupt_data, "not an object");
  if (object.contains("id") && object.at("id").is_string()) item.id = object.at("id").get<std::string>();
  if (object.contains("prompt_ids") && object.contains("continuation_ids")) {
    RORQUAL_TRY_ASSIGN(item.ids, ids_of(object.at("prompt_ids")));
    item.first_scored = static_cast<int64_t>(item.ids.size());
    RORQUAL_TRY_ASSIGN(const auto more, ids_of(object.at("continuation_ids")));
    item.ids.insert(item.ids.end(), more.begin(), more.end());
  } else {
    if (!object.contains("ids"))
      return Error(Code::corrupt_data, "neither 'ids' nor 'prompt_ids' and 'continuation_ids'");
    RORQUAL_TRY_ASSIGN(item.ids, ids_of(object.at("ids")));
    RORQUAL_TRY_ASSIGN(item.first_scored, integer_of(object, "first_scored"));
  }
  if (object.contains("logits") && object.at("logits").is_string())
    item.logits = object.at("logits").get<std::string>();
  if (object.contains("index")) {
    RORQUAL_TRY_ASSIGN(item.index, integer_of(object, "index"));
  }
  if (object.contains("first_row")) {
    RORQUAL_TRY_ASSIGN(const int64_t first_row, integer_of(object, "first_row"));
    item.first_row = first_row;
  }
  return item;
}

struct Manifest {
  std::string model, corpus;
  std::vector<PanelCase> cases;
};

Result<Manifest> json_manifest(const std::string& path) {
  RORQUAL_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxManifest_bytes));
  const Json document = Json::parse(text, nullptr, false);
  const bool has_cases = document.is_object() && document.contains("cases");
  const Json& list = has_cases ? document.at("cases") : document;
  if (!list.is_array() || list.empty()) {
    return Error(Code::corrupt_data,
                 fmt::format("{}: neither a list of cases nor an object with 'cases'", path),
                 "docs/fidelity.md#panel-files");
  }
  Manifest manifest;
  std::string shared_logits;
  if (has_cases) {
    const auto text_of = [&](const char* key) {
      return document.contains(key) && document.at(key).is_string() ? document.at(key).get<std::string>()
                                                                    : "";
    };
    manifest.model = text_of("model");
    manifest.corpus = text_of("corpus");
    shared_logits = text_of("logits");
  }
  for (const auto& object : list) {
    const auto index = static_cast<int64_t>(manifest.cases.size());
    auto item = json_case(object, index);
    if (!item.ok()) return bad_case(path, fmt::format("{}", index), item.error().message());
    if (item->logits.empty()) item->logits = shared_logits;
    manifest.cases.push_back(*std::move(item));
  }
  return manifest;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [next, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || next != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Ids separated by blanks or commas.
bool parse_ids(std::string_view text, std::vector<int32_t>& ids) {
  for (size_t pos = 0; pos < text.size();) {
    if (text[pos] == ' ' || text[pos] == ',' || text[pos] == '[' || text[pos] == ']') {
      ++pos;
      continue;
    }
    size_t end = text.find_first_of(" ,]", pos);
    end = std::min(end, text.size());
    const auto id = parse_integer(text.substr(pos, end - pos));
    if (!id || *id < 0 || *id >= kMaxVocabulary) return false;
    ids.push_back(static_cast<int32_t>(*id));
    pos = end;
  }
  return !ids.empty();
}

Result<PanelCase> tsv_case(const std::map<std::string_view, std::string_view>& row, int64_t index) {
  const auto cell = [&](std::string_view key) {
    const auto found = row.find(key);
    return found == row.end() ? std::string_view() : found->second;
  };
  PanelCase item;
  item.id = cell("id").empty() ? fmt::format("{}", index) : std::string(cell("id"));
  item.logits = cell("logits");
  item.index = parse_integer(cell("index")).value_or(index);
  item.first_row = parse_integer(cell("first_row"));
  if (!parse_ids(cell("ids"), item.ids)) return Error(Code::corrupt_data, "column 'ids' holds no token ids");
  const auto first = parse_integer(cell("first_scored"));
  if (!first) return Error(Code::corrupt_data, "column 'first_scored' holds no integer");
  item.first_scored = *first;
  return item;
}

Result<Manifest> tsv_manifest(const std::string& path) {
  RORQUAL_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxManifest_bytes));
  Manifest manifest;
  std::vector<std::string_view> header;
  for (std::string_view line : split(text, '\n')) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    const auto cells = split(line, '\t');
    if (header.empty()) {
      header = cells;
      continue;
    }
    std::map<std::string_view, std::string_view> row;
    for (size_t i = 0; i < std::min(cells.size(), header.size()); ++i) row[header[i]] = cells[i];
    const auto index = static_cast<int64_t>(manifest.cases.size());
    auto item = tsv_case(row, index);
    if (!item.ok()) return bad_case(path, fmt::format("{}", index), item.error().message());
    manifest.cases.push_back(*std::move(item));
  }
  if (manifest.cases.empty()) {
    return Error(Code::corrupt_data, fmt::format("{}: no cases", path),
                 "the first line names the columns: id, ids, first_scored, logits");
  }
  return manifest;
}

/// All integers of a small array.
Result<std::vector<int64_t>> integers(const ArrayFile& file, const std::string& name) {
  RORQUAL_TRY_ASSIGN(const auto info, file.info(name));
  int64_t count = 1;
  for (const int64_t size : info.shape) count *= std::min(size, kMaxTokens);
  if (info.shape.size() > 1 || count > kMaxTokens || (info.dtype != "i32" && info.dtype != "i64")) {
    return Error(Code::corrupt_data, fmt::format("'{}' is {} {}, expected a list of 32 or 64-bit integers",
                                                 name, info.dtype, shape_text(info.shape)));
  }
  std::vector<int64_t> values(static_cast<size_t>(count));
  if (info.dtype == "i64") {
    RORQUAL_TRY(file.read(name, 0, std::as_writable_bytes(std::span(values))));
    return values;
  }
  std::vector<int32_t> narrow(values.size());
  RORQUAL_TRY(file.read(name, 0, std::as_writable_bytes(std::span(narrow))));
  std::copy(narrow.begin(), narrow.end(), values.begin());
  return values;
}

/// A file of arrays without a manifest: "<case>logits" beside "<case>ids" and "<case>first_scored".
Result<Manifest> arrays_manifest(const std::string& path, const ArrayFile& file) {
  Manifest manifest;
  for (const auto& name : file.names()) {
    constexpr std::string_view kLogits = "logits";
    if (!name.ends_with(kLogits)) continue;
    const std::string prefix = name.substr(0, name.size() - kLogits.size());
    PanelCase item;
    item.id = prefix.empty() ? "0" : prefix.substr(0, prefix.find_last_not_of("/._-") + 1);
    auto ids = integers(file, prefix + "ids");
    if (!ids.ok()) return bad_case(path, item.id, ids.error().message());
    for (const int64_t id : *ids)
      item.ids.push_back(id < 0 || id >= kMaxVocabulary ? -1 : static_cast<int32_t>(id));
    auto first = integers(file, prefix + "first_scored");
    if (!first.ok()) return bad_case(path, item.id, first.error().message());
    if (first->size() != 1) return bad_case(path, item.id, "first_scored is not one number");
    item.first_scored = first->front();
    item.logits = std::filesystem::path(path).filename().string() + ":" + name;
    manifest.cases.push_back(std::move(item));
  }
  if (manifest.cases.empty()) {
    return Error(Code::corrupt_data, fmt::format("{}: no array whose name ends in 'logits'", path),
                 "docs/fidelity.md#panel-files lists the accepted forms");
  }
  return manifest;
}

// ---- the dump of a panel ----

/// Opens every file once.
class Files {
 public:
  explicit Files(const std::string& path) : folder_(std::filesystem::path(path).parent_path()) {}

  /// "file.npz:array", "file.npy"; a file with one array needs no name.
  Result<std::pair<std::shared_ptr<ArrayFile>, std::string>> find(const std::string& reference) {
    const size_t colon = reference.rfind(':');
    const std::string file = reference.substr(0, colon);
    std::string array = colon == std::string::npos ? "" : reference.substr(colon + 1);
    auto& opened = files_[file];
    if (opened == nullptr) {
      RORQUAL_TRY_ASSIGN(opened, open_arrays((folder_ / file).string()));
    }
    if (array.empty()) {
      const auto names = opened->names();
      const bool has_logits = std::find(names.begin(), names.end(), "logits") != names.end();
      if (names.size() != 1 && !has_logits) {
        return Error(Code::corrupt_data,
                     fmt::format("'{}' holds {} arrays; say which", reference, names.size()),
                     "write \"logits\": \"FILE:ARRAY\"");
      }
      array = has_logits ? "logits" : names.front();
    }
    return std::pair(opened, array);
  }

 private:
  std::filesystem::path folder_;
  std::map<std::string, std::shared_ptr<ArrayFile>> files_;
};

/// Finds the rows of all cases; sets `vocab`.
Result<std::vector<CaseRows>> locate(const std::string& path, const Manifest& manifest, int64_t& vocab) {
  Files files(path);
  std::vector<CaseRows> located;
  for (const auto& item : manifest.cases) {
    if (item.logits.empty()) return bad_case(path, item.id, "names no file of logits");
    auto found = files.find(item.logits);
    if (!found.ok()) return std::move(found).error().at(fmt::format("{}: case '{}'", path, item.id));
    auto info = found->first->info(found->second);
    if (!info.ok()) return std::move(info).error().at(fmt::format("{}: case '{}'", path, item.id));
    const size_t rank = info->shape.size();
    if (info->dtype != "f32")
      return Error(Code::unsupported,
                   fmt::format("{}: case '{}': logits are {}, expected F32", path, item.id, info->dtype));
    if (rank != 2 && rank != 3) {
      return bad_case(
          path, item.id,
          fmt::format("logits are {}, expected [positions, vocabulary]", shape_text(info->shape)));
    }
    const int64_t width = info->shape[rank - 1];
    if (vocab == 0) vocab = width;
    if (width != vocab || width < 1 || width > kMaxVocabulary) {
      return bad_case(path, item.id, fmt::format("{} logits per row, expected {}", width, vocab));
    }
    RORQUAL_TRY(check_case(path, item, vocab));
    RORQUAL_TRY_ASSIGN(CaseRows rows, place_rows(path, item, *info, vocab));
    rows.file = found->first;
    rows.array = found->second;
    located.push_back(std::move(rows));
  }
  return located;
}

Dump empty_dump(const std::string& path, const Manifest& manifest) {
  Dump dump;
  dump.info.model = manifest.model;
  dump.info.corpus = manifest.corpus.empty() ? std::filesystem::path(path).stem().string() : manifest.corpus;
  dump.info.num_windows = static_cast<int64_t>(manifest.cases.size());
  dump.window_rows = {0};
  dump.window_begin = {0};
  for (const auto& item : manifest.cases) {
    dump.window_ids.insert(dump.window_ids.end(), item.ids.begin(), item.ids.end());
    dump.token.insert(dump.token.end(), item.ids.begin() + item.first_scored, item.ids.end());
    dump.window_begin.push_back(static_cast<int64_t>(dump.window_ids.size()));
    dump.window_first_scored.push_back(item.first_scored);
    dump.window_rows.push_back(static_cast<int64_t>(dump.token.size()));
  }
  dump.info.scored_positions = dump.num_rows();
  const auto& first = manifest.cases.front();
  const auto equal = [&](auto value) {
    return std::all_of(manifest.cases.begin(), manifest.cases.end(),
                       [&](const PanelCase& item) { return value(item) == value(first); });
  };
  if (equal([](const PanelCase& item) { return item.ids.size(); }))
    dump.info.context = static_cast<int64_t>(first.ids.size());
  if (equal([](const PanelCase& item) { return item.first_scored; }))
    dump.info.first_scored = first.first_scored;
  return dump;
}

/// Top K and token log-probabilities of every row; on the way, would the neighbouring tokens fit much better?
class RowReader {
 public:
  RowReader(const PanelRows& rows, Dump& dump) : rows_(rows), dump_(dump) {}

  Status read_all() {
    const auto vocab = static_cast<size_t>(rows_.vocab_size());
    std::vector<float> logits(vocab);
    for (size_t w = 0; w + 1 < dump_.window_rows.size(); ++w) {
      for (int64_t row = dump_.window_rows[w]; row < dump_.window_rows[w + 1]; ++row) {
        RORQUAL_TRY(rows_.read(row, logits));
        if (!runtime::is_finite_row(logits))
          return Error(Code::corrupt_data, fmt::format("logits of row {} are not all finite", row));
        add(row, w, logits);
      }
    }
    return check_shift();
  }

 private:
  void add(int64_t row, size_t window, std::span<const float> logits) {
    const double lse = runtime::log_sum_exp(logits);
    const auto lp = [&](int32_t id) {
      return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - lse);
    };
    const int32_t token = dump_.token[static_cast<size_t>(row)];
    dump_.token_logprob.push_back(lp(token));
    best_.resize(logits.size());
    for (size_t i = 0; i < best_.size(); ++i) best_[i] = static_cast<int32_t>(i);
    const auto before = [&](int32_t a, int32_t b) {
      const float x = lp(a), y = lp(b);
      return x > y || (x == y && a > b);
    };
    const auto end = best_.begin() + static_cast<std::ptrdiff_t>(dump_.info.top_k);
    if (end != best_.end()) std::nth_element(best_.begin(), end - 1, best_.end(), before);
    std::sort(best_.begin(), end, before);
    for (auto id = best_.begin(); id != end; ++id) {
      dump_.top_ids.push_back(*id);
      dump_.top_logprobs.push_back(lp(*id));
    }
    const int64_t place =
        dump_.window_begin[window] + dump_.window_first_scored[window] + row - dump_.window_rows[window];
    if (place + 1 < dump_.window_begin[window + 1]) {
      declared_ += static_cast<double>(lp(token));
      earlier_ += static_cast<double>(lp(dump_.window_ids[static_cast<size_t>(place - 1)]));
      later_ += static_cast<double>(lp(dump_.window_ids[static_cast<size_t>(place + 1)]));
      ++counted_;
    }
  }

  Status check_shift() const {
    if (counted_ < kShiftMinRows) return Ok();
    const double rows = static_cast<double>(counted_);
    const double other = std::max(earlier_, later_) / rows;
    if (other - declared_ / rows <= kShiftGain_nats) return Ok();
    return Error(
        Code::corrupt_data,
        fmt::format("rows are shifted by one position: mean token log-probability {:.2f} as declared, "
                    "{:.2f} for the {} token",
                    declared_ / rows, other, earlier_ > later_ ? "preceding" : "following"),
        "row i must predict token first_scored + i; set first_row in the manifest");
  }

  const PanelRows& rows_;
  Dump& dump_;
  std::vector<int32_t> best_;
  double declared_ = 0, earlier_ = 0, later_ = 0;
  int64_t counted_ = 0;
};

Result<Manifest> read_manifest(const std::string& path) {
  const auto extension = std::filesystem::path(path).extension();
  if (extension == ".json") return json_manifest(path);
  if (extension == ".tsv") return tsv_manifest(path);
  if (extension == ".npy") {
    return Error(Code::invalid_argument, fmt::format("'{}' holds logits, but no token ids", path),
                 "give a manifest (.json or .tsv) that names it");
  }
  RORQUAL_TRY_ASSIGN(const auto file, open_arrays(path));
  return arrays_manifest(path, *file);
}

}  // namespace

Result<ExternalPanel> read_external_panel(const std::string& path, int64_t top_k) {
  RORQUAL_TRY_ASSIGN(const Manifest manifest, read_manifest(path));
  int64_t vocab = 0;
  RORQUAL_TRY_ASSIGN(auto located, locate(path, manifest, vocab));
  ExternalPanel panel;
  panel.dump = empty_dump(path, manifest);
  panel.dump.info.vocab_size = vocab;
  panel.dump.info.top_k = std::clamp<int64_t>(top_k, 1, vocab);
  auto rows = std::make_unique<PanelRows>(std::move(located), vocab);
  auto status = RowReader(*rows, panel.dump).read_all();
  if (!status.ok()) return std::move(status).error().at(path);
  RORQUAL_TRY(check_dump(panel.dump));
  panel.logits = std::move(rows);
  return panel;
}

Result<ExternalPanel> read_capture_or_panel(const std::string& path, int64_t top_k) {
  const auto extension = std::filesystem::path(path).extension();
  bool is_panel = extension == ".json" || extension == ".tsv";
  if (extension == ".npz" || extension == ".safetensors") {  // an array that every capture has
    RORQUAL_TRY_ASSIGN(const auto file, open_arrays(path));
    const auto names = file->names();
    is_panel =
        std::find(names.begin(), names.end(), "tok_id") == names.end() &&
        std::any_of(names.begin(), names.end(), [](const auto& name) { return name.ends_with("logits"); });
  }
  if (is_panel) return read_external_panel(path, top_k);
  ExternalPanel capture;
  RORQUAL_TRY_ASSIGN(capture.dump, read_dump(path));
  if (!capture.dump.logits_path.empty()) {
    RORQUAL_TRY_ASSIGN(capture.logits, open_logits(capture.dump));
  }
  return capture;
}

}  // namespace rorqual::kl
