// PickleWriter: writes Python's object format, so that Python's own reader gives back the values that were put in.
//
// Order    of a stack machine: the content of a tuple, list, dict or call is written before it is closed.
//            begin_dict(); text("lr"); real(1e-3); end_dict();      {"lr": 0.001}
//            global("torch", "Size"); begin_tuple(); wholes(sizes); end_tuple(); reduce();
// Opcodes  of protocol 2, limited to the opcodes that PyTorch's weights_only reader accepts.
// Forms    protocol 2 as torch.save writes (classes by GLOBAL), 4 as pickle.dump writes.
// Shared   a class is written once and referred to afterwards; so is a value that keep() and use() name.
// Threads  one thread at a time.
// Source   CPython, Lib/pickle.py.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/formats/torch/plain_value.h"

namespace loom::io {

class PickleWriter {
 public:
  // `protocol`: 2 or 4.
  explicit PickleWriter(int protocol);

  void none();
  void boolean(bool value);
  void whole(std::int64_t value);
  void real(double value);
  void text(std::string_view value);
  void bytes(std::string_view value);  // in protocol 2, as Python does: _codecs.encode(text, "latin1")
  void value(const PlainValue& value);

  void begin_tuple() { put('('); }
  void end_tuple() { put('t'); }
  void begin_list();
  void end_list() { put('e'); }
  // Another batch of items for the list; Python's writer ends a batch after 1000 items. Up to end_list().
  void begin_more() { put('('); }
  void begin_dict();
  void end_dict() { put('u'); }
  // Entries for an existing mapping, such as an OrderedDict, up to end_dict().
  void begin_items() { put('('); }
  // A tuple of whole numbers.
  void wholes(std::span<const std::int64_t> values);

  void global(std::string_view module, std::string_view name);
  void reduce();      // class, tuple -> object
  void new_object();  // class, tuple -> object, without a call of __init__
  void build();       // object, state -> object
  void persistent();  // identifier -> its object

  // Keeps the value that was written last, for use(); its place.
  std::uint64_t keep();
  void use(std::uint64_t place);
  // A text that is written once and referred to afterwards.
  void shared_text(std::string_view value);

  // Ends the pickle and gives it away.
  std::string finish();

 private:
  void put(char opcode) { out_.push_back(opcode); }
  void little(std::uint64_t value, std::size_t count);
  void sized(std::string_view value, char short_opcode, char long_opcode);

  const int protocol_;
  std::string out_;
  std::uint64_t kept_ = 0;
  // Places in the memo.
  std::map<std::pair<std::string, std::string>, std::uint64_t, std::less<>> classes_;
  std::map<std::string, std::uint64_t, std::less<>> texts_;
};

}  // namespace loom::io
