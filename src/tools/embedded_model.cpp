// SPDX-License-Identifier: Apache-2.0
// Hands the files embedded by CMakeLists.txt (embed_file) to the checkpoint reader, which checks them as it
// checks files on disk.
#include "tools/embedded_model.h"

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

// One pair of symbols per embedded file; the end symbol is one byte past the content.
#define RORQUAL_EMBEDDED(symbol)                       \
  extern "C" const std::byte rorqual_embed_##symbol[]; \
  extern "C" const std::byte rorqual_embed_##symbol##_end[];

RORQUAL_EMBEDDED(mini_config)
RORQUAL_EMBEDDED(mini_index)
RORQUAL_EMBEDDED(mini_shard_1)
RORQUAL_EMBEDDED(mini_shard_2)
RORQUAL_EMBEDDED(mini_shard_3)
RORQUAL_EMBEDDED(mini_tokenizer)
RORQUAL_EMBEDDED(mini_tokenizer_config)

namespace rorqual::tools {
namespace {

format::MemoryFile file(const char* name, const std::byte* begin, const std::byte* end) {
  return {name, std::span<const std::byte>(begin, static_cast<size_t>(end - begin))};
}

}  // namespace

Result<std::unique_ptr<format::TensorSource>> open_embedded_model() {
  std::vector<format::MemoryFile> files;
  files.push_back(file("config.json", rorqual_embed_mini_config, rorqual_embed_mini_config_end));
  files.push_back(
      file("model.safetensors.index.json", rorqual_embed_mini_index, rorqual_embed_mini_index_end));
  files.push_back(
      file("model-00001-of-00003.safetensors", rorqual_embed_mini_shard_1, rorqual_embed_mini_shard_1_end));
  files.push_back(
      file("model-00002-of-00003.safetensors", rorqual_embed_mini_shard_2, rorqual_embed_mini_shard_2_end));
  files.push_back(
      file("model-00003-of-00003.safetensors", rorqual_embed_mini_shard_3, rorqual_embed_mini_shard_3_end));
  files.push_back(file("tokenizer.json", rorqual_embed_mini_tokenizer, rorqual_embed_mini_tokenizer_end));
  files.push_back(file("tokenizer_config.json", rorqual_embed_mini_tokenizer_config,
                       rorqual_embed_mini_tokenizer_config_end));
  return format::open_checkpoint_in_memory(std::string(kEmbeddedModelName), std::move(files));
}

}  // namespace rorqual::tools
