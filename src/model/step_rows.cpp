// SPDX-License-Identifier: Apache-2.0
// The rows of a step: their plan, and leaving out those that nothing reads (row_ranges.h).
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/step.h"

namespace rorqual::model {

void Model::Step::add_slice(const StepSlice& slice, SequenceState& sequence, const SliceRows& plan_of_slice) {
  SliceRows& planned = slices.emplace_back(plan_of_slice);
  kernels::SequenceRows run;
  run.row_begin = planned.row_begin = static_cast<int32_t>(token_ids.size());
  run.row_count = static_cast<int32_t>(slice.tokens.size());
  run.start = sequence.length();
  for (size_t i = 0; i < slice.tokens.size(); ++i) {
    origin.push_back(static_cast<int32_t>(token_ids.size()));
    token_ids.push_back(slice.tokens[i]);
    positions.push_back(run.start + static_cast<int64_t>(i));
    is_image.push_back(slice.is_image.empty() ? uint8_t{0} : slice.is_image[i]);
    sequence_of_row.push_back(static_cast<int32_t>(rows.size()));
  }
  slice_of_run.push_back(slices.size() - 1);
  rows.push_back(run);
  states.push_back(&sequence);
}

void Model::Step::update_plan() {
  num_rows = static_cast<int64_t>(token_ids.size());
  plan.num_rows = static_cast<int32_t>(num_rows);
  plan.token_ids = token_ids;
  plan.positions = positions;
  plan.is_image = is_image;
  plan.sequence_of_row = sequence_of_row;
  plan.sequences = rows;
}

kernels::StepPlan Model::Step::normal_plan() const {
  size_t runs = 0;
  while (runs < rows.size() && !slices[slice_of_run[runs]].is_replay) ++runs;
  const auto count = runs < rows.size() ? static_cast<size_t>(rows[runs].row_begin) : token_ids.size();
  kernels::StepPlan part = plan;
  part.num_rows = static_cast<int32_t>(count);
  part.token_ids = part.token_ids.first(count);
  part.positions = part.positions.first(count);
  part.is_image = part.is_image.first(count);
  part.sequence_of_row = part.sequence_of_row.first(count);
  part.sequences = part.sequences.first(runs);
  return part;
}

bool Model::Step::find_kept(int64_t layer, std::vector<Kept>& kept) const {
  kept.clear();
  if (is_draft) return false;
  bool is_all = true;
  for (size_t run = 0; run < rows.size();) {
    const size_t slice = slice_of_run[run];
    const SliceRows& planned = slices[slice];
    size_t end = run;
    while (end < rows.size() && slice_of_run[end] == slice) ++end;
    if (planned.demand.is_everything || layer < planned.rule.first_layer) {
      for (; run < end; ++run) kept.push_back({run, rows[run].start, rows[run].start + rows[run].row_count});
      continue;
    }
    const std::vector<RowRun> whole = whole_rows(planned.rule, layer, planned.demand);
    auto piece = whole.begin();
    for (; run < end; ++run) {
      const int64_t from = rows[run].start, to = from + rows[run].row_count;
      int64_t left = rows[run].row_count;
      for (; piece != whole.end() && piece->begin < to; ++piece) {
        RORQUAL_CHECK(piece->begin >= from && piece->end <= to);
        kept.push_back({run, piece->begin, piece->end});
        left -= piece->end - piece->begin;
      }
      is_all = is_all && left == 0;
    }
    RORQUAL_CHECK(piece == whole.end());
  }
  if (is_all) kept.clear();
  return !is_all;
}

std::vector<int32_t> Model::Step::rows_entering(int64_t layer) const {
  std::vector<int32_t> entering;
  for (const SliceRows& planned : slices) {
    const RowRun all = planned.demand.rows;
    std::vector<RowRun> runs{all};
    if (layer > planned.rule.first_layer) runs = whole_rows(planned.rule, layer - 1, planned.demand);
    for (const RowRun& run : runs) {
      for (int64_t p = run.begin; p < run.end; ++p) {
        entering.push_back(planned.row_begin + static_cast<int32_t>(p - all.begin));
      }
    }
  }
  return entering;
}

Status Model::Step::check_windows(int64_t layer, const std::vector<Kept>& kept) const {
  if (is_draft) return Ok{};
  const auto check = [&](size_t run, int64_t begin) -> Status {
    const SliceRows& slice = slices[slice_of_run[run]];
    const int64_t reach = std::max<int64_t>(0, begin - slice.rule.window + 1);
    if (slice.is_trimmed || rows[run].window_begin <= reach) return Ok{};
    return Error(Code::internal,
                 fmt::format("position {} of a sequence looks back to {} in layer {}, whose windows begin at "
                             "{}: earlier steps had no target here",
                             begin, reach, layer, rows[run].window_begin));
  };
  for (const Kept& piece : kept) RORQUAL_TRY(check(piece.run, piece.begin));
  for (size_t run = 0; kept.empty() && run < rows.size(); ++run) RORQUAL_TRY(check(run, rows[run].start));
  return Ok{};
}

std::vector<kernels::WindowCache> Model::Step::windows_before(const std::vector<Kept>& kept,
                                                              const kernels::CacheFormat& format,
                                                              kernels::Scratch& scratch) const {
  constexpr int64_t kPage = kernels::kWindowPageTokens;
  const int64_t bytes = format.window_bytes();
  std::vector<kernels::WindowCache> result;
  for (const Kept& piece : kept) {
    const kernels::SequenceRows& run = rows[piece.run];
    const kernels::WindowCache& old = windows[piece.run];
    if (piece.begin == run.start) {
      result.push_back(old);
      continue;
    }
    const int64_t reach = piece.begin - slices[slice_of_run[piece.run]].rule.window + 1;
    const int64_t first = std::max(run.window_begin, reach);
    kernels::WindowCache copy;
    copy.first_page = first / kPage;
    const int64_t num_pages = piece.begin / kPage - copy.first_page + 1;
    auto** pages = scratch.alloc<std::byte*>(num_pages);
    for (int64_t i = 0; i < num_pages; ++i) pages[i] = scratch.alloc<std::byte>(kPage * bytes);
    copy.pages = pages;
    for (int64_t p = first; p < piece.begin; ++p) {
      const std::byte* from = p >= run.start
                                  ? window_records + (run.row_begin + p - run.start) * bytes
                                  : old.pages[p / kPage - old.first_page] + old.offset + p % kPage * bytes;
      std::memcpy(pages[p / kPage - copy.first_page] + p % kPage * bytes, from, static_cast<size_t>(bytes));
    }
    result.push_back(copy);
  }
  return result;
}

void Model::Step::keep(const Config& config, const std::vector<Kept>& kept) {
  const int64_t d = config.hidden_size, n = config.hc_mult, half = config.qk_rope_head_dim / 2;
  const auto num_taps = static_cast<int64_t>(config.dspark_target_layer_ids.size());
  int64_t to = 0, from = 0, count = 0;
  const auto move = [&](auto* values, int64_t width) {
    if (values == nullptr || to == from) return;
    std::memmove(values + to * width, values + from * width,
                 static_cast<size_t>(count * width) * sizeof(*values));
  };
  std::vector<kernels::SequenceRows> new_rows;
  std::vector<SequenceState*> new_states;
  std::vector<size_t> new_slices;
  for (const Kept& piece : kept) {
    const kernels::SequenceRows& run = rows[piece.run];
    from = run.row_begin + (piece.begin - run.start);
    count = piece.end - piece.begin;
    move(streams, n * d);
    move(pre[0], n);
    move(post[0], n);
    move(comb[0], n * n);
    move(x, d);
    for (const kernels::RopeAngles& angles : {window_angles, compressed_angles}) {
      move(const_cast<float*>(angles.cos), half);
      move(const_cast<float*>(angles.sin), half);
    }
    move(selection.entries, config.index_topk);
    move(selection.count, 1);
    move(selection.candidates.blocks, selection.candidates.max_blocks);
    move(selection.candidates.count, 1);
    move(taps, num_taps * d);
    move(token_ids.data(), 1);
    move(positions.data(), 1);
    move(is_image.data(), 1);
    move(origin.data(), 1);
    new_rows.push_back(
        {static_cast<int32_t>(to), static_cast<int32_t>(count), piece.begin, run.window_begin});
    new_states.push_back(states[piece.run]);
    new_slices.push_back(slice_of_run[piece.run]);
    to += count;
  }
  rows = std::move(new_rows);
  states = std::move(new_states);
  slice_of_run = std::move(new_slices);
  const auto left = static_cast<size_t>(to);
  token_ids.resize(left);
  positions.resize(left);
  is_image.resize(left);
  origin.resize(left);
  sequence_of_row.clear();
  for (size_t run = 0; run < rows.size(); ++run) {
    sequence_of_row.insert(sequence_of_row.end(), static_cast<size_t>(rows[run].row_count),
                           static_cast<int32_t>(run));
  }
  update_plan();
}

}  // namespace rorqual::model
