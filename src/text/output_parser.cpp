// SPDX-License-Identifier: Apache-2.0
// State machine of the output grammar, one byte at a time, so that the cost is linear and cuts do not matter.
// Control markers travel in the byte stream as two values that UTF-8 never uses.
#include "text/output_parser.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/json_text.h"
#include "text/stop_matcher.h"
#include "text/utf8.h"

namespace rorqual::text {

namespace {

constexpr char kDsmlByte = '\xFF';
constexpr char kEndThinkByte = '\xFE';
constexpr std::string_view kDsmlText = "｜DSML｜";
constexpr std::string_view kEndThinkText = "</think>";

enum class State : uint8_t {
  reasoning,
  content,
  json_before,  // JSON mode: before the value
  json_fence,   // after three back quotes: "json" may follow
  json_value,
  json_after,
  block,      // inside the calls block, between calls
  name,       // invoke name="…
  call,       // inside a call, no parameter open
  key,        // parameter name="…
  attribute,  // after string="
  value,
  untyped_value,  // parameter without its string attribute
  done,
};

// Numbers of tokens advance by this, so that deltas inside one token can be told apart.
constexpr int64_t kTokenStep = 4;

/// One byte of output with the number of the token that brought it.
struct Unit {
  char byte;
  int64_t token;
};

/// Recognises one of a few fixed patterns at the end of a byte stream, without backtracking over input.
class PatternMatcher {
 public:
  explicit PatternMatcher(std::vector<std::string> patterns)
      : matcher_(patterns), patterns_(std::move(patterns)) {}

  /// Index of the pattern that ends with this byte, or -1.
  int step(char byte) {
    held_ = matcher_.step(byte);
    if (!matcher_.is_matched()) return -1;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (matcher_.matched() == patterns_[i]) {
        const auto index = static_cast<int>(i);
        matcher_ = StopMatcher(patterns_);
        return index;
      }
    }
    return -1;
  }

  /// Bytes at the end that may still become a match; after a match, its length.
  size_t held() const { return held_; }

 private:
  StopMatcher matcher_;
  std::vector<std::string> patterns_;
  size_t held_ = 0;
};

}  // namespace

struct OutputParser::Impl {
  Impl(const Tokenizer& tokenizer, ParserOptions parser_options)
      : options(std::move(parser_options)),
        tokens(tokenizer),
        dsml_id(tokenizer.added_token(kDsmlText).value_or(-1)),
        end_think_id(tokenizer.added_token(kEndThinkText).value_or(-1)),
        stops(options.stop) {
    if (options.starts_in_tool_calls) {
      state = State::block;
    } else if (options.initial_stage == InitialStage::reasoning ||
               options.initial_stage == InitialStage::reasoning_continuation) {
      state = State::reasoning;
      drops_newlines = options.initial_stage == InitialStage::reasoning;
    } else {
      enter_content(options.initial_stage != InitialStage::content_continuation);
    }
  }

  // ---- feeding ----

  void feed_token(int32_t id) {
    token += kTokenStep;
    if (id == end_think_id || id == dsml_id) {
      flush_utf8(false);
      place = state == State::reasoning && id == dsml_id ? TokenPlace::reasoning : TokenPlace::none;
      feed(id == dsml_id ? kDsmlByte : kEndThinkByte);
      if (id == dsml_id && state == State::content) place = TokenPlace::content;
      return;
    }
    place = place_of(state);
    utf8 += tokens.token_bytes(id);
    flush_utf8(false);
  }

  /// Text mode: spelled markers become marker bytes.
  void feed_text(std::string_view text) {
    token += kTokenStep;
    utf8 += text;
    std::string ready;
    drain_utf8(utf8, ready, false);
    for (const char byte : ready) feed_spelled(byte);
  }

  void feed_spelled(char byte) {
    spelled += byte;
    const int found = spelling.step(byte);
    const size_t kept = spelling.held();
    const size_t release = spelled.size() - kept;
    for (size_t i = 0; i < release; ++i) feed(spelled[i]);
    spelled.erase(0, release);
    if (found < 0) return;
    spelled.clear();
    feed(found == 0 ? kDsmlByte : kEndThinkByte);
  }

  void flush_utf8(bool is_final) {
    std::string ready;
    drain_utf8(utf8, ready, is_final);
    for (const char byte : ready) feed(byte);
  }

  void finish() {
    flush_utf8(true);
    for (const char byte : std::exchange(spelled, {})) feed(byte);
    switch (state) {
      case State::reasoning:
      case State::content:
        release_held();
        break;
      case State::json_fence:
        state = State::json_value;
        release_all_window();
        break;
      case State::json_value:
        release_all_window();
        break;
      case State::json_before:
        blank_window(window.size());
        break;
      case State::key:
      case State::value:
        release_all_window();
        break;
      default:
        break;
    }
    flush_stop_queue();
  }

  // ---- the machine ----

  void feed(char byte) {
    const Unit unit{byte, token};
    switch (state) {
      case State::reasoning:
      case State::content:
        feed_prose(unit);
        break;
      case State::json_before:
        feed_json_before(unit);
        break;
      case State::json_fence:
        feed_json_fence(unit);
        break;
      case State::json_value:
        feed_json_value(unit);
        break;
      case State::json_after:
        if (byte != kEndThinkByte) blank(unit.token);
        break;
      case State::block:
        feed_block(unit);
        break;
      case State::name:
        feed_name(unit);
        break;
      case State::call:
        feed_call(unit);
        break;
      case State::key:
        feed_key(unit);
        break;
      case State::attribute:
        feed_attribute(unit);
        break;
      case State::value:
      case State::untyped_value:
        feed_value(unit);
        break;
      case State::done:
        break;
    }
  }

  bool looks_for_calls() const { return options.parse_tool_calls; }

  /// Reasoning and content: newlines are held until it is known whether a marker follows.
  void feed_prose(const Unit& unit) {
    const bool is_reasoning = state == State::reasoning;
    const bool ends_in_angle = !held.empty() && held.back().byte == '<';
    if (unit.byte == kEndThinkByte) {
      if (!is_reasoning) return;  // a stray one is dropped
      if (ends_in_angle) release_held();
      held.clear();
      enter_content(true);
      return;
    }
    if (unit.byte == kDsmlByte && ends_in_angle) {
      held.clear();
      flush_stop_queue();
      state = State::block;
      return;
    }
    if (unit.byte == '\n') {
      if (drops_newlines) return;
      if (ends_in_angle) release_held();
      if (is_reasoning || looks_for_calls()) {
        held.push_back(unit);
        return;
      }
    }
    if (unit.byte == '<' && looks_for_calls()) {
      if (ends_in_angle) release_held();
      held.push_back(unit);
      return;
    }
    release_held();
    prose(unit);
  }

  void release_held() {
    for (const Unit& unit : std::exchange(held, {})) prose(unit);
  }

  void prose(const Unit& unit) {
    drops_newlines = false;
    if (state == State::reasoning) {
      emit(ParserEvent::Kind::reasoning, unit);
    } else {
      content(unit);
    }
  }

  void enter_content(bool drop_leading_newlines) {
    drops_newlines = drop_leading_newlines;
    state = options.parse_json_output ? State::json_before : State::content;
    window.clear();
    json_open = PatternMatcher({"{", "[", "```"});
  }

  // ---- content through stop strings ----

  void content(const Unit& unit) {
    if (stops.is_empty()) {
      emit(ParserEvent::Kind::content, unit);
      return;
    }
    if (stops.is_matched()) return;
    stop_queue.push_back(unit);
    const size_t kept = stops.step(unit.byte == kDsmlByte ? '\0' : unit.byte);
    if (stops.is_matched()) {
      stop_queue.resize(stop_queue.size() - kept);
      flush_stop_queue();
      state = State::done;
      return;
    }
    while (stop_queue.size() > kept) {
      emit(ParserEvent::Kind::content, stop_queue.front());
      stop_queue.pop_front();
    }
  }

  void flush_stop_queue() {
    for (const Unit& unit : std::exchange(stop_queue, {})) emit(ParserEvent::Kind::content, unit);
  }

  // ---- JSON mode ----

  void feed_json_before(const Unit& unit) {
    if (unit.byte == kEndThinkByte) return;
    window.push_back(unit);
    const int found = json_open.step(unit.byte);
    if (found < 0) {
      blank_window(window.size() - json_open.held());
      return;
    }
    const size_t length = json_open.held();
    blank_window(window.size() - length);
    if (found <= 1) {
      window.clear();
      state = State::json_value;
      content({unit.byte, unit.token + 1});  // the opening bracket is a delta of its own
      token += 2;
      return;
    }
    window.clear();
    state = State::json_fence;
    after_fence = true;
  }

  void feed_json_fence(const Unit& unit) {
    constexpr std::string_view kLanguage = "json";
    if (unit.byte == kLanguage[window.size()]) {
      window.push_back(unit);
      if (window.size() < kLanguage.size()) return;
      window.clear();
      state = State::json_value;
      return;
    }
    state = State::json_value;
    std::deque<Unit> rest = std::exchange(window, {});
    rest.push_back(unit);
    for (const Unit& item : rest) feed_json_value(item);
  }

  void feed_json_value(const Unit& unit) {
    if (unit.byte == kEndThinkByte) return;
    window.push_back(unit);
    const int found = json_close.step(unit.byte);
    if (found >= 0) {
      window.resize(window.size() - json_close.held());
      release_all_window();
      state = State::json_after;
      return;
    }
    release_window(json_close.held());
  }

  /// Text outside the JSON: one space per token that brought some.
  void blank(int64_t from_token) {
    if (from_token == last_blank) return;
    last_blank = from_token;
    content({' ', from_token});
  }

  void blank_window(size_t count) {
    for (size_t i = 0; i < count && !window.empty(); ++i) {
      const Unit unit = window.front();
      window.pop_front();
      blank(unit.token);
    }
  }

  // ---- calls ----

  void feed_block(const Unit& unit) {
    switch (block_patterns.step(unit.byte)) {
      case 0:
        state = State::name;
        name.clear();
        break;
      case 1:
      case 2:
        state = State::done;
        break;
      default:
        break;
    }
  }

  void feed_name(const Unit& unit) {
    if (unit.byte != '"') {
      name += printable(unit.byte);
      return;
    }
    ++call_index;
    num_parameters = 0;
    emit_piece(ParserEvent::Kind::tool_begin, name);
    state = State::call;
    call_patterns = PatternMatcher({"parameter name=\"", std::string("</") + kDsmlByte});
  }

  void feed_call(const Unit& unit) {
    switch (call_patterns.step(unit.byte)) {
      case 0:
        emit_piece(ParserEvent::Kind::tool_arguments, num_parameters == 0 ? "{" : ", ");
        emit_piece(ParserEvent::Kind::tool_arguments, "\"");
        ++num_parameters;
        state = State::key;
        window.clear();
        key_patterns = PatternMatcher({"\" string=\"", "\">"});
        break;
      case 1:
        emit_piece(ParserEvent::Kind::tool_arguments, num_parameters == 0 ? "{}" : "}");
        emit_piece(ParserEvent::Kind::tool_end, "");
        ++num_completed;
        state = State::block;
        break;
      default:
        break;
    }
  }

  void feed_key(const Unit& unit) {
    window.push_back(unit);
    const int found = key_patterns.step(unit.byte);
    if (found < 0) {
      release_window(key_patterns.held());
      return;
    }
    window.resize(window.size() - key_patterns.held());
    release_all_window();
    emit_piece(ParserEvent::Kind::tool_arguments, "\"");
    emit_piece(ParserEvent::Kind::tool_arguments, ": ");
    state = found == 0 ? State::attribute : State::untyped_value;
    untyped.clear();
    attribute_patterns = PatternMatcher({"true\">", "false\">"});
    value_patterns = PatternMatcher({std::string("</") + kDsmlByte});
  }

  void feed_attribute(const Unit& unit) {
    const int found = attribute_patterns.step(unit.byte);
    if (found < 0) return;
    is_string = found == 0;
    if (is_string) emit_piece(ParserEvent::Kind::tool_arguments, "\"");
    state = State::value;
  }

  void feed_value(const Unit& unit) {
    window.push_back(unit);
    const bool is_end = value_patterns.step(unit.byte) == 0;
    if (!is_end) {
      release_window(value_patterns.held());
      return;
    }
    window.resize(window.size() - value_patterns.held());
    release_all_window();
    if (state == State::untyped_value) {
      emit_piece(ParserEvent::Kind::tool_arguments, parse_json(untyped) ? untyped : json_quote(untyped));
    } else if (is_string) {
      emit_piece(ParserEvent::Kind::tool_arguments, "\"");
    }
    state = State::call;
    call_patterns = PatternMatcher({"parameter name=\"", std::string("</") + kDsmlByte});
  }

  // ---- windows: bytes that may belong to a pattern ----

  /// Gives out all but the last `kept` bytes, as the state wants them.
  void release_window(size_t kept) {
    while (window.size() > kept) {
      const Unit unit = window.front();
      window.pop_front();
      release_unit(unit);
    }
  }

  void release_all_window() { release_window(0); }

  void release_unit(const Unit& unit) {
    switch (state) {
      case State::json_value:
        if (after_fence && unit.byte == '\n') break;
        after_fence = false;
        content(unit);
        break;
      case State::untyped_value:
        untyped += printable(unit.byte);
        break;
      case State::value:
        if (is_string) {
          std::string escaped;
          append_json_escaped(escaped, printable(unit.byte));
          emit_text(ParserEvent::Kind::tool_arguments, escaped, unit.token);
          break;
        }
        emit_text(ParserEvent::Kind::tool_arguments, printable(unit.byte), unit.token);
        break;
      default:
        emit_text(ParserEvent::Kind::tool_arguments, printable(unit.byte), unit.token);
    }
  }

  // ---- events ----

  static std::string printable(char byte) {
    if (byte == kDsmlByte) return std::string(kDsmlText);
    if (byte == kEndThinkByte) return std::string(kEndThinkText);
    return std::string(1, byte);
  }

  void emit(ParserEvent::Kind kind, const Unit& unit) { emit_text(kind, printable(unit.byte), unit.token); }

  /// Text of the same kind from the same token joins one event.
  void emit_text(ParserEvent::Kind kind, const std::string& text, int64_t from_token) {
    if (!events.empty() && is_last_open && events.back().kind == kind && event_tokens.back() == from_token) {
      events.back().text += text;
      return;
    }
    events.push_back({kind, text, call_index});
    event_tokens.push_back(from_token);
    is_last_open = true;
  }

  /// A piece of our own: always an event by itself.
  void emit_piece(ParserEvent::Kind kind, std::string text) {
    events.push_back({kind, std::move(text), call_index});
    event_tokens.push_back(token);
    is_last_open = false;
  }

  /// Events that later bytes of an already seen token cannot extend.
  std::vector<ParserEvent> take_events(bool is_final) {
    int64_t open_token = INT64_MAX;
    if (!is_final) {
      for (const auto* queue : {&held, &window, &stop_queue}) {
        if (!queue->empty()) open_token = std::min(open_token, queue->front().token);
      }
    }
    std::vector<ParserEvent> out;
    while (!events.empty()) {
      const bool may_grow = events.size() == 1 && is_last_open && event_tokens.front() == open_token;
      if (may_grow) break;
      out.push_back(std::move(events.front()));
      events.pop_front();
      event_tokens.pop_front();
    }
    return out;
  }

  static TokenPlace place_of(State state) {
    switch (state) {
      case State::reasoning:
        return TokenPlace::reasoning;
      case State::content:
      case State::json_before:
      case State::json_fence:
      case State::json_value:
      case State::json_after:
        return TokenPlace::content;
      default:
        return TokenPlace::none;
    }
  }

  ParserOptions options;
  const Tokenizer& tokens;
  int32_t dsml_id, end_think_id;
  StopMatcher stops;
  State state = State::content;
  TokenPlace place = TokenPlace::none;
  int64_t token = -1;
  bool drops_newlines = false;

  std::string utf8;     // bytes of an incomplete character
  std::string spelled;  // text mode: what may become a marker
  PatternMatcher spelling{{std::string(kDsmlText), std::string(kEndThinkText)}};
  std::deque<Unit> held;        // newlines and an opening angle in prose
  std::deque<Unit> window;      // what may belong to a pattern elsewhere
  std::deque<Unit> stop_queue;  // what may belong to a stop string

  PatternMatcher json_open{{"{", "[", "```"}};
  PatternMatcher json_close{{"\n```"}};
  bool after_fence = false;
  int64_t last_blank = -1;

  PatternMatcher block_patterns{{"invoke name=\"", std::string("</") + kDsmlByte + " calls>",
                                 std::string("</") + kDsmlByte + "tool_calls>"}};
  PatternMatcher call_patterns{{"parameter name=\"", std::string("</") + kDsmlByte}};
  PatternMatcher key_patterns{{"\" string=\"", "\">"}};
  PatternMatcher attribute_patterns{{"true\">", "false\">"}};
  PatternMatcher value_patterns{{std::string("</") + kDsmlByte}};
  std::string name;
  std::string untyped;
  bool is_string = false;
  int32_t call_index = -1;
  int32_t num_parameters = 0;
  int32_t num_completed = 0;

  std::deque<ParserEvent> events;
  std::deque<int64_t> event_tokens;
  bool is_last_open = false;
};

OutputParser::OutputParser(const Tokenizer& tokenizer, ParserOptions options)
    : impl_(std::make_unique<Impl>(tokenizer, std::move(options))) {}

OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;

std::vector<ParserEvent> OutputParser::push(int32_t token) {
  impl_->feed_token(token);
  return impl_->take_events(false);
}

std::vector<ParserEvent> OutputParser::push_text(std::string_view text) {
  impl_->feed_text(text);
  return impl_->take_events(false);
}

std::vector<ParserEvent> OutputParser::finish() {
  impl_->finish();
  return impl_->take_events(true);
}

TokenPlace OutputParser::last_place() const {
  return impl_->place;
}

bool OutputParser::is_done() const {
  return impl_->state == State::done;
}

std::optional<std::string> OutputParser::matched_stop() const {
  if (!impl_->stops.is_matched()) return std::nullopt;
  return impl_->stops.matched();
}

std::string OutputParser::finish_reason(StopCause backend) const {
  if (impl_->stops.is_matched()) return "stop";
  if (backend == StopCause::length) return "length";
  return impl_->num_completed > 0 ? "tool_calls" : "stop";
}

int32_t OutputParser::num_calls_completed() const {
  return impl_->num_completed;
}

void accumulate(const std::vector<ParserEvent>& events, ParsedOutput& output) {
  for (const auto& event : events) {
    switch (event.kind) {
      case ParserEvent::Kind::reasoning:
        output.reasoning = output.reasoning.value_or("") + event.text;
        break;
      case ParserEvent::Kind::content:
        output.content += event.text;
        break;
      case ParserEvent::Kind::tool_begin:
        output.calls.push_back({event.text, ""});
        break;
      case ParserEvent::Kind::tool_arguments:
        output.calls.back().arguments += event.text;
        break;
      case ParserEvent::Kind::tool_end:
        break;
    }
  }
}

}  // namespace rorqual::text
