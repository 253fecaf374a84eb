// The streams of messages between the stages of a pipeline (engine/device/stream_id.h): one for each neighbour and
// direction, so that no message waits for one of another neighbour.
#pragma once

#include "engine/device/stream_id.h"

namespace loom::train {

inline constexpr device::StreamId kSendNextStream{8, "send_next"};
inline constexpr device::StreamId kReceiveNextStream{9, "receive_next"};
inline constexpr device::StreamId kSendPreviousStream{10, "send_previous"};
inline constexpr device::StreamId kReceivePreviousStream{11, "receive_previous"};

}  // namespace loom::train
