// A machine of two nodes that grants what it is told to grant, and remembers what it was asked.
#pragma once

#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "offload/host_memory.h"

namespace loom::test {

class FakeMachine : public offload::HostMemoryCalls {
 public:
  static constexpr std::size_t kPage = 4096;

  std::vector<int> nodes() override { return node_list; }
  std::optional<int> node_of_this_thread() override { return this_node; }
  void* map(std::size_t bytes) override {
    if (full) return nullptr;
    ++mapped;
    void* data = ::operator new (bytes, std::align_val_t{kPage});
    std::fill_n(static_cast<std::byte*>(data), bytes, std::byte{0});
    return data;
  }
  void unmap(void* data, std::size_t bytes) override {
    --mapped;
    unmapped_bytes.push_back(bytes);
    ::operator delete (data, std::align_val_t{kPage});
  }
  int prefer_node(void*, std::size_t, int node) override {
    preferred.push_back(node);
    return placement_error;
  }
  int lock(void*, std::size_t bytes) override {
    locked_bytes.push_back(bytes);
    return lock_error;
  }

  std::vector<int> node_list = {0, 1};
  std::optional<int> this_node = 1;
  int placement_error = 0;
  int lock_error = 0;
  bool full = false;

  int mapped = 0;
  std::vector<std::size_t> unmapped_bytes;
  std::vector<int> preferred;
  std::vector<std::size_t> locked_bytes;  // asked for
  std::vector<std::string> said;

 protected:
  void say(const std::string& text) override { said.push_back(text); }
};

}  // namespace loom::test
