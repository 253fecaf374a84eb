#include "engine/formats/parquet/parquet_schema.h"

#include <array>
#include <set>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/formats/parquet/parquet_bytes.h"

namespace loom::io {
namespace {

using Kind = ParquetField::Kind;

constexpr int kMostLevels = 48;

// LogicalType, by the number of its field, and ConvertedType.
enum Logical : int { kString = 1, kMap = 2, kList = 3, kEnum = 4, kInteger = 10, kUnknown = 11, kJson = 12 };
enum Converted : std::int32_t { kUtf8 = 0, kOldMap = 1, kOldMapPair = 2, kOldList = 3, kOldEnum = 4, kOldJson = 19 };
constexpr std::int32_t kFirstUnsigned = 11, kLastUnsigned = 14, kFirstSigned = 15, kLastSigned = 18;

constexpr std::array<std::string_view, 19> kLogicalNames = {
    "",        "STRING",  "MAP",  "LIST", "ENUM", "DECIMAL", "DATE",    "TIME",     "TIMESTAMP", "INTERVAL",
    "INTEGER", "UNKNOWN", "JSON", "BSON", "UUID", "FLOAT16", "VARIANT", "GEOMETRY", "GEOGRAPHY"};
constexpr std::array<std::string_view, 22> kConvertedNames = {"UTF8",
                                                              "MAP",
                                                              "MAP_KEY_VALUE",
                                                              "LIST",
                                                              "ENUM",
                                                              "DECIMAL",
                                                              "DATE",
                                                              "TIME_MILLIS",
                                                              "TIME_MICROS",
                                                              "TIMESTAMP_MILLIS",
                                                              "TIMESTAMP_MICROS",
                                                              "UINT_8",
                                                              "UINT_16",
                                                              "UINT_32",
                                                              "UINT_64",
                                                              "INT_8",
                                                              "INT_16",
                                                              "INT_32",
                                                              "INT_64",
                                                              "JSON",
                                                              "BSON",
                                                              "INTERVAL"};

template <std::size_t N>
std::string name_in(const std::array<std::string_view, N>& names, std::int64_t number) {
  return number >= 0 && number < std::int64_t{N} ? std::string(names[static_cast<std::size_t>(number)])
                                                 : fmt::format("type {}", number);
}

bool is_list(const SchemaElement& element) { return element.logical == kList || element.converted == kOldList; }

bool is_map(const SchemaElement& element) {
  return element.logical == kMap || element.converted == kOldMap || element.converted == kOldMapPair;
}

// "INT64 (TIMESTAMP)"
std::string type_words(const SchemaElement& element) {
  std::string words = name_of_type(*element.type);
  if (element.logical != 0) return words + " (" + name_in(kLogicalNames, element.logical) + ")";
  if (element.converted) return words + " (" + name_in(kConvertedNames, *element.converted) + ")";
  return words;
}

bool is_text(const SchemaElement& element) {
  if (element.logical != 0) {
    return element.logical == kString || element.logical == kEnum || element.logical == kJson;
  }
  return element.converted == kUtf8 || element.converted == kOldEnum || element.converted == kOldJson;
}

bool has_no_annotation(const SchemaElement& element) { return element.logical == 0 && !element.converted; }

// Nothing where the leaf is not read.
std::optional<Kind> integer_kind(const SchemaElement& element) {
  if (has_no_annotation(element)) return Kind::kSigned;
  if (element.logical == kInteger) return element.logical_signed ? Kind::kSigned : Kind::kUnsigned;
  if (element.logical != 0) return std::nullopt;
  if (*element.converted >= kFirstUnsigned && *element.converted <= kLastUnsigned) return Kind::kUnsigned;
  if (*element.converted >= kFirstSigned && *element.converted <= kLastSigned) return Kind::kSigned;
  return std::nullopt;
}

std::optional<Kind> kind_of(const SchemaElement& element) {
  if (element.logical == kUnknown) return Kind::kNull;
  switch (*element.type) {
    case ParquetType::kByteArray:
      return is_text(element) ? std::optional(Kind::kText) : std::nullopt;
    case ParquetType::kInt32:
    case ParquetType::kInt64:
      return integer_kind(element);
    case ParquetType::kFloat:
    case ParquetType::kDouble:
      return has_no_annotation(element) ? std::optional(Kind::kReal) : std::nullopt;
    case ParquetType::kBoolean:
      return has_no_annotation(element) ? std::optional(Kind::kBoolean) : std::nullopt;
    case ParquetType::kInt96:
    case ParquetType::kFixedLenByteArray:
      return std::nullopt;
  }
  return std::nullopt;
}

class Maker {
 public:
  Maker(const std::vector<SchemaElement>& elements, const std::string& file) : elements_(elements), file_(file) {}

  ParquetSchema make() {
    if (elements_.empty()) bad_bytes("the schema is empty");
    const SchemaElement& root = next();
    schema_.fields = children(root, Levels{});
    if (at_ != elements_.size()) bad_bytes("the schema has {} entries, {} of them used", elements_.size(), at_);
    return std::move(schema_);
  }

 private:
  struct Levels {
    std::uint8_t definition = 0;
    std::uint8_t repetition = 0;
    std::string path = {};
  };

  const SchemaElement& next() {
    if (at_ == elements_.size()) bad_bytes("the schema ends within a group");
    return elements_[at_++];
  }

  std::vector<ParquetField> children(const SchemaElement& group, const Levels& levels) {
    if (group.children < 0) bad_bytes("a group of {} columns", group.children);
    std::vector<ParquetField> fields;
    std::set<std::string> names;
    for (std::int32_t i = 0; i < group.children; ++i) {
      fields.push_back(field(next(), levels));
      if (names.insert(fields.back().name).second) continue;
      config_error("{}: two columns have the name '{}'; rename one", file_,
                   shown_text(below(levels, fields.back().name).path));
    }
    return fields;
  }

  static Levels below(Levels levels, const std::string& name) {
    levels.path += (levels.path.empty() ? "" : ".") + name;
    return levels;
  }

  static Levels raised(Levels levels, Repetition repetition) {
    if (repetition != Repetition::kRequired) ++levels.definition;
    if (repetition == Repetition::kRepeated) ++levels.repetition;
    if (levels.definition > kMostLevels) bad_bytes("columns nested deeper than {} levels", kMostLevels);
    return levels;
  }

  ParquetField field(const SchemaElement& element, const Levels& outer) {
    if (++depth_ > kMostLevels) bad_bytes("columns nested deeper than {} levels", kMostLevels);
    if (invalid_utf8(element.name)) {
      config_error("{}: the name of column '{}' is not UTF-8; rename it", file_, shown_text(element.name));
    }
    const Levels inner = raised(below(outer, element.name), element.repetition);
    ParquetField made = element.repetition == Repetition::kRepeated
                            ? list_of(outer.definition, inner, [&] { return content(element, inner); })
                            : content(element, inner);
    made.name = element.name;
    --depth_;
    return made;
  }

  // `inner` are the levels of an item.
  template <class MakeItem>
  ParquetField list_of(std::uint8_t defined, const Levels& inner, MakeItem&& make_item) {
    ParquetField list;
    list.kind = Kind::kList;
    list.defined = defined;
    list.item_defined = inner.definition;
    list.item_repeated = inner.repetition;
    list.first_leaf = schema_.leaves.size();
    list.children.push_back(make_item());
    list.leaves = schema_.leaves.size() - list.first_leaf;
    return list;
  }

  // The content of an element, whose own repetition is in the levels.
  ParquetField content(const SchemaElement& element, const Levels& levels) {
    if (element.type) return leaf(element, levels);
    if (is_map(element)) {
      config_error("{}: column '{}' is a MAP, which is not read; write it as a list of structs or leave it out", file_,
                   shown_text(levels.path));
    }
    if (is_list(element)) return annotated_list(element, levels);
    return object(element, levels);
  }

  ParquetField leaf(const SchemaElement& element, const Levels& levels) {
    const auto kind = kind_of(element);
    if (!kind) {
      config_error(
          "{}: column '{}' is {}, which is not read; write it as text (STRING) or numbers (INT32, INT64, FLOAT, "
          "DOUBLE), or leave it out",
          file_, shown_text(levels.path), type_words(element));
    }
    ParquetField made;
    made.kind = *kind;
    made.defined = levels.definition;
    made.first_leaf = schema_.leaves.size();
    schema_.leaves.push_back({levels.path, *element.type, *kind, levels.definition, levels.repetition});
    return made;
  }

  ParquetField object(const SchemaElement& element, const Levels& levels) {
    if (element.children == 0) bad_bytes("column '{}' is a group without columns", shown_text(levels.path));
    ParquetField made;
    made.kind = Kind::kObject;
    made.defined = levels.definition;
    made.first_leaf = schema_.leaves.size();
    made.children = children(element, levels);
    made.leaves = schema_.leaves.size() - made.first_leaf;
    return made;
  }

  ParquetField annotated_list(const SchemaElement& element, const Levels& levels) {
    if (element.children != 1)
      bad_bytes("column '{}' is a list of {} columns", shown_text(levels.path), element.children);
    const SchemaElement& repeated = next();
    if (repeated.repetition != Repetition::kRepeated) {
      bad_bytes("column '{}' is a list that does not repeat", shown_text(levels.path));
    }
    const Levels inner = raised(below(levels, repeated.name), repeated.repetition);
    return list_of(levels.definition, inner, [&] {
      if (repeated.type || item_is_group(element, repeated)) return content(repeated, inner);
      return field(next(), inner);
    });
  }

  // Older writers leave out the group around an item; the specification lists how to tell.
  bool item_is_group(const SchemaElement& list, const SchemaElement& repeated) const {
    if (repeated.children != 1 || at_ == elements_.size()) return true;
    return elements_[at_].repetition == Repetition::kRepeated || repeated.name == "array" ||
           repeated.name == list.name + "_tuple";
  }

  const std::vector<SchemaElement>& elements_;
  const std::string& file_;
  std::size_t at_ = 0;
  int depth_ = 0;
  ParquetSchema schema_;
};

}  // namespace

ParquetSchema make_schema(const std::vector<SchemaElement>& elements, const std::string& file) {
  return Maker(elements, file).make();
}

}  // namespace loom::io
