#include "engine/formats/torch/pickle_reader.h"

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "engine/core/shown_text.h"
#include "engine/io/byte_source.h"

namespace loom::io {
namespace {

using Kind = PickleNode::Kind;

[[noreturn]] void damaged(const std::string& file, std::size_t offset, const std::string& what) {
  throw FileDamage(fmt::format("{}: offset {}: {}", file, offset, what));
}

std::string shown_class(std::string_view module, std::string_view name) {
  return shown_text(fmt::format("{}.{}", module, name));
}

}  // namespace

const PickleNode* PickleNode::find(std::string_view key) const {
  for (std::size_t i = items.size(); kind == Kind::kDict && i >= 2; i -= 2) {
    if (items[i - 2]->is(Kind::kText) && items[i - 2]->text == key) return items[i - 1];
  }
  return nullptr;
}

// The stack machine. A mark is a null on the stack.
class Pickle::Machine {
 public:
  Machine(std::span<const std::byte> bytes, Pickle& made, const AllowClass& allow, std::size_t most_nodes)
      : bytes_(bytes), made_(made), allow_(allow), most_nodes_(most_nodes) {}

  void run() {
    begin();
    while (made_.root_ == nullptr) {
      opcode_at_ = at_;
      step(std::to_integer<unsigned char>(take(1).front()));
    }
    made_.size_bytes_ = at_;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { damaged(made_.file_, opcode_at_, what); }

  void begin() {
    const auto first = std::to_integer<unsigned>(take(1).front());
    if (first != 0x80) fail(fmt::format("no pickle of protocol 2 or later begins with {:#04x}", first));
    if (const auto protocol = little(1); protocol < 2 || protocol > 5) {
      fail(fmt::format("a pickle of protocol {}; 2 to 5 are read", protocol));
    }
  }

  // --- bytes
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size() - at_) {
      fail(fmt::format("the pickle takes {} bytes here, but {} are left; the file is cut short", count,
                       bytes_.size() - at_));
    }
    const auto found = bytes_.subspan(at_, count);
    at_ += count;
    return found;
  }
  std::uint64_t little(std::size_t count) {
    std::uint64_t value = 0;
    std::memcpy(&value, take(count).data(), count);
    return value;
  }
  std::string_view text(std::uint64_t count) {
    const auto found = take(count);
    return {reinterpret_cast<const char*>(found.data()), found.size()};
  }
  std::string_view line() {
    const auto rest = bytes_.subspan(at_);
    const std::string_view view(reinterpret_cast<const char*>(rest.data()), rest.size());
    const std::size_t end = view.find('\n');
    if (end == std::string_view::npos) fail("a name has no end; the file is cut short");
    at_ += end + 1;
    return view.substr(0, end);
  }

  // --- nodes and the stack
  PickleNode& make(Kind kind) {
    if (made_.nodes_.size() >= most_nodes_) fail(fmt::format("a pickle of more than {} values", most_nodes_));
    PickleNode& node = made_.nodes_.emplace_back();
    node.kind = kind;
    node.offset = opcode_at_;
    return node;
  }
  void push(PickleNode& node) { stack_.push_back(&node); }
  PickleNode& top() {
    if (stack_.empty() || stack_.back() == nullptr) fail("the pickle takes a value from an empty stack");
    return *stack_.back();
  }
  PickleNode& pop() {
    PickleNode& node = top();
    stack_.pop_back();
    return node;
  }
  std::vector<const PickleNode*> pop_to_mark() {
    std::size_t begin = stack_.size();
    while (begin > 0 && stack_[begin - 1] != nullptr) --begin;
    if (begin == 0) fail("the pickle takes values down to a mark, but there is none");
    std::vector<const PickleNode*> values(stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end());
    stack_.resize(begin - 1);
    return values;
  }
  void push_text(Kind kind, std::string_view value) {
    if (kind == Kind::kText && invalid_utf8(value)) fail("a text that is not UTF-8");
    PickleNode& node = make(kind);
    node.text = value;
    push(node);
  }
  void push_whole(std::int64_t value) {
    PickleNode& node = make(Kind::kWhole);
    node.whole = value;
    push(node);
  }
  void push_bool(bool value) {
    PickleNode& node = make(Kind::kBool);
    node.whole = value ? 1 : 0;
    push(node);
  }
  void push_tuple(std::size_t count) {
    PickleNode& node = make(Kind::kTuple);
    node.items.resize(count);
    for (std::size_t i = count; i > 0; --i) node.items[i - 1] = &pop();
    push(node);
  }
  void push_items(Kind kind, std::vector<const PickleNode*> items) {
    if (kind == Kind::kDict && items.size() % 2 != 0) fail("a dict has a key without a value");
    PickleNode& node = make(kind);
    node.items = std::move(items);
    push(node);
  }
  void add_items(Kind kind, const std::vector<const PickleNode*>& items) {
    PickleNode& to = top();
    if (to.kind == Kind::kObject && kind != Kind::kSet && is_dict_class(*to.of_class)) {
      to.items.insert(to.items.end(), items.begin(), items.end());
      return;
    }
    if (to.kind != kind) fail("the pickle adds items to a value that is not a container of that kind");
    if (kind == Kind::kDict && items.size() % 2 != 0) fail("a dict has a key without a value");
    to.items.insert(to.items.end(), items.begin(), items.end());
  }

  // --- classes and objects

  // Whether items follow like the items of a dict. The argument of an OrderedDict is a list of pairs or nothing, the
  // argument of a defaultdict the factory of missing values.
  static bool is_dict_class(const PickleNode& node) {
    return node.is_class("collections", "OrderedDict") || node.is_class("collections", "defaultdict");
  }
  void push_class(std::string_view module, std::string_view name) {
    if (!allow_(module, name)) {
      fail(
          fmt::format("the pickle names {}, which this file has no use for; nothing of it was run. Take the file from "
                      "where it was made, and only from someone you trust",
                      shown_class(module, name)));
    }
    PickleNode& node = make(Kind::kClass);
    node.text = module;
    node.name = name;
    push(node);
  }
  void push_object() {
    const PickleNode& arguments = pop();
    const PickleNode& of_class = pop();
    if (of_class.kind != Kind::kClass) fail("the pickle calls a value that is not a class");
    if (arguments.kind != Kind::kTuple) fail("the pickle calls a class with a value that is not a tuple");
    PickleNode& node = make(Kind::kObject);
    node.of_class = &of_class;
    if (!is_dict_class(of_class)) node.items = arguments.items;
    push(node);
  }
  void build() {
    const PickleNode& state = pop();
    PickleNode& object = top();
    if (object.kind != Kind::kObject || object.state != nullptr) fail("the pickle gives a state to what takes none");
    object.state = &state;
  }

  // --- memo
  // Writers number what they keep one by one.
  void put(std::uint64_t index) {
    if (index > memo_.size())
      fail(fmt::format("the pickle keeps value {}, but only {} before it", index, memo_.size()));
    if (index == memo_.size()) memo_.push_back(nullptr);
    memo_[index] = &top();
  }
  void get(std::uint64_t index) {
    if (index >= memo_.size()) fail(fmt::format("the pickle refers to value {}, which it has not kept", index));
    stack_.push_back(memo_[index]);
  }
  void frame(std::uint64_t count) {
    if (count <= bytes_.size() - at_) return;
    fail(fmt::format("a frame of {} bytes, but {} are left; the file is cut short", count, bytes_.size() - at_));
  }

  void push_long(std::uint64_t count) {
    if (count > sizeof(std::int64_t)) fail(fmt::format("an integer of {} bytes; 8 is the most here", count));
    std::uint64_t value = little(count);
    const bool negative = count > 0 && (value >> (8 * count - 1) & 1) != 0;
    if (negative && count < sizeof(value)) value |= ~std::uint64_t{0} << (8 * count);
    push_whole(static_cast<std::int64_t>(value));
  }
  void push_real() {
    std::uint64_t bits = little(sizeof(double));
    PickleNode& node = make(Kind::kReal);
    node.real = std::bit_cast<double>(__builtin_bswap64(bits));  // big endian, as the format has it
    push(node);
  }
  void stop() {
    const PickleNode& root = pop();
    if (!stack_.empty()) fail("the pickle ends with values left on its stack");
    made_.root_ = &root;
  }

  void step(unsigned char opcode) {
    if (step_values(opcode) || step_containers(opcode) || step_objects(opcode)) return;
    fail(fmt::format("opcode {:#04x}, which no file of this format has", opcode));
  }

  bool step_values(unsigned char opcode) {
    switch (opcode) {
      case 0x95:
        frame(little(8));
        return true;
      case 'N':
        push(make(Kind::kNone));
        return true;
      case 0x88:
        push_bool(true);
        return true;
      case 0x89:
        push_bool(false);
        return true;
      case 'K':
        push_whole(static_cast<std::int64_t>(little(1)));
        return true;
      case 'M':
        push_whole(static_cast<std::int64_t>(little(2)));
        return true;
      case 'J':
        push_whole(static_cast<std::int32_t>(little(4)));
        return true;
      case 0x8a:
        push_long(little(1));
        return true;
      case 'G':
        push_real();
        return true;
      case 0x8c:
        push_text(Kind::kText, text(little(1)));
        return true;
      case 'X':
        push_text(Kind::kText, text(little(4)));
        return true;
      case 0x8d:
        push_text(Kind::kText, text(little(8)));
        return true;
      case 'C':
        push_text(Kind::kBytes, text(little(1)));
        return true;
      case 'B':
        push_text(Kind::kBytes, text(little(4)));
        return true;
      case 0x8e:
        push_text(Kind::kBytes, text(little(8)));
        return true;
      default:
        return false;
    }
  }

  bool step_containers(unsigned char opcode) {
    switch (opcode) {
      case '(':
        stack_.push_back(nullptr);
        return true;
      case '0':
        pop();
        return true;
      case '1':
        pop_to_mark();
        return true;
      case ')':
        push_tuple(0);
        return true;
      case 0x85:
        push_tuple(1);
        return true;
      case 0x86:
        push_tuple(2);
        return true;
      case 0x87:
        push_tuple(3);
        return true;
      case 't':
        push_items(Kind::kTuple, pop_to_mark());
        return true;
      case ']':
        push(make(Kind::kList));
        return true;
      case 'l':
        push_items(Kind::kList, pop_to_mark());
        return true;
      case 'a': {
        const PickleNode& item = pop();
        add_items(Kind::kList, {&item});
        return true;
      }
      case 'e':
        add_items(Kind::kList, pop_to_mark());
        return true;
      case '}':
        push(make(Kind::kDict));
        return true;
      case 'd':
        push_items(Kind::kDict, pop_to_mark());
        return true;
      case 's': {
        const PickleNode& value = pop();
        const PickleNode& key = pop();
        add_items(Kind::kDict, {&key, &value});
        return true;
      }
      case 'u':
        add_items(Kind::kDict, pop_to_mark());
        return true;
      case 0x8f:
        push(make(Kind::kSet));
        return true;
      case 0x90:
        add_items(Kind::kSet, pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  bool step_objects(unsigned char opcode) {
    switch (opcode) {
      case 'c': {
        const std::string_view module = line();
        push_class(module, line());
        return true;
      }
      case 0x93: {
        const PickleNode& name = pop();
        const PickleNode& module = pop();
        if (name.kind != Kind::kText || module.kind != Kind::kText) fail("the pickle names a class by no text");
        push_class(module.text, name.text);
        return true;
      }
      case 'R':
      case 0x81:
        push_object();
        return true;
      case 'b':
        build();
        return true;
      case 'Q': {
        const PickleNode& identifier = pop();
        PickleNode& node = make(Kind::kPersistent);
        node.state = &identifier;
        push(node);
        return true;
      }
      case 'q':
        put(little(1));
        return true;
      case 'r':
        put(little(4));
        return true;
      case 0x94:
        put(memo_.size());
        return true;
      case 'h':
        get(little(1));
        return true;
      case 'j':
        get(little(4));
        return true;
      case '.':
        stop();
        return true;
      default:
        return false;
    }
  }

  const std::span<const std::byte> bytes_;
  Pickle& made_;
  const AllowClass& allow_;
  const std::size_t most_nodes_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  std::vector<PickleNode*> stack_;
  std::vector<PickleNode*> memo_;
};

Pickle::Pickle(std::span<const std::byte> bytes, std::string file, const AllowClass& allow, std::size_t most_nodes)
    : file_(std::move(file)) {
  Machine(bytes, *this, allow, most_nodes).run();
}

void Pickle::fail(const PickleNode& at, const std::string& what) const { damaged(file_, at.offset, what); }

}  // namespace loom::io
