/* cuBLAS: handles and what they hold. torch gives every handle a workspace of its own, so none is taken here. */
#include "blas.h"

#include <stdlib.h>

const char *blas_status_name(BlasStatus status) {
  switch (status) {
    case BLAS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case BLAS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case BLAS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case BLAS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case BLAS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case BLAS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case BLAS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case BLAS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case BLAS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case BLAS_LICENSE_ERROR: return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "CUBLAS_STATUS_UNKNOWN";
}
API const char *cublasGetStatusName(BlasStatus status) { return blas_status_name(status); }
API const char *cublasGetStatusString(BlasStatus status) { return blas_status_name(status); }

/* ---- Versions ---- */

BlasStatus blas_property(int property, int *value) {
  int version = account()->cublas_version;
  const int parts[] = {version / 10000, version / 100 % 100, version % 100};
  if (property < 0 || property > 2 || !value) return BLAS_INVALID_VALUE;
  *value = parts[property];
  return BLAS_SUCCESS;
}
API BlasStatus cublasGetProperty(int property, int *value) { return blas_property(property, value); }
API BlasStatus cublasGetVersion_v2(BlasHandle *handle, int *version) {
  (void)handle;
  if (!version) return BLAS_INVALID_VALUE;
  *version = account()->cublas_version;
  return BLAS_SUCCESS;
}
API size_t cublasGetCudartVersion(void) { return (size_t)account()->cuda_version; }

/* ---- Handles ---- */

API BlasStatus cublasCreate_v2(BlasHandle **handle) {
  if (!handle) return BLAS_INVALID_VALUE;
  *handle = NULL;
  if (!num_devices()) return BLAS_NOT_INITIALIZED;
  if (!use_device(current_device)) return BLAS_ALLOC_FAILED;
  *handle = calloc(1, sizeof **handle);
  return *handle ? BLAS_SUCCESS : BLAS_ALLOC_FAILED;
}
API BlasStatus cublasDestroy_v2(BlasHandle *handle) {
  if (!handle) return BLAS_NOT_INITIALIZED;
  free(handle);
  return BLAS_SUCCESS;
}
API BlasStatus cublasSetWorkspace_v2(BlasHandle *handle, void *workspace, size_t bytes) {
  (void)workspace, (void)bytes;
  return handle ? BLAS_SUCCESS : BLAS_NOT_INITIALIZED;
}

#define FIELD(name, type, field)                                     \
  API BlasStatus cublasSet##name(BlasHandle *handle, type value) {   \
    if (!handle) return BLAS_NOT_INITIALIZED;                        \
    handle->field = value;                                           \
    return BLAS_SUCCESS;                                             \
  }                                                                  \
  API BlasStatus cublasGet##name(BlasHandle *handle, type *value) {  \
    if (!handle) return BLAS_NOT_INITIALIZED;                        \
    if (!value) return BLAS_INVALID_VALUE;                           \
    *value = handle->field;                                          \
    return BLAS_SUCCESS;                                             \
  }
FIELD(Stream_v2, void *, stream)
FIELD(PointerMode_v2, int, pointer_mode)
FIELD(MathMode, int, math_mode)
FIELD(AtomicsMode, int, atomics_mode)
FIELD(SmCountTarget, int, sm_count_target)

/* ---- Copies of matrices and vectors: the same both ways, since addresses tell where memory is ---- */

static BlasStatus copy_columns(int rows, int columns, int element_bytes, const char *from, int from_rows, char *to,
                               int to_rows) {
  if (rows < 0 || columns < 0 || element_bytes <= 0 || from_rows <= 0 || to_rows <= 0) return BLAS_INVALID_VALUE;
  size_t bytes = (size_t)rows * (size_t)element_bytes;
  for (size_t column = 0; column < (size_t)columns; column++)
    copy_bytes(to + column * (size_t)to_rows * (size_t)element_bytes,
               from + column * (size_t)from_rows * (size_t)element_bytes, bytes);
  return BLAS_SUCCESS;
}

static BlasStatus copy_vector(int count, int element_bytes, const void *from, int from_step, void *to, int to_step) {
  if (from_step == 1 && to_step == 1) return copy_columns(count, 1, element_bytes, from, 1, to, 1);
  return copy_columns(1, count, element_bytes, from, from_step, to, to_step);
}

#define COPIES(name)                                                                                             \
  API BlasStatus cublas##name##Matrix(int rows, int columns, int element_bytes, const void *from, int from_rows, \
                                      void *to, int to_rows) {                                                   \
    return copy_columns(rows, columns, element_bytes, from, from_rows, to, to_rows);                             \
  }                                                                                                              \
  API BlasStatus cublas##name##MatrixAsync(int rows, int columns, int element_bytes, const void *from,           \
                                           int from_rows, void *to, int to_rows, void *stream) {                 \
    (void)stream;                                                                                                \
    return copy_columns(rows, columns, element_bytes, from, from_rows, to, to_rows);                             \
  }                                                                                                              \
  API BlasStatus cublas##name##Vector(int count, int element_bytes, const void *from, int from_step, void *to,   \
                                      int to_step) {                                                             \
    return copy_vector(count, element_bytes, from, from_step, to, to_step);                                      \
  }                                                                                                              \
  API BlasStatus cublas##name##VectorAsync(int count, int element_bytes, const void *from, int from_step,        \
                                           void *to, int to_step, void *stream) {                                \
    (void)stream;                                                                                                \
    return copy_vector(count, element_bytes, from, from_step, to, to_step);                                      \
  }
COPIES(Set)
COPIES(Get)
