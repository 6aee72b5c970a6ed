// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

namespace rorqual {

int exit_code(Code code) {
  switch (code) {
    case Code::invalid_argument:
      return 2;
    case Code::not_found:
      return 3;
    case Code::corrupt_data:
      return 4;
    case Code::unsupported:
      return 5;
    case Code::out_of_memory:
      return 6;
    case Code::io:
    case Code::device:
      return 7;
    case Code::unavailable:
      return 8;
    case Code::deadline:
      return 9;
    case Code::gate:
      return 1;
    case Code::cancelled:
      return 130;
    case Code::internal:
      return 70;
  }
  return 70;
}

const char* code_name(Code code) {
  switch (code) {
    case Code::invalid_argument:
      return "invalid_argument";
    case Code::not_found:
      return "not_found";
    case Code::corrupt_data:
      return "corrupt_data";
    case Code::unsupported:
      return "unsupported";
    case Code::out_of_memory:
      return "out_of_memory";
    case Code::io:
      return "io";
    case Code::device:
      return "device";
    case Code::unavailable:
      return "unavailable";
    case Code::deadline:
      return "deadline";
    case Code::gate:
      return "gate";
    case Code::cancelled:
      return "cancelled";
    case Code::internal:
      return "internal";
  }
  return "internal";
}

}  // namespace rorqual
