// Storage: the bytes behind one or more tensors.
//
// Places   device: an accounted block of the rank's device. meta: a size and nothing else.
//          host: with a device, a block of its host memory (device/host_memory.h: accounted, from the injected
//          allocator, pinned on request); without one, ordinary memory that is not accounted (inputs, tensors read
//          from files).
// States   allocated or released. A storage may be released and allocated again any number of times and stays the same
//          object, so tensors saved for backward see the values at the time of reading. Reading a released
//          storage is an error that names it.
// Version  counts writes by operators; a saved tensor whose version moved on is an error in backward. Writers that
//          restore values (a gather) do not bump it.
// Landing  bytes that a stream is still writing (a copy from the device that does not block) can be read through data()
//          only after they have landed: it blocks the host until then and throws the cause when the copy failed. There
//          is no other way to the bytes.
// Threads  the rank's host thread. Stream items take keep_alive().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include "engine/device/device.h"

namespace loom {

enum class Place : std::uint8_t { kDevice, kHost, kMeta };

class Storage {
 public:
  // Made released; `what` names it in errors. `pinned` is for the host beside a device.
  Storage(Place place, device::Device* device, std::int64_t bytes, device::MemCategory category, std::string what,
          bool pinned = false);

  Place place() const { return place_; }
  std::int64_t bytes() const { return bytes_; }
  device::Device* device() const { return device_; }
  // Page-locked when it is allocated, where the system grants it.
  bool pinned() const { return pinned_; }
  bool allocated() const { return block_ != nullptr || host_ != nullptr; }

  // Gives it bytes (contents undefined); nothing to do when it has some. Throws OutOfMemoryError; InvariantError on
  // meta.
  void allocate();
  // Frees the bytes; nothing to do when there are none.
  void release();
  // Uses a block made elsewhere. Precondition: released, block->bytes() >= bytes().
  void adopt(std::shared_ptr<device::Block> block);

  // Null in a dry run. Throws InvariantError naming the storage when it is released or meta. Blocks the host until the
  // bytes have landed.
  std::byte* data() const;
  // From now on data() waits for `landed`: streams write the bytes until then.
  void set_ready(device::Event landed) { ready_ = std::move(landed); }
  // Blocks the host until the bytes have landed; throws the cause when that failed.
  void wait_ready() const;
  bool is_ready() const { return ready_.done(); }
  std::shared_ptr<void> keep_alive() const;
  void recategorize(device::MemCategory category);

  std::uint64_t version() const { return version_; }
  void bump_version() { ++version_; }
  const std::string& what() const { return what_; }
  void set_what(std::string what) { what_ = std::move(what); }

  // A note that an upper floor keeps with these bytes, one of each type; null when there is none.
  template <class T>
  std::shared_ptr<T> attachment() const {
    for (const auto& [type, note] : attachments_) {
      if (type == std::type_index(typeid(T))) return std::static_pointer_cast<T>(note);
    }
    return nullptr;
  }
  // Once for each type.
  template <class T>
  void attach(std::shared_ptr<T> note) {
    attachments_.emplace_back(std::type_index(typeid(T)), std::move(note));
  }

 private:
  const Place place_;
  device::Device* const device_;
  const std::int64_t bytes_;
  device::MemCategory category_;
  std::string what_;
  const bool pinned_;
  std::shared_ptr<device::Block> block_;
  std::shared_ptr<std::byte> host_;  // of a host storage without device
  device::Event ready_;
  std::uint64_t version_ = 0;
  std::vector<std::pair<std::type_index, std::shared_ptr<void>>> attachments_;
};

}  // namespace loom
