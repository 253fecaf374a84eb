// The arguments that a checkpoint keeps below args.*: the flags that steer the computation, each as a value of its own
// type. Flags on resuming, saving and ending belong to one start and are not kept. The rows of the job's keys decide
// which flags are kept (job/saved_arguments.h).
//
// Types    True and False for a flag without a value, whole and real numbers, texts, lists; None if a value is not
//          given.
// Earlier  checkpoints hold None for False, whole numbers for reals that are whole, and a list as
//          one text: is_same_argument() accepts them by their meaning.
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

// "--global-batch-size" as the name "global_batch_size" in files.
std::string name_in_files(std::string_view flag);

// Whether a value of a checkpoint, also of an earlier version, equals this run's own.
bool is_same_argument(const io::PlainValue& saved, const io::PlainValue& own);

// The value in a message: "none", "the flag", "0.5".
std::string shown_argument(const io::PlainValue& value);

}  // namespace loom::train
