#include "engine/comm/part_of_world.h"

#include "engine/core/error.h"

namespace loom::comm {
namespace {

class PartOfWorld final : public World {
 public:
  PartOfWorld(World& whole, int parts)
      : whole_(whole), parts_(parts), size_(whole.size() / parts), part_(whole.rank() / size_) {}

  int rank() const override { return whole_.rank() % size_; }
  int size() const override { return size_; }

  std::shared_ptr<ProcessGroup> split(int color, int key, std::string name, std::span<const int> members) override {
    std::vector<int> in_whole(members.begin(), members.end());
    for (int& member : in_whole) member += part_ * size_;
    return whole_.split(color == kNoColor ? kNoColor : color * parts_ + part_, key, std::move(name), in_whole);
  }

  void fail(const std::string& reason) noexcept override { whole_.fail(reason); }

 private:
  World& whole_;
  const int parts_, size_, part_;
};

}  // namespace

std::unique_ptr<World> part_of_world(World& whole, int parts) {
  if (parts < 1 || whole.size() % parts != 0) {
    config_error("{} ranks cannot be cut into {} parts of one size; use a divisor", whole.size(), parts);
  }
  return std::make_unique<PartOfWorld>(whole, parts);
}

}  // namespace loom::comm
