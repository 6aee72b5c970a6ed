// SPDX-License-Identifier: Apache-2.0
// Size plan of images, as far as the token count needs it: patches of 14 pixels, 3 x 3 patches a token, one
// newline token per row, a start and an end token, at most 1024 tokens. docs/text.md#images.
#include "text/image_tokens.h"

#include <algorithm>
#include <cmath>

namespace rorqual::text {

namespace {

constexpr int64_t kPatch = 14;
constexpr int64_t kRatio = 3;
constexpr int64_t kMaxTokens = 1024;
constexpr int64_t kMinPixels = 295936;
constexpr int64_t kMaxSide = int64_t{1} << 24;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

struct Grid {
  int64_t rows, columns;  // of patches
};

int64_t span_tokens(const Grid& grid) {
  const int64_t rows = ceil_div(grid.rows, kRatio), columns = ceil_div(grid.columns, kRatio);
  return rows * (columns + 1) + 2;
}

/// Largest grid of about the picture's shape within the token limit. Divisions stand as they are defined: in
/// double.
Grid fit(int64_t width, int64_t height) {
  const double w = static_cast<double>(width), h = static_cast<double>(height);
  const double q = h / w;
  const double columns = std::sqrt(static_cast<double>(kMaxTokens - 2) / q + 0.25) - 0.5;
  const double rows = columns * q;
  if (columns < 1) return {(kMaxTokens - 2) / 2 * kRatio, kRatio};
  if (rows < 1) return {kRatio, (kMaxTokens - 3) * kRatio};
  const double cell = static_cast<double>(kPatch * kRatio), patch = static_cast<double>(kPatch);
  const double scale = std::min(std::floor(columns) * cell / w, std::floor(rows) * cell / h);
  return {static_cast<int64_t>(std::floor(h * scale / patch)),
          static_cast<int64_t>(std::floor(w * scale / patch))};
}

}  // namespace

Result<int32_t> image_token_count(int64_t width, int64_t height) {
  if (width < 1 || height < 1 || width > kMaxSide || height > kMaxSide) {
    return Error(Code::invalid_argument,
                 "image of " + std::to_string(width) + " x " + std::to_string(height) +
                     " pixels: sides must be 1.." + std::to_string(kMaxSide),
                 "send a valid picture");
  }
  if (width * height < kMinPixels) {
    const double scale = std::sqrt(static_cast<double>(kMinPixels) / static_cast<double>(width * height));
    width = static_cast<int64_t>(static_cast<double>(width) * scale);
    height = static_cast<int64_t>(static_cast<double>(height) * scale);
  }
  Grid grid{ceil_div(height, kPatch), ceil_div(width, kPatch)};
  if (span_tokens(grid) > kMaxTokens) grid = fit(width, height);
  return static_cast<int32_t>(span_tokens(grid));
}

}  // namespace rorqual::text
