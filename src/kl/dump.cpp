// SPDX-License-Identifier: Apache-2.0
// Both layouts hold the same named arrays and one JSON object of facts ("meta"), so one reader serves both.
// Everything in a file is doubted: sizes before memory, then values. The layout of .npz is that of the
// published V4.1-Flash captures (docs/fidelity.md#dumps).
#include "kl/dump.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "base/check.h"
#include "base/checked.h"
#include "format/safetensors.h"
#include "format/safetensors_writer.h"
#include "kl/dump_rows.h"
#include "kl/npz.h"

namespace rorqual::kl {
namespace {

using Json = nlohmann::json;
using tensor::DType;

constexpr int64_t kMaxMeta_bytes = 16 << 20;
constexpr int64_t kMaxVocabulary = 1 << 24;
constexpr std::string_view kFormatName = "rorqual.kl.dump/1";
constexpr std::string_view kMetaKey = "rorqual.kl.meta";

// ---- the facts ----

Error bad_meta(std::string message) {
  return Error(Code::corrupt_data, "meta: " + std::move(message),
               "meta is a JSON object with model, corpus, ctx, chunks, topk, first_scored, vocab, "
               "scored_positions");
}

Result<int64_t> integer_field(const Json& meta, const char* key, int64_t min) {
  const auto found = meta.find(key);
  if (found == meta.end()) return bad_meta(fmt::format("no field '{}'", key));
  if (!found->is_number_integer() || found->get<double>() < static_cast<double>(min) ||
      found->get<double>() > static_cast<double>(int64_t{1} << 40)) {
    return bad_meta(fmt::format("field '{}' is {}, expected an integer from {}", key,
                                found->dump(-1, ' ', true).substr(0, 60), min));
  }
  return found->get<int64_t>();
}

std::string text_field(const Json& meta, const char* key) {
  const auto found = meta.find(key);
  return found != meta.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Result<Json> parse_meta(std::string_view text) {
  Json meta = Json::parse(text, nullptr, false);
  if (!meta.is_object()) return bad_meta("not a JSON object");
  return meta;
}

Result<DumpInfo> read_info(const Json& meta) {
  DumpInfo info;
  info.model = text_field(meta, "model");
  info.corpus = text_field(meta, "corpus");
  for (const char c : info.model + info.corpus) {  // both stand in messages and tables
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F)
      return bad_meta("model or corpus has control characters, expected a name");
  }
  info.corpus_sha256 = text_field(meta, "corpus_sha256");
  info.windows_sha256 = text_field(meta, "windows_sha256");
  RORQUAL_TRY_ASSIGN(info.context, integer_field(meta, "ctx", 0));
  RORQUAL_TRY_ASSIGN(info.num_windows, integer_field(meta, "chunks", 1));
  RORQUAL_TRY_ASSIGN(info.top_k, integer_field(meta, "topk", 1));
  RORQUAL_TRY_ASSIGN(info.first_scored, integer_field(meta, "first_scored", 0));
  RORQUAL_TRY_ASSIGN(info.vocab_size, integer_field(meta, "vocab", 1));
  RORQUAL_TRY_ASSIGN(info.scored_positions, integer_field(meta, "scored_positions", 1));
  if (info.vocab_size > kMaxVocabulary)
    return bad_meta(fmt::format("field 'vocab' is {}, expected at most {}", info.vocab_size, kMaxVocabulary));
  if (info.top_k > info.vocab_size) {
    return bad_meta(fmt::format("topk {} is larger than the vocabulary of {}", info.top_k, info.vocab_size));
  }
  if (info.num_windows > info.scored_positions) {
    return bad_meta(
        fmt::format("{} windows for {} scored positions", info.num_windows, info.scored_positions));
  }
  return info;
}

/// Rows per window: as listed, else equal shares of all rows.
Result<std::vector<int64_t>> window_rows_of(const Json& meta, const DumpInfo& info) {
  const auto listed = meta.find("window_rows");
  if (listed != meta.end()) {
    if (!listed->is_array()) return bad_meta("window_rows is no list");
    std::vector<int64_t> rows;
    for (const auto& item : *listed) {
      if (!item.is_number_integer()) return bad_meta("window_rows holds something that is no integer");
      rows.push_back(item.get<int64_t>());
    }
    return rows;
  }
  const int64_t per_window = info.scored_positions / info.num_windows;
  if (per_window * info.num_windows != info.scored_positions) {
    return bad_meta(fmt::format("{} scored positions do not divide into {} windows", info.scored_positions,
                                info.num_windows));
  }
  if (info.context > 0 && info.first_scored > 0 && info.context - info.first_scored != per_window) {
    return bad_meta(fmt::format(
        "windows of {} tokens scored from {} have {} positions, but {} positions in {} windows are {} each",
        info.context, info.first_scored, info.context - info.first_scored, info.scored_positions,
        info.num_windows, per_window));
  }
  std::vector<int64_t> rows(static_cast<size_t>(info.num_windows) + 1);
  for (size_t w = 0; w < rows.size(); ++w) rows[w] = static_cast<int64_t>(w) * per_window;
  return rows;
}

bool windows_are_equal(const Dump& dump) {
  for (size_t w = 1; w + 1 < dump.window_rows.size(); ++w) {
    if (dump.window_rows[w + 1] - dump.window_rows[w] != dump.window_rows[1] - dump.window_rows[0])
      return false;
  }
  return true;
}

std::string meta_text(const Dump& dump, bool with_rows) {
  const DumpInfo& info = dump.info;
  nlohmann::ordered_json meta = {{"model", info.model},      {"corpus", info.corpus},
                                 {"ctx", info.context},      {"chunks", info.num_windows},
                                 {"topk", info.top_k},       {"first_scored", info.first_scored},
                                 {"vocab", info.vocab_size}, {"scored_positions", info.scored_positions}};
  // Beyond the public fields, where there is something to say.
  if (!info.corpus_sha256.empty()) meta["corpus_sha256"] = info.corpus_sha256;
  if (!info.windows_sha256.empty()) meta["windows_sha256"] = info.windows_sha256;
  if (with_rows && !windows_are_equal(dump)) meta["window_rows"] = dump.window_rows;
  return meta.dump(-1, ' ', true, Json::error_handler_t::replace);
}

// ---- arrays of either format ----

/// Named arrays of a file. `read` fails when type or shape are not the expected ones.
class Arrays {
 public:
  virtual ~Arrays() = default;
  virtual bool has(std::string_view name) const = 0;
  virtual Status check(std::string_view name, DType dtype, std::span<const int64_t> shape) const = 0;
  virtual Status read(std::string_view name, std::span<std::byte> dst) const = 0;
  virtual std::string path() const = 0;

 protected:
  Error mismatch(std::string_view name, const std::string& got, const std::string& expected,
                 Code code) const {
    return Error(code, fmt::format("{}: array '{}' is {}, expected {}", path(), name, got, expected),
                 "the shapes follow from meta: scored_positions, topk; docs/fidelity.md#dumps");
  }
};

class NpzArrays : public Arrays {
 public:
  explicit NpzArrays(std::unique_ptr<NpzFile> file) : file_(std::move(file)) {}

  const NpzFile& file() const { return *file_; }

  bool has(std::string_view name) const override { return file_->has(name); }

  std::string path() const override { return file_->path(); }

  Status check(std::string_view name, DType dtype, std::span<const int64_t> shape) const override {
    RORQUAL_TRY_ASSIGN(const NpzArray array, find(name));
    const std::string_view expected = dtype == DType::i32 ? "<i4" : dtype == DType::i64 ? "<i8" : "<f4";
    if (array.header.dtype != expected)
      return mismatch(name, "'" + array.header.dtype + "'", "'" + std::string(expected) + "'",
                      Code::unsupported);
    if (!std::equal(shape.begin(), shape.end(), array.header.shape.begin(), array.header.shape.end()))
      return mismatch(name, shape_text(array.header.shape), shape_text(shape), Code::corrupt_data);
    return Ok();
  }

  Status read(std::string_view name, std::span<std::byte> dst) const override {
    RORQUAL_TRY_ASSIGN(const NpzArray array, find(name));
    RORQUAL_CHECK(array.header.data_bytes == static_cast<int64_t>(dst.size()));
    return file_->read(array, 0, dst);
  }

 private:
  Result<NpzArray> find(std::string_view name) const {
    auto array = file_->find(name);
    if (!array.ok() && array.error().code() == Code::not_found)  // in a dump, an absent array is damage
      return Error(Code::corrupt_data, array.error().message(), array.error().hint());
    return array;
  }

  std::unique_ptr<NpzFile> file_;
};

class TensorArrays : public Arrays {
 public:
  TensorArrays(std::string path, std::unique_ptr<format::SafetensorsFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  const format::SafetensorsFile& file() const { return *file_; }

  bool has(std::string_view name) const override { return file_->find(name) != nullptr; }

  std::string path() const override { return path_; }

  Status check(std::string_view name, DType dtype, std::span<const int64_t> shape) const override {
    const auto* tensor = file_->find(name);
    if (tensor == nullptr) return mismatch(name, "absent", "there", Code::corrupt_data);
    if (tensor->dtype != dtype) {
      return mismatch(name, std::string(tensor::dtype_name(tensor->dtype)),
                      std::string(tensor::dtype_name(dtype)), Code::unsupported);
    }
    if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end()))
      return mismatch(name, shape_text(tensor->shape), shape_text(shape), Code::corrupt_data);
    return Ok();
  }

  Status read(std::string_view name, std::span<std::byte> dst) const override {
    return file_->read(*file_->find(name), 0, dst);
  }

 private:
  std::string path_;
  std::unique_ptr<format::SafetensorsFile> file_;
};

template <class T>
Status load(const Arrays& arrays, std::string_view name, std::span<const int64_t> shape,
            std::vector<T>& out) {
  constexpr DType kType = std::is_same_v<T, float>     ? DType::f32
                          : std::is_same_v<T, int32_t> ? DType::i32
                                                       : DType::i64;
  RORQUAL_TRY(arrays.check(name, kType, shape));
  const auto count = product_checked(shape);
  RORQUAL_CHECK(count.has_value());  // the check above found exactly this shape in the file
  out.resize(static_cast<size_t>(*count));
  return arrays.read(name, std::as_writable_bytes(std::span(out)));
}

Status load_rows(const Arrays& arrays, Dump& dump) {
  const int64_t rows = dump.info.scored_positions;
  const int64_t matrix[] = {rows, dump.info.top_k};
  const int64_t vector[] = {rows};
  // All shapes before the first big allocation.
  RORQUAL_TRY(arrays.check("top_ids", DType::i32, matrix));
  RORQUAL_TRY(arrays.check("top_lps", DType::f32, matrix));
  RORQUAL_TRY(load(arrays, "tok_id", vector, dump.token));
  RORQUAL_TRY(load(arrays, "tok_lp", vector, dump.token_logprob));
  RORQUAL_TRY(load(arrays, "top_ids", matrix, dump.top_ids));
  return load(arrays, "top_lps", matrix, dump.top_logprobs);
}

/// Windows' tokens: all three arrays or none.
Status load_windows(const Arrays& arrays, int64_t num_tokens, Dump& dump) {
  const int64_t windows = dump.info.num_windows;
  const int64_t tokens_shape[] = {num_tokens};
  const int64_t begin_shape[] = {windows + 1};
  const int64_t windows_shape[] = {windows};
  RORQUAL_TRY(load(arrays, "window_ids", tokens_shape, dump.window_ids));
  RORQUAL_TRY(load(arrays, "window_begin", begin_shape, dump.window_begin));
  return load(arrays, "window_first_scored", windows_shape, dump.window_first_scored);
}

// ---- .npz ----

/// The text of a 0-d or one-element array of numpy strings ('<U', UTF-32) or bytes ('|S', or '|u1' [n]).
Result<std::string> read_text_array(const NpzFile& file, std::string_view name) {
  RORQUAL_TRY_ASSIGN(const NpzArray array, file.find(name));
  const NpyHeader& header = array.header;
  const char kind = header.dtype[1];
  if (header.data_bytes > kMaxMeta_bytes) {
    return Error(Code::corrupt_data, fmt::format("{}: array '{}' has {} bytes, expected at most {}",
                                                 file.path(), name, header.data_bytes, kMaxMeta_bytes));
  }
  const bool is_text = kind == 'U' || kind == 'S';
  if (!(is_text && header.num_items() == 1) && !(header.dtype == "|u1" && header.shape.size() == 1)) {
    return Error(Code::unsupported,
                 fmt::format("{}: array '{}' is '{}' {}, expected one string", file.path(), name,
                             header.dtype, shape_text(header.shape)),
                 "numpy.array(json.dumps(meta)) makes it");
  }
  std::vector<std::byte> bytes(static_cast<size_t>(header.data_bytes));
  RORQUAL_TRY(file.read(array, 0, bytes));
  std::string text;
  if (kind == 'U') {
    for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
      uint32_t code = 0;
      std::memcpy(&code, &bytes[i], 4);
      if (!append_utf8(code, text)) {
        return Error(Code::corrupt_data,
                     fmt::format("{}: array '{}': code point {} is none", file.path(), name, code));
      }
    }
  } else {
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  while (text.ends_with('\0')) text.pop_back();  // numpy's padding
  return text;
}

Result<Dump> read_npz(const std::string& path) {
  RORQUAL_TRY_ASSIGN(auto file, NpzFile::open(path));
  const NpzArrays arrays(std::move(file));
  auto text = read_text_array(arrays.file(), "meta");
  if (!text.ok()) {
    const Code code = text.error().code() == Code::not_found ? Code::corrupt_data : text.error().code();
    return Error(code, text.error().message(), text.error().hint());
  }
  Dump dump;
  RORQUAL_TRY_ASSIGN(const Json meta, parse_meta(*text));
  RORQUAL_TRY_ASSIGN(dump.info, read_info(meta));
  RORQUAL_TRY(load_rows(arrays, dump));
  RORQUAL_TRY_ASSIGN(dump.window_rows, window_rows_of(meta, dump.info));
  return dump;
}

Status write_npz_dump(const std::string& path, const Dump& dump) {
  const int64_t rows = dump.num_rows();
  const std::string meta = meta_text(dump, true);  // ASCII only: one code point per byte
  std::u32string wide(meta.begin(), meta.end());
  const NpzMember members[] = {
      {"top_ids", "<i4", {rows, dump.info.top_k}, std::as_bytes(std::span(dump.top_ids))},
      {"top_lps", "<f4", {rows, dump.info.top_k}, std::as_bytes(std::span(dump.top_logprobs))},
      {"tok_id", "<i4", {rows}, std::as_bytes(std::span(dump.token))},
      {"tok_lp", "<f4", {rows}, std::as_bytes(std::span(dump.token_logprob))},
      {"meta", fmt::format("<U{}", wide.size()), {}, std::as_bytes(std::span(wide))}};
  return write_npz(path, members);
}

// ---- .safetensors ----

Result<Dump> read_safetensors_dump(const std::string& path) {
  RORQUAL_TRY_ASSIGN(auto file, format::open_safetensors(path));
  const TensorArrays arrays(path, std::move(file));
  const std::string_view format_name = arrays.file().metadata("format");
  if (format_name != kFormatName) {
    return Error(Code::corrupt_data,
                 fmt::format("{}: format '{}', expected '{}'", path, format_name.substr(0, 60), kFormatName),
                 "this safetensors file is no capture of rorqual kl");
  }
  Dump dump;
  RORQUAL_TRY_ASSIGN(const Json meta, parse_meta(arrays.file().metadata(kMetaKey)));
  RORQUAL_TRY_ASSIGN(dump.info, read_info(meta));
  RORQUAL_TRY(load_rows(arrays, dump));
  const int64_t rows_shape[] = {dump.info.num_windows + 1};
  RORQUAL_TRY(load(arrays, "window_rows", rows_shape, dump.window_rows));
  if (const auto* tokens = arrays.file().find("window_ids")) {
    RORQUAL_TRY(load_windows(arrays, tokens->shape.empty() ? 0 : tokens->shape[0], dump));
  }
  if (arrays.has("logits")) {
    const int64_t shape[] = {dump.info.scored_positions, dump.info.vocab_size};
    RORQUAL_TRY(arrays.check("logits", DType::f32, shape));
    dump.logits_path = path;
  }
  return dump;
}

Status write_safetensors_dump(const std::string& path, const Dump& dump) {
  RORQUAL_TRY_ASSIGN(auto writer,
                     format::SafetensorsWriter::create(path, dump_tensors(dump, false), dump_metadata(dump)));
  RORQUAL_TRY(for_each_dump_array(dump, [&](std::string_view name, std::span<const std::byte> bytes) {
    return writer.append_tensor(name, bytes);
  }));
  return writer.finish();
}

enum class Layout : uint8_t { npz, safetensors };

Result<Layout> layout_of(const std::string& path) {
  const auto extension = std::filesystem::path(path).extension();
  if (extension == ".npz") return Layout::npz;
  if (extension == ".safetensors") return Layout::safetensors;
  return Error(Code::invalid_argument, fmt::format("'{}': dumps end in .npz or .safetensors", path),
               "rename the file");
}

}  // namespace

std::vector<format::TensorDeclaration> dump_tensors(const Dump& dump, bool with_logits) {
  const int64_t rows = dump.num_rows();
  std::vector<format::TensorDeclaration> tensors;
  if (with_logits) tensors.push_back({"logits", DType::f32, {rows, dump.info.vocab_size}});
  const int64_t windows = dump.info.num_windows;
  tensors.push_back({"top_ids", DType::i32, {rows, dump.info.top_k}});
  tensors.push_back({"top_lps", DType::f32, {rows, dump.info.top_k}});
  tensors.push_back({"tok_id", DType::i32, {rows}});
  tensors.push_back({"tok_lp", DType::f32, {rows}});
  tensors.push_back({"window_rows", DType::i64, {windows + 1}});
  if (!dump.window_begin.empty()) {
    tensors.push_back({"window_ids", DType::i32, {static_cast<int64_t>(dump.window_ids.size())}});
    tensors.push_back({"window_begin", DType::i64, {windows + 1}});
    tensors.push_back({"window_first_scored", DType::i64, {windows}});
  }
  return tensors;
}

format::Metadata dump_metadata(const Dump& dump) {
  return {{"format", std::string(kFormatName)}, {std::string(kMetaKey), meta_text(dump, false)}};
}

Status for_each_dump_array(
    const Dump& dump,
    const std::function<Status(std::string_view name, std::span<const std::byte> bytes)>& visit) {
  RORQUAL_TRY(visit("top_ids", std::as_bytes(std::span(dump.top_ids))));
  RORQUAL_TRY(visit("top_lps", std::as_bytes(std::span(dump.top_logprobs))));
  RORQUAL_TRY(visit("tok_id", std::as_bytes(std::span(dump.token))));
  RORQUAL_TRY(visit("tok_lp", std::as_bytes(std::span(dump.token_logprob))));
  RORQUAL_TRY(visit("window_rows", std::as_bytes(std::span(dump.window_rows))));
  if (dump.window_begin.empty()) return Ok();
  RORQUAL_TRY(visit("window_ids", std::as_bytes(std::span(dump.window_ids))));
  RORQUAL_TRY(visit("window_begin", std::as_bytes(std::span(dump.window_begin))));
  return visit("window_first_scored", std::as_bytes(std::span(dump.window_first_scored)));
}

Result<Dump> read_dump(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    return Error(Code::not_found, fmt::format("cannot open '{}': no such file", path));
  RORQUAL_TRY_ASSIGN(const Layout layout, layout_of(path));
  auto dump = layout == Layout::npz ? read_npz(path) : read_safetensors_dump(path);
  const auto named = [&](Error error) {
    return error.message().find(path) == std::string::npos ? std::move(error).at(path) : error;
  };
  if (!dump.ok()) return named(std::move(dump).error());
  sort_ties(*dump);
  auto status = check_dump(*dump);
  if (!status.ok()) return named(std::move(status).error());
  return dump;
}

Status write_dump(const std::string& path, const Dump& dump) {
  RORQUAL_TRY_ASSIGN(const Layout layout, layout_of(path));
  auto status = check_dump_shapes(dump);
  if (!status.ok()) return std::move(status).error().at(path);
  return layout == Layout::npz ? write_npz_dump(path, dump) : write_safetensors_dump(path, dump);
}

}  // namespace rorqual::kl
