// PeerReduction: the reduce-scatter of a group whose members read each other's memory. Inputs stay where they are: no
// flat buffer is filled, and none is needed.
//
// Input     parts. Member r's row of a part consists of its elements [r * row_elems, (r + 1) * row_elems), padded with
//           zeros where the part is shorter. The output is the rows of all parts, one after another.
// Dtypes    of the inputs and the output: the same, or an fp32 output of fp16 or bf16 inputs. The bits are the same as
//           from casting the inputs, laying them out as rows and ProcessGroup::reduce_scatter(). A maximum is of one
//           dtype.
// Calls     as ProcessGroup's; all members give the same parts, and no member calls reduce_scatter() instead.
// Threads   as ProcessGroup.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/comm/process_group.h"

namespace loom::comm {

struct ReducePart {
  const void* input = nullptr;
  std::int64_t elems = 0;
  std::int64_t row_elems = 0;
};

class PeerReduction {
 public:
  virtual ~PeerReduction() = default;

  virtual void reduce_scatter_parts(Lane lane, std::span<const ReducePart> parts, DType input_dtype, void* output,
                                    DType dtype, ReduceOp op, std::string_view tag) = 0;

  static bool casts(DType input_dtype, DType dtype) {
    return input_dtype == dtype ||
           (dtype == DType::kF32 && (input_dtype == DType::kF16 || input_dtype == DType::kBF16));
  }
  // Null where the members of `group` do not read each other's memory.
  static PeerReduction* of(ProcessGroup& group) { return dynamic_cast<PeerReduction*>(&group); }
};

}  // namespace loom::comm
