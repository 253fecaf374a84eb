#include "engine/multimodal/conversation.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::multimodal {

std::string Conversation::place() const { return fmt::format("sample {} of {}", number, escaped(*file)); }

std::string_view words_of(DropReason reason) {
  switch (reason) {
    case DropReason::kTurnOrder:
      return "questions and answers do not take turns";
    case DropReason::kOddCount:
      return "the number of turns is odd, or there is none";
    case DropReason::kCutPictures:
      return "the cut-off would cut the tokens of pictures";
  }
  require(false, "a reason of a drop");
  return "";
}

void DropCounter::add(DropReason reason, const Conversation& sample) {
  auto found = std::ranges::find(counts_, reason, &Count::reason);
  if (found == counts_.end()) found = counts_.insert(counts_.end(), {reason, 0, {}});
  ++found->samples;
  if (found->places.size() < kPlaces) found->places.push_back(sample.place());
}

std::vector<std::string> DropCounter::lines() const {
  std::vector<std::string> lines;
  for (const Count& count : counts_) {
    const bool more = count.samples > static_cast<std::int64_t>(count.places.size());
    lines.push_back(fmt::format("left out {} sample{}: {}; {}{}{}", count.samples, count.samples == 1 ? "" : "s",
                                words_of(count.reason), more ? "the first are " : "", fmt::join(count.places, ", "),
                                more ? ", ..." : ""));
  }
  return lines;
}

}  // namespace loom::multimodal
