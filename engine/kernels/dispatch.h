// From a DType at run time to an element type at compile time. Private to engine.
//
// visit_float_dtype("add", dtype, [&]<class T>() { ... });   T: float, bf16, f16, double
// visit_index_dtype("embedding_forward", dtype, [&]<class I>() { ... });   I: std::int32_t, std::int64_t
// visit_dtype(dtype, [&]<class T>() { ... });   T: every element type; bool for kBool
// Errors   any other dtype is a ModelError naming the kernel and the dtype.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/core/dtype.h"
#include "engine/core/error.h"

namespace loom::kernels {

template <class Body>
decltype(auto) visit_float_dtype(std::string_view kernel, DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body.template operator()<float>();
    case DType::kBF16:
      return body.template operator()<bf16>();
    case DType::kF16:
      return body.template operator()<f16>();
    case DType::kF64:
      return body.template operator()<double>();
    default:
      break;
  }
  model_error("{} takes fp32, bf16, fp16 or fp64, got {}; cast it", kernel, name(dtype));
}

template <class Body>
decltype(auto) visit_index_dtype(std::string_view kernel, DType dtype, Body&& body) {
  if (dtype == DType::kI32) return body.template operator()<std::int32_t>();
  if (dtype == DType::kI64) return body.template operator()<std::int64_t>();
  model_error("{} takes indices of int32 or int64, got {}; cast it", kernel, name(dtype));
}

template <class Body>
decltype(auto) visit_dtype(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body.template operator()<float>();
    case DType::kBF16:
      return body.template operator()<bf16>();
    case DType::kF16:
      return body.template operator()<f16>();
    case DType::kF64:
      return body.template operator()<double>();
    case DType::kI8:
      return body.template operator()<std::int8_t>();
    case DType::kI16:
      return body.template operator()<std::int16_t>();
    case DType::kI32:
      return body.template operator()<std::int32_t>();
    case DType::kI64:
      return body.template operator()<std::int64_t>();
    case DType::kU8:
      return body.template operator()<std::uint8_t>();
    case DType::kBool:
      return body.template operator()<bool>();
  }
  raise<InvariantError>("internal: dtype number {} does not exist", static_cast<int>(dtype));
}

}  // namespace loom::kernels
