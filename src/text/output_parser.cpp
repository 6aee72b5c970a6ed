// SPDX-License-Identifier: Apache-2.0
// State machine of the output grammar, one byte at a time, so that the cost is linear and cuts do not matter.
// Control markers travel in the byte stream as values that UTF-8 never uses.
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
constexpr char kThinkByte = '\xFD';
constexpr std::string_view kDsmlText = "｜DSML｜";
constexpr std::string_view kEndThinkText = "</think>";
constexpr std::string_view kThinkText = "<think>";

enum class State : uint8_t {
  reasoning,
  content,
  json_before,  // JSON mode: before the value
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

constexpr size_t kMaxName = 4096;                // bytes; no tool has a longer name
constexpr size_t kMaxUntyped = size_t{1} << 16;  // bytes of a value that wait for the decision JSON or text

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
      : fresh_(patterns), matcher_(fresh_), patterns_(std::move(patterns)) {}

  /// Index of the pattern that ends with this byte, or -1.
  int step(char byte) {
    held_ = matcher_.step(byte);
    if (!matcher_.is_matched()) return -1;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (matcher_.matched() == patterns_[i]) {
        const auto index = static_cast<int>(i);
        matcher_ = fresh_;
        return index;
      }
    }
    return -1;
  }

  /// Forgets what was seen.
  void reset() {
    matcher_ = fresh_;
    held_ = 0;
  }

  /// Bytes at the end that may still become a match; after a match, its length.
  size_t held() const { return held_; }

 private:
  StopMatcher fresh_, matcher_;
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
        think_id(tokenizer.added_token(kThinkText).value_or(-1)),
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
    stops.set_ignoring(++num_fed <= options.min_tokens);
    if (id == end_think_id || id == dsml_id) {
      flush_utf8(true);
      place = state == State::reasoning && id == dsml_id ? TokenPlace::reasoning : TokenPlace::none;
      feed(id == dsml_id ? kDsmlByte : kEndThinkByte);
      if (id == dsml_id && state == State::content) place = TokenPlace::content;
      return;
    }
    place = place_of(state);
    if (id == think_id) {  // ordinary text, but opaque to stop strings and markers
      flush_utf8(true);
      feed(kThinkByte);
      return;
    }
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

  /// An incomplete character at the very end is dropped: its rest was never generated.
  void finish() {
    utf8.clear();
    if (!is_cut_marker()) {
      for (const char byte : spelled) feed(byte);
    }
    spelled.clear();
    switch (state) {
      case State::json_before:
      case State::json_after:
        blank_held(0);
        break;
      case State::key:  // what is held is the beginning of the attribute, not of the name
        window.clear();
        break;
      case State::value:
        release_all_window();
        break;
      default:
        break;
    }
    release_held(0);
  }

  /// Text mode: the output ends inside the spelling of the markup token, behind the angle of a tag.
  bool is_cut_marker() const {
    if (spelled.empty() || !kDsmlText.starts_with(spelled)) return false;
    const bool closes_value = state == State::value && !window.empty() && window.back().byte == '/';
    return ends_in_angle() || closes_value;
  }

  size_t held_bytes() const {
    return utf8.size() + spelled.size() + held.size() + window.size() + name.size() + untyped.size();
  }

  // ---- the machine ----

  void feed(char byte) {
    const Unit unit{byte, token};
    switch (state) {
      case State::reasoning:
        feed_reasoning(unit);
        break;
      case State::content:
        feed_content(unit);
        break;
      case State::json_before:
      case State::json_after:
        feed_json_around(unit);
        break;
      case State::json_value:
        feed_json_value(unit);
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

  /// Reasoning: newlines are held until it is known whether a marker follows.
  void feed_reasoning(const Unit& unit) {
    if (unit.byte == kEndThinkByte) {
      if (ends_in_angle()) release_held(0);
      held.clear();
      enter_content(true);
      return;
    }
    if (unit.byte == kDsmlByte && ends_in_angle()) {
      held.clear();
      state = State::block;
      return;
    }
    if (unit.byte == '\n' && drops_newlines) return;
    drops_newlines = false;
    hold_prose(unit, true);
    release_held(prose_hold);
  }

  /// Content: the same with stop strings, which are looked for in everything, held newlines included.
  void feed_content(const Unit& unit) {
    if (unit.byte == kEndThinkByte) {  // a stray one is dropped
      drops_newlines = false;
      release_held(0);
      stops.flush();
      return;
    }
    if (unit.byte == kDsmlByte && ends_in_angle()) {
      held.resize(held.size() - prose_hold);
      release_held(0);
      state = State::block;
      return;
    }
    if (unit.byte == '\n' && drops_newlines) return;
    drops_newlines = false;
    hold_prose(unit, looks_for_calls());
    if (!step_stop(unit)) release_held(std::max(prose_hold, stop_hold));
  }

  bool ends_in_angle() const {
    return prose_hold > 0 && !held.empty() && held.back().byte == '<' && looks_for_calls();
  }

  /// Appends to `held` and keeps count of its end that may belong to "newlines, opening angle, marker".
  void hold_prose(const Unit& unit, bool holds_newlines) {
    const bool after_angle = ends_in_angle();
    held.push_back(unit);
    if (unit.byte == '\n' && holds_newlines) {
      prose_hold = after_angle ? 1 : prose_hold + 1;
    } else if (unit.byte == '<' && looks_for_calls()) {
      prose_hold = after_angle ? 1 : prose_hold + 1;
    } else {
      prose_hold = 0;
    }
  }

  /// Gives out all but the last `kept` units.
  void release_held(size_t kept) {
    const auto kind = state == State::reasoning ? ParserEvent::Kind::reasoning : ParserEvent::Kind::content;
    while (held.size() > kept) {
      emit(kind, held.front());
      held.pop_front();
    }
    if (kept == 0) prose_hold = stop_hold = 0;
  }

  /// True if a stop string ends here; then the output is over.
  bool step_stop(const Unit& unit) {
    if (stops.is_empty()) return false;
    stop_hold = stops.step(unit.byte);
    if (!stops.is_matched()) return false;
    held.resize(held.size() - stop_hold);
    release_held(0);
    state = State::done;
    return true;
  }

  void enter_content(bool drop_leading_newlines) {
    drops_newlines = drop_leading_newlines;
    state = options.parse_json_output ? State::json_before : State::content;
    prose_hold = stop_hold = 0;
  }

  // ---- JSON mode ----

  /// Around the JSON: text becomes blanks; a value or fence begins the JSON (before it), a calls block ends
  /// all.
  void feed_json_around(const Unit& unit) {
    if (unit.byte == kEndThinkByte && state == State::json_before) {  // a stray one is dropped
      drops_newlines = false;
      blank_held(0);
      json_open.reset();
      return;
    }
    if (unit.byte == kDsmlByte && ends_in_angle()) {
      held.resize(held.size() - prose_hold);
      blank_held(0);
      state = State::block;
      return;
    }
    if (unit.byte == '\n' && drops_newlines) return;
    drops_newlines = false;
    hold_prose(unit, looks_for_calls());
    if (state == State::json_after) {
      blank_held(prose_hold);
      return;
    }
    const int found = json_open.step(unit.byte);
    if (found < 0) {
      blank_held(std::max(prose_hold, json_open.held()));
      return;
    }
    held.resize(held.size() - json_open.held());
    blank_held(0);
    last_blank = -1;  // the text after the JSON has blanks of its own
    state = State::json_value;
    if (found >= kFirstBracketPattern) {
      emit(ParserEvent::Kind::content, {unit.byte, unit.token + 1});  // the bracket is a delta of its own
      token += 2;
    }
  }

  void feed_json_value(const Unit& unit) {
    held.push_back(unit);
    if (step_stop(unit)) return;
    if (json_close.step(unit.byte) < 0) {
      release_held(std::max(stop_hold, json_close.held()));
      return;
    }
    held.resize(held.size() - json_close.held());
    release_held(0);
    state = State::json_after;
  }

  /// One space per token that brought text.
  void blank_held(size_t kept) {
    while (held.size() > kept) {
      const int64_t from_token = held.front().token;
      held.pop_front();
      if (from_token == last_blank) continue;
      last_blank = from_token;
      emit(ParserEvent::Kind::content, {' ', from_token});
    }
    if (kept == 0) prose_hold = stop_hold = 0;
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
      case 3:
        state = State::done;
        break;
      default:
        break;
    }
  }

  void feed_name(const Unit& unit) {
    if (unit.byte != '"') {
      name += printable(unit.byte);
      if (name.size() <= kMaxName) return;
      name.clear();  // not a call: looked for anew
      state = State::block;
      block_patterns.reset();
      return;
    }
    ++call_index;
    num_parameters = 0;
    emit_piece(ParserEvent::Kind::tool_begin, name);
    state = State::call;
    call_patterns.reset();
  }

  void feed_call(const Unit& unit) {
    switch (call_patterns.step(unit.byte)) {
      case 0:
        emit_piece(ParserEvent::Kind::tool_arguments, num_parameters == 0 ? "{" : ", ");
        emit_piece(ParserEvent::Kind::tool_arguments, "\"");
        ++num_parameters;
        state = State::key;
        window.clear();
        key_patterns.reset();
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
    attribute_patterns.reset();
    value_patterns.reset();
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
      if (state == State::untyped_value && untyped.size() > kMaxUntyped) take_untyped_as_text();
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
    call_patterns.reset();
  }

  /// Too long to wait for its end: from here on it is a string.
  void take_untyped_as_text() {
    std::string escaped;
    append_json_escaped(escaped, untyped);
    emit_piece(ParserEvent::Kind::tool_arguments, "\"" + escaped);
    untyped.clear();
    is_string = true;
    state = State::value;
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
    if (byte == kThinkByte) return std::string(kThinkText);
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
      for (const auto* queue : {&held, &window}) {
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
      case State::json_value:
      case State::json_after:
        return TokenPlace::content;
      default:
        return TokenPlace::none;
    }
  }

  ParserOptions options;
  const Tokenizer& tokens;
  int32_t dsml_id, end_think_id, think_id;
  StopMatcher stops;
  int64_t num_fed = 0;  // tokens
  State state = State::content;
  TokenPlace place = TokenPlace::none;
  int64_t token = -1;
  bool drops_newlines = false;

  std::string utf8;     // bytes of an incomplete character
  std::string spelled;  // text mode: what may become a marker
  PatternMatcher spelling{{std::string(kDsmlText), std::string(kEndThinkText)}};
  std::deque<Unit> held;    // reasoning and content not yet given out
  size_t prose_hold = 0;    // its end that may belong to a marker
  size_t stop_hold = 0;     // its end that may belong to a stop string
  std::deque<Unit> window;  // what may belong to a pattern elsewhere

  static constexpr int kFirstBracketPattern = 2;
  PatternMatcher json_open{{"```json\n", "```\n", "{", "["}};
  PatternMatcher json_close{{"\n```"}};
  int64_t last_blank = -1;

  PatternMatcher block_patterns{{"invoke name=\"", std::string("</") + kDsmlByte + " calls>",
                                 std::string("</") + kDsmlByte + "tool_calls>",
                                 std::string("</") + kDsmlByte + "function_calls>"}};
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
  return impl_->call_index >= 0 ? "tool_calls" : "stop";
}

size_t OutputParser::held_bytes() const {
  return impl_->held_bytes();
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
