// SPDX-License-Identifier: Apache-2.0
#include "tools/kl_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "text/utf8.h"

namespace rorqual::tools {

Status check_output(std::string_view option, const std::string& path) {
  if (is_directory(path)) {
    return Error(Code::invalid_argument,
                 fmt::format("{} '{}': it is a folder, expected a file", option, path), "add a file name");
  }
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const std::string folder = parent.empty() ? "." : parent;
  if (!is_directory(folder)) {
    return Error(Code::io, fmt::format("{} '{}': no folder '{}'", option, path, folder),
                 fmt::format("mkdir -p '{}'", folder));
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return Error(Code::io,
                 fmt::format("{} '{}': cannot write in '{}': {}", option, path, folder, std::strerror(errno)),
                 "choose another folder");
  }
  return Ok();
}

Status check_utf8(std::string_view what, std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto character = text::decode_utf8(text, at);
    if (!character.is_valid) {
      return Error(Code::corrupt_data,
                   fmt::format("{}: got 0x{:02X} at byte {}, expected UTF-8 text", what,
                               static_cast<unsigned char>(text[at]), at),
                   "convert it, for example with iconv -t UTF-8");
    }
    at += character.length;
  }
  return Ok();
}

}  // namespace rorqual::tools
