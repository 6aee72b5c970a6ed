// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json. What the encoder does not implement is refused by name; a file that contradicts
// itself is refused with the place. All sizes are checked before they are used.
#include <simdjson.h>

#include <charconv>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "base/sha256.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

namespace rorqual::text {

namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr size_t kMaxTokens = size_t{1} << 22;
constexpr size_t kMaxTokenBytes = size_t{1} << 12;

// The pre-tokenizer's expressions; the third is written with characters or with escapes for CR and LF.
constexpr std::string_view kNumberPattern = R"(\p{N}{1,3})";
constexpr std::string_view kHanPattern = "[一-龥\u3040-ゟ゠-ヿ]+";
constexpr std::string_view kWordPattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Error corrupt(const std::string& what) {
  return Error(Code::corrupt_data, what, "take tokenizer.json again from the model's repository");
}

Error unsupported(const std::string& what) {
  return Error(Code::corrupt_data, what,
               "only byte-level BPE tokenizers of the DeepSeek-V4 family can be read");
}

std::string spell_newlines(std::string_view pattern) {
  std::string out;
  for (const char c : pattern) {
    if (c == '\r') {
      out += "\\r";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

bool is_null_or_absent(const object& parent, const char* key) {
  element value;
  return parent[key].get(value) != simdjson::SUCCESS || value.is_null();
}

bool bool_field(const object& parent, const char* key, bool fallback) {
  bool value = fallback;
  return parent[key].get(value) == simdjson::SUCCESS ? value : fallback;
}

std::string string_field(const object& parent, const char* key) {
  std::string_view value;
  return parent[key].get(value) == simdjson::SUCCESS ? std::string(value) : std::string();
}

Status check_normalizer(const object& root) {
  if (is_null_or_absent(root, "normalizer")) return Ok{};
  object normalizer;
  array steps;
  if (root["normalizer"].get(normalizer) == simdjson::SUCCESS &&
      string_field(normalizer, "type") == "Sequence" &&
      normalizer["normalizers"].get(steps) == simdjson::SUCCESS && steps.size() == 0) {
    return Ok{};
  }
  return unsupported("normalizer: only none or an empty Sequence is supported, got '" +
                     string_field(normalizer, "type") + "'");
}

Status check_split(const object& stage, std::string_view expected, const std::string& where) {
  object pattern;
  std::string regex;
  if (stage["pattern"].get(pattern) == simdjson::SUCCESS) regex = string_field(pattern, "Regex");
  if (string_field(stage, "type") != "Split" || string_field(stage, "behavior") != "Isolated" ||
      bool_field(stage, "invert", false) || spell_newlines(regex) != expected) {
    return unsupported(where + ": expected an isolating Split on " + std::string(expected) + ", got type '" +
                       string_field(stage, "type") + "', behavior '" + string_field(stage, "behavior") +
                       "', regex '" + regex.substr(0, 200) + "'");
  }
  return Ok{};
}

Status check_pre_tokenizer(const object& root) {
  object pre;
  array stages;
  if (root["pre_tokenizer"].get(pre) != simdjson::SUCCESS || string_field(pre, "type") != "Sequence" ||
      pre["pretokenizers"].get(stages) != simdjson::SUCCESS || stages.size() != 4) {
    return unsupported("pre_tokenizer: expected a Sequence of three Splits and ByteLevel");
  }
  const std::string_view patterns[] = {kNumberPattern, kHanPattern, kWordPattern};
  size_t index = 0;
  for (element entry : stages) {
    const std::string where = "pre_tokenizer stage " + std::to_string(index + 1);
    object stage;
    if (entry.get(stage) != simdjson::SUCCESS) return corrupt(where + " is not an object");
    if (index < 3) {
      RORQUAL_TRY(check_split(stage, patterns[index], where));
    } else if (string_field(stage, "type") != "ByteLevel" || bool_field(stage, "add_prefix_space", true) ||
               bool_field(stage, "use_regex", true)) {
      return unsupported(where + ": expected ByteLevel without prefix space and without its own regex");
    }
    ++index;
  }
  return Ok{};
}

Status check_byte_level(const object& root, const char* key) {
  if (is_null_or_absent(root, key)) return Ok{};
  object value;
  if (root[key].get(value) != simdjson::SUCCESS || string_field(value, "type") != "ByteLevel") {
    return unsupported(std::string(key) + ": only ByteLevel is supported, got '" +
                       string_field(value, "type") + "'");
  }
  return Ok{};
}

Status check_model_options(const object& model) {
  if (string_field(model, "type") != "BPE") {
    return unsupported("model.type: expected BPE, got '" + string_field(model, "type") + "'");
  }
  for (const char* key : {"dropout", "unk_token"}) {
    if (!is_null_or_absent(model, key))
      return unsupported("model." + std::string(key) + " is set; expected null");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!string_field(model, key).empty())
      return unsupported("model." + std::string(key) + " is set; expected null");
  }
  if (bool_field(model, "byte_fallback", false))
    return unsupported("model.byte_fallback is true; expected false");
  return Ok{};
}

}  // namespace

/// Collects the parts of one file; every step checks what it takes over.
class TokenizerReader {
 public:
  TokenizerReader() : impl_(std::make_unique<Tokenizer::Impl>()) {}

  Status read(const object& root) {
    RORQUAL_TRY(check_normalizer(root));
    RORQUAL_TRY(check_pre_tokenizer(root));
    RORQUAL_TRY(check_byte_level(root, "decoder"));
    RORQUAL_TRY(check_byte_level(root, "post_processor"));
    object model;
    if (root["model"].get(model) != simdjson::SUCCESS) return corrupt("model is missing or not an object");
    RORQUAL_TRY(check_model_options(model));
    RORQUAL_TRY(read_vocabulary(model));
    RORQUAL_TRY(read_added_tokens(root));
    RORQUAL_TRY(place_tokens());
    RORQUAL_TRY(read_merges(model));
    impl_->ignore_merges = bool_field(model, "ignore_merges", false);
    if (impl_->ignore_merges) {
      for (const auto& [spelling, id] : vocabulary_) impl_->by_bytes.emplace(token(id).bytes, id);
    }
    return Ok{};
  }

  std::unique_ptr<Tokenizer::Impl> take() { return std::move(impl_); }

 private:
  Tokenizer::Impl::Token& token(int32_t id) { return impl_->tokens[static_cast<size_t>(id)]; }

  Status read_vocabulary(const object& model) {
    object vocabulary;
    if (model["vocab"].get(vocabulary) != simdjson::SUCCESS)
      return corrupt("model.vocab is missing or not an object");
    for (const auto field : vocabulary) {
      int64_t id = 0;
      if (field.value.get(id) != simdjson::SUCCESS || id < 0 || id >= static_cast<int64_t>(kMaxTokens)) {
        return corrupt("model.vocab: id of '" + std::string(field.key.substr(0, 80)) + "' is not in 0.." +
                       std::to_string(kMaxTokens - 1));
      }
      if (field.key.empty() || field.key.size() > kMaxTokenBytes) {
        return corrupt("model.vocab: spelling of id " + std::to_string(id) + " has " +
                       std::to_string(field.key.size()) + " bytes, expected 1.." +
                       std::to_string(kMaxTokenBytes));
      }
      if (!vocabulary_.emplace(std::string(field.key), static_cast<int32_t>(id)).second) {
        return corrupt("model.vocab: '" + std::string(field.key) + "' is listed twice");
      }
      if (vocabulary_.size() > kMaxTokens) return corrupt("model.vocab has more than 4194304 tokens");
    }
    return Ok{};
  }

  Status read_added_token(const object& entry) {
    int64_t id = -1;
    std::string_view content;
    if (entry["id"].get(id) != simdjson::SUCCESS || id < 0 || id >= static_cast<int64_t>(kMaxTokens)) {
      return corrupt("added_tokens: an id is missing or not in 0.." + std::to_string(kMaxTokens - 1));
    }
    if (entry["content"].get(content) != simdjson::SUCCESS || content.empty() ||
        content.size() > kMaxTokenBytes) {
      return corrupt("added_tokens: content of id " + std::to_string(id) + " is missing, empty or too long");
    }
    for (const char* key : {"lstrip", "rstrip", "single_word"}) {
      if (bool_field(entry, key, false)) {
        return unsupported("added token '" + std::string(content) + "': " + key + " is true; expected false");
      }
    }
    const std::string spelling(content);
    const auto base = vocabulary_.find(spelling);
    if (base != vocabulary_.end() && base->second != id) {
      return corrupt("added token '" + spelling + "' has id " + std::to_string(id) + ", model.vocab gives " +
                     std::to_string(base->second));
    }
    const auto token_id = static_cast<int32_t>(id);
    if (!impl_->added.emplace(spelling, token_id).second) {
      return corrupt("added token '" + spelling + "' is listed twice");
    }
    if (bool_field(entry, "special", false)) specials_.push_back(token_id);
    (bool_field(entry, "normalized", true) ? impl_->normalized : impl_->verbatim).add(content, token_id);
    return Ok{};
  }

  Status read_added_tokens(const object& root) {
    array entries;
    if (root["added_tokens"].get(entries) != simdjson::SUCCESS) return Ok{};
    for (element value : entries) {
      object entry;
      if (value.get(entry) != simdjson::SUCCESS) return corrupt("added_tokens: an entry is not an object");
      RORQUAL_TRY(read_added_token(entry));
      if (impl_->added.size() > kMaxTokens) return corrupt("added_tokens has more than 4194304 entries");
    }
    return Ok{};
  }

  /// Ids must be 0..n-1 without gaps and repetitions.
  Status place_tokens() {
    std::map<int32_t, const std::string*> extra;
    for (const auto& [spelling, id] : impl_->added) {
      if (!vocabulary_.contains(spelling) && !extra.emplace(id, &spelling).second) {
        return corrupt("added_tokens: id " + std::to_string(id) + " is used twice");
      }
    }
    const size_t count = vocabulary_.size() + extra.size();
    impl_->tokens.resize(count);
    const auto place = [&](const std::string& spelling, int32_t id, bool is_base) -> Status {
      if (static_cast<size_t>(id) >= count) {
        return corrupt("id " + std::to_string(id) + " of '" + spelling + "' is beyond the " +
                       std::to_string(count) + " tokens of the file");
      }
      if (!token(id).spelling.empty()) {
        return corrupt("id " + std::to_string(id) + " belongs to '" + token(id).spelling + "' and '" +
                       spelling + "'");
      }
      token(id).spelling = spelling;
      const auto bytes = is_base ? bytes_of_spelling(spelling) : std::nullopt;
      token(id).bytes = bytes ? *bytes : spelling;
      return Ok{};
    };
    for (const auto& [spelling, id] : vocabulary_) RORQUAL_TRY(place(spelling, id, true));
    for (const auto& [id, spelling] : extra) RORQUAL_TRY(place(*spelling, id, false));
    for (const auto& [spelling, id] : impl_->added) {
      token(id).is_added = true;
      token(id).bytes = spelling;
    }
    for (const int32_t id : specials_) token(id).is_special = true;
    return place_bytes();
  }

  Status place_bytes() {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      std::string spelling;
      append_utf8(spelling, byte_to_char(static_cast<uint8_t>(byte)));
      const auto it = vocabulary_.find(spelling);
      if (it == vocabulary_.end()) {
        return corrupt("model.vocab lacks the token of byte " + std::to_string(byte) + " ('" + spelling +
                       "')");
      }
      impl_->byte_ids[byte] = it->second;
    }
    return Ok{};
  }

  Status read_merges(const object& model) {
    array merges;
    if (model["merges"].get(merges) != simdjson::SUCCESS)
      return corrupt("model.merges is missing or not an array");
    impl_->merges.reserve(std::min(merges.size(), kMaxTokens));
    int32_t rank = 0;
    for (element value : merges) {
      if (rank >= static_cast<int32_t>(kMaxTokens))
        return corrupt("model.merges has more than 4194304 entries");
      std::string_view left, right;
      if (!split_merge(value, left, right)) {
        return corrupt("model.merges[" + std::to_string(rank) + "] is not a pair of tokens");
      }
      RORQUAL_TRY(add_merge(left, right, rank));
      ++rank;
    }
    return Ok{};
  }

  static bool split_merge(const element& value, std::string_view& left, std::string_view& right) {
    std::string_view text;
    if (value.get(text) == simdjson::SUCCESS) {
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
        return false;
      left = text.substr(0, space);
      right = text.substr(space + 1);
      return true;
    }
    array pair;
    return value.get(pair) == simdjson::SUCCESS && pair.size() == 2 &&
           pair.at(0).get(left) == simdjson::SUCCESS && pair.at(1).get(right) == simdjson::SUCCESS;
  }

  Status add_merge(std::string_view left, std::string_view right, int32_t rank) {
    const auto id_of = [this](const std::string& spelling) {
      const auto it = vocabulary_.find(spelling);
      return it == vocabulary_.end() ? -1 : it->second;
    };
    const std::string joined = std::string(left) + std::string(right);
    const int32_t left_id = id_of(std::string(left)), right_id = id_of(std::string(right)),
                  merged = id_of(joined);
    if (left_id < 0 || right_id < 0 || merged < 0) {
      return corrupt("model.merges[" + std::to_string(rank) + "]: '" + std::string(left.substr(0, 80)) +
                     "' + '" + std::string(right.substr(0, 80)) +
                     "': not all of the parts and the result are in model.vocab");
    }
    if (!impl_->merges.insert(left_id, right_id, {rank, merged})) {
      return corrupt("model.merges[" + std::to_string(rank) + "]: the pair is listed twice");
    }
    return Ok{};
  }

  std::unique_ptr<Tokenizer::Impl> impl_;
  std::unordered_map<std::string, int32_t> vocabulary_;
  std::vector<int32_t> specials_;
};

Result<Tokenizer> Tokenizer::from_json(std::string_view json) {
  if (json.size() > kMaxFileBytes) {
    return corrupt("tokenizer.json has " + std::to_string(json.size()) + " bytes, the limit is " +
                   std::to_string(kMaxFileBytes));
  }
  simdjson::dom::parser parser;
  element document;
  const auto error = parser.parse(json.data(), json.size()).get(document);
  if (error != simdjson::SUCCESS) {
    return corrupt(std::string("tokenizer.json is not valid JSON: ") + simdjson::error_message(error));
  }
  object root;
  if (document.get(root) != simdjson::SUCCESS) return corrupt("tokenizer.json is not a JSON object");
  TokenizerReader reader;
  Status status = reader.read(root);
  if (!status.ok()) return std::move(status).error().at("tokenizer.json");
  auto impl = reader.take();
  impl->sha256 = sha256_hex(std::as_bytes(std::span(json)));
  return Tokenizer(std::move(impl));
}

}  // namespace rorqual::text
