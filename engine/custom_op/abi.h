// The interface of custom operator libraries: what a shared library of operators exports, in C.
//
// Library   exports one function, loom_custom_ops(), with C linkage, which returns a table of operators. The table and
//           all that it points to are constant and live as long as the process. The library includes this header only
//           and links nothing of Shardloom (docs/custom-operators.md).
// Version   the table begins with the version of this header. Another version is refused before anything else of the
//           table is read.
// Calls     `shape` and the cost functions get tensors without data: they depend on shapes, dtypes and attributes only,
//           and a plan calls no other function. `forward` and `backward` get data.
// Bytes     tensors are dense and row-major. Outputs do not overlap inputs, and their contents are undefined before
//           the call. A kernel writes every element of its outputs and nothing else, and keeps no pointer.
// Bits      a kernel runs on the thread that calls it, which is the rank's; the engine gives it no thread pool.
//           The same inputs must give the same bits: recompute runs forward again, and ranks compare results.
// Threads   ranks are threads, so that calls run at the same time: no function changes state that calls share.
// Errors    a function returns 0, or another number after it wrote why into `message`. Nothing is thrown: an
//           exception must not cross this boundary (loom_no_throw() turns one into a message).
// Language  C11 and C++11 or later.
#pragma once

// NOLINTBEGIN: C
#include <stdint.h>

#ifdef __cplusplus
#include <exception>
extern "C" {
#endif

#define LOOM_CUSTOM_OP_ABI 1u

#define LOOM_MOST_DIMS 8
#define LOOM_MOST_TENSORS 16  // inputs of an operator, and outputs
#define LOOM_MESSAGE_BYTES 512

// Values never change. bf16 and fp16 are 16-bit words; bool is a byte that is 0 or 1.
typedef enum LoomDType {
  LOOM_F32 = 0,
  LOOM_BF16 = 1,
  LOOM_F16 = 2,
  LOOM_F64 = 3,
  LOOM_I8 = 4,
  LOOM_I16 = 5,
  LOOM_I32 = 6,
  LOOM_I64 = 7,
  LOOM_U8 = 8,
  LOOM_BOOL = 9
} LoomDType;

// A set of dtypes: LOOM_DTYPE_BIT(LOOM_F32) | LOOM_DTYPE_BIT(LOOM_F64).
#define LOOM_DTYPE_BIT(dtype) (1u << (dtype))

typedef struct LoomShape {
  int64_t sizes[LOOM_MOST_DIMS];  // outermost first
  int32_t dims;                   // 0: a scalar, of one element
  int32_t dtype;                  // LoomDType
} LoomShape;

typedef struct LoomTensor {
  void* data;  // NULL: not given (see the function that gets it), or no elements
  int64_t elems;
  LoomShape shape;
} LoomTensor;

// Text of at most LOOM_MESSAGE_BYTES - 1 bytes, UTF-8, which ends with a zero byte.
typedef struct LoomMessage {
  char text[LOOM_MESSAGE_BYTES];
} LoomMessage;

typedef enum LoomUnit {
  LOOM_VECTOR = 0,  // element-wise work and reductions: priced by flops and bytes
  LOOM_MATRIX = 1   // `batch` products [m, k] x [k, n]: priced by their shape
} LoomUnit;

// What a kernel takes of the device.
typedef struct LoomCost {
  double flops;           // additions and multiplications
  int64_t read_bytes;     // that it reads from device memory
  int64_t written_bytes;  // that it writes there
  int32_t unit;           // LoomUnit
  int32_t dtype;          // LoomDType of a product
  int64_t batch, m, n, k;
} LoomCost;

// The arguments of one call. `attributes` are the numbers that the caller gave, in the order of the operator.
typedef struct LoomCall {
  const LoomTensor* inputs;
  const double* attributes;
  int32_t input_count;
  int32_t attribute_count;
} LoomCall;

// The arguments of one backward.
typedef struct LoomGradCall {
  LoomCall call;                   // of forward; data of the inputs that the operator saves, NULL for others
  const LoomTensor* outputs;       // of forward; data of the outputs that it saves, NULL for others
  const LoomTensor* output_grads;  // one for each output, with its shape and dtype; data NULL for integers
  int32_t output_count;
} LoomGradCall;

typedef struct LoomOperator {
  const char* name;  // a-z, 0-9, _ and ., at most 64 bytes; unique among all libraries of a rank

  // The schema.
  int32_t inputs;                // 1 to LOOM_MOST_TENSORS
  int32_t outputs;               // 1 to LOOM_MOST_TENSORS
  int32_t attributes;            // numbers beside the tensors: 0 to LOOM_MOST_TENSORS
  int32_t saves_inputs;          // bit i: backward reads input i
  int32_t saves_outputs;         // bit i: backward reads output i
  const uint32_t* input_dtypes;  // the dtypes of each input, as a set

  // Shapes and dtypes of the outputs. Refuses shapes that the operator does not take, with a message.
  int32_t (*shape)(const LoomCall* call, LoomShape* outputs, LoomMessage* message);
  // What forward takes of the device. `outputs` have no data.
  int32_t (*cost)(const LoomCall* call, const LoomTensor* outputs, LoomCost* cost, LoomMessage* message);
  int32_t (*forward)(const LoomCall* call, const LoomTensor* outputs, LoomMessage* message);

  // The gradients of the inputs, each with shape and dtype of its input; data NULL for an input that needs none.
  // `grad_cost` is that of all gradients.
  // NULL, both: the operator has no backward, and training through it is an error.
  int32_t (*grad_cost)(const LoomGradCall* call, LoomCost* cost, LoomMessage* message);
  int32_t (*backward)(const LoomGradCall* call, const LoomTensor* input_grads, LoomMessage* message);
} LoomOperator;

typedef struct LoomOperatorTable {
  uint32_t abi;             // LOOM_CUSTOM_OP_ABI
  uint32_t operator_bytes;  // sizeof(LoomOperator)
  uint32_t count;           // of operators: 1 to 4096
  uint32_t reserved;        // 0
  const LoomOperator* operators;
} LoomOperatorTable;

#define LOOM_CUSTOM_OPS_SYMBOL "loom_custom_ops"

#if defined(__GNUC__)
#define LOOM_EXPORT __attribute__((visibility("default")))
#else
#define LOOM_EXPORT
#endif

// Defined by the library.
LOOM_EXPORT const LoomOperatorTable* loom_custom_ops(void);

// Writes a text into a message, cut to its size, and returns 1.
static inline int32_t loom_fail(LoomMessage* message, const char* text) {
  int i = 0;
  for (; i < LOOM_MESSAGE_BYTES - 1 && text[i] != 0; ++i) message->text[i] = text[i];
  message->text[i] = 0;
  return 1;
}

#ifdef __cplusplus
}  // extern "C"

// The body of a function written in C++: runs it, and returns what it returns, or the text of its exception.
template <class Body>
int32_t loom_no_throw(LoomMessage* message, Body body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    return loom_fail(message, error.what());
  } catch (...) {
    return loom_fail(message, "an exception that is no std::exception");
  }
}
#endif
// NOLINTEND
