// Storage: the bytes behind one or more tensors.
//
// Places   device: an accounted block of the rank's device. host: ordinary memory, not accounted. meta: a size and nothing else.
// States   allocated or released. A storage may be released and allocated again any number of times and stays the same object, so tensors
//          saved for backward see the values that are there when they are read. Reading a released storage is an error that names it.
// Version  counts writes by operators; a saved tensor whose version moved on is an error in backward. Writers that restore values (a gather)
//          do not bump it.
// Threads  the rank's host thread. Stream items take keep_alive().
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/device/device.h"

namespace loom {

enum class Place : std::uint8_t { kDevice, kHost, kMeta };

class Storage {
 public:
  // Made released; `what` names it in errors.
  Storage(Place place, device::Device* device, std::int64_t bytes, device::MemCategory category, std::string what);

  Place place() const { return place_; }
  std::int64_t bytes() const { return bytes_; }
  device::Device* device() const { return device_; }
  bool allocated() const { return block_ != nullptr || host_ != nullptr; }

  // Gives it bytes (contents undefined); nothing to do when it has some. Throws OutOfMemoryError; InvariantError on meta.
  void allocate();
  // Frees the bytes; nothing to do when there are none.
  void release();
  // Uses a block made elsewhere. Precondition: released, block->bytes() >= bytes().
  void adopt(std::shared_ptr<device::Block> block);

  // Null in a dry run. Throws InvariantError naming the storage when it is released or meta.
  std::byte* data() const;
  std::shared_ptr<void> keep_alive() const;
  void recategorize(device::MemCategory category);

  std::uint64_t version() const { return version_; }
  void bump_version() { ++version_; }
  const std::string& what() const { return what_; }
  void set_what(std::string what) { what_ = std::move(what); }

 private:
  const Place place_;
  device::Device* const device_;
  const std::int64_t bytes_;
  device::MemCategory category_;
  std::string what_;
  std::shared_ptr<device::Block> block_;
  std::shared_ptr<std::byte> host_;
  std::uint64_t version_ = 0;
};

}  // namespace loom
