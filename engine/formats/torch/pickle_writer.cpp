#include "engine/formats/torch/pickle_writer.h"

#include <bit>
#include <limits>

#include "engine/core/error.h"

namespace loom::io {
namespace {

constexpr char kProto = '\x80';
constexpr char kTrue = '\x88';
constexpr char kFalse = '\x89';
constexpr char kLong1 = '\x8a';
constexpr char kShortText = '\x8c';
constexpr char kStackGlobal = '\x93';
constexpr char kNewObject = '\x81';

}  // namespace

PickleWriter::PickleWriter(int protocol) : protocol_(protocol) {
  require(protocol == 2 || protocol == 4, "a pickle of protocol {}", protocol);
  put(kProto);
  put(static_cast<char>(protocol));
}

void PickleWriter::little(std::uint64_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) put(static_cast<char>(value >> (8 * i) & 0xff));
}

void PickleWriter::none() { put('N'); }

void PickleWriter::boolean(bool value) { put(value ? kTrue : kFalse); }

void PickleWriter::whole(std::int64_t value) {
  if (value >= 0 && value <= 0xff) {
    put('K');
    little(static_cast<std::uint64_t>(value), 1);
  } else if (value >= 0 && value <= 0xffff) {
    put('M');
    little(static_cast<std::uint64_t>(value), 2);
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    put('J');
    little(static_cast<std::uint64_t>(value), 4);
  } else {
    put(kLong1);
    put('\x08');
    little(static_cast<std::uint64_t>(value), 8);
  }
}

void PickleWriter::real(double value) {
  put('G');
  little(__builtin_bswap64(std::bit_cast<std::uint64_t>(value)), 8);
}

void PickleWriter::sized(std::string_view value, char short_opcode, char long_opcode) {
  const bool is_short = value.size() <= 0xff && short_opcode != 0;
  require(value.size() <= std::numeric_limits<std::uint32_t>::max(), "a text of {} bytes in a pickle", value.size());
  put(is_short ? short_opcode : long_opcode);
  little(value.size(), is_short ? 1 : 4);
  out_ += value;
}

void PickleWriter::text(std::string_view value) { sized(value, protocol_ >= 4 ? kShortText : '\0', 'X'); }

void PickleWriter::bytes(std::string_view value) {
  if (protocol_ >= 4) return sized(value, 'C', 'B');
  std::string characters;  // U+0000 to U+00FF, in UTF-8
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) characters.push_back(static_cast<char>(0xc0 | byte >> 6));
    characters.push_back(static_cast<char>(byte < 0x80 ? byte : 0x80 | (byte & 0x3f)));
  }
  global("_codecs", "encode");
  begin_tuple();
  text(characters);
  text("latin1");
  end_tuple();
  reduce();
}

void PickleWriter::value(const PlainValue& value) {
  using Kind = PlainValue::Kind;
  switch (value.kind()) {
    case Kind::kNone:
      return none();
    case Kind::kBool:
      return boolean(value.as_bool());
    case Kind::kWhole:
      return whole(value.as_whole());
    case Kind::kReal:
      return real(value.as_real());
    case Kind::kText:
      return text(value.as_text());
    case Kind::kBytes:
      return bytes(value.as_text());
    case Kind::kTuple:
    case Kind::kList:
    case Kind::kDict:
      break;
  }
  const bool is_dict = value.is(Kind::kDict);
  if (is_dict) begin_dict();
  if (value.is(Kind::kList)) begin_list();
  if (value.is(Kind::kTuple)) begin_tuple();
  for (const PlainValue& item : value.items()) this->value(item);
  if (is_dict) return end_dict();
  if (value.is(Kind::kList)) return end_list();
  end_tuple();
}

void PickleWriter::begin_list() {
  put(']');
  put('(');
}

void PickleWriter::begin_dict() {
  put('}');
  put('(');
}

void PickleWriter::wholes(std::span<const std::int64_t> values) {
  begin_tuple();
  for (const std::int64_t value : values) whole(value);
  end_tuple();
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  const std::pair<std::string, std::string> key(module, name);
  if (const auto found = classes_.find(key); found != classes_.end()) {
    put('j');
    return little(found->second, 4);
  }
  if (protocol_ >= 4) {
    text(module);
    text(name);
    put(kStackGlobal);
  } else {
    put('c');
    out_ += fmt::format("{}\n{}\n", module, name);
  }
  put('r');
  little(kept_, 4);
  classes_.emplace(key, kept_++);
}

std::uint64_t PickleWriter::keep() {
  require(kept_ <= std::numeric_limits<std::uint32_t>::max(), "a pickle keeps {} values", kept_);
  put(kept_ <= 0xff ? 'q' : 'r');
  little(kept_, kept_ <= 0xff ? 1 : 4);
  return kept_++;
}

void PickleWriter::use(std::uint64_t place) {
  put(place <= 0xff ? 'h' : 'j');
  little(place, place <= 0xff ? 1 : 4);
}

void PickleWriter::shared_text(std::string_view value) {
  if (const auto known = texts_.find(value); known != texts_.end()) return use(known->second);
  text(value);
  texts_.emplace(value, keep());
}

void PickleWriter::reduce() { put('R'); }
void PickleWriter::new_object() { put(kNewObject); }
void PickleWriter::build() { put('b'); }
void PickleWriter::persistent() { put('Q'); }

std::string PickleWriter::finish() {
  put('.');
  return std::move(out_);
}

}  // namespace loom::io
