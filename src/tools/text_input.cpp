// SPDX-License-Identifier: Apache-2.0
#include "tools/text_input.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/file.h"
#include "base/units.h"
#include "tools/embedded_model.h"

namespace rorqual::tools {
namespace {

constexpr int64_t kMaxInputBytes = int64_t{256} << 20;
constexpr int64_t kMaxTokenizerBytes = int64_t{64} << 20;

Result<std::string> read_standard_input() {
  std::string text;
  char block[65536];
  while (true) {
    const size_t count = std::fread(block, 1, sizeof block, stdin);
    text.append(block, count);
    if (static_cast<int64_t>(text.size()) > kMaxInputBytes) {
      return Error(Code::corrupt_data,
                   fmt::format("standard input is larger than {}", format_bytes(kMaxInputBytes)),
                   "split the input");
    }
    if (count < sizeof block) break;
  }
  if (std::ferror(stdin) != 0) {
    return Error(Code::io, fmt::format("cannot read standard input: {}", std::strerror(errno)));
  }
  return text;
}

}  // namespace

Result<std::string> read_input(const TextInput& input) {
  if (input.has_text) return input.text;
  if (input.file.empty() || input.file == "-") return read_standard_input();
  return read_text_file(input.file, kMaxInputBytes);
}

Result<text::Tokenizer> load_tokenizer(const std::string& path) {
  if (path.empty()) {
    RORQUAL_TRY_ASSIGN(const auto model, open_embedded_model());
    RORQUAL_TRY_ASSIGN(const auto json, model->read_text("tokenizer.json"));
    return text::Tokenizer::from_json(json);
  }
  const auto file = is_directory(path) ? path + "/tokenizer.json" : path;
  auto json = read_text_file(file, kMaxTokenizerBytes);
  if (!json.ok()) {
    if (json.error().code() != Code::not_found) return std::move(json).error();
    return Error(Code::not_found, fmt::format("no tokenizer at '{}': {}", path, json.error().message()),
                 "give a tokenizer.json or a model folder that holds one");
  }
  auto tokenizer = text::Tokenizer::from_json(*json);
  if (!tokenizer.ok()) return std::move(tokenizer).error().at(file);
  return tokenizer;
}

}  // namespace rorqual::tools
