// Tables in comments: "Label  text" rows whose text stands in one column. A re-flow of comments tears them.
//
// Row      a label of one to four words, two or more blanks, text; "Promise:" and "World:" of tests are labels too. The
//          first row of a paragraph sets the column of its text. A paragraph ends at an empty comment line or at code.
// Holds    below a row every line is another row of the same column or is indented to it.
// Broken   a line that is neither; a label in the middle of a line, behind the end of a sentence.
// Width    no comment line has more than 120 columns (code points).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace loom::build_test {

// One line a problem, "file:line: what, and what to do"; empty when all holds.
std::vector<std::string> comment_problems(std::string_view file, std::string_view text);

}  // namespace loom::build_test
