/* What the files of cuBLAS and cuBLASLt share. */
#pragma once
#include "phantom.h"

typedef enum {
  BLAS_SUCCESS = 0,
  BLAS_NOT_INITIALIZED = 1,
  BLAS_ALLOC_FAILED = 3,
  BLAS_INVALID_VALUE = 7,
  BLAS_ARCH_MISMATCH = 8,
  BLAS_MAPPING_ERROR = 11,
  BLAS_EXECUTION_FAILED = 13,
  BLAS_INTERNAL_ERROR = 14,
  BLAS_NOT_SUPPORTED = 15,
  BLAS_LICENSE_ERROR = 16,
} BlasStatus;

enum { POINTERS_ON_HOST = 0, POINTERS_ON_DEVICE = 1 };

typedef struct {
  void *stream;
  int math_mode, pointer_mode, atomics_mode, sm_count_target;
} BlasHandle;

const char *blas_status_name(BlasStatus status);
/* The parts of a version by the numbers of `libraryPropertyType`: 0 major, 1 minor, 2 patch. */
BlasStatus blas_property(int property, int *value);
