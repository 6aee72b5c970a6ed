// SPDX-License-Identifier: Apache-2.0
#include "tools/model_identity.h"

#include <gtest/gtest.h>

namespace rorqual::tools {
namespace {

std::string identity(const std::string& model, const OpenOptions& options = {}) {
  OpenOptions open = options;
  open.model = model;
  auto opened = open_source(open, /*tokenizer_optional=*/true);
  EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().message());
  return opened.ok() ? model_identity(*opened, open) : std::string();
}

const std::string kModels = std::string(RORQUAL_SOURCE_DIR) + "/tests/models/";

TEST(ModelIdentity, IsTheSameForTheSameModelAndNumerics) {
  const std::string one = identity(kModels + "tiny-a");
  EXPECT_EQ(one.size(), 64u);
  EXPECT_EQ(one, identity(kModels + "tiny-a"));
}

TEST(ModelIdentity, DiffersByWhateverChangesCachedBytes) {
  const std::string base = identity(kModels + "tiny-a");
  OpenOptions exact;
  exact.numerics = "exact";
  EXPECT_NE(base, identity(kModels + "tiny-a", exact));
  OpenOptions drafts;
  drafts.with_drafts = true;
  EXPECT_NE(base, identity(kModels + "tiny-a", drafts));
  EXPECT_NE(base, identity(kModels + "tiny-b"));
}

TEST(ModelIdentity, DiffersByTheBytesOfTheWeightsAlone) {
  // Equal config and tensor list, other values.
  EXPECT_NE(identity("synthetic:v41?layers=1&hidden=96&heads=8&experts=7&vocab=999&seed=1"),
            identity("synthetic:v41?layers=1&hidden=96&heads=8&experts=7&vocab=999&seed=2"));
}

TEST(ModelIdentity, DoesNotDependOnTheHeadsFormat) {
  OpenOptions fp8;
  fp8.switches.lm_head = model::HeadFormat::fp8;
  EXPECT_EQ(identity(kModels + "tiny-a"), identity(kModels + "tiny-a", fp8));
}

}  // namespace
}  // namespace rorqual::tools
