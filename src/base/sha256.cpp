// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "base/file.h"

namespace rorqual {

struct Sha256::State {
  EVP_MD_CTX* context = nullptr;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  state_->context = EVP_MD_CTX_new();
  RORQUAL_CHECK(state_->context != nullptr);
  RORQUAL_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() {
  EVP_MD_CTX_free(state_->context);
}

void Sha256::update(std::span<const std::byte> bytes) {
  RORQUAL_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> digest{};
  unsigned length = 0;
  RORQUAL_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &length) == 1 && length == digest.size());
  std::string text;
  for (const unsigned char byte : digest) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

Result<std::string> sha256_of_file(const std::string& path) {
  constexpr int64_t kChunk_bytes = int64_t{1} << 20;
  RORQUAL_TRY_ASSIGN(const File file, File::open(path));
  Sha256 hash;
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(kChunk_bytes, file.size_bytes())));
  for (int64_t offset = 0; offset < file.size_bytes(); offset += kChunk_bytes) {
    const auto part =
        std::span(chunk).first(static_cast<size_t>(std::min(kChunk_bytes, file.size_bytes() - offset)));
    RORQUAL_TRY(file.read(offset, part));
    hash.update(part);
  }
  return hash.hex();
}

}  // namespace rorqual
