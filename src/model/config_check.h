// SPDX-License-Identifier: Apache-2.0
// The rules between a config's fields. Private to src/model and the generator, which builds configs itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace rorqual::model {

/// Single integer fields: name in the Hugging Face form, name in the flat form (empty = the same), allowed
/// range.
struct IntegerField {
  const char* name;
  const char* flat_name;
  int64_t Config::*member;
  int64_t min, max;
};

struct NumberField {
  const char* name;
  const char* flat_name;
  double Config::*member;
  double min, max;
};

struct ListField {
  const char* name;
  const char* flat_name;
  std::vector<int64_t> Config::*member;
};

/// All fields of the text model, for parsing, checking and writing. rope_scaling's fields have their flat
/// names here.
std::span<const IntegerField> integer_fields();
std::span<const NumberField> number_fields();
std::span<const ListField> list_fields();

/// What to do about a config.json that breaks a rule.
inline constexpr const char* kConfigHint =
    "config.json and shards must be of one revision; fetch config.json again";

/// Every constraint that parse_config enforces, in one line each: "config.json: FIELD is GOT, expected ...".
Status check_config(const Config& config);

}  // namespace rorqual::model
