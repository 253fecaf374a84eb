#include "engine/comm/messages/message_world.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "engine/comm/messages/message_group.h"
#include "engine/core/error.h"

namespace loom::comm {
namespace messages {
namespace {

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

MessageWorld::MessageWorld(Transport& transport)
    : transport_(transport),
      seen_(std::make_shared<SeenCalls>()),
      everyone_(std::make_shared<MessageGroup>(transport_, seen_, 0, transport_.rank(), first_ranks(transport_.size()),
                                               "world")) {}

std::shared_ptr<ProcessGroup> MessageWorld::split(int color, int key, std::string name, std::span<const int> expected) {
  const Call call = Call::split(name);
  std::vector<SplitChoice> choices;
  for (const Note& note : everyone_->exchange_notes(kHostLane, call, {color, key})) {
    choices.push_back({static_cast<int>(note[0]), static_cast<int>(note[1])});
  }
  std::vector<int> ranks = members_of_split(choices, rank());
  if (const auto differs = unexpected_members(rank(), expected, ranks)) {
    const std::string text = where(rank(), call, group_label(everyone_->name(), everyone_->ranks())) + *differs;
    transport_.fail(text);
    throw CommError(text);
  }
  const int index = ++splits_made_;
  if (ranks.empty()) return nullptr;
  const auto own = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
  return std::make_shared<MessageGroup>(transport_, seen_, index, static_cast<int>(own), std::move(ranks),
                                        std::move(name));
}

void MessageWorld::end() { everyone_->barrier(kHostLane, "end of the run"); }

}  // namespace messages

}  // namespace loom::comm
