// Hangs: what the watchdogs of a log say together about one process group, without a plan.
//
// Waited   the collective with the lowest number that timed out, that a watchdog reports, or that a check of gloo
//          reports. -1: the texts of gloo have no number.
// Behind   ranks that have not enqueued it, or that a barrier missed; where all have, those with the lowest last
//          completed number, unless that is the same on all of them.
// Silent   ranks of the group without any report. Their number follows from the elements of a gather or a reduction,
//          which are N times as many on one side; else it is unknown and none are listed.
// Differs  ranks that issued another collective under a number than most of the ranks that report this number; of two
//          equal halves, than the half with the lowest rank.
// Ranks    in the process group.
// Threads  any.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/explain/collective_order.h"
#include "engine/explain/log_reader.h"

namespace loom::explain {

struct RankState {
  std::int64_t rank = 0;
  std::optional<std::int64_t> last_enqueued;
  std::optional<std::int64_t> last_completed;
  std::map<std::int64_t, SeenCollective> seen;  // by SeqNum: those that timed out
};

struct OtherCollective {
  std::int64_t seq = 0;
  std::int64_t rank = 0;
  SeenCollective own;
  SeenCollective most;  // of most ranks
};

struct Hang {
  std::string group;  // "1", "0(default_pg)", "gloo"; empty: the texts do not say
  std::vector<RankState> ranks;
  std::int64_t waited = 0;
  std::int64_t first_seq = 1;                // the number of the first collective: 0 with gloo
  std::optional<SeenCollective> collective;  // the one that is waited for, as most ranks have it
  std::int64_t timeout_ms = 0;
  std::optional<std::int64_t> size;  // of the group
  std::vector<std::int64_t> silent;
  std::vector<std::int64_t> behind;
  std::vector<OtherCollective> others;
};

// In the order of the log. Texts without a group's name belong to the group that their rank reports with that number,
// else to one without a name.
std::vector<Hang> hangs_of(const LogTexts& texts);

// "0 to 2, 5".
std::string ranks_text(const std::vector<std::int64_t>& ranks);

}  // namespace loom::explain
