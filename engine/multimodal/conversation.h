// Conversation: one sample of multimodal data: the turns of a chat, with the pictures that its placeholders stand for.
//
// Placeholders  <image> and <video> in contents, one for each of `images` and `videos`, in their order.
// Drops         samples that are left out: counted by reason, with the places of the first ones.
// Threads       plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace loom::multimodal {

inline constexpr std::string_view kImagePlaceholder = "<image>";
inline constexpr std::string_view kVideoPlaceholder = "<video>";
inline constexpr std::string_view kAudioPlaceholder = "<audio>";

enum class Role : std::uint8_t { kUser, kAssistant, kObservation };

struct Message {
  Role role = Role::kUser;
  std::string content;
};

// One of both is given.
struct Video {
  std::string folder;               // with a picture a frame
  std::vector<std::string> frames;  // pictures
};

struct Conversation {
  std::string system;             // empty: the template's
  std::vector<Message> messages;  // a question and its answer, in turn
  std::vector<std::string> images;
  std::vector<Video> videos;
  std::shared_ptr<const std::string> file;
  std::int64_t number = 0;  // in the file, from 0

  // "sample 7 of data/x.json"
  std::string place() const;
};

enum class DropReason : std::uint8_t {
  kTurnOrder,    // questions and answers do not alternate, or a role is unknown
  kOddCount,     // a question without an answer, or no turn
  kCutPictures,  // the cut-off would cut tokens of pictures
};
std::string_view words_of(DropReason reason);

class DropCounter {
 public:
  struct Count {
    DropReason reason = DropReason::kTurnOrder;
    std::int64_t samples = 0;
    std::vector<std::string> places;  // of the first kPlaces
  };
  static constexpr std::size_t kPlaces = 3;

  void add(DropReason reason, const Conversation& sample);
  const std::vector<Count>& counts() const { return counts_; }
  // A line for each reason.
  std::vector<std::string> lines() const;

 private:
  std::vector<Count> counts_;
};

}  // namespace loom::multimodal
