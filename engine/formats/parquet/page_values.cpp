#include "engine/formats/parquet/page_values.h"

#include <array>
#include <bit>
#include <concepts>

#include "engine/formats/parquet/delta_numbers.h"

namespace loom::io {
namespace {

using Kind = ParquetField::Kind;

std::uint64_t append_text(LeafEntries& to, std::string_view text) {
  to.text.append(text);
  to.text_ends.push_back(to.text.size());
  return text.size();
}

template <class Number>
void append_number(LeafEntries& to, Number value, bool is_unsigned) {
  if constexpr (std::floating_point<Number>) {
    to.reals.push_back(static_cast<double>(value));
  } else {
    using Bits = std::make_unsigned_t<Number>;
    to.integers.push_back(is_unsigned ? static_cast<std::int64_t>(static_cast<Bits>(value))
                                      : static_cast<std::int64_t>(value));
  }
}

template <class Number>
class PlainNumbers final : public PageValues {
 public:
  PlainNumbers(std::string_view bytes, bool is_unsigned) : bytes_(bytes), unsigned_(is_unsigned) {}

  std::uint64_t append(LeafEntries& to) override {
    append_number(to, bytes_.number<Number>(), unsigned_);
    return 0;
  }

 private:
  ByteCursor bytes_;
  bool unsigned_;
};

// The first bytes of all numbers, then their second ones, and so on.
template <class Number>
class SplitNumbers final : public PageValues {
 public:
  SplitNumbers(std::string_view bytes, bool is_unsigned)
      : bytes_(bytes), count_(bytes.size() / sizeof(Number)), unsigned_(is_unsigned) {
    if (bytes.size() % sizeof(Number) != 0) bad_bytes("{} bytes of numbers of {}", bytes.size(), sizeof(Number));
  }

  std::uint64_t append(LeafEntries& to) override {
    if (at_ == count_) bad_bytes("fewer numbers than values");
    std::array<char, sizeof(Number)> bytes;
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = bytes_[i * count_ + at_];
    ++at_;
    append_number(to, std::bit_cast<Number>(bytes), unsigned_);
    return 0;
  }

 private:
  std::string_view bytes_;
  std::size_t count_;
  std::size_t at_ = 0;
  bool unsigned_;
};

class PlainBooleans final : public PageValues {
 public:
  explicit PlainBooleans(std::string_view bytes) : bytes_(bytes) {}

  std::uint64_t append(LeafEntries& to) override {
    if (at_ / 8 >= bytes_.size()) bad_bytes("fewer booleans than values");
    to.integers.push_back(static_cast<std::int64_t>(bits_at(bytes_, at_++, 1)));
    return 0;
  }

 private:
  std::string_view bytes_;
  std::uint64_t at_ = 0;
};

class PlainTexts final : public PageValues {
 public:
  explicit PlainTexts(std::string_view bytes) : bytes_(bytes) {}

  std::uint64_t append(LeafEntries& to) override {
    return append_text(to, bytes_.take(bytes_.number<std::uint32_t>()));
  }

 private:
  ByteCursor bytes_;
};

class RunBooleans final : public PageValues {
 public:
  explicit RunBooleans(std::string_view bytes) : runs_(sized(bytes), 1) {}

  std::uint64_t append(LeafEntries& to) override {
    to.integers.push_back(runs_.next());
    return 0;
  }

 private:
  static std::string_view sized(std::string_view bytes) {
    ByteCursor cursor(bytes);
    return cursor.take(cursor.number<std::uint32_t>());
  }

  BitRuns runs_;
};

class DeltaIntegers final : public PageValues {
 public:
  DeltaIntegers(std::string_view bytes, ParquetType type, bool is_unsigned)
      : numbers_(bytes), narrow_(type == ParquetType::kInt32), unsigned_(is_unsigned) {}

  std::uint64_t append(LeafEntries& to) override {
    const std::int64_t value = numbers_.next();
    to.integers.push_back(narrow_ ? narrowed(value) : value);
    return 0;
  }

 private:
  std::int64_t narrowed(std::int64_t value) const {
    return unsigned_ ? static_cast<std::int64_t>(static_cast<std::uint32_t>(value)) : static_cast<std::int32_t>(value);
  }

  DeltaNumbers numbers_;
  bool narrow_;
  bool unsigned_;
};

// Lengths of all texts, then the texts.
class LengthTexts {
 public:
  explicit LengthTexts(std::string_view bytes) : lengths_(bytes), texts_(DeltaNumbers(bytes).rest()) {}

  std::string_view next() {
    const std::int64_t length = lengths_.next();
    if (length < 0) bad_bytes("a text of {} bytes", length);
    return texts_.take(static_cast<std::uint64_t>(length));
  }

 private:
  DeltaNumbers lengths_;
  ByteCursor texts_;
};

class DeltaLengthTexts final : public PageValues {
 public:
  explicit DeltaLengthTexts(std::string_view bytes) : texts_(bytes) {}
  std::uint64_t append(LeafEntries& to) override { return append_text(to, texts_.next()); }

 private:
  LengthTexts texts_;
};

// The length of each text's common prefix with the previous text, then the rest of each.
class DeltaTexts final : public PageValues {
 public:
  explicit DeltaTexts(std::string_view bytes) : prefixes_(bytes), suffixes_(DeltaNumbers(bytes).rest()) {}

  std::uint64_t append(LeafEntries& to) override {
    const std::int64_t prefix = prefixes_.next();
    if (prefix < 0 || static_cast<std::uint64_t>(prefix) > last_.size()) {
      bad_bytes("{} bytes of a text of {} are used again", prefix, last_.size());
    }
    last_.resize(static_cast<std::size_t>(prefix));
    last_.append(suffixes_.next());
    return append_text(to, last_);
  }

 private:
  DeltaNumbers prefixes_;
  LengthTexts suffixes_;
  std::string last_;
};

class DictionaryValues final : public PageValues {
 public:
  DictionaryValues(std::string_view bytes, ParquetType type, const Dictionary& dictionary)
      : indices_(indices(bytes)), type_(type), dictionary_(dictionary) {}

  std::uint64_t append(LeafEntries& to) override {
    const std::size_t index = indices_.next();
    if (index >= dictionary_.count) bad_bytes("entry {} of a dictionary of {}", index, dictionary_.count);
    const LeafEntries& values = dictionary_.values;
    if (type_ == ParquetType::kByteArray) {
      const std::uint64_t begin = index == 0 ? 0 : values.text_ends[index - 1];
      return append_text(to, std::string_view(values.text).substr(begin, values.text_ends[index] - begin));
    }
    if (type_ == ParquetType::kFloat || type_ == ParquetType::kDouble) {
      to.reals.push_back(values.reals[index]);
    } else {
      to.integers.push_back(values.integers[index]);
    }
    return 0;
  }

 private:
  static BitRuns indices(std::string_view bytes) {
    ByteCursor cursor(bytes);
    const int width = cursor.byte();
    return {cursor.rest(), width};
  }

  BitRuns indices_;
  ParquetType type_;
  const Dictionary& dictionary_;
};

// None for types that are not numbers.
template <template <class> class Values>
std::unique_ptr<PageValues> number_values(std::string_view bytes, const ParquetLeaf& leaf) {
  const bool is_unsigned = leaf.kind == Kind::kUnsigned;
  switch (leaf.type) {
    case ParquetType::kInt32:
      return std::make_unique<Values<std::int32_t>>(bytes, is_unsigned);
    case ParquetType::kInt64:
      return std::make_unique<Values<std::int64_t>>(bytes, is_unsigned);
    case ParquetType::kFloat:
      return std::make_unique<Values<float>>(bytes, false);
    case ParquetType::kDouble:
      return std::make_unique<Values<double>>(bytes, false);
    case ParquetType::kBoolean:
    case ParquetType::kByteArray:
    case ParquetType::kInt96:
    case ParquetType::kFixedLenByteArray:
      return nullptr;
  }
  return nullptr;
}

std::unique_ptr<PageValues> plain_values(std::string_view bytes, const ParquetLeaf& leaf) {
  if (leaf.type == ParquetType::kBoolean) return std::make_unique<PlainBooleans>(bytes);
  if (leaf.type == ParquetType::kByteArray) return std::make_unique<PlainTexts>(bytes);
  return number_values<PlainNumbers>(bytes, leaf);
}

bool is_integer(ParquetType type) { return type == ParquetType::kInt32 || type == ParquetType::kInt64; }

std::unique_ptr<PageValues> values_or_none(Encoding encoding, std::string_view bytes, const ParquetLeaf& leaf,
                                           const Dictionary* dictionary) {
  const bool is_text = leaf.type == ParquetType::kByteArray;
  switch (encoding) {
    case Encoding::kPlain:
      return plain_values(bytes, leaf);
    case Encoding::kPlainDictionary:
    case Encoding::kRleDictionary:
      if (dictionary == nullptr) bad_bytes("values of a dictionary that the column has not");
      return std::make_unique<DictionaryValues>(bytes, leaf.type, *dictionary);
    case Encoding::kRle:
      return leaf.type == ParquetType::kBoolean ? std::make_unique<RunBooleans>(bytes) : nullptr;
    case Encoding::kDeltaBinaryPacked:
      if (!is_integer(leaf.type)) return nullptr;
      return std::make_unique<DeltaIntegers>(bytes, leaf.type, leaf.kind == Kind::kUnsigned);
    case Encoding::kDeltaLengthByteArray:
      return is_text ? std::make_unique<DeltaLengthTexts>(bytes) : nullptr;
    case Encoding::kDeltaByteArray:
      return is_text ? std::make_unique<DeltaTexts>(bytes) : nullptr;
    case Encoding::kByteStreamSplit:
      return number_values<SplitNumbers>(bytes, leaf);
    case Encoding::kBitPacked:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

Dictionary read_dictionary(std::string_view page, std::uint64_t count, const ParquetLeaf& leaf) {
  const auto values = plain_values(page, leaf);
  if (!values) bad_bytes("a dictionary of {}", name_of_type(leaf.type));
  Dictionary dictionary;
  for (; dictionary.count < count; ++dictionary.count) values->append(dictionary.values);
  return dictionary;
}

std::unique_ptr<PageValues> page_values(Encoding encoding, std::string_view bytes, const ParquetLeaf& leaf,
                                        const Dictionary* dictionary) {
  auto values = values_or_none(encoding, bytes, leaf, dictionary);
  if (!values) bad_bytes("{} has not the encoding {}", name_of_type(leaf.type), name_of_encoding(encoding));
  return values;
}

bool is_known_encoding(Encoding encoding) {
  return encoding == Encoding::kPlain || encoding == Encoding::kPlainDictionary || encoding == Encoding::kRle ||
         encoding == Encoding::kDeltaBinaryPacked || encoding == Encoding::kDeltaLengthByteArray ||
         encoding == Encoding::kDeltaByteArray || encoding == Encoding::kRleDictionary ||
         encoding == Encoding::kByteStreamSplit;
}

}  // namespace loom::io
