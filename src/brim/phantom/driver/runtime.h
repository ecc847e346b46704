/* What the files of the CUDA runtime share: its types and errors, by its public documentation. */
#pragma once
#include "phantom.h"

typedef int Error; /* cudaError_t */
enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  MEMORY_ALLOCATION = 2,
  INITIALIZATION_ERROR = 3,
  INVALID_SYMBOL = 13,
  INVALID_DEVICE_FUNCTION = 98,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  NO_KERNEL_IMAGE = 209,
  INVALID_HANDLE = 400,
  SYMBOL_NOT_FOUND = 500,
  NOT_SUPPORTED = 801,
};

typedef struct {
  unsigned x, y, z;
} Dim3;

typedef struct Stream Stream; /* cudaStream_t */

/* Keep an error for cudaGetLastError, and return it. */
Error failed(Error error);
/* The error of a device that cannot be used by this process, or success. */
Error check_device(int device);
