// What a checkpoint says of its run below args.*: the flags that steer the computation, each as a value of its own
// type. How to go on, when to save and when to end is of one start, and not among them. Which they are, rows of the
// job's keys say (job/saved_arguments.h).
//
// Types    True and False of a flag without a value, whole and real numbers, texts, lists; None where a value is not
//          given.
// Earlier  checkpoints hold None for False, whole numbers for reals that are whole, and a list as
//          one text: is_same_argument() takes them for what they mean.
// Threads  safe from any number of threads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/torch/plain_value.h"

namespace loom::train {

struct SavedArgument {
  std::string flag;  // "--global-batch-size"
  io::PlainValue value;
};
using SavedArguments = std::vector<SavedArgument>;

// "--global-batch-size" as a name in files: "global_batch_size".
std::string name_in_files(std::string_view flag);

// Whether a value of a checkpoint, also of an earlier one, means this run's own.
bool is_same_argument(const io::PlainValue& saved, const io::PlainValue& own);

// In a message: "none", "the flag", "0.5".
std::string shown_argument(const io::PlainValue& value);

}  // namespace loom::train
