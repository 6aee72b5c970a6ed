// SPDX-License-Identifier: Apache-2.0
// JSON Schema in a few plain forms: references followed, parts of allOf put together, types inferred, and
// what a grammar cannot enforce refused or left out. docs/constraints.md lists the keywords.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace rorqual::grammar {

using Json = nlohmann::ordered_json;

inline constexpr size_t kMaxEnumValues = 2000;  // of one list: beyond, masks take milliseconds

/// What to do with a keyword that cannot be enforced.
enum class Unenforced : uint8_t {
  refuse,  // an error that names it: output formats
  widen,   // leave it out, so that more is allowed than the schema says: tools, whose schemas agents do not
           // choose
};

/// One schema document. Not for concurrent use.
class SchemaForms {
 public:
  static constexpr int kMaxSteps = 64;          // references and parts followed at one place
  static constexpr int64_t kMaxWork = 200'000;  // JSON values put together in all

  SchemaForms(Json root, Unenforced policy) : root_(std::move(root)), policy_(policy) {}

  /// `node` (found at `path`) in one of these forms:
  ///   {"$ref": "#…"}               alone, and its target exists
  ///   {"enum": […]}                values that the other keywords allow
  ///   {"anyOf": […]}               schemas, not in a plain form yet
  ///   {"type": "…", …}             one type; only keywords of that type that can be enforced
  ///   {}                           any value
  /// Errors: invalid_argument (not a schema, contradiction, reference without target), unsupported (a keyword
  /// that cannot be enforced, unless the policy is to widen). Both name the path.
  Result<Json> plain(const Json& node, const std::string& path);

  /// Target of a reference "#…". Errors: invalid_argument.
  Result<Json> target(const std::string& reference, const std::string& path) const;

  /// Reports a keyword that cannot be enforced: an error, or a note.
  Status unenforced(const std::string& path, const std::string& keyword, const std::string& why = {});

  const Json& root() const { return root_; }

  /// What was left out: "$.properties.a: not".
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Result<Json> gathered(const Json& node, const std::string& path);
  Status merge(Json& into, const Json& part, const std::string& path);
  Result<bool> merge_known(Json& into, const std::string& key, const Json& value, const std::string& path);
  Status drop_unenforced(Json& node, const std::string& path);
  Result<Json> enumeration(const Json& node, const std::string& path);
  Result<Json> alternatives(Json node, const std::string& path);
  Status check_one_of(const Json& options, const std::string& path);
  static Json of_one_type(const Json& node);

  Status count_work(const Json& part, size_t times, const std::string& path);

  int64_t work_ = 0;
  Json root_;
  Unenforced policy_;
  std::vector<std::string> notes_;
};

/// Error about a place in a schema.
Error schema_error(Code code, const std::string& path, const std::string& what);

/// "$.properties.a" + "b" -> "$.properties.a.b"
std::string child_path(const std::string& path, const std::string& key);

}  // namespace rorqual::grammar
