#include "engine/comm/local/solo.h"

#include <cstring>
#include <utility>
#include <vector>

#include "engine/comm/call.h"
#include "engine/comm/local/segment.h"
#include "engine/core/error.h"

namespace loom::comm {
namespace {

class SoloGroup final : public ProcessGroup {
 public:
  SoloGroup(int rank, std::string name) : ProcessGroup(0, {rank}, std::move(name)) {}

  void all_gather(Lane, std::span<const GatherPart> parts, std::string_view) override {
    for (const GatherPart& part : parts) {
      if (part.shard != nullptr && part.full != nullptr) std::memmove(part.full, part.shard, part.bytes);
    }
  }
  void reduce_scatter(Lane, const void* input, void* output, std::int64_t elems, DType dtype, ReduceOp op,
                      std::string_view) override {
    if (input != nullptr && output != nullptr) {
      reduce_in_order(op, dtype, {&input, 1}, elems, output);
    }
  }
  void all_reduce(Lane lane, void* data, std::int64_t elems, DType dtype, ReduceOp op, std::string_view tag) override {
    reduce_scatter(lane, data, data, elems, dtype, op, tag);
  }
  void all_to_all(Lane, std::span<const Outgoing> sends, std::span<const Incoming> receives,
                  std::string_view tag) override {
    check_parts(sends, receives, 0, 1, tag);
    keep(sends[0], receives[0]);
  }
  void send_recv(Lane, int to, Outgoing sent, int from, Incoming received, std::string_view tag) override {
    check_peers(to, sent, from, received, 0, 1, tag);
    if (to == 0) keep(sent, received);
  }
  void broadcast(Lane, void*, std::size_t, int root, std::string_view tag) override {
    require(root == 0, "broadcast '{}': root is {}, the group has 1 member", tag, root);
  }
  void barrier(Lane, std::string_view) override {}
  std::shared_ptr<SharedSegment> share(Lane, std::size_t bytes, std::string_view) override {
    return make_anonymous_segment(bytes);
  }

 private:
  static void keep(Outgoing sent, Incoming received) {
    if (sent.data != nullptr && received.data != nullptr) std::memmove(received.data, sent.data, sent.bytes);
  }
};

}  // namespace

std::shared_ptr<ProcessGroup> make_solo_group(int rank, std::string name) {
  return std::make_shared<SoloGroup>(rank, std::move(name));
}

}  // namespace loom::comm
