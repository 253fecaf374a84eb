// ModelGraph: one training step of a PyTorch model as tools/record_model.py wrote it, at the sizes of a job.
//
// File     JSON, may be compressed with gzip; format "shardloom-graph", versions 0 and 1 (docs/model-graphs.md). Ids
//          are positions in their tables. Numbers that depend on the batch or the sequence are forms, which are
//          evaluated here: a ModelGraph has plain numbers.
// Events   in the order of the host: entries and exits of modules, operators, storages that only autograd still holds,
//          saved tensors, nodes of the backward, gradients of parameters.
// Errors   ConfigError "FILE: events[12]: ..." for an unknown format, version or event, an id out of range, a size
//          below 0 or beyond 2^50 bytes, and for sizes that the file does not hold (the sizes it holds are named).
// Limits   256 MiB of text.
// Source   docs/model-graphs.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/shape.h"

namespace loom::models {

// Whose bytes a storage has.
enum class StorageKind : std::uint8_t { kParameter, kBuffer, kInput, kTemporary };

struct GraphStorage {
  std::int64_t bytes = 0;
  StorageKind kind = StorageKind::kTemporary;
};

// A view of a storage. Strides are not kept.
struct GraphTensor {
  int storage = 0;
  DType dtype = DType::kF32;
  Shape shape;

  std::int64_t nbytes() const { return shape.numel() * element_bytes(dtype); }
};

struct GraphModule {
  std::string path;  // "" is the root
  std::string type;
};

struct GraphParameter {
  std::string name;  // the path of a slot
  int tensor = 0;
  bool requires_grad = true;
};

// Another slot of a parameter.
struct GraphTie {
  std::string name;
  std::string of;
};

// Another path of a module, as a property of the model's class gives it.
struct GraphAlias {
  std::string alias;
  std::string path;
};

struct GraphBuffer {
  std::string name;
  int tensor = 0;
};

// A tensor that the model is called with.
struct GraphInput {
  std::string name;
  int tensor = 0;
};

enum class EventKind : std::uint8_t {
  kEnter,     // module; ids: the tensors among its positional arguments; number: of the call
  kExit,      // module; ids: its results
  kOp,        // see GraphOp
  kFree,      // id: a storage that nobody but autograd holds
  kSave,      // id: the save, ids: its tensor; number: the sequence number of its node
  kUnpack,    // id: the save
  kDrop,      // id: the save
  kLoss,      // ids: the tensor
  kBackward,  // begins
  kNode,      // number: the sequence number of the node that ended
  kGrad,      // ids: the gradient of a parameter
  kEnd
};

struct GraphOp {
  int name = 0;  // in ModelGraph::ops
  std::vector<int> ins;
  std::vector<int> outs;
  double flops = 0;
  std::int64_t sequence = -1;  // of the node of the tape; -1: none
  std::string node;            // of the backward that runs it; empty in forward
  int module = 0;
  bool is_causal = false;   // of attention
  std::vector<int> writes;  // arguments that it changes in place
};

struct GraphEvent {
  EventKind kind = EventKind::kEnd;
  int id = 0;
  std::int64_t number = 0;
  std::vector<int> ids;
  int op = 0;  // in ModelGraph::operators
};

struct ModelGraph {
  std::string file;  // as errors show it
  std::string type;  // the class of the model
  DType compute_dtype = DType::kBF16;
  bool attention_is_a_node = false;  // else the kernels of the machine that recorded
  std::vector<GraphModule> modules;
  std::vector<GraphParameter> parameters;
  std::vector<GraphTie> ties;
  std::vector<GraphAlias> aliases;
  std::vector<GraphBuffer> buffers;
  std::vector<GraphInput> inputs;
  std::vector<GraphStorage> storages;
  std::vector<GraphTensor> tensors;
  std::vector<std::string> ops;
  std::vector<GraphOp> operators;
  std::vector<GraphEvent> events;
};

// The values of the file's symbols: "B" rows of a micro-batch, "S" tokens of a row, and others of the file.
using GraphSizes = std::map<std::string, std::int64_t>;

// The sizes that a file holds of one of its symbols.
struct GraphSymbol {
  std::int64_t recorded = 0;
  std::int64_t least = 1;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();

  bool has(std::int64_t value) const { return value >= least && value <= most; }
};

// A file that is read once for several sizes. Copies share it. Any thread.
class GraphFile {
 public:
  explicit GraphFile(const std::filesystem::path& path);

  const std::map<std::string, GraphSymbol>& symbols() const;
  // A symbol that is left out has the value it was recorded with.
  ModelGraph at(const GraphSizes& sizes = {}) const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace loom::models
