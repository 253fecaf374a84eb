// Promise: a table in a comment that a re-flow has torn is found, with file and line; tables that are whole pass.
// World:   comments as text. Those that are torn stood in this tree once.

#include "tests/build/comment_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace loom::build_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> problems(std::string_view text) { return comment_problems("a.h", text); }

TEST(CommentTables, PassWhenTextIsIndentedToItsColumn) {
  EXPECT_THAT(problems("// Gather: how a group's parameters become whole.\n"
                       "//\n"
                       "// Bytes        the same on the accounts of every rank,\n"
                       "//              whoever owns the memory.\n"
                       "// Dry run      blocks have sizes and no bytes:\n"
                       "//                rows     [kTile][Dp]   row-major\n"
                       "// Its threads  the rank's host thread.\n"
                       "//\n"
                       "// Prose after an empty line stands where it likes.\n"
                       "#pragma once\n"),
              IsEmpty());
}

TEST(CommentTables, PassInFormulasCodeAndProse) {
  EXPECT_THAT(problems("// With n steps done, the first line that applies counts:\n"
                       "//   constant       max_lr\n"
                       "//   n > D          min_lr\n"
                       "\n"
                       "//   fully_shard(model, options);   // the root\n"
                       "//   materialize_shards(model);  init_weights(model, seed);\n"
                       "  // Frees the memory. The next call may take it.\n"
                       "int x = 0;  // Label  text\n"
                       "// and a line of prose\n"),
              IsEmpty());
}

TEST(CommentTables, AreTornByAWordOnALineOfItsOwn) {  // safetensors.h
  EXPECT_THAT(
      problems("// Layout   8 bytes: length H of the header, little endian; H bytes of JSON, padded so that it starts\n"
               "// at\n"
               "//          a multiple of 8; then the tensors' bytes.\n"),
      ElementsAre("a.h:2: breaks the table that begins in line 1; indent the text to its column, or leave an "
                  "empty comment line before it"));
}

TEST(CommentTables, AreTornByALabelInTheMiddleOfALine) {  // simd.h
  EXPECT_THAT(
      problems("// Rounding     to nearest, ties to even, NaN stays NaN (fp16 NaNs come\n"
               "//              quiet). Accuracy     exp, sigmoid, tanh and erf: a few units in the last place.\n"),
      ElementsAre("a.h:2: 'Accuracy' begins a row in the middle of a line; begin a line with it"));
}

TEST(CommentTables, AreTornInsideAnIndentedTable) {  // gather.h
  EXPECT_THAT(problems("//   buffered   one flat buffer [N * bytes]: gather inputs one after another;\n"
                       "//   gathered in place, then\n"
                       "//              copied out into the unsharded parameters.\n"),
              ElementsAre("a.h:2: breaks the table that begins in line 1; indent the text to its column, or leave an "
                          "empty comment line before it"));
}

TEST(CommentTables, AreTornInThePromiseOfATest) {  // failure_test.cpp
  EXPECT_THAT(
      problems("// Promise: a rank that throws, ends or stalls ends every wait for it with a text that says which and\n"
               "// why; nothing hangs. World:   2 to 4 ranks as threads.\n"),
      ElementsAre("a.h:2: breaks the table that begins in line 1; indent the text to its column, or leave an "
                  "empty comment line before it"));
  EXPECT_THAT(problems("// Promise: a rank that throws, ends or stalls ends every wait for it with a text that says\n"
                       "//          why; nothing hangs. World:   2 to 4 ranks as threads.\n"),
              ElementsAre("a.h:2: 'World' begins a row in the middle of a line; begin a line with it"));
}

TEST(CommentTables, AreTornByALabelAsWideAsItsColumn) {  // tensor.h
  EXPECT_THAT(problems("// Layout   always contiguous.\n"
                       "// Autograd a leaf with requires_grad collects `grad`.\n"),
              ElementsAre("a.h:2: breaks the table that begins in line 1; indent the text to its column, or leave an "
                          "empty comment line before it"));
}

TEST(CommentTables, CountColumnsNotBytes) {
  const std::string wide = "// " + std::string(117, 'x');
  EXPECT_THAT(problems(wide + "\n"), IsEmpty());
  EXPECT_THAT(problems("// \xC3\xA9" + std::string(116, 'x') + "\n"), IsEmpty());
  EXPECT_THAT(problems("int x;\n" + wide + "x\n"), ElementsAre("a.h:2: a comment line of 121 columns; at most 120"));
}

}  // namespace
}  // namespace loom::build_test
