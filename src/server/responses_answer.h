// SPDX-License-Identifier: Apache-2.0
// Answers of POST /v1/responses: output items and their events. docs/api.md#responses.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/parsed_answer.h"
#include "text/string_field.h"

namespace rorqual::server {

class ResponsesAnswer final : public ParsedAnswer {
 public:
  using ParsedAnswer::ParsedAnswer;

 private:
  /// One output item, open or complete.
  struct Item {
    enum class Kind : uint8_t { reasoning, message, function_call, custom_call };
    Kind kind = Kind::message;
    int64_t index = 0;
    std::string text;                             // of the reasoning or message; arguments or input of a call
    std::string logprobs;                         // message: entries joined by commas
    std::string call_id, name, name_space;        // calls
    std::string_view phase = "final_answer";      // message: "commentary" if calls follow
    std::optional<text::StringField> input = {};  // custom call: where its text comes from
  };

  enum class Status : uint8_t { in_progress, completed, incomplete, failed };

  void on_begin() override;
  void send_delta(size_t choice, const text::ParserEvent& event) override;
  void send_end(size_t choice) override;

  void send_last() override {}  // response.completed was the last event

  void send_failure(const HttpError& error) override;
  std::string whole_body() override;

  Item make_item(Item::Kind kind) const;
  Item make_call(const std::string& wire_name, int32_t call_index);
  void open_item(Item item);
  void close_item(Status status);
  void add_text(const std::string& text);
  void send_part(const char* event, bool is_done);
  void send_response(const char* event, Status status, const HttpError* error = nullptr);
  void begin_event(JsonWriter& json, const char* type);
  void end_event(JsonWriter& json, const char* type);
  void begin_item_event(JsonWriter& json, const char* type);
  std::string item_id(const Item& item) const;
  void write_item(JsonWriter& json, const Item& item, Status status) const;
  void write_part(JsonWriter& json, const Item& item) const;
  void write_response(JsonWriter& json, Status status, const HttpError* error) const;
  void add_complete(const Item& item, Status status);
  Status end_status() const;

  std::optional<Item> open_;
  std::string output_;  // complete items, JSON joined by commas
  int64_t num_items_ = 0, sequence_number_ = 0;
};

}  // namespace rorqual::server
