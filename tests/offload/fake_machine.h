// A machine of two nodes that grants what it is told to grant, and remembers what it was asked.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "offload/host_memory.h"

namespace loom::test {

class FakeMachine : public offload::HostMemoryCalls {
 public:
  static constexpr std::size_t kPage = 4096;

  device::HostTopology topology() override {
    device::HostTopology found{.available = !node_list.empty()};
    for (const int node : node_list) {
      const bool gives = std::ranges::find(without_memory, node) == without_memory.end();
      found.nodes.push_back({.number = node, .cores = {node}, .gives_memory = gives, .free_bytes = 12345});
    }
    for (device::HostNode& from : found.nodes) {
      for (const device::HostNode& to : found.nodes)
        from.distances.push_back(10 + 5 * std::abs(from.number - to.number));
    }
    return found;
  }
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
  void prefer_huge_pages(void*, std::size_t bytes) override { huge_bytes.push_back(bytes); }
  int lock(void*, std::size_t bytes) override {
    locked_bytes.push_back(bytes);
    return lock_error;
  }
  std::optional<std::size_t> lock_limit() override { return limit; }
  std::vector<int> nodes_of_pages(std::span<void* const> pages) override {
    pages_seen += static_cast<int>(pages.size());
    return std::vector<int>(pages.size(), node_of_pages);
  }

  std::vector<int> node_list = {0, 1};
  std::vector<int> without_memory{};
  std::optional<int> this_node = 1;
  std::optional<std::size_t> limit{};  // nothing: no limit
  int node_of_pages = 1;
  int placement_error = 0;
  int lock_error = 0;
  bool full = false;

  int mapped = 0;
  std::vector<std::size_t> unmapped_bytes;
  std::vector<int> preferred;
  std::vector<std::size_t> locked_bytes;  // asked for
  std::vector<std::size_t> huge_bytes;    // asked for
  int pages_seen = 0;
  std::vector<std::string> said;

 protected:
  void say(const std::string& text) override { said.push_back(text); }
};

}  // namespace loom::test
