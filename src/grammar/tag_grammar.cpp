// SPDX-License-Identifier: Apache-2.0
// Grammars of structural tags.
#include "grammar/tag_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "text/json_text.h"

namespace rorqual::grammar {

namespace {

constexpr int kMaxTagDepth = 32;

using Texts = std::vector<std::string>;

Error tag_error(Code code, const std::string& path, const std::string& what) {
  return Error(code, fmt::format("{}: {}", path, what));
}

Result<Texts> texts_of(const Json& node, const std::string& key, const std::string& path) {
  Texts out;
  if (!node.contains(key)) return out;
  const Json list = node[key].is_string() ? Json::array({node[key]}) : node[key];
  for (const Json& item : list) {
    if (!list.is_array() || !item.is_string() || item.get_ref<const std::string&>().empty()) {
      return tag_error(Code::invalid_argument, child_path(path, key), "expected texts that are not empty");
    }
    out.push_back(item.get<std::string>());
  }
  return out;
}

class TagWriter {
 public:
  explicit TagWriter(JsonSpace space) : space_(space) {}

  /// Expression of one format. `ends`: texts that end free text at this place.
  Result<std::string> format(const Json& node, const std::string& path, const Texts& ends) {
    if (!node.is_object() || !node.contains("type") || !node["type"].is_string()) {
      return tag_error(Code::invalid_argument, path, "expected an object with a 'type'");
    }
    if (++depth_ > kMaxTagDepth) {
      return tag_error(Code::invalid_argument, path, fmt::format("deeper than {} formats", kMaxTagDepth));
    }
    auto out = format_of(node["type"].get<std::string>(), node, path, ends);
    --depth_;
    return out;
  }

  Rules& rules() { return rules_; }

 private:
  Result<std::string> format_of(const std::string& type, const Json& node, const std::string& path,
                                const Texts& ends) {
    if (type == "const_string") {
      if (!node.contains("value") || !node["value"].is_string()) {
        return tag_error(Code::invalid_argument, path, "'value' is missing or no text");
      }
      return literal(node["value"].get<std::string>());
    }
    if (type == "json_schema") return json_schema(node, path);
    if (type == "regex") return regex(node, path);
    if (type == "any_text") return free_text(node, path, ends);
    if (type == "sequence" || type == "or") return several(type == "or", node, path, ends);
    if (type == "optional" || type == "plus" || type == "star" || type == "repeat")
      return repeated(type, node, path, ends);
    if (type == "tag") return tag(node, path);
    if (type == "triggered_tags") return triggered(node, path, ends);
    if (type == "tags_with_separator") return separated(node, path);
    return tag_error(Code::unsupported, path, fmt::format("the format '{}' is not supported", type));
  }

  Result<std::string> json_schema(const Json& node, const std::string& path) {
    if (!node.contains("json_schema"))
      return tag_error(Code::invalid_argument, path, "'json_schema' is missing");
    if (node.value("style", std::string("json")) != "json") {
      return tag_error(Code::unsupported, child_path(path, "style"),
                       "only 'json' is supported; use tools for calls");
    }
    SchemaGrammar schema(node["json_schema"], Unenforced::refuse, space_, rules_);
    auto out = schema.root_value();
    if (!out.ok())
      return Error(out.error().code(), child_path(path, "json_schema") + ": " + out.error().message());
    return out;
  }

  Result<std::string> regex(const Json& node, const std::string& path) {
    if (!node.contains("pattern") || !node["pattern"].is_string()) {
      return tag_error(Code::invalid_argument, path, "'pattern' is missing or no text");
    }
    auto pattern = parse_regex(node["pattern"].get<std::string>(), RegexMatch::whole);
    if (!pattern.ok())
      return Error(pattern.error().code(), child_path(path, "pattern") + ": " + pattern.error().message());
    if (!rules_.take_positions(num_positions(*pattern))) {
      return tag_error(
          Code::invalid_argument, path,
          fmt::format(
              "all patterns together have more than {} characters when their counts are multiplied out",
              Rules::kMaxPositions));
    }
    return regex_expression(*pattern, RegexText::raw);
  }

  Result<std::string> free_text(const Json& node, const std::string& path, const Texts& ends) {
    RORQUAL_TRY_ASSIGN(Texts excluded, texts_of(node, "excludes", path));
    for (const char* key : {"max_tokens", "max_chars"}) {
      if (node.contains(key) && !node[key].is_null()) {
        return tag_error(Code::unsupported, child_path(path, key), "limits of free text are not supported");
      }
    }
    excluded.insert(excluded.end(), ends.begin(), ends.end());
    return dispatch({}, excluded, true);
  }

  /// Free text with triggers; `triggered` are (text, rule).
  std::string dispatch(const std::vector<std::pair<std::string, std::string>>& triggered, Texts excluded,
                       bool does_loop) {
    if (triggered.empty() && excluded.empty()) return repeat(character(CodePoints::all()), 0, -1);
    std::string body;
    for (const auto& [trigger, rule] : triggered) body += fmt::format("({}, {}), ", literal(trigger), rule);
    body += fmt::format("loop_after_dispatch={}", does_loop ? "true" : "false");
    for (std::string& text : excluded) text = literal(text);
    std::sort(excluded.begin(), excluded.end());
    excluded.erase(std::unique(excluded.begin(), excluded.end()), excluded.end());
    if (!excluded.empty()) body += fmt::format(", excludes=({},)", fmt::join(excluded, ", "));
    return rules_.add(fmt::format("TagDispatch({})", body));
  }

  Result<std::string> several(bool is_choice, const Json& node, const std::string& path, const Texts& ends) {
    if (!node.contains("elements") || !node["elements"].is_array() || node["elements"].empty()) {
      return tag_error(Code::invalid_argument, path, "'elements' is missing or empty");
    }
    Texts parts;
    for (const Json& element : node["elements"]) {
      RORQUAL_TRY_ASSIGN(std::string one,
                         format(element, fmt::format("{}.elements[{}]", path, parts.size()), ends));
      parts.push_back(std::move(one));
    }
    return rules_.add(is_choice ? choice(parts) : fmt::format("{}", fmt::join(parts, " ")));
  }

  Result<std::string> repeated(const std::string& type, const Json& node, const std::string& path,
                               const Texts& ends) {
    if (!node.contains("content")) return tag_error(Code::invalid_argument, path, "'content' is missing");
    RORQUAL_TRY_ASSIGN(const std::string one, format(node["content"], child_path(path, "content"), ends));
    if (type == "optional") return optional(one);
    if (type == "plus") return repeat(one, 1, -1);
    if (type == "star") return repeat(one, 0, -1);
    RORQUAL_TRY_ASSIGN(const auto min, count_of(node, "min", path));
    if (node.contains("max") && node["max"] == Json(-1)) return repeat(one, min.value_or(0), -1);
    RORQUAL_TRY_ASSIGN(const auto max, count_of(node, "max", path));
    if (!max || *max < min.value_or(0))
      return tag_error(Code::invalid_argument, path, "'max' is missing or below 'min'");
    return repeat(one, min.value_or(0), *max);
  }

  /// What follows `skipped` characters of a tag's begin: the rest of it, the content and the end.
  Result<std::string> tag(const Json& node, const std::string& path, size_t skipped = 0) {
    if (!node.is_object() || !node.contains("begin") || !node["begin"].is_string() ||
        !node.contains("content") || !node.contains("end")) {
      return tag_error(Code::invalid_argument, path, "a tag has the texts 'begin' and 'end', and 'content'");
    }
    // An empty end is allowed: the content then ends the tag.
    const bool has_end = node["end"] != Json("");
    Texts ends;
    if (has_end) {
      RORQUAL_TRY_ASSIGN(ends, texts_of(node, "end", path));
    }
    RORQUAL_TRY_ASSIGN(const std::string content, format(node["content"], child_path(path, "content"), ends));
    Texts spelled;
    for (const std::string& end : ends) spelled.push_back(literal(end));
    return rules_.add(fmt::format("{} {} {}", literal(node["begin"].get<std::string>().substr(skipped)),
                                  content, spelled.empty() ? "\"\"" : choice(spelled)));
  }

  Result<std::string> triggered(const Json& node, const std::string& path, const Texts& ends) {
    RORQUAL_TRY_ASSIGN(const Texts triggers, texts_of(node, "triggers", path));
    RORQUAL_TRY_ASSIGN(Texts excluded, texts_of(node, "excludes", path));
    if (triggers.empty() || !node.contains("tags") || !node["tags"].is_array()) {
      return tag_error(Code::invalid_argument, path, "'triggers' and 'tags' are needed");
    }
    excluded.insert(excluded.end(), ends.begin(), ends.end());
    std::vector<Texts> after(triggers.size());
    Texts whole;
    for (const Json& one : node["tags"]) {
      const std::string where = fmt::format("{}.tags[{}]", path, whole.size());
      RORQUAL_TRY_ASSIGN(std::string from_begin, tag(one, where));
      const auto begin = one["begin"].get<std::string>();
      const auto found = std::find_if(triggers.begin(), triggers.end(),
                                      [&](const std::string& trigger) { return begin.starts_with(trigger); });
      if (found == triggers.end())
        return tag_error(Code::invalid_argument, where, "its 'begin' starts with no trigger");
      RORQUAL_TRY_ASSIGN(std::string rest, tag(one, where, found->size()));
      after[static_cast<size_t>(found - triggers.begin())].push_back(std::move(rest));
      whole.push_back(std::move(from_begin));
    }
    std::vector<std::pair<std::string, std::string>> pairs;
    for (size_t i = 0; i < triggers.size(); ++i) {
      if (!after[i].empty()) pairs.emplace_back(triggers[i], rules_.add(choice(after[i])));
    }
    const bool only_one = node.value("stop_after_first", false);
    if (!node.value("at_least_one", false)) return dispatch(pairs, excluded, !only_one);
    if (whole.empty()) return tag_error(Code::invalid_argument, path, "'at_least_one' without a tag");
    if (only_one) return rules_.add(choice(whole));
    return rules_.add(fmt::format("{} {}", choice(whole), dispatch(pairs, excluded, true)));
  }

  Result<std::string> separated(const Json& node, const std::string& path) {
    if (!node.contains("tags") || !node["tags"].is_array() || node["tags"].empty() ||
        !node.contains("separator") || !node["separator"].is_string()) {
      return tag_error(Code::invalid_argument, path, "'tags' and 'separator' are needed");
    }
    Texts tags;
    for (const Json& one : node["tags"]) {
      RORQUAL_TRY_ASSIGN(std::string spelled, tag(one, fmt::format("{}.tags[{}]", path, tags.size())));
      tags.push_back(std::move(spelled));
    }
    const std::string first = rules_.add(choice(tags));
    std::string all = first;
    if (!node.value("stop_after_first", false)) {
      all = fmt::format("{} ({} {})*", first, literal(node["separator"].get<std::string>()), first);
    }
    return node.value("at_least_one", false) ? all : optional(all);
  }

  JsonSpace space_;
  Rules rules_;
  int depth_ = 0;
};

/// The older form in terms of the newer one.
Json as_format(const Json& tag) {
  Json tags = Json::array();
  for (const Json& structure : tag["structures"]) {
    const Json schema = structure.contains("schema") ? structure["schema"] : Json(true);
    tags.push_back(Json{{"begin", structure.value("begin", Json())},
                        {"content", Json{{"type", "json_schema"}, {"json_schema", schema}}},
                        {"end", structure.value("end", Json())}});
  }
  return Json{{"type", "triggered_tags"}, {"triggers", tag.value("triggers", Json())}, {"tags", tags}};
}

}  // namespace

Result<std::string> tag_grammar(std::string_view tag, JsonSpace space) {
  std::string problem;
  const auto parsed = text::parse_json(tag, &problem);
  if (!parsed || !parsed->is_object()) {
    return Error(Code::invalid_argument, "a structural tag is a JSON object: " + problem);
  }
  Json format = parsed->value("format", Json());
  if (parsed->contains("structures") && (*parsed)["structures"].is_array()) format = as_format(*parsed);
  TagWriter writer(space);
  RORQUAL_TRY_ASSIGN(const std::string root, writer.format(format, "format", {}));
  if (writer.rules().is_too_large()) {
    return Error(Code::invalid_argument,
                 fmt::format("the structural tag is too large: more than {} rules", Rules::kMaxRules));
  }
  return writer.rules().text(root);
}

}  // namespace rorqual::grammar
