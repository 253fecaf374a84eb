// Compares two tensors, element by element, in pieces of bounded size.
//
// Equal    elements are equal if their bits are, whatever these mean; for different dtypes, if their values are.
// Threads  one thread at a time.
// Errors   the readers' errors; ConfigError of check_tied().
#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/convert/tensor_source.h"

namespace loom::checkpoint {

struct Difference {
  std::int64_t elements = 0;  // that differ
  double largest = 0;         // absolute difference; NaN where one of the two is a NaN, inf beside a finite value
  Offset first;               // of the first different element
  double first_a = 0;
  double first_b = 0;
};

// Precondition: one shape.
Difference compare(const SourceTensor& a, const SourceTensor& b);

// The output layer and the embedding in `folder`, which are one tensor by tie_word_embeddings of `config`. ConfigError:
// they have different dtypes, shapes or values.
void check_tied(const SourceTensor& head, const SourceTensor& embedding, const std::filesystem::path& folder,
                const std::filesystem::path& config);

}  // namespace loom::checkpoint
