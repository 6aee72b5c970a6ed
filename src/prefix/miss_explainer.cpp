// SPDX-License-Identifier: Apache-2.0
#include "prefix/miss_explainer.h"

#include <algorithm>
#include <array>

namespace rorqual::prefix {

namespace {

void consider(std::span<const int32_t> kept, std::span<const int32_t> tokens, Sibling& best) {
  const size_t limit = std::min(kept.size(), tokens.size());
  size_t common = 0;
  while (common < limit && kept[common] == tokens[common]) ++common;
  if (best.is_found && static_cast<int64_t>(common) <= best.common_tokens) return;
  best = {.is_found = true, .common_tokens = static_cast<int64_t>(common), .next_token = std::nullopt};
  if (common < kept.size()) best.next_token = kept[common];
}

int64_t whole_pages(const PrefixCache::Query& query, int64_t page_tokens) {
  return std::min<int64_t>(query.limit / page_tokens, static_cast<int64_t>(query.keys.size()));
}

// Of the first page that was not found, as far as the prompt goes.
std::span<const int32_t> tokens_not_found(const PrefixCache::Query& query, const LookupEnd& end) {
  const auto rest = query.tokens.subspan(static_cast<size_t>(end.found * end.page_tokens));
  return rest.first(std::min(rest.size(), static_cast<size_t>(end.page_tokens)));
}

Sibling most_similar(const PrefixCache::Query& query, const LookupEnd& end, const DiskTier* disk) {
  Sibling best = end.sibling;
  const auto tokens = tokens_not_found(query, end);
  if (disk == nullptr || best.common_tokens == static_cast<int64_t>(tokens.size())) return best;
  const auto found = static_cast<size_t>(end.found);
  const PageKey& parent = found == 0 ? query.root : query.keys[found - 1];
  for (const DiskPage& page : disk->children(parent, kMaxDiskSiblings)) {
    // The page itself may have come since the lookup.
    const bool is_same = end.found < whole_pages(query, end.page_tokens) && page.key == query.keys[found];
    if (!is_same) consider(page.tokens, tokens, best);
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

void note_tree(const PrefixCache::Query& query, const PageTree& tree, NodeIndex last_node, LookupEnd& end) {
  const auto found = static_cast<size_t>(end.found);
  end.was_evicted = found < query.keys.size() && tree.was_evicted(query.keys[found]);
  if (last_node == kNoNode || end.found != end.found_first) return;
  const auto tokens = tokens_not_found(query, end);
  const PageTree::Similar similar = tree.most_similar(last_node, tokens);
  if (similar.node != kNoNode) consider(tree.tokens(similar.node), tokens, end.sibling);
}

MissReport explain_miss(const PrefixCache::Query& query, const LookupEnd& end, const DiskTier* disk) {
  const int64_t page = end.page_tokens;
  const int64_t whole = whole_pages(query, page);
  MissReport report;
  report.position = end.used * page;
  report.common_tokens = end.found_first * page;
  Sibling sibling;
  if (end.found == end.found_first) {
    sibling = most_similar(query, end, disk);
    // Equal tokens of another key are another image: not in common.
    const bool is_alike = sibling.common_tokens == page && end.found < whole;
    if (!is_alike) report.common_tokens += sibling.common_tokens;
  }

  if (whole <= 0) {
    report.reason = MissReason::too_short;
  } else if (end.used >= whole) {
    report.reason = MissReason::none;
  } else if (end.had_disk_error) {
    report.reason = MissReason::disk_error;
  } else if (end.found < whole && (end.had_no_room || end.was_evicted)) {
    report.reason = MissReason::evicted;
    report.position = end.found * page;
  } else if (end.found >= whole || (!sibling.is_found && end.used < end.found)) {
    report.reason = MissReason::windows_missing;
  } else if (!sibling.is_found) {
    report.reason = end.found == 0 ? MissReason::first_seen : MissReason::extends;
  } else if (sibling.common_tokens == page) {
    report.reason = MissReason::image_differs;
    report.position = end.found * page;
  } else {
    const int64_t alike = std::min(kAlikeTokens, page / 2);
    const bool is_first = end.found == 0 && sibling.common_tokens < alike;
    report.reason = is_first ? MissReason::first_seen : MissReason::tokens_differ;
    report.position = end.found * page + sibling.common_tokens;
    report.token = tokens_not_found(query, end)[static_cast<size_t>(sibling.common_tokens)];
    report.kept_token = sibling.next_token;
  }
  return report;
}

}  // namespace rorqual::prefix
