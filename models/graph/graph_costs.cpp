#include "models/graph/graph_costs.h"

#include <algorithm>
#include <string>
#include <unordered_map>

namespace loom::models {
namespace {

using device::Cost;
using device::Unit;

const std::unordered_map<std::string_view, OpClass>& classes() {
  static const std::unordered_map<std::string_view, OpClass> kClasses = [] {
    std::unordered_map<std::string_view, OpClass> classes;
    const auto add = [&](OpClass op_class, std::initializer_list<std::string_view> names) {
      for (const std::string_view name : names) classes.emplace(name, op_class);
    };
    add(OpClass::kView, {"aten.view",
                         "aten._unsafe_view",
                         "aten.t",
                         "aten.transpose",
                         "aten.slice",
                         "aten.expand",
                         "aten.unsqueeze",
                         "aten.squeeze",
                         "aten.split",
                         "aten.split_with_sizes",
                         "aten.detach",
                         "aten.permute",
                         "aten.unbind",
                         "aten.select",
                         "aten.alias",
                         "aten.lift_fresh",
                         "aten.as_strided",
                         "aten.chunk",
                         "aten.narrow",
                         "aten.diagonal",
                         "aten.unfold",
                         "aten._local_scalar_dense",
                         "aten.empty",
                         "aten.empty_like",
                         "aten.new_empty",
                         "aten.empty_strided",
                         "aten._reshape_alias",
                         "aten.view_as_complex",
                         "aten.view_as_real"});
    add(OpClass::kProduct, {"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"});
    add(OpClass::kConvolution, {"aten.convolution", "aten.convolution_backward"});
    add(OpClass::kGrouped, {"aten._grouped_mm"});
    add(OpClass::kCopy,
        {"aten._to_copy", "aten.clone", "aten.copy_", "aten.contiguous", "aten.cat", "aten.stack", "aten.repeat"});
    add(OpClass::kElementwise, {"rec.rms_norm",
                                "rec.rms_norm_backward",
                                "aten.native_layer_norm",
                                "aten.native_layer_norm_backward",
                                "aten._fused_rms_norm",
                                "aten._fused_rms_norm_backward",
                                "aten.native_group_norm",
                                "aten.native_group_norm_backward",
                                "aten.native_batch_norm",
                                "aten.native_batch_norm_backward",
                                "aten.mul",
                                "aten.mul_",
                                "aten.add",
                                "aten.add_",
                                "aten.sub",
                                "aten.sub_",
                                "aten.rsub",
                                "aten.div",
                                "aten.div_",
                                "aten.pow",
                                "aten.neg",
                                "aten.abs",
                                "aten.sqrt",
                                "aten.rsqrt",
                                "aten.reciprocal",
                                "aten.exp",
                                "aten.log",
                                "aten.log1p",
                                "aten.sin",
                                "aten.cos",
                                "aten.tanh",
                                "aten.tanh_backward",
                                "aten.sigmoid",
                                "aten.sigmoid_backward",
                                "aten.silu",
                                "aten.silu_backward",
                                "aten.gelu",
                                "aten.gelu_backward",
                                "aten.relu",
                                "aten.threshold_backward",
                                "aten.softplus",
                                "aten.softplus_backward",
                                "aten.leaky_relu",
                                "aten.hardtanh",
                                "aten.clamp",
                                "aten.clamp_min",
                                "aten.clamp_max",
                                "aten.maximum",
                                "aten.minimum",
                                "aten.where",
                                "aten.eq",
                                "aten.ne",
                                "aten.lt",
                                "aten.le",
                                "aten.gt",
                                "aten.ge",
                                "aten.logical_and",
                                "aten.logical_or",
                                "aten.logical_not",
                                "aten.bitwise_and",
                                "aten.bitwise_or",
                                "aten.bitwise_not",
                                "aten.masked_fill",
                                "aten.masked_fill_",
                                "aten.fill",
                                "aten.fill_",
                                "aten.zero_",
                                "aten.zeros",
                                "aten.zeros_like",
                                "aten.ones",
                                "aten.ones_like",
                                "aten.full",
                                "aten.full_like",
                                "aten.new_zeros",
                                "aten.new_ones",
                                "aten.new_full",
                                "aten.scalar_tensor",
                                "aten.arange",
                                "aten.sum",
                                "aten.mean",
                                "aten.amax",
                                "aten.amin",
                                "aten.max",
                                "aten.min",
                                "aten.argmax",
                                "aten.argmin",
                                "aten.prod",
                                "aten.cumsum",
                                "aten.var",
                                "aten.var_mean",
                                "aten.any",
                                "aten.all",
                                "aten.linalg_vector_norm",
                                "aten.floor_divide",
                                "aten.floor",
                                "aten.round",
                                "aten.remainder",
                                "aten.triu",
                                "aten.tril",
                                "aten._softmax",
                                "aten._softmax_backward_data",
                                "aten._log_softmax",
                                "aten._log_softmax_backward_data",
                                "aten.nll_loss_forward",
                                "aten.nll_loss_backward",
                                "aten.nll_loss2d_forward",
                                "aten.nll_loss2d_backward",
                                "aten.mse_loss",
                                "aten.mse_loss_backward",
                                "aten.native_dropout",
                                "aten.native_dropout_backward",
                                "aten.bernoulli",
                                "aten.bernoulli_",
                                "aten.embedding",
                                "aten.embedding_dense_backward",
                                "aten.index",
                                "aten.index_put",
                                "aten.index_put_",
                                "aten.index_select",
                                "aten.index_add",
                                "aten.gather",
                                "aten.scatter",
                                "aten.scatter_",
                                "aten.scatter_add",
                                "aten.scatter_add_",
                                "aten.sort",
                                "aten.topk",
                                "aten.histc",
                                "aten.bincount",
                                "aten.slice_backward",
                                "aten.select_backward",
                                "aten.slice_scatter",
                                "aten.constant_pad_nd",
                                "aten.roll",
                                "aten.flip",
                                "aten.repeat_interleave",
                                "aten.masked_scatter",
                                "aten.masked_scatter_backward",
                                "aten.unique_consecutive",
                                "aten._is_all_true",
                                "aten.isin",
                                "aten.upsample_bilinear2d",
                                "aten.upsample_bicubic2d",
                                "aten.upsample_nearest2d",
                                "aten.avg_pool2d",
                                "aten.max_pool2d_with_indices",
                                "aten.erf",
                                "aten.mish",
                                "aten.elu",
                                "aten.glu",
                                "aten.glu_backward",
                                "aten.log_sigmoid_forward",
                                "aten.randn_like",
                                "aten.rand_like",
                                "aten.randint",
                                "aten.outer",
                                "aten.addcmul",
                                "aten.addcdiv",
                                "aten.lerp",
                                "aten.polar",
                                "aten.atan2"});
    return classes;
  }();
  return kClasses;
}

bool is_backward(std::string_view name) { return name.find("_backward") != std::string_view::npos; }

double times(std::int64_t a, std::int64_t b, std::int64_t c) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

std::int64_t moved_bytes(const ModelGraph& graph, int tensor) {
  const GraphTensor& t = graph.tensors[static_cast<std::size_t>(tensor)];
  return std::min(t.nbytes(), graph.storages[static_cast<std::size_t>(t.storage)].bytes);
}

Cost bytes_cost(const ModelGraph& graph, const GraphOp& op) {
  Cost cost;
  for (const int in : op.ins) cost.read_bytes += moved_bytes(graph, in);
  for (const int out : op.outs) cost.written_bytes += moved_bytes(graph, out);
  return cost;
}

void set_matrix(Cost& cost, DType dtype, std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
  cost.unit = Unit::kMatrix;
  cost.dtype = dtype;
  cost.batch = batch;
  cost.m = m;
  cost.n = n;
  cost.k = k;
  cost.flops = 2.0 * static_cast<double>(batch) * times(m, n, k);
}

// The last two inputs are the factors: [.., m, k] and [.., k, n].
void price_product(const ModelGraph& graph, const GraphOp& op, Cost& cost) {
  if (op.ins.size() < 2) return;
  const GraphTensor& a = graph.tensors[static_cast<std::size_t>(op.ins[op.ins.size() - 2])];
  const GraphTensor& b = graph.tensors[static_cast<std::size_t>(op.ins.back())];
  if (a.shape.ndim() < 2 || b.shape.ndim() != a.shape.ndim()) return;
  const std::int64_t batch = a.shape.ndim() == 3 ? a.shape[0] : 1;
  set_matrix(cost, b.dtype, batch, a.shape[-2], b.shape[-1], a.shape[-1]);
}

// Rows of the experts one behind the other: 2 rows K N, whatever each expert's part. The third form, of the weights'
// gradient, has [K, rows] and [rows, N].
void price_grouped(const ModelGraph& graph, const GraphOp& op, Cost& cost) {
  if (op.ins.size() < 2) return;
  const GraphTensor& a = graph.tensors[static_cast<std::size_t>(op.ins[0])];
  const GraphTensor& b = graph.tensors[static_cast<std::size_t>(op.ins[1])];
  if (a.shape.ndim() < 2 || b.shape.ndim() < 2) return;
  set_matrix(cost, b.dtype, 1, a.shape[-2], b.shape[-1], a.shape[-1]);
}

// By the products that the recording counted: 2 rows channels window of each.
void price_convolution(const ModelGraph& graph, const GraphOp& op, Cost& cost) {
  const GraphTensor& weight = graph.tensors[static_cast<std::size_t>(op.ins[is_backward(graph.ops[op.name]) ? 2 : 1])];
  const std::int64_t channels = std::max<std::int64_t>(1, weight.shape[0]);
  const std::int64_t window = std::max<std::int64_t>(1, weight.shape.row_elems());
  const auto rows = static_cast<std::int64_t>(op.flops / (2.0 * times(channels, window, 1)));
  set_matrix(cost, weight.dtype, 1, rows, channels, window);
}

// q [B, H, S, D], k and v with their own lengths and widths; of backward behind the gradient of the output.
void price_attention(const ModelGraph& graph, const GraphOp& op, Cost& cost) {
  const bool backward = is_backward(graph.ops[static_cast<std::size_t>(op.name)]);
  const std::size_t first = backward ? 1 : 0;
  if (op.ins.size() < first + 3) return;
  const auto shape = [&](std::size_t i) -> const Shape& {
    return graph.tensors[static_cast<std::size_t>(op.ins[first + i])].shape;
  };
  const Shape &q = shape(0), &k = shape(1), &v = shape(2);
  if (q.ndim() < 3 || k.ndim() < 3 || v.ndim() < 3) return;
  cost.unit = Unit::kAttention;
  cost.dtype = graph.tensors[static_cast<std::size_t>(op.ins[first])].dtype;
  cost.batch = q.numel() / std::max<std::int64_t>(1, q[-2] * q[-1]);
  cost.m = q[-2];
  cost.n = k[-2];
  cost.k = q[-1];
  cost.work = backward ? device::WorkKind::kAttentionBackward : device::WorkKind::kAttention;
  const double scores = static_cast<double>(cost.batch) * times(cost.m, cost.n, 1) * (op.is_causal ? 0.5 : 1.0);
  cost.flops = 2.0 * scores * static_cast<double>(q[-1] + v[-1]) * (backward ? 2.5 : 1.0);
}

}  // namespace

OpClass class_of(std::string_view name) {
  if (const std::size_t overload = name.find('.', name.find('.') + 1); overload != std::string_view::npos) {
    name = name.substr(0, overload);
  }
  if (name.starts_with("aten._scaled_dot_product") || name.starts_with("rec.sdpa") ||
      name.starts_with("aten._efficient_attention") || name.starts_with("aten._flash_attention")) {
    return OpClass::kAttention;
  }
  const auto found = classes().find(name);
  return found == classes().end() ? OpClass::kUnknown : found->second;
}

Cost cost_of(const ModelGraph& graph, const GraphOp& op, OpClass op_class) {
  Cost cost = bytes_cost(graph, op);
  switch (op_class) {
    case OpClass::kProduct:
      price_product(graph, op, cost);
      break;
    case OpClass::kGrouped:
      price_grouped(graph, op, cost);
      break;
    case OpClass::kConvolution:
      if (op.ins.size() > 2 || (op.ins.size() == 2 && !is_backward(graph.ops[static_cast<std::size_t>(op.name)]))) {
        price_convolution(graph, op, cost);
      }
      break;
    case OpClass::kAttention:
      price_attention(graph, op, cost);
      break;
    case OpClass::kCopy:
      cost.unit = Unit::kCopy;
      break;
    default:
      for (const int out : op.outs) {
        cost.flops += static_cast<double>(graph.tensors[static_cast<std::size_t>(out)].shape.numel());
      }
  }
  return cost;
}

}  // namespace loom::models
