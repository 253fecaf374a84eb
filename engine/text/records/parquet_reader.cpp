#include "engine/text/records/parquet_reader.h"

#include "engine/text/records/record_file.h"
#include "engine/text/records/row_assembly.h"

namespace loom::data {
namespace {

constexpr std::uint64_t kMostRows = 4096;

class ParquetBatch final : public RecordBatch {
 public:
  ParquetBatch(std::shared_ptr<const ParquetShape> shape, io::ParquetRows rows)
      : shape_(std::move(shape)), rows_(std::move(rows)) {}

  std::vector<Record> records() const override { return assembled(*shape_, rows_); }

 private:
  std::shared_ptr<const ParquetShape> shape_;
  io::ParquetRows rows_;
};

ParquetShape shape_of(const io::ParquetFile& file, const std::filesystem::path& path) {
  ParquetShape shape{.file = path.string(), .fields = file.fields(), .leaf_names = {}};
  std::size_t leaves = 0;
  for (const io::ParquetField& field : shape.fields) leaves += field.leaves;
  for (std::size_t leaf = 0; leaf < leaves; ++leaf) shape.leaf_names.push_back(file.leaf_name(leaf));
  return shape;
}

class ParquetReader final : public RecordReader {
 public:
  explicit ParquetReader(const std::filesystem::path& path)
      : file_(path), shape_(std::make_shared<const ParquetShape>(shape_of(file_, path))) {}

  std::unique_ptr<RecordBatch> next() override {
    auto rows = file_.next(kBatchBytes, kMostRows);
    return rows ? std::make_unique<ParquetBatch>(shape_, std::move(*rows)) : nullptr;
  }

  std::uint64_t done_bytes() const override { return file_.done_bytes(); }
  std::uint64_t all_bytes() const override { return file_.all_bytes(); }

 private:
  io::ParquetFile file_;
  std::shared_ptr<const ParquetShape> shape_;
};

}  // namespace

std::unique_ptr<RecordReader> parquet_reader(const std::filesystem::path& path) {
  return std::make_unique<ParquetReader>(path);
}

}  // namespace loom::data
