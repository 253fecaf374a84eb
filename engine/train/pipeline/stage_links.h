// StageLinks: the messages between the stages of a pipeline: outputs forward, their gradients back.
//
// Order     messages from one rank to another arrive in the order in which they are posted; the receiver posts its
//           receives in that order too. Shapes travel with them: they may differ between micro-batches.
// Beside    a link has a thread for each direction, whatever the device's executor: a message waits for another rank's
//           schedule, while this rank computes. What is sent is copied, and a link keeps the last tensor that it sent,
//           so memory does not depend on when messages arrive.
// Dry run   nothing moves: a receive brings a tensor of the shape and dtype that it expects.
// Records   a collective kMessage on a stream of its own for each neighbour and direction (streams.h), and the compute
//           stream's wait for it.
// Bounds    every wait has the deadline of the process groups; errors name both ranks and the message, "2.B3" for the
//           gradient that stage 2 gets for micro-batch 3.
// Threads   the rank's host thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "engine/comm/process_group.h"
#include "engine/device/stream.h"
#include "engine/tensor/tensor.h"

namespace loom::train {

// What a message is like. As a slot of a rank's context: hidden states that come from other ranks in a dry run, in
// which nobody says what they are like. Layers keep the shape of hidden states, so a stage that sends some sets it;
// where others come first, a planner does.
struct HiddenStates {
  Shape shape;
  DType dtype = DType::kF32;
};

struct StageMessage {
  Tensor tensor;
  std::uint64_t draws = 0;  // RngState::calls, at which the next stage's forward goes on
};

class StageLinks {
 public:
  // Collective over the world: the groups of neighbours in the pipeline of `ranks`, whose ranks are world.size() /
  // ranks apart.
  StageLinks(comm::World& world, int ranks);
  ~StageLinks();

  // `to`, `from`: ranks of the pipeline, neighbours of this one (the last is the first's). The tensor is on the device,
  // and nobody writes to it before the next synchronize().
  void send(int to, const StageMessage& message, const std::string& tag);
  // `expected` is for dry runs.
  void post_receive(int from, const std::string& tag, const HiddenStates& expected);
  // What the receive of this tag brought; waits for it. A tag is posted once before it is taken.
  StageMessage take(const std::string& tag);
  // Waits until all that was sent has been received.
  void synchronize();

 private:
  struct Link;
  struct Receipt;

  Link& link(int peer);

  std::unique_ptr<Link> make_link(std::shared_ptr<comm::ProcessGroup> pair, int peer) const;

  const int rank_, ranks_;
  std::map<int, std::unique_ptr<Link>> links_;  // by peer
  std::map<std::string, std::shared_ptr<Receipt>> posted_;
};

}  // namespace loom::train
