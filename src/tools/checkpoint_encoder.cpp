// SPDX-License-Identifier: Apache-2.0
#include "tools/checkpoint_encoder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/file.h"
#include "base/sha256.h"

namespace rorqual::tools {
namespace {

constexpr const char* kFolder = "encoding";
constexpr const char* kPreferred = "encoding.py";
constexpr int64_t kMaxEncoder_bytes = int64_t{4} << 20;
constexpr const char* kPublishedTokenizer =
    "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b";

std::vector<std::string> encoder_files(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code unreadable;
    if (name.starts_with("encoding") && name.ends_with(".py") && it->is_regular_file(unreadable))
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string checkpoint_encoder(const std::string& model_folder) {
  if (model_folder.empty()) return {};
  const auto folder = std::filesystem::path(model_folder) / kFolder;
  const auto names = encoder_files(folder);
  if (names.empty()) return {};
  const auto preferred = std::find(names.begin(), names.end(), kPreferred);
  const std::string& name = preferred == names.end() ? names.front() : *preferred;
  const auto text = read_text_file((folder / name).string(), kMaxEncoder_bytes);
  if (!text.ok()) return {};
  const std::string digest = sha256_hex(std::as_bytes(std::span(*text)));
  return std::string(kFolder) + "/" + name + " sha256:" + digest;
}

std::string published_tokenizer(const std::string& sha256) {
  return sha256 == kPublishedTokenizer ? "as published for DeepSeek-V4.1" : "";
}

}  // namespace rorqual::tools
