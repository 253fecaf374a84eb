// Promise: a library of operators is checked before an operator of it is called, and what is wrong is named with the
//          file, actual and allowed.
// World:   the example's library, one of test operators, and one for each mistake (refused_library.cpp).
#include "engine/custom_op/library.h"

#include <filesystem>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::custom {
namespace {

using test::message_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refused(const std::string& mistake) {
  return (std::filesystem::path(REFUSED_FOLDER) / ("refused_" + mistake + ".so")).string();
}

TEST(CustomOpLibrary, HasItsOperators) {
  const auto library = Library::open(SCALED_GELU);
  ASSERT_EQ(library->operators().size(), 1U);
  EXPECT_STREQ(library->operators()[0]->name, "scaled_gelu");
}

TEST(CustomOpLibrary, CountsOnceHoweverItIsGiven) {
  const std::string gelu = SCALED_GELU;
  EXPECT_EQ(open_libraries({gelu + "," + TEST_OPERATORS, gelu}).size(), 2U);
  EXPECT_EQ(open_libraries({}).size(), 0U);
  EXPECT_EQ(message_of<ConfigError>([&] { open_libraries({gelu + ","}); }),
            "--custom-op-library is " + gelu + ",, with an empty path in it; use a.so,b.so");
}

TEST(CustomOpLibrary, OfAnotherVersionIsRefused) {
  EXPECT_EQ(message_of<ConfigError>([] { Library::open(refused("kAbi")); }),
            refused("kAbi") +
                ": the library has version 2 of the interface, allowed is 1; build it with abi.h of this release");
  EXPECT_THAT(message_of<ConfigError>([] { Library::open(refused("kSize")); }),
              HasSubstr("an operator has 1 bytes in the library, allowed are " + std::to_string(sizeof(LoomOperator))));
}

TEST(CustomOpLibrary, SaysWhatIsWrongWithIt) {
  const std::pair<std::string, std::string> texts[] = {
      {"kNoSymbol", "the library has no symbol 'loom_custom_ops'"},
      {"kThrows", "loom_custom_ops() threw an exception; return a constant table"},
      {"kNoTable", "loom_custom_ops() returned no table"},
      {"kEmpty", "a table of 0 operators, allowed are 1 to 4096"},
      {"kTwice", "operator 'refused' is twice in the library, allowed is once; rename one"},
      {"kName", "operator 0 is named 'Scaled\\nGelu', allowed are 1 to 64 of a-z, 0-9, _ and .; rename it"},
      {"kNoName", "operator 0 has no name"},
      {"kInputs", "operator 'refused' has 17 inputs, allowed are 1 to 16"},
      {"kSaved", "operator 'refused' saves inputs 0x2, allowed are bits of 1 inputs"},
      {"kDtypes", "operator 'refused' takes dtypes 0x0 as input 0, allowed are bits of 0x3ff"},
      {"kNoForward", "operator 'refused' has no function 'forward'; give one"},
      {"kNoBackward", "operator 'refused' has grad_cost without backward, allowed are both or none"}};
  for (const auto& [mistake, text] : texts) {
    EXPECT_THAT(message_of<ConfigError>([&] { Library::open(refused(mistake)); }),
                StartsWith(refused(mistake) + ": " + text));
  }
}

// A copy is another library to the loader.
TEST(CustomOpLibrary, WithANameThatAnotherHasIsRefused) {
  const std::filesystem::path copy = test::fresh_folder() / "copy.so";
  std::filesystem::copy_file(SCALED_GELU, copy);
  EXPECT_EQ(message_of<ConfigError>([&] {
              open_libraries({SCALED_GELU, copy.string()});
            }),
            copy.string() + ": operator 'scaled_gelu' is in " + SCALED_GELU +
                " too, allowed is one of a name; rename it, or load one of the libraries");
}

TEST(CustomOpLibrary, ThatIsNoSharedObjectIsRefused) {
  const std::filesystem::path folder = test::fresh_folder();
  const std::string elf =
      "\x7f"
      "ELF";
  for (const std::string& bytes : {std::string(), elf, std::string(100, 'x'), elf + std::string(100, '\1')}) {
    const auto path = test::write_file(folder / "text.so", bytes);
    EXPECT_THAT(message_of<ConfigError>([&] { Library::open(path); }),
                StartsWith(path.string() + ": the file is no shared object (" + std::to_string(bytes.size()) +
                           " bytes), allowed are ELF shared objects of 64 bits"));
  }
  const auto cut = test::write_file(folder / "cut.so", test::read_file(SCALED_GELU).substr(0, 200));
  EXPECT_THAT(message_of<ConfigError>([&] { Library::open(cut); }),
              StartsWith(cut.string() + ": the library cannot be loaded: "));
  EXPECT_THROW(Library::open(folder), ConfigError);
  EXPECT_THROW(Library::open(folder / "absent.so"), ConfigError);
}

}  // namespace
}  // namespace loom::custom
