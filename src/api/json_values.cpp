// SPDX-License-Identifier: Apache-2.0
#include "api/json_values.h"

namespace rorqual::api {

bool has_more_values(std::string_view json, size_t max) {
  if (json.size() / 2 < max) return false;  // a value needs a separator beside itself
  size_t count = 1;
  bool in_string = false;
  for (size_t i = 0; i < json.size() && count <= max; ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == ',' || c == '[' || c == '{') {
      ++count;
    }
  }
  return count > max;
}

}  // namespace rorqual::api
