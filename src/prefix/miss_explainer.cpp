// SPDX-License-Identifier: Apache-2.0
#include "prefix/miss_explainer.h"

#include <algorithm>
#include <array>

namespace rorqual::prefix {

namespace {

// Pages on disk that are compared: each costs a small read.
constexpr int64_t kMaxDiskSiblings = 16;

// The kept page in the place of the first page that was not found which begins most like it.
struct Sibling {
  bool is_found = false;
  int64_t common_tokens = 0;
  std::optional<int32_t> next_token;  // of the kept page after the common ones
};

void consider(std::span<const int32_t> kept, std::span<const int32_t> tokens, Sibling& best) {
  const size_t limit = std::min(kept.size(), tokens.size());
  size_t common = 0;
  while (common < limit && kept[common] == tokens[common]) ++common;
  if (best.is_found && static_cast<int64_t>(common) <= best.common_tokens) return;
  best = {.is_found = true, .common_tokens = static_cast<int64_t>(common), .next_token = std::nullopt};
  if (common < kept.size()) best.next_token = kept[common];
}

Sibling most_similar(const PageKey& parent, std::span<const int32_t> tokens, NodeIndex last_node,
                     const PageTree& tree, const DiskTier* disk) {
  Sibling best;
  if (last_node != kNoNode) {
    const PageTree::Similar similar = tree.most_similar(last_node, tokens);
    if (similar.node != kNoNode) consider(tree.tokens(similar.node), tokens, best);
  }
  if (disk != nullptr && best.common_tokens < static_cast<int64_t>(tokens.size())) {
    for (const DiskPage& page : disk->children(parent, kMaxDiskSiblings)) consider(page.tokens, tokens, best);
  }
  return best;
}

}  // namespace

std::string_view miss_reason_name(MissReason reason) {
  static constexpr std::array<std::string_view, kMissReasons> kNames = {
      "none",          "off",     "bypassed", "too_short",       "first_seen", "tokens_differ",
      "image_differs", "extends", "evicted",  "windows_missing", "disk_error"};
  return kNames.at(static_cast<size_t>(reason));
}

MissReport explain_miss(const PrefixCache::Query& query, const LookupEnd& end, const PageTree& tree,
                        const DiskTier* disk) {
  const int64_t page = end.page_tokens;
  const auto whole_pages = std::min<int64_t>(query.limit / page, static_cast<int64_t>(query.keys.size()));
  const auto found = static_cast<size_t>(end.found);
  const auto rest = query.tokens.subspan(found * static_cast<size_t>(page));
  const auto tokens = rest.first(std::min(rest.size(), static_cast<size_t>(page)));
  const PageKey& parent = found == 0 ? query.root : query.keys[found - 1];

  MissReport report;
  report.position = end.used * page;
  report.common_tokens = end.found_first * page;
  Sibling sibling;
  if (end.found == end.found_first) {
    sibling = most_similar(parent, tokens, end.last_node, tree, disk);
    // Equal tokens of another key are another image: not in common.
    const bool is_alike = sibling.common_tokens == page && end.found < whole_pages;
    if (!is_alike) report.common_tokens += sibling.common_tokens;
  }

  if (whole_pages <= 0) {
    report.reason = MissReason::too_short;
  } else if (end.used >= whole_pages) {
    report.reason = MissReason::none;
  } else if (end.had_disk_error) {
    report.reason = MissReason::disk_error;
  } else if (end.found < whole_pages && (end.had_no_room || tree.was_evicted(query.keys[found]))) {
    report.reason = MissReason::evicted;
    report.position = end.found * page;
  } else if (end.found >= whole_pages || (!sibling.is_found && end.used < end.found)) {
    report.reason = MissReason::windows_missing;
  } else if (!sibling.is_found) {
    report.reason = found == 0 ? MissReason::first_seen : MissReason::extends;
  } else if (sibling.common_tokens == page) {
    report.reason = MissReason::image_differs;
    report.position = end.found * page;
  } else {
    const int64_t alike = std::min(kAlikeTokens, page / 2);
    const bool is_first = found == 0 && sibling.common_tokens < alike;
    report.reason = is_first ? MissReason::first_seen : MissReason::tokens_differ;
    report.position = end.found * page + sibling.common_tokens;
    report.token = tokens[static_cast<size_t>(sibling.common_tokens)];
    report.kept_token = sibling.next_token;
  }
  return report;
}

}  // namespace rorqual::prefix
