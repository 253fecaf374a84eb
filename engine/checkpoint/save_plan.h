// SavePlan: which rank writes which box of a state.
//
// Rule      a box that several ranks hold (replicas) is written once: by the one of them that has the fewest bytes to
//           write so far, boxes in the order of the state, the lowest rank among equals. Boxes without elements are not
//           written. Values are written by rank 0.
// Made      once for a state's names and boxes, from what the ranks tell one another; later saves reuse it while this
//           rank's boxes stay what they were.
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

  // Which of the state's tensors this rank writes, in order.
  const std::vector<std::size_t>& own() const { return own_; }
  // Whether it was made for these names and boxes of this rank.
  bool fits(const State& state) const;

  // The checkpoint's metadata but for the values: where the pieces stand, given where the tensors of rank 0's file
  // begin (behind its values).
  io::DcpMetadata metadata(std::uint64_t rank_0_begins) const;

 private:
  class Builder;
  struct Piece {
    std::size_t item = 0;  // in the metadata
    int writer = 0;
    Offset offset;
    Shape shape;
  };

  std::string boxes_;  // of this rank, as they were told to the others
  std::vector<std::size_t> own_;
  std::vector<io::DcpItem> items_;        // without pieces
  std::vector<std::size_t> shares_with_;  // for every item the one whose pieces it has: itself, or that it is tied to
  std::vector<Piece> pieces_;             // in the order in which each writer writes them
};

}  // namespace loom::checkpoint
