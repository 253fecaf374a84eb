// A shift around a ring that runs beside the compute stream's work until it is waited for. Private to engine/dist.
//
// Stream   the exchange stream, after what the compute stream was given so far; the lane is its own.
// Bits     and bytes are those of shift(), which runs on the compute stream.
// Errors   of the exchange come from wait(). Without it the destructor waits, and drops them.
// Threads  the rank's host thread.
#pragma once

#include <string>

#include "engine/device/event.h"
#include "engine/dist/channel.h"
#include "engine/tensor/tensor.h"

namespace loom::dist {

class ShiftInFlight {
 public:
  // x goes to the next rank; nobody writes to it before wait(). The ring has 2 ranks or more.
  ShiftInFlight(Tensor x, const Channel& ring, const std::string& tag);
  ~ShiftInFlight();
  ShiftInFlight(const ShiftInFlight&) = delete;
  ShiftInFlight& operator=(const ShiftInFlight&) = delete;

  // What the rank before sent: the compute stream's later work may read it. Once.
  Tensor wait();

 private:
  Tensor sent_;
  Tensor received_;
  device::Event done_;
};

}  // namespace loom::dist
