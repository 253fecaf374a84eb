#include "engine/text/records/row_assembly.h"

#include <algorithm>

#include "engine/core/shown_text.h"
#include "engine/io/byte_source.h"
#include "engine/io/json_text.h"

namespace loom::data {
namespace {

using nlohmann::ordered_json;
using Kind = io::ParquetField::Kind;

class Leaf {
 public:
  explicit Leaf(const io::LeafEntries& entries) : entries_(&entries) {}

  bool at_end() const { return at_ == entries_->definition.size(); }
  std::uint8_t definition() const { return entries_->definition[at_]; }
  // 0: the next entry begins a row.
  std::uint8_t repetition() const { return entries_->repetition.empty() ? std::uint8_t{0} : entries_->repetition[at_]; }
  void pass() { ++at_; }

  std::int64_t integer() { return entries_->integers[value_++]; }
  double real() { return entries_->reals[value_++]; }
  std::string_view text() {
    const std::uint64_t begin = value_ == 0 ? 0 : entries_->text_ends[value_ - 1];
    return std::string_view(entries_->text).substr(begin, entries_->text_ends[value_++] - begin);
  }

 private:
  const io::LeafEntries* entries_;
  std::size_t at_ = 0;
  std::size_t value_ = 0;
};

class Assembly {
 public:
  Assembly(const ParquetShape& shape, const io::ParquetRows& rows)
      : shape_(shape), leaves_(rows.leaves.begin(), rows.leaves.end()), row_(rows.first_row) {}

  Record next() {
    ++row_;
    Record record{ordered_json::object(), fmt::format("{}: row {}", shape_.file, row_)};
    for (const io::ParquetField& field : shape_.fields) {
      io::append_pair(record.columns, field.name, value(field));
      expect_row_end(field);
    }
    return record;
  }

 private:
  [[noreturn]] void refuse(std::size_t leaf, std::string_view what) const {
    throw io::FileDamage(
        fmt::format("{}: row {}: column '{}': {}", shape_.file, row_, shown_text(shape_.leaf_names[leaf]), what));
  }

  // What holds for the next entry of the field's first leaf and has to hold for all of them.
  template <class Holds>
  bool agreed(const io::ParquetField& field, Holds&& holds) {
    const bool first = holds(leaves_[field.first_leaf]);
    for (std::size_t i = 1; i < field.leaves; ++i) {
      const std::size_t leaf = field.first_leaf + i;
      if (holds(leaves_[leaf]) != first) refuse(leaf, "its levels do not match the columns beside it");
    }
    return first;
  }

  void expect_row_end(const io::ParquetField& field) {
    const auto at_end = [](const Leaf& leaf) { return leaf.at_end() || leaf.repetition() == 0; };
    if (!agreed(field, at_end)) refuse(field.first_leaf, "its levels do not form one row");
  }

  bool is_defined(const io::ParquetField& field, std::uint8_t level) {
    for (std::size_t i = 0; i < field.leaves; ++i) {
      if (leaves_[field.first_leaf + i].at_end()) refuse(field.first_leaf + i, "it ends within the row");
    }
    return agreed(field, [&](const Leaf& leaf) { return leaf.definition() >= level; });
  }

  void pass(const io::ParquetField& field) {
    for (std::size_t i = 0; i < field.leaves; ++i) leaves_[field.first_leaf + i].pass();
  }

  ordered_json value(const io::ParquetField& field) {
    if (!is_defined(field, field.defined)) {
      pass(field);
      return nullptr;
    }
    if (field.kind == Kind::kObject) return object(field);
    if (field.kind == Kind::kList) return list(field);
    Leaf& leaf = leaves_[field.first_leaf];
    leaf.pass();
    return leaf_value(field, leaf);
  }

  ordered_json object(const io::ParquetField& field) {
    ordered_json made = ordered_json::object();
    for (const io::ParquetField& child : field.children) io::append_pair(made, child.name, value(child));
    return made;
  }

  ordered_json list(const io::ParquetField& field) {
    ordered_json made = ordered_json::array();
    if (!is_defined(field, field.item_defined)) {
      pass(field);
      return made;
    }
    const auto goes_on = [&](const Leaf& leaf) { return !leaf.at_end() && leaf.repetition() == field.item_repeated; };
    do {
      made.push_back(value(field.children.front()));
    } while (agreed(field, goes_on));
    return made;
  }

  ordered_json leaf_value(const io::ParquetField& field, Leaf& leaf) {
    switch (field.kind) {
      case Kind::kText:
        return text(field, leaf.text());
      case Kind::kSigned:
        return leaf.integer();
      case Kind::kUnsigned:
        return static_cast<std::uint64_t>(leaf.integer());
      case Kind::kReal:
        return leaf.real();
      case Kind::kBoolean:
        return leaf.integer() != 0;
      case Kind::kObject:
      case Kind::kList:
      case Kind::kNull:
        break;
    }
    return nullptr;
  }

  std::string text(const io::ParquetField& field, std::string_view bytes) const {
    if (const auto at = invalid_utf8(bytes)) {
      refuse(field.first_leaf, fmt::format("byte {} of the text is no UTF-8; write it as UTF-8", *at + 1));
    }
    return std::string(bytes);
  }

  const ParquetShape& shape_;
  std::vector<Leaf> leaves_;
  std::uint64_t row_;  // counted from 1 while it is made
};

}  // namespace

std::vector<Record> assembled(const ParquetShape& shape, const io::ParquetRows& rows) {
  Assembly assembly(shape, rows);
  std::vector<Record> records;
  for (std::uint64_t i = 0; i < rows.count; ++i) records.push_back(assembly.next());
  return records;
}

}  // namespace loom::data
