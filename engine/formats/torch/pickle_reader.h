// Pickle: Python's object format, read as a tree of its content. Nothing is called and no object is made: a class is a
// pair of names, an object is a class with arguments and a state.
//
// Classes   only classes of an allow-list may be named; any other is refused with its name and offset, before the
//           bytes behind it are read.
// Opcodes   of protocols 2 to 5, as these trees need them, PROTO first; text opcodes of protocols 0 and 1 in plain
//           files. Calls of anything but a named class, pickles from the outside (PERSID by text), integers above 64
//           bits and text that is not UTF-8 are refused.
// Plain     of_plain_values() reads protocols 0 to 5 where a file has dicts, lists, tuples, texts and numbers alone: no
//           class may be named, bytes and sets are refused, and no value contains itself or is nested deeper than 32.
// Shared    a node may occur in several places and may contain itself: walk it by its expected form, with a bound.
// Memory    in proportion to the bytes that are read, whatever they claim, and bounded by the number of nodes.
// Threads   one thread at a time while it is made; reading the tree is safe from any number of threads.
// Errors    FileDamage with file, offset, the actual and the allowed content.
// Source    CPython, Lib/pickle.py and Lib/pickletools.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loom::io {

struct PickleNode {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kWhole,
    kReal,
    kText,
    kBytes,
    kTuple,
    kList,
    kDict,  // items: key, value, key, value
    kSet,
    kClass,       // text: module, name: name
    kObject,      // of_class, items: the arguments (of OrderedDict and defaultdict: as of a dict), state: what BUILD
                  // gave, or null
    kPersistent,  // state: the identifier
  };

  Kind kind = Kind::kNone;
  std::int64_t whole = 0;  // also of a bool
  double real = 0;
  std::string_view text;  // into the bytes of the pickle
  std::string_view name;
  std::vector<const PickleNode*> items;
  const PickleNode* of_class = nullptr;
  const PickleNode* state = nullptr;
  std::size_t offset = 0;  // of the opcode that made it

  bool is(Kind wanted) const { return kind == wanted; }
  bool is_class(std::string_view module, std::string_view class_name) const {
    return kind == Kind::kClass && text == module && name == class_name;
  }
  bool is_object_of(std::string_view module, std::string_view class_name) const {
    return kind == Kind::kObject && of_class->is_class(module, class_name);
  }
  // The value under a text key of a dict, the last one if the key is repeated, or null.
  const PickleNode* find(std::string_view key) const;
};

// Whether a class may be named.
using AllowClass = std::function<bool(std::string_view module, std::string_view name)>;

// A node takes about 110 bytes: 7 GB.
inline constexpr std::size_t kMostPickleNodes = 64'000'000;

class Pickle {
 public:
  // `bytes` outlive it; `file` appears in messages. Bytes after the pickle's end are ignored.
  Pickle(std::span<const std::byte> bytes, std::string file, const AllowClass& allow,
         std::size_t most_nodes = kMostPickleNodes);
  // The same of a file that has plain values alone.
  static Pickle of_plain_values(std::span<const std::byte> bytes, std::string file,
                                std::size_t most_nodes = kMostPickleNodes) {
    return {bytes, std::move(file), nullptr, most_nodes};
  }
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleNode& root() const { return *root_; }
  std::size_t size_bytes() const { return size_bytes_; }

  // Throws FileDamage "FILE: offset N: ...".
  [[noreturn]] void fail(const PickleNode& at, const std::string& what) const;

 private:
  class Machine;

  std::string file_;
  std::deque<PickleNode> nodes_;
  std::deque<std::string> decoded_;  // texts that were written with escapes
  const PickleNode* root_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace loom::io
