// SPDX-License-Identifier: Apache-2.0
// What this program was built from. The definition is generated (cmake/build_info.cmake), so that only one
// file is recompiled when the commit changes.
#pragma once

#include <span>
#include <string_view>

namespace rorqual::tools {

struct LibraryVersion {
  std::string_view name, version;
};

struct BuildInfo {
  std::string_view version;      // "0.1.0"
  std::string_view commit;       // full hash, "unknown" outside a repository
  std::string_view commit_date;  // ISO 8601 date of the commit; builds carry no time stamp of their own
  bool dirty;                    // tracked files differed from the commit
  std::string_view compiler, flags, build_type;
  std::string_view sanitizers;  // empty in normal builds
  std::span<const LibraryVersion> libraries;
};

const BuildInfo& build_info();

}  // namespace rorqual::tools
