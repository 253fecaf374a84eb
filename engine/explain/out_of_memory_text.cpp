#include "engine/explain/error_text.h"
#include "engine/explain/text_scanner.h"

namespace loom::explain {
namespace {

constexpr std::string_view kTried = " out of memory. Tried to allocate ";
constexpr std::size_t kTextBytes = 8192;  // of one text; the processes that it lists included

// The word that ends `before`: "CUDA".
std::string_view last_word(std::string_view before) {
  const auto at = before.find_last_of(" :\t");
  return at == std::string_view::npos ? before : before.substr(at + 1);
}

// "1.05 GiB allowed; ".
void read_allowed(TextScanner& text, OutOfMemory& memory) {
  TextScanner ahead = text;
  if (const auto allowed = ahead.bytes(); allowed && ahead.take(" allowed; ")) {
    memory.allowed = allowed;
    text = ahead;
  }
}

// " of which 12.73 GiB is free. Process 562167 has 15.25 GiB memory in use. Including ..., 1.05 GiB allowed; ". What is
// allowed stands before the processes or behind them, depending on the version.
void read_processes(TextScanner& text, OutOfMemory& memory) {
  read_allowed(text, memory);
  while (text.take("Process ")) {
    const auto pid = text.whole();
    if (!pid || !text.take(" has ")) return;
    const auto in_use = text.bytes();
    if (!in_use || !text.take(" memory in use. ")) return;
    memory.processes.push_back({*pid, *in_use});
  }
  if (text.take("Including non-PyTorch memory, this process has ")) {
    memory.in_use = text.bytes();
    text.take(" memory in use. ");
  }
  read_allowed(text, memory);
}

// Since 2.0. What is missing is passed over.
void read_sentences(TextScanner text, OutOfMemory& memory) {
  if (!text.take(". ")) return;
  TextScanner device = text;
  if (const auto name = device.until(" has a total capac", 32); name && device.skip_past("ty of ")) {
    memory.device = *name;
    memory.total = device.bytes();
    if (device.take(" of which ")) memory.free = device.bytes();
    device.take(" is free. ");
    text = device;
  }
  read_processes(text, memory);
  if (text.skip_past("Of the allocated memory ")) memory.allocated = text.bytes();
  if (TextScanner pools = text; pools.skip_past(", with ")) {
    const auto figure = pools.bytes();
    if (figure && pools.take(" allocated in private pools")) memory.private_pools = figure;
  }
  // The only ", and " in front of a figure.
  while (text.skip_past(" and ")) {
    TextScanner ahead = text;
    const auto figure = ahead.bytes();
    if (figure && ahead.take(" is reserved by PyTorch")) {
      memory.reserved_unallocated = figure;
      return;
    }
  }
}

// Before 2.0, and torch_npu: "GPU 0; 3.94 GiB total capacity; ...)".
void read_list(TextScanner text, OutOfMemory& memory) {
  const auto device = text.until("; ", 32);
  if (!device) return;
  memory.device = *device;
  while (const auto figure = text.bytes()) {
    if (text.take(" total capacity")) {
      memory.total = figure;
    } else if (text.take(" already allocated")) {
      memory.allocated = figure;
    } else if (text.take(" current active")) {
      memory.active = figure;
    } else if (text.take(" free")) {
      memory.free = figure;
    } else if (text.take(" reserved in total by PyTorch") || text.take(" cached")) {
      memory.reserved = figure;
    }
    if (!text.take("; ")) return;
  }
}

// "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8192 bytes. Error code 12 (...)".
std::optional<OutOfMemory> read_host(std::string_view line) {
  TextScanner text(line);
  if (!text.skip_past("DefaultCPUAllocator: ") || !text.skip_past("ou tried to allocate ")) return std::nullopt;
  OutOfMemory memory;
  memory.platform = "CPU";
  memory.tried = text.bytes();
  return memory.tried ? std::optional(memory) : std::nullopt;
}

}  // namespace

std::optional<OutOfMemory> read_out_of_memory(std::string_view line) {
  const auto at = line.find(kTried);
  if (at == std::string_view::npos) return read_host(line);
  OutOfMemory memory;
  memory.platform = last_word(line.substr(at < 64 ? 0 : at - 64, at < 64 ? at : 64));
  TextScanner text(line.substr(at + kTried.size(), kTextBytes));
  if (text.take("more than 1EB")) return memory;
  memory.tried = text.bytes();
  if (!memory.tried) return std::nullopt;
  if (text.take(" (")) {
    read_list(text, memory);
  } else {
    read_sentences(text, memory);
  }
  return memory;
}

}  // namespace loom::explain
