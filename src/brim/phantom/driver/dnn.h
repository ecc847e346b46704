/* What the files of cuDNN share. */
#pragma once
#include "phantom.h"

typedef enum {
  DNN_SUCCESS = 0,
  DNN_NOT_INITIALIZED = 1001,
  DNN_BAD_PARAM = 2000,
  DNN_NOT_SUPPORTED = 3000,
  DNN_INTERNAL_ERROR = 4000,
  DNN_ALLOC_FAILED = 4003,
  DNN_EXECUTION_FAILED = 5000,
} DnnStatus;

enum { MAX_DIMENSIONS = 8 };

typedef struct {
  void *stream;
} DnnHandle;

/* A tensor, or a filter, whose `format` tells in which order its numbers lie. */
typedef struct {
  int type, format, num_dimensions;
  int64_t sizes[MAX_DIMENSIONS], strides[MAX_DIMENSIONS];
} Tensor;

/* The bytes of a number by `cudnnDataType_t`. */
size_t bytes_of_type(int type);

/* ---- What a convolution needs besides its tensors ---- */

typedef enum { NO_CONVOLUTION, FORWARD, WEIGHT_GRADIENT, INPUT_GRADIENT } Pass;

typedef struct {
  Pass pass;
  Tensor images, weights, outputs; /* or the gradients of each */
  int num_spatial;
  int64_t paddings[MAX_DIMENSIONS], strides[MAX_DIMENSIONS], dilations[MAX_DIMENSIONS];
} Convolution;

/* The bytes that cuDNN's choice of an algorithm asks for. Every question about a convolution ends here. */
size_t convolution_workspace(const Convolution *convolution);
