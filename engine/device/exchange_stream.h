// The stream of exchanges that operators issue beside the compute stream (engine/dist). They are calls inside an
// operator: the host pays a dispatch for each, and no bookkeeping of a group (engine/virtual_time/resolve.cpp).
#pragma once

#include "engine/device/stream_id.h"

namespace loom::device {

inline constexpr StreamId kExchangeStream{7, "exchange"};

}  // namespace loom::device
