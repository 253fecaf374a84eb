// SavePlan: the assignment of a state's boxes to the ranks that write them.
//
// Rule      a box that several ranks hold (replicas) is written once: by the one among them with the fewest bytes to
//           write so far, boxes in the order of the state; ties go to the lowest rank. Empty boxes are not
//           written. Values are written by rank 0.
// Made      once for a state's names and boxes, from an exchange between the ranks; later saves reuse it while this
//           rank's boxes do not change.
// Threads   the rank's host thread; make() is collective.
// Errors    ConfigError, the same on every rank: boxes of one tensor that do not fit together (sizes or dtypes differ,
//           overlap, holes).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/state.h"
#include "engine/comm/process_group.h"
#include "engine/formats/dcp/dcp_metadata.h"

namespace loom::checkpoint {

class SavePlan {
 public:
  // Collective over `everyone`, all ranks of the job.
  static SavePlan make(const State& state, comm::ProcessGroup& everyone);

  // The tensors of the state that this rank writes, in order.
  const std::vector<std::size_t>& own() const { return own_; }
  // Whether the plan matches these names and boxes of this rank.
  bool fits(const State& state) const;

  // The checkpoint's metadata without the values: the places of the pieces. The argument is where the tensors of rank
  // 0's file begin (behind its values).
  io::DcpMetadata metadata(std::uint64_t rank_0_begins) const;

 private:
  class Builder;
  struct Piece {
    std::size_t item = 0;  // in the metadata
    int writer = 0;
    Offset offset;
    Shape shape;
  };

  std::string boxes_;  // of this rank, as sent to the others
  std::vector<std::size_t> own_;
  std::vector<io::DcpItem> items_;        // without pieces
  std::vector<std::size_t> shares_with_;  // for every item, the one whose pieces it uses: itself, or its tie's source
  std::vector<Piece> pieces_;             // in the order in which each writer writes them
};

}  // namespace loom::checkpoint
