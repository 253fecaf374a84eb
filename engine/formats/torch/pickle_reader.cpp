#include "engine/formats/torch/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"
#include "engine/io/byte_source.h"

namespace loom::io {
namespace {

using Kind = PickleNode::Kind;

constexpr std::size_t kMostNesting = 32;  // of plain values

[[noreturn]] void damaged(const std::string& file, std::size_t offset, const std::string& what) {
  throw FileDamage(fmt::format("{}: offset {}: {}", file, offset, what));
}

// Opcodes that plain files do not have: they name, make or call objects, or hold values of another type.
std::string_view name_of_refused(unsigned char opcode) {
  switch (opcode) {
    case 'c':
      return "GLOBAL";
    case 0x93:
      return "STACK_GLOBAL";
    case 'R':
      return "REDUCE";
    case 'i':
      return "INST";
    case 'o':
      return "OBJ";
    case 0x81:
      return "NEWOBJ";
    case 0x92:
      return "NEWOBJ_EX";
    case 'b':
      return "BUILD";
    case 'P':
      return "PERSID";
    case 'Q':
      return "BINPERSID";
    case 0x82:
    case 0x83:
    case 0x84:
      return "EXT";
    case 'C':
    case 'B':
    case 0x8e:
      return "BINBYTES";
    case 0x96:
      return "BYTEARRAY8";
    case 0x97:
      return "NEXT_BUFFER";
    case 0x8f:
    case 0x90:
    case 0x91:
      return "SET";
    default:
      return "";
  }
}

bool is_container(const PickleNode& node) {
  return node.kind == Kind::kTuple || node.kind == Kind::kList || node.kind == Kind::kDict;
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
  // `allow` is empty for plain files.
  Machine(std::span<const std::byte> bytes, Pickle& made, const AllowClass& allow, std::size_t most_nodes)
      : bytes_(bytes), made_(made), allow_(allow), plain_(allow == nullptr), most_nodes_(most_nodes) {}

  void run() {
    begin();
    while (made_.root_ == nullptr) {
      opcode_at_ = at_;
      step(std::to_integer<unsigned char>(take(1).front()));
    }
    made_.size_bytes_ = at_;
    if (plain_) check_nesting();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { damaged(made_.file_, opcode_at_, what); }

  void begin() {
    const auto first = std::to_integer<unsigned>(take(1).front());
    if (plain_ && first != 0x80) {  // protocols 0 and 1 do not say so
      at_ = 0;
      return;
    }
    if (first != 0x80) fail(fmt::format("no pickle of protocol 2 or later begins with {:#04x}", first));
    if (const auto protocol = little(1); protocol < 2 || protocol > 5) {
      fail(fmt::format("a pickle of protocol {}; {} to 5 are read", protocol, plain_ ? 0 : 2));
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
    make_real(std::bit_cast<double>(__builtin_bswap64(little(sizeof(double)))));  // big endian, as the format has it
  }
  void make_real(double value) {
    PickleNode& node = make(Kind::kReal);
    node.real = value;
    push(node);
  }
  void stop() {
    const PickleNode& root = pop();
    if (!stack_.empty()) fail("the pickle ends with values left on its stack");
    made_.root_ = &root;
  }

  void step(unsigned char opcode) {
    if (plain_) refuse_objects(opcode);
    if (plain_ && step_lines(opcode)) return;
    if (step_values(opcode) || step_containers(opcode) || step_objects(opcode)) return;
    fail(fmt::format("opcode {:#04x}, which no file of this format has", opcode));
  }

  void refuse_objects(unsigned char opcode) const {
    const std::string_view refused = name_of_refused(opcode);
    if (refused.empty()) return;
    fail(
        fmt::format("opcode {} ({:#04x}), but this file may hold dicts, lists, tuples, texts, numbers, booleans and "
                    "None alone; nothing of it was run. Take the file from where it was made, and only from someone "
                    "you trust",
                    refused, opcode));
  }

  // --- protocols 0 and 1: values as lines of text

  bool step_lines(unsigned char opcode) {
    switch (opcode) {
      case 'I':
        push_whole_line(line());
        return true;
      case 'L': {
        std::string_view digits = line();
        if (digits.ends_with('L')) digits.remove_suffix(1);
        push_whole(number_of<std::int64_t>(digits));
        return true;
      }
      case 'F':
        make_real(number_of<double>(line()));
        return true;
      case 'V':
        push_text(Kind::kText, unescaped(line()));
        return true;
      case '2':
        push(top());
        return true;
      case 'p':
        put(number_of<std::uint64_t>(line()));
        return true;
      case 'g':
        get(number_of<std::uint64_t>(line()));
        return true;
      default:
        return false;
    }
  }
  template <class Number>
  Number number_of(std::string_view text) const {
    if (const auto number = parse_number<Number>(text)) return *number;
    fail(fmt::format("'{}' is not a number that this format has", shown_text(text)));
  }
  void push_whole_line(std::string_view digits) {
    if (digits == "00" || digits == "01") return push_bool(digits == "01");
    push_whole(number_of<std::int64_t>(digits));
  }
  // Python's raw-unicode-escape, as UTF-8: bytes are characters of Latin-1, and \uXXXX and \UXXXXXXXX are escapes.
  std::string_view unescaped(std::string_view text) {
    const auto is_plain = [](char c) { return c != '\\' && static_cast<unsigned char>(c) < 0x80; };
    if (std::ranges::all_of(text, is_plain)) return text;
    std::string decoded;
    for (std::size_t i = 0; i < text.size();) {
      const char next = i + 1 < text.size() ? text[i + 1] : '\0';
      const std::size_t digits = text[i] != '\\' ? 0 : next == 'u' ? 4 : next == 'U' ? 8 : 0;
      if (digits == 0) {
        append_utf8(decoded, static_cast<unsigned char>(text[i++]));
        continue;
      }
      append_utf8(decoded, code_point(text.substr(i + 2, digits), digits));
      i += 2 + digits;
    }
    return made_.decoded_.emplace_back(std::move(decoded));
  }
  std::uint32_t code_point(std::string_view hex, std::size_t digits) const {
    std::uint32_t code = 0;
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    const bool whole = hex.size() == digits && error == std::errc{} && end == hex.data() + hex.size();
    if (!whole || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) fail("a text with a broken escape");
    return code;
  }
  static void append_utf8(std::string& text, std::uint32_t code) {
    const auto tail = [&](int shift) { text.push_back(static_cast<char>(0x80 | (code >> shift & 0x3f))); };
    if (code < 0x80) {
      text.push_back(static_cast<char>(code));
    } else if (code < 0x800) {
      text.push_back(static_cast<char>(0xc0 | code >> 6));
      tail(0);
    } else if (code < 0x10000) {
      text.push_back(static_cast<char>(0xe0 | code >> 12));
      tail(6);
      tail(0);
    } else {
      text.push_back(static_cast<char>(0xf0 | code >> 18));
      tail(12);
      tail(6);
      tail(0);
    }
  }

  // Depth first, each container once.
  void check_nesting() const {
    struct Open {
      const PickleNode* node;
      std::size_t next;
    };
    std::unordered_set<const PickleNode*> done;
    std::vector<Open> open{{made_.root_, 0}};
    while (!open.empty()) {
      auto& [node, next] = open.back();
      if (!is_container(*node) || next == node->items.size()) {
        done.insert(node);
        open.pop_back();
        continue;
      }
      const PickleNode* item = node->items[next++];
      if (!is_container(*item) || done.contains(item)) continue;
      if (std::ranges::find(open, item, &Open::node) != open.end()) {
        made_.fail(*item, "a value that contains itself, which this format does not have");
      }
      if (open.size() == kMostNesting) {
        made_.fail(*item, fmt::format("values nested deeper than {}, which this format does not have", kMostNesting));
      }
      open.push_back({item, 0});
    }
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
  const bool plain_;
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
