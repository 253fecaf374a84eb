#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>

#include "engine/core/parallel.h"
#include "engine/kernels/gemm.h"
#include "engine/kernels/gemm_eigen_core.h"
#include "engine/kernels/gemm_tiles.h"
#include "engine/kernels/scratch.h"

// Declared by the OpenMP library that oneDNN is linked with. Its header belongs to one compiler.
extern "C" void omp_set_num_threads(int threads);

// A product of M rows becomes two parallel loops: pack the column tiles of op(B) into oneDNN's own layout, then
// multiply (row tile, column tile) pairs. Packing costs k*n moves against 2*m*n*k FLOPs, so below kPackRows rows B is
// read as it is.

namespace loom::kernels {
namespace {

constexpr std::int64_t kPackRows = 96;
constexpr std::int64_t kTileRows = 512;
// oneDNN copies a transposed A anew for every column tile, hence the wider tiles there.
constexpr std::int64_t kTileColumns = 512;
constexpr std::int64_t kTransposedTileColumns = 2048;

using dnnl::matmul;
using dnnl::memory;

memory::data_type onednn_type(DType dtype) {
  return dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

dnnl::engine& cpu() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// The one place where oneDNN 2 and 3 differ.
matmul::primitive_desc describe(const memory::desc& a, const memory::desc& b, const memory::desc* bias,
                                const memory::desc& c, const dnnl::primitive_attr& attr) {
#if DNNL_VERSION_MAJOR >= 3
  return bias ? matmul::primitive_desc(cpu(), a, b, *bias, c, attr) : matmul::primitive_desc(cpu(), a, b, c, attr);
#else
  return matmul::primitive_desc(bias ? matmul::desc(a, b, *bias, c) : matmul::desc(a, b, c), attr, cpu());
#endif
}

// Everything a primitive depends on.
struct ProductKey {
  std::int64_t m, n, k;
  std::int64_t lda, ldb, ldc;
  std::int64_t packed_for_m;  // rows of the product that chose B's packed layout; 0: B is not packed
  bool transpose_a, transpose_b, accumulate, bias;
  DType ab, c;
  bool operator==(const ProductKey&) const = default;
};

struct HashKey {
  std::size_t operator()(const ProductKey& key) const {
    std::size_t hash = 0;
    for (const std::int64_t value :
         {key.m, key.n, key.k, key.lda, key.ldb, key.ldc, key.packed_for_m,
          std::int64_t{key.transpose_a} | key.transpose_b << 1 | key.accumulate << 2 | key.bias << 3 |
              static_cast<int>(key.ab) << 4 | static_cast<int>(key.c) << 8}) {
      hash = (hash ^ static_cast<std::size_t>(value)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

ProductKey whole(const Gemm& op) {
  return {op.m,
          op.n,
          op.k,
          op.transpose_a ? op.m : op.k,
          op.transpose_b ? op.k : op.n,
          op.n,
          0,
          op.transpose_a,
          op.transpose_b,
          op.accumulate,
          op.bias != nullptr,
          op.ab,
          op.c};
}

memory::desc matrix(std::int64_t rows, std::int64_t columns, DType dtype, std::int64_t stride, bool transposed) {
  return {{rows, columns}, onednn_type(dtype), transposed ? memory::dims{1, stride} : memory::dims{stride, 1}};
}

memory unbound(const memory::desc& desc) { return memory(desc, cpu(), DNNL_MEMORY_NONE); }

matmul::primitive_desc describe(const ProductKey& key) {
  const memory::desc a = matrix(key.m, key.k, key.ab, key.lda, key.transpose_a);
  const memory::desc c = matrix(key.m, key.n, key.c, key.ldc, false);
  const memory::desc bias({1, key.n}, onednn_type(key.ab), memory::format_tag::ab);
  memory::desc b = matrix(key.k, key.n, key.ab, key.ldb, key.transpose_b);
  if (key.packed_for_m == key.m) {
    b = memory::desc({key.k, key.n}, onednn_type(key.ab), memory::format_tag::any);
  } else if (key.packed_for_m > 0) {
    ProductKey chooser = key;
    chooser.m = key.packed_for_m;
    b = describe(chooser).weights_desc();
  }
  dnnl::primitive_attr attr;
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attr.set_post_ops(sum);
  }
  return describe(a, b, key.bias ? &bias : nullptr, c, attr);
}

// A product of one shape, ready to run on one thread again and again.
class Product {
 public:
  explicit Product(const ProductKey& key) : Product(key, describe(key)) {}

  std::size_t packed_bytes() const { return b_.get_desc().get_size(); }

  void pack(const dnnl::stream& stream, const void* b, void* packed) {
    plain_b_.set_data_handle(const_cast<void*>(b));
    b_.set_data_handle(packed);
    packer_.execute(const_cast<dnnl::stream&>(stream), plain_b_, b_);
  }

  void multiply(const dnnl::stream& stream, const void* a, const void* b, const void* bias, void* c) {
    a_.set_data_handle(const_cast<void*>(a));
    b_.set_data_handle(const_cast<void*>(b));
    c_.set_data_handle(c);
    if (bias != nullptr) bias_.set_data_handle(const_cast<void*>(bias));
    product_.execute(stream, arguments_);
  }

 private:
  Product(const ProductKey& key, const matmul::primitive_desc& desc)
      : product_(desc),
        a_(unbound(desc.src_desc())),
        b_(unbound(desc.weights_desc())),
        c_(unbound(desc.dst_desc())),
        arguments_{{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}} {
    if (key.bias) {
      bias_ = unbound(desc.bias_desc());
      arguments_.emplace(DNNL_ARG_BIAS, bias_);
    }
    if (key.packed_for_m > 0) {
      plain_b_ = unbound(matrix(key.k, key.n, key.ab, key.ldb, key.transpose_b));
      packer_ = dnnl::reorder(plain_b_, b_);
    }
  }

  matmul product_;
  memory a_, b_, c_, bias_, plain_b_;  // memory is a shared handle: arguments_ sees the buffers bound here
  dnnl::reorder packer_;
  std::unordered_map<int, memory> arguments_;
};

// The state of a thread: oneDNN is an OpenMP build, and its primitives must neither be made nor run with more than one
// OpenMP thread here.
class Worker {
 public:
  static Worker& here() {
    static thread_local Worker worker;
    return worker;
  }

  Product& product(const ProductKey& key) {
    if (const auto found = products_.find(key); found != products_.end()) return *found->second;
    if (products_.size() >= kMostProducts) products_.clear();
    return *products_.emplace(key, std::make_unique<Product>(key)).first->second;
  }
  const dnnl::stream& stream() const { return stream_; }
  void* packed_room(std::size_t bytes) { return packed_.get<char>(static_cast<std::int64_t>(bytes)); }

 private:
  static constexpr std::size_t kMostProducts = 256;

  Worker() : stream_((omp_set_num_threads(1), cpu())) {}

  dnnl::stream stream_;
  std::unordered_map<ProductKey, std::unique_ptr<Product>, HashKey> products_;
  Scratch packed_;
};

const char* at(const void* base, std::int64_t elems, DType dtype) {
  return static_cast<const char*>(base) + elems * element_bytes(dtype);
}
char* at(void* base, std::int64_t elems, DType dtype) {
  return static_cast<char*>(base) + elems * element_bytes(dtype);
}

void multiply_plain(const Gemm& op, const void* a, const void* b, void* c) {
  Worker& worker = Worker::here();
  worker.product(whole(op)).multiply(worker.stream(), a, b, op.bias, c);
}

// The packed product, column tile by column tile.
class PackedGemm {
 public:
  PackedGemm(const Gemm& op, const void* a, const void* b, void* c)
      : op_(op),
        a_(a),
        b_(b),
        c_(c),
        rows_(op.m, kTileRows, 16, op.transpose_a ? Parts::kEven : Parts::kAny),
        columns_(op.n, op.transpose_a ? kTransposedTileColumns : kTileColumns, 64,
                 op.transpose_a ? Parts::kAny : Parts::kEven) {}

  void run() {
    Worker& worker = Worker::here();
    panel_bytes_ = (worker.product(key(0, 0)).packed_bytes() + 63) / 64 * 64;
    panels_ = static_cast<char*>(worker.packed_room(panel_bytes_ * static_cast<std::size_t>(columns_.parts())));
    parallel_for(columns_.parts(), [this](std::int64_t column) { pack(column); });
    parallel_for(rows_.parts() * columns_.parts(),
                 [this](std::int64_t i) { multiply(i % rows_.parts(), i / rows_.parts()); });
  }

 private:
  ProductKey key(std::int64_t row, std::int64_t column) const {
    ProductKey key = whole(op_);
    key.m = rows_.length(row);
    key.n = columns_.length(column);
    key.packed_for_m = rows_.length(0);
    return key;
  }
  char* panel(std::int64_t column) const { return panels_ + panel_bytes_ * static_cast<std::size_t>(column); }

  void pack(std::int64_t column) const {
    Worker& worker = Worker::here();
    const std::int64_t offset = columns_.begin(column) * (op_.transpose_b ? op_.k : 1);
    worker.product(key(0, column)).pack(worker.stream(), at(b_, offset, op_.ab), panel(column));
  }

  void multiply(std::int64_t row, std::int64_t column) const {
    Worker& worker = Worker::here();
    const std::int64_t first_row = rows_.begin(row), first_column = columns_.begin(column);
    const void* a = at(a_, first_row * (op_.transpose_a ? 1 : op_.k), op_.ab);
    const void* bias = op_.bias == nullptr ? nullptr : at(op_.bias, first_column, op_.ab);
    worker.product(key(row, column))
        .multiply(worker.stream(), a, panel(column), bias, at(c_, first_row * op_.n + first_column, op_.c));
  }

  const Gemm& op_;
  const void* a_;
  const void* b_;
  void* c_;
  Cut rows_, columns_;
  std::size_t panel_bytes_ = 0;
  char* panels_ = nullptr;
};

void multiply(const Gemm& op, const void* a, const void* b, void* c) {
  if (op.m < kPackRows) return multiply_plain(op, a, b, c);
  PackedGemm(op, a, b, c).run();
}

// oneDNN refuses bf16 on processors older than AVX-512; there it goes through fp32.
bool multiplies_bf16() {
  static const bool answer = [] {
    try {
      Gemm op;
      op.m = op.n = op.k = 16;
      op.ab = op.c = DType::kBF16;
      describe(whole(op));
      return true;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return answer;
}

bool takes_detour(DType dtype) { return dtype == DType::kF16 || (dtype == DType::kBF16 && !multiplies_bf16()); }

}  // namespace

void gemm(const Gemm& op, const void* a, const void* b, void* c) {
  check_gemm(op);
  if (op.m == 0 || op.n == 0) return;
  if (op.add_to != nullptr) return gemm_then_add(op, a, b, c, gemm);
  if (op.k == 0) return gemm_empty(op, c);
  if (op.ab == DType::kF64) return gemm_eigen(op, a, b, c);
  if (takes_detour(op.ab)) return gemm_widened(op, a, b, c, multiply);
  multiply(op, a, b, c);
}

void gemm_batched(const Gemm& op, std::int64_t batch, const BatchStride& stride, const void* a, const void* b,
                  void* c) {
  check_gemm(op);
  if (op.m == 0 || op.n == 0) return;
  parallel_for(batch, [&](std::int64_t i) {
    const void* left = at(a, i * stride.a, op.ab);
    const void* right = at(b, i * stride.b, op.ab);
    void* out = at(c, i * stride.c, op.c);
    if (op.k == 0) {
      gemm_empty(op, out);
    } else if (op.ab == DType::kF64) {
      gemm_eigen(op, left, right, out);
    } else if (takes_detour(op.ab)) {
      gemm_widened(op, left, right, out, multiply_plain);
    } else {
      multiply_plain(op, left, right, out);
    }
  });
}

std::string_view gemm_backend() {
  static const std::string text = [] {
    const dnnl_version_t* version = dnnl::version();
    return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch);
  }();
  return text;
}

}  // namespace loom::kernels
