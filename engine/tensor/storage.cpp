#include "engine/tensor/storage.h"

#include "engine/core/error.h"

namespace loom {

Storage::Storage(Place place, device::Device* device, std::int64_t bytes, device::MemCategory category,
                 std::string what, bool pinned)
    : place_(place), device_(device), bytes_(bytes), category_(category), what_(std::move(what)), pinned_(pinned) {}

void Storage::allocate() {
  require(place_ != Place::kMeta, "'{}' is on the meta device and cannot be allocated there", what_);
  if (allocated()) return;
  if (place_ == Place::kDevice) {
    block_ = device_->memory().allocate(bytes_, category_, what_);
  } else if (device_ != nullptr) {
    block_ = device_->host_memory().allocate(bytes_, category_, pinned_);
  } else {
    host_ = device::HostAllocator::ordinary()->allocate(static_cast<std::size_t>(bytes_), false);
  }
}

void Storage::release() {
  block_.reset();
  host_.reset();
  ready_ = {};
}

void Storage::adopt(std::shared_ptr<device::Block> block) {
  require(!allocated() && block->bytes() >= bytes_, "'{}' needs {} bytes and was offered {}", what_, bytes_,
          block->bytes());
  category_ = block->category();
  block_ = std::move(block);
}

std::byte* Storage::data() const {
  require(allocated(), "'{}' was read while it has no memory ({})", what_,
          place_ == Place::kMeta ? "it is on the meta device" : "it was released");
  wait_ready();
  return block_ ? block_->data() : host_.get();
}

void Storage::wait_ready() const {
  const device::WallStamp stamp(device_ == nullptr ? nullptr : device_->log().add_host_wait(ready_.entry()));
  ready_.wait();
}

std::shared_ptr<void> Storage::keep_alive() const {
  if (block_) return block_->keep_alive();
  return host_;
}

void Storage::recategorize(device::MemCategory category) {
  category_ = category;
  if (block_) block_->recategorize(category);
}

}  // namespace loom
