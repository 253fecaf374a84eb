// DryReads: what happens when values are read in a dry run, which has none. A slot of the rank context.
//
// Default  zeros are read: a loss that is only reported. Who plans puts a refusal here, so that a model whose forward
//          depends on values is not planned wrongly.
// Threads  the rank's host thread.
#pragma once

#include <functional>
#include <string_view>

namespace loom {

class Tensor;

struct DryReads {
  // `reading` is "item()", "to_vector()" or "data()", whose pointer is null. May throw.
  std::function<void(std::string_view reading, const Tensor& tensor)> before = nullptr;
};

}  // namespace loom
