// SPDX-License-Identifier: Apache-2.0
#include "model/engram_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace rorqual::model {
namespace {

constexpr int64_t kReadBytes = 64 << 10;  // most of one read
constexpr int64_t kGapBytes = 4096;       // unwanted bytes between two rows that are read with them
constexpr size_t kReadsPerClaim = 4;

/// Where a row goes.
struct Target {
  int64_t row = 0;
  int64_t at = 0;  // index in the output
};

/// Targets [begin, end) come from one read of `size` bytes.
struct Extent {
  int64_t offset = 0, size = 0;
  size_t begin = 0, end = 0;
};

}  // namespace

void copy_engram_rows(const EngramRows& wanted, ThreadPool& pool) {
  const EngramTable& table = *wanted.table;
  RORQUAL_CHECK(table.values != nullptr);
  const auto width = static_cast<size_t>(table.head_dim),
             scale_width = static_cast<size_t>(table.scale_bytes());
  pool.parallel_for(static_cast<int64_t>(wanted.tokens.size()), [&](int64_t t, int /*thread*/) {
    const int64_t* rows = wanted.rows + wanted.tokens[static_cast<size_t>(t)] * wanted.stride;
    for (int64_t c = 0; c < wanted.columns; ++c) {
      const auto row = static_cast<size_t>(rows[c] - table.row_begin);
      const auto at = static_cast<size_t>(t * wanted.columns + c);
      std::memcpy(wanted.values + at * width, table.values + row * width, width);
      std::memcpy(wanted.scales + at * scale_width, table.scales + row * scale_width, scale_width);
    }
  });
}

struct EngramReader::Batch::Part {
  const format::TensorSource* source = nullptr;
  const format::TensorInfo* info = nullptr;
  const EngramRows* wanted = nullptr;
  int64_t width = 0;  // bytes of a row
  uint8_t* out = nullptr;

  enum class Stage : uint8_t { waiting, sorting, reading } stage = Stage::waiting;
  std::vector<Target> targets;
  std::vector<Extent> extents;
  size_t next = 0;    // extent to read
  int64_t users = 0;  // threads at work on it
  bool is_given_up = false;
  std::optional<Error> error;

  bool has_work() const {
    return stage == Stage::waiting || (stage == Stage::reading && next < extents.size());
  }

  bool is_done() const { return users == 0 && stage == Stage::reading && next == extents.size(); }

  void sort();
  Status read(const Extent& extent, std::vector<std::byte>& buffer) const;
};

/// Lists the rows by offset and joins neighbours.
void EngramReader::Batch::Part::sort() {
  const auto columns = static_cast<size_t>(wanted->columns);
  targets.resize(wanted->tokens.size() * columns);
  for (size_t t = 0; t < wanted->tokens.size(); ++t) {
    const int64_t* rows = wanted->rows + wanted->tokens[t] * wanted->stride;
    for (size_t c = 0; c < columns; ++c) {
      targets[t * columns + c] = {rows[c], static_cast<int64_t>(t * columns + c)};
    }
  }
  std::sort(targets.begin(), targets.end(),
            [](const Target& a, const Target& b) { return a.row != b.row ? a.row < b.row : a.at < b.at; });
  for (size_t i = 0; i < targets.size(); ++i) {
    const int64_t begin = targets[i].row * width, end = begin + width;
    if (!extents.empty()) {
      Extent& last = extents.back();
      if (begin <= last.offset + last.size + kGapBytes && end <= last.offset + kReadBytes) {
        last.size = std::max(last.size, end - last.offset);
        last.end = i + 1;
        continue;
      }
    }
    extents.push_back({begin, width, i, i + 1});
  }
}

Status EngramReader::Batch::Part::read(const Extent& extent, std::vector<std::byte>& buffer) const {
  buffer.resize(static_cast<size_t>(extent.size));
  RORQUAL_TRY(source->read(*info, extent.offset, buffer));
  for (size_t i = extent.begin; i < extent.end; ++i) {
    std::memcpy(out + targets[i].at * width, buffer.data() + (targets[i].row * width - extent.offset),
                static_cast<size_t>(width));
  }
  return Ok{};
}

EngramReader::Batch::Batch(EngramReader& reader) : reader_(reader) {}

EngramReader::EngramReader(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

EngramReader::~EngramReader() {
  {
    std::lock_guard lock(mutex_);
    RORQUAL_CHECK(batch_ == nullptr);
    is_stopping_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::unique_ptr<EngramReader::Batch> EngramReader::start(std::span<const EngramRows> requests) {
  std::unique_ptr<Batch> batch(new Batch(*this));
  for (const EngramRows& wanted : requests) {
    const EngramTable& table = *wanted.table;
    for (const bool is_scales : {false, true}) {
      auto part = std::make_unique<Batch::Part>();
      part->source = table.source;
      part->info = is_scales ? table.scales_info : table.values_info;
      part->wanted = &wanted;
      part->width = is_scales ? table.scale_bytes() : table.head_dim;
      part->out = is_scales ? wanted.scales : wanted.values;
      batch->parts_.push_back(std::move(part));
    }
  }
  {
    std::lock_guard lock(mutex_);
    RORQUAL_CHECK(batch_ == nullptr);
    batch_ = batch.get();
  }
  has_work_.notify_all();
  return batch;
}

void EngramReader::run() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    if (batch_ == nullptr || !work(lock)) has_work_.wait(lock);
  }
}

/// One piece of the batch's work; false when there is none. Called and left with the lock held.
bool EngramReader::work(std::unique_lock<std::mutex>& lock) {
  for (const auto& owned : batch_->parts_) {
    Batch::Part& part = *owned;
    if (!part.has_work()) continue;
    ++part.users;
    if (part.stage == Batch::Part::Stage::waiting) {
      part.stage = Batch::Part::Stage::sorting;
      lock.unlock();
      part.sort();
      lock.lock();
      part.stage = Batch::Part::Stage::reading;
      if (part.is_given_up) part.next = part.extents.size();
      has_work_.notify_all();
    } else {
      const size_t begin = part.next;
      const size_t end = part.next = std::min(part.extents.size(), begin + kReadsPerClaim);
      lock.unlock();
      thread_local std::vector<std::byte> buffer;
      Status status = Ok{};
      for (size_t i = begin; i < end && status.ok(); ++i) status = part.read(part.extents[i], buffer);
      lock.lock();
      if (!status.ok()) {
        if (!part.error) part.error = std::move(status).error();
        part.next = part.extents.size();
      }
    }
    --part.users;
    if (part.is_done()) has_result_.notify_all();
    return true;
  }
  return false;
}

Status EngramReader::Batch::wait(size_t request) {
  std::unique_lock lock(reader_.mutex_);
  for (size_t i = 2 * request; i < 2 * request + 2; ++i) {
    Part& part = *parts_[i];
    reader_.has_result_.wait(lock, [&part] { return part.is_done(); });
    if (part.error) return *part.error;
  }
  return Ok{};
}

EngramReader::Batch::~Batch() {
  std::unique_lock lock(reader_.mutex_);
  for (const auto& part : parts_) {
    part->is_given_up = true;
    if (part->stage == Part::Stage::sorting) continue;  // its reader ends it; the list is in the making
    part->stage = Part::Stage::reading;                 // if it was waiting, nothing was listed
    part->next = part->extents.size();
  }
  for (const auto& part : parts_) {
    reader_.has_result_.wait(lock, [&part] { return part->is_done(); });
  }
  reader_.batch_ = nullptr;
}

}  // namespace rorqual::model
