// SPDX-License-Identifier: Apache-2.0
// simdjson on demand: the document is walked once, front to back, one row in memory at a time.
#include "tools/completion_reply.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace rorqual::tools {
namespace {

namespace ondemand = simdjson::ondemand;
using runtime::PositionLogprobs;
using runtime::TokenLogprob;

constexpr std::string_view kIdPrefix = "token_id:";

Error bad_reply(const std::string& what) {
  return {Code::corrupt_data, "the server's answer: " + what,
          "the server must speak OpenAI's /v1/completions with vLLM's prompt_logprobs and return_token_ids"};
}

std::optional<int32_t> id_from(std::string_view text) {
  int32_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0) return {};
  return id;
}

bool comes_before(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.rank < b.rank);
}

/// Reads one answer. Its methods throw simdjson's exceptions; read_completion catches them.
class Reader {
 public:
  Reader(const ReplyContext& context, const OnPromptRow& on_row) : context_(context), on_row_(on_row) {}

  Status read(ondemand::document& document) {
    for (auto field : document.get_object()) {
      const std::string_view key = field.unescaped_key();
      if (key == "choices") {
        for (auto choice : field.value().get_array()) RORQUAL_TRY(read_choice(choice.get_object()));
      } else if (key == "usage") {
        read_usage(field.value());
      } else if (key == "error") {
        return Error(Code::internal, fmt::format("the server reports: {}", error_text(field.value())));
      }
    }
    if (context_.is_piece && num_choices_ == 0) return Ok();
    if (num_choices_ != 1) return bad_reply(fmt::format("{} choices, expected 1", num_choices_));
    return complete();
  }

  CompletionReply take() { return std::move(reply_); }

 private:
  Status read_choice(ondemand::object choice) {
    ++num_choices_;
    for (auto field : choice) {
      const std::string_view key = field.unescaped_key();
      ondemand::value value = field.value();
      if (key == "prompt_logprobs") {
        if (context_.top_k >= 0 && !value.is_null()) RORQUAL_TRY(read_prompt_rows(value.get_array()));
      } else if (key == "token_ids") {
        if (value.is_null()) continue;
        for (auto id : value.get_array()) token_ids_.push_back(static_cast<int32_t>(int64_t(id)));
        has_token_ids_ = true;
      } else if (key == "logprobs") {
        if (!value.is_null()) RORQUAL_TRY(read_logprobs(value.get_object()));
      } else if (key == "finish_reason") {
        if (!value.is_null()) finish_reason_ = std::string_view(value.get_string());
      } else if (key == "stop_reason") {
        if (value.type() == ondemand::json_type::number)
          reply_.info.stop_token = static_cast<int32_t>(value.get_int64());
      }
    }
    return Ok();
  }

  static std::string error_text(ondemand::value value) {
    std::string_view message;
    if (value.type() != ondemand::json_type::object ||
        value.get_object()["message"].get(message) != simdjson::SUCCESS) {
      return "an error without a message";
    }
    return std::string(message);
  }

  void read_usage(ondemand::value value) {
    if (value.is_null()) return;
    reply_.has_usage = true;
    for (auto field : value.get_object()) {
      const std::string_view key = field.unescaped_key();
      if (key == "prompt_tokens") reply_.info.prompt_tokens = field.value().get_int64();
      if (key == "completion_tokens") reply_.info.completion_tokens = field.value().get_int64();
      if (key != "prompt_tokens_details") continue;
      ondemand::value details = field.value();
      if (details.is_null()) continue;
      ondemand::value cached;
      if (details.get_object()["cached_tokens"].get(cached) == simdjson::SUCCESS && !cached.is_null())
        reply_.info.cached_tokens = cached.get_int64();
    }
  }

  Status read_prompt_rows(ondemand::array rows) {
    int64_t position = 0;
    const auto length = static_cast<int64_t>(context_.prompt.size());
    for (ondemand::value row : rows) {
      const bool is_wanted = position >= context_.first_scored;
      if (position < length && is_wanted) {
        if (row.is_null())
          return bad_reply(fmt::format("prompt_logprobs has no entry for position {}", position));
        RORQUAL_TRY(read_prompt_row(position, row.get_object()));
      }
      ++position;
    }
    if (position == length) return Ok();
    return bad_reply(fmt::format("prompt_logprobs has {} entries, the prompt {} tokens", position, length));
  }

  Status read_prompt_row(int64_t position, ondemand::object entries) {
    PositionLogprobs row;
    for (auto field : entries) {
      const std::string_view key = field.unescaped_key();
      const auto id = id_from(key);
      if (!id) return bad_reply(fmt::format("prompt_logprobs has the key '{}', expected a token id", key));
      TokenLogprob& entry = row.top.emplace_back();
      entry.token = *id;
      bool has_logprob = false;
      for (auto part : field.value().get_object()) {
        const std::string_view name = part.unescaped_key();
        if (name == "logprob") {
          entry.logprob = static_cast<float>(part.value().get_double());
          has_logprob = true;
        } else if (name == "rank") {
          ondemand::value rank = part.value();
          if (!rank.is_null()) entry.rank = static_cast<int32_t>(rank.get_int64());
        }
      }
      if (!has_logprob)
        return bad_reply(fmt::format("token {} at position {} has no logprob", *id, position));
    }
    if (row.top.empty()) return bad_reply(fmt::format("the entry of position {} is empty", position));
    // The prompt's own token comes first; a server that sorts its keys is understood as well.
    const int32_t own = context_.prompt[static_cast<size_t>(position)];
    auto chosen = std::find_if(row.top.begin(), row.top.end(),
                               [=](const TokenLogprob& entry) { return entry.token == own; });
    if (chosen == row.top.end()) chosen = row.top.begin();
    row.chosen = *chosen;
    if (static_cast<int64_t>(row.top.size()) > context_.top_k) row.top.erase(chosen);
    std::sort(row.top.begin(), row.top.end(), comes_before);
    on_row_(position, std::move(row));
    return Ok();
  }

  Status read_logprobs(ondemand::object lists) {
    for (auto field : lists) {
      const std::string_view key = field.unescaped_key();
      ondemand::value value = field.value();
      if (value.is_null()) continue;
      if (key == "tokens") {
        for (auto token : value.get_array()) label_ids_.push_back(label_id(token.get_string()));
      } else if (key == "token_logprobs") {
        for (ondemand::value x : value.get_array()) {
          const bool is_null = x.is_null();
          logprobs_.push_back(is_null ? 0.0f : static_cast<float>(x.get_double()));
        }
      } else if (key == "top_logprobs") {
        for (ondemand::value x : value.get_array()) {
          auto& row = tops_.emplace_back();
          if (x.is_null()) continue;
          for (auto entry : x.get_object()) {
            const auto id = label_id(entry.unescaped_key());
            if (!id) return bad_reply("top_logprobs names tokens by text, expected token_id:N");
            row.push_back({*id, static_cast<float>(entry.value().get_double()), 0});
          }
        }
      }
    }
    return Ok();
  }

  static std::optional<int32_t> label_id(std::string_view label) {
    if (label.substr(0, kIdPrefix.size()) != kIdPrefix) return {};
    return id_from(label.substr(kIdPrefix.size()));
  }

  PositionLogprobs generated_row(size_t index) const {
    PositionLogprobs row;
    if (index < tops_.size()) row.top = tops_[index];
    std::stable_sort(row.top.begin(), row.top.end(), [](const TokenLogprob& a, const TokenLogprob& b) {
      return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
    });
    int32_t rank = 0;
    for (TokenLogprob& entry : row.top) entry.rank = ++rank;
    row.chosen = {reply_.tokens[index], logprobs_[index], rank + 1};
    const auto own = std::find_if(row.top.begin(), row.top.end(),
                                  [&](const TokenLogprob& entry) { return entry.token == row.chosen.token; });
    if (own != row.top.end()) row.chosen.rank = own->rank;
    const auto wanted = static_cast<size_t>(std::max<int64_t>(context_.num_logprobs, 0));
    if (row.top.size() > wanted) row.top.resize(wanted);
    return row;
  }

  Status complete() {
    using runtime::FinishReason;
    reply_.tokens = std::move(token_ids_);
    if (!has_token_ids_) {
      for (const auto& id : label_ids_) {
        if (!id) return bad_reply("tokens come as text only, expected token_ids or token_id:N");
        reply_.tokens.push_back(*id);
      }
    }
    reply_.has_end = !finish_reason_.empty();
    if (context_.is_piece && !reply_.has_end) return complete_rows();
    if (finish_reason_ != "stop" && finish_reason_ != "length")
      return bad_reply(fmt::format("finish_reason is '{}', expected stop or length", finish_reason_));
    reply_.info.reason = finish_reason_ == "stop" ? FinishReason::stop : FinishReason::length;
    if (reply_.info.reason == FinishReason::stop && !reply_.info.stop_token)
      reply_.info.stop_token = context_.eos_token_id;
    // Some servers list the token that ended the reply, ours does not.
    if (reply_.info.reason == FinishReason::stop && !reply_.tokens.empty() &&
        reply_.tokens.back() == *reply_.info.stop_token) {
      reply_.tokens.pop_back();
    }
    return complete_rows();
  }

  Status complete_rows() {
    reply_.rows.resize(reply_.tokens.size());
    if (context_.num_logprobs < 0) return Ok();
    if (logprobs_.size() < reply_.tokens.size()) {
      return bad_reply(fmt::format("{} tokens, {} token_logprobs", reply_.tokens.size(), logprobs_.size()));
    }
    for (size_t i = 0; i < reply_.tokens.size(); ++i) reply_.rows[i] = generated_row(i);
    return Ok();
  }

  const ReplyContext& context_;
  const OnPromptRow& on_row_;
  CompletionReply reply_;
  int num_choices_ = 0;
  bool has_token_ids_ = false;
  std::vector<int32_t> token_ids_;
  std::vector<std::optional<int32_t>> label_ids_;
  std::vector<float> logprobs_;
  std::vector<std::vector<TokenLogprob>> tops_;
  std::string finish_reason_;
};

}  // namespace

Result<CompletionReply> read_completion(std::string& body, const ReplyContext& context,
                                        const OnPromptRow& on_row) {
  body.reserve(body.size() + simdjson::SIMDJSON_PADDING);
  try {
    ondemand::parser parser;
    ondemand::document document =
        parser.iterate(simdjson::padded_string_view(body.data(), body.size(), body.capacity()));
    Reader reader(context, on_row);
    RORQUAL_TRY(reader.read(document));
    return reader.take();
  } catch (const simdjson::simdjson_error& e) {
    return bad_reply(fmt::format("not the expected JSON: {}", e.what()));
  }
}

}  // namespace rorqual::tools
