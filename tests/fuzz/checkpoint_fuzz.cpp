// SPDX-License-Identifier: Apache-2.0
// A model folder in memory: the index is fuzzed against one good shard.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "format/tensor_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rorqual::format;
  static const std::string shard = [] {
    const std::string header = R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
    const uint64_t length = header.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return bytes + header + "data";
  }();
  const auto source = open_checkpoint_in_memory(
      "fuzz", {{"model.safetensors.index.json", std::as_bytes(std::span(data, size))},
               {"a.safetensors", std::as_bytes(std::span(shard))}});
  if (!source.ok()) return 0;
  if ((*source)->tensors().size() != 1) std::abort();
  std::byte last{};
  if (!(*source)->read((*source)->tensors()[0], 3, std::span(&last, 1)).ok() || last != std::byte{'a'})
    std::abort();
  return 0;
}
