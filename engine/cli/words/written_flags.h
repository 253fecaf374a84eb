// Flags among the words of a command line that was not parsed. Private to engine/cli.
//
// Names    "--nproc_per_node=2" is of "--nproc-per-node"; a key's aliases are its names too.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loom::cli {

// "--micro-batch-size"; "" for a word that is no flag.
std::string flag_name(std::string_view word);

// All names of the flag.
std::vector<std::string_view> names_of(std::string_view flag);

// The last word behind the flag's last occurrence; "" for a toggle; none where it is not there.
std::optional<std::string> value_in(const std::vector<std::string>& words, std::string_view flag);

// The words without these flags and their values, a word each.
std::vector<std::string> without_flags(const std::vector<std::string>& words,
                                       const std::vector<std::string_view>& flags);

// The words of a plan with which `train` runs: without the flags that only a plan has, --report, and those that say
// how many ranks there are.
std::vector<std::string> words_of_training(std::vector<std::string> planned);

}  // namespace loom::cli
