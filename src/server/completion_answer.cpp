// SPDX-License-Identifier: Apache-2.0
// Text choices and their lists of log-probabilities.
#include "server/completion_answer.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace rorqual::server {

namespace {

void append_entry(std::string& list, std::string entry) {
  if (!list.empty()) list += ',';
  list += std::move(entry);
}

std::string quoted(const std::string& text) {
  JsonWriter json;
  json.string(text);
  return json.take();
}

}  // namespace

CompletionAnswer::CompletionAnswer(Service& service, std::shared_ptr<Exchange> exchange, Plan plan)
    : Answer(service, std::move(exchange), plan.head,
             plan.prompts.size() * static_cast<size_t>(plan.request.sampling.n)),
      plan_(std::move(plan)) {
  for (const auto& prompt : plan_.prompts) usage_.prompt_tokens += static_cast<int64_t>(prompt.size());
  for (size_t i = 0; i < choices_.size(); ++i) {
    parts_.emplace_back(backend().tokenizer, plan_.request.sampling);
    if (plan_.request.echo) parts_.back().text = prompt_text(i);
  }
}

std::string CompletionAnswer::prompt_text(size_t choice) const {
  const size_t index = prompt_index(choice);
  const auto& item = plan_.request.prompts[index];
  return item.is_tokens ? backend().tokenizer.decode(plan_.prompts[index], false) : item.text;
}

/// Echoed text does not wait for the first token, unless its log-probabilities have to come with it.
void CompletionAnswer::on_begin() {
  if (plan_.request.echo && !wants_logprobs()) send_pieces();
}

void CompletionAnswer::on_prompt_rows(size_t index,
                                      std::vector<std::optional<runtime::PositionLogprobs>> rows) {
  Choice& choice = parts_[index];
  const api::SamplingFields& fields = plan_.request.sampling;
  if (fields.prompt_logprobs) {
    JsonWriter json;
    write_prompt_logprobs(json, rows, *fields.prompt_logprobs, backend().tokenizer);
    choice.prompt_logprobs = json.take();
  }
  if (!plan_.request.echo || !wants_logprobs()) return;
  const std::vector<int32_t>& prompt = plan_.prompts[prompt_index(index)];
  for (size_t i = 0; i < prompt.size() && i < rows.size(); ++i)
    add_token_logprobs(choice, prompt[i], rows[i]);
}

void CompletionAnswer::add_token_logprobs(Choice& choice, int32_t token,
                                          const std::optional<runtime::PositionLogprobs>& row) {
  const text::Tokenizer& tokenizer = backend().tokenizer;
  const api::SamplingFields& fields = plan_.request.sampling;
  const std::string label = token_label(tokenizer, token, fields.return_tokens_as_token_ids);
  LogprobLists& lists = choice.logprobs;
  append_entry(lists.tokens, quoted(label));
  append_entry(lists.text_offset, std::to_string(choice.offset));
  choice.offset += count_code_points(tokenizer.decode({&token, 1}, fields.skip_special_tokens));
  if (!row) {  // the first token of a prompt has nothing before it
    append_entry(lists.token_logprobs, "null");
    append_entry(lists.top_logprobs, "null");
    return;
  }
  append_entry(lists.token_logprobs, logprob_text(row->chosen.logprob));
  JsonWriter top;
  top.begin_object();
  std::unordered_set<std::string>
      names;  // parts of characters share a spelling: the most probable one is kept
  const auto add = [&](const runtime::TokenLogprob& t) {
    std::string name = token_label(tokenizer, t.token, fields.return_tokens_as_token_ids);
    if (names.insert(name).second) top.key(name).logprob(t.logprob);
  };
  const int32_t wanted = fields.top_logprobs.value_or(0);
  const bool takes_all = wanted < 0 || !fields.logprob_token_ids.empty();
  const size_t count = takes_all ? row->top.size() : std::min(row->top.size(), static_cast<size_t>(wanted));
  for (size_t i = 0; i < count; ++i) add(row->top[i]);
  add(row->chosen);
  top.end_object();
  append_entry(lists.top_logprobs, top.take());
}

bool CompletionAnswer::on_token(size_t index, GenerationEvent& event) {
  Choice& choice = parts_[index];
  const api::SamplingFields& fields = plan_.request.sampling;
  if (fields.return_token_ids) choice.token_ids.push_back(event.token);
  if (wants_logprobs()) add_token_logprobs(choice, event.token, event.logprobs);
  choice.stops.set_ignoring(++choice.num_tokens <= fields.min_tokens);
  choice.text += choice.stops.push(choice.detokenizer.push(event.token));
  if (!choice.stops.is_matched()) return false;
  if (fields.include_stop_str_in_output) choice.text += choice.stops.matched();
  return true;
}

void CompletionAnswer::on_choice_end(size_t index) {
  Choice& choice = parts_[index];
  if (!choices_[index].is_done) {
    choice.text += choice.stops.push(choice.detokenizer.flush());
    choice.text += choice.stops.flush();
  }
  choice.has_ended = true;
  if (index % static_cast<size_t>(plan_.request.sampling.n) == 0) {
    usage_.cached_tokens += choices_[index].info.cached_tokens;
  }
}

Usage CompletionAnswer::usage_so_far() const {
  Usage usage = usage_;
  for (size_t i = 0; i < parts_.size(); ++i) usage.completion_tokens += completion_tokens(i);
  return usage;
}

void CompletionAnswer::write_head(JsonWriter& json) const {
  json.begin_object().field("id", head_.id).field("object", "text_completion");
  json.field("created", head_.created_s).field("model", head_.model);
}

void CompletionAnswer::write_choice(JsonWriter& json, size_t index, bool is_end) const {
  const Choice& choice = parts_[index];
  const ChoiceState& state = choices_[index];
  json.begin_object().field("index", static_cast<int64_t>(index)).field("text", choice.text).key("logprobs");
  if (wants_logprobs()) {
    const LogprobLists& lists = choice.logprobs;
    json.begin_object().key("text_offset").raw("[" + lists.text_offset + "]");
    json.key("token_logprobs")
        .raw("[" + lists.token_logprobs + "]")
        .key("tokens")
        .raw("[" + lists.tokens + "]");
    json.key("top_logprobs").raw("[" + lists.top_logprobs + "]").end_object();
  } else {
    json.null();
  }
  if (!is_end) {
    json.null_field("finish_reason");
  } else {
    const EndCause cause = end_cause(index);
    const bool is_repeating = cause == EndCause::repetition;
    const char* reason = is_repeating ? "repetition" : cause == EndCause::length ? "length" : "stop";
    json.field("finish_reason", reason).key("stop_reason");
    if (is_repeating) {
      json.string("repetition_detected");
    } else if (choice.stops.is_matched()) {
      json.string(choice.stops.matched());
    } else if (state.info.stop_token && *state.info.stop_token != backend().engine.info().eos_token_id) {
      json.integer(*state.info.stop_token);
    } else {
      json.null();
    }
  }
  if (!head_.stream.stream) {
    json.key("prompt_logprobs").raw(choice.prompt_logprobs.empty() ? "null" : choice.prompt_logprobs);
  }
  if (plan_.request.sampling.return_token_ids) {
    if (!choice.is_start_sent) write_ids(json, "prompt_token_ids", plan_.prompts[prompt_index(index)]);
    write_ids(json, "token_ids", choice.token_ids);
  }
  if (plan_.request.prompt.returns_text && !choice.is_start_sent)
    json.field("prompt_text", prompt_text(index));
  json.end_object();
}

void CompletionAnswer::send_choice(size_t index, bool is_end) {
  Choice& choice = parts_[index];
  choice.is_end_sent = is_end;
  const bool is_last =
      is_end && std::all_of(parts_.begin(), parts_.end(), [](const Choice& c) { return c.is_end_sent; });
  JsonWriter json;
  write_head(json);
  json.key("choices").begin_array();
  write_choice(json, index, is_end);
  json.end_array().field("system_fingerprint", backend().fingerprint);
  write_chunk_usage(json, usage_so_far(), is_last);
  json.end_object();
  send_piece(json.take());
  choices_[index].num_sent = choices_[index].num_tokens;
  choice.is_start_sent = true;
  choice.text.clear();
  choice.logprobs = {};
  choice.token_ids.clear();
}

void CompletionAnswer::send_pieces() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    Choice& choice = parts_[i];
    if (choice.is_end_sent) continue;
    if (choice.has_ended) {
      send_choice(i, true);
    } else if (!choice.text.empty() && is_piece_due(i)) {
      // Echoed text waits for its log-probabilities, which come before the first token.
      const bool is_early = plan_.request.echo && wants_logprobs() && choice.logprobs.tokens.empty();
      if (!is_early || choice.is_start_sent) send_choice(i, false);
    }
  }
}

std::string CompletionAnswer::whole_body() {
  JsonWriter json;
  write_head(json);
  json.key("choices").begin_array();
  for (size_t i = 0; i < parts_.size(); ++i) write_choice(json, i, true);
  json.end_array().key("usage");
  write_usage(json, usage_so_far(), reuse());
  json.field("system_fingerprint", backend().fingerprint).end_object();
  return json.take();
}

std::string CompletionAnswer::usage_piece() {
  JsonWriter json;
  write_head(json);
  json.key("choices").begin_array().end_array();
  json.field("system_fingerprint", backend().fingerprint).key("usage");
  write_usage(json, usage_so_far(), reuse());
  json.end_object();
  return json.take();
}

}  // namespace rorqual::server
