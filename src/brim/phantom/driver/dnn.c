/* cuDNN: handles, versions, errors, and the descriptors of tensors. */
#include "dnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parameters are named for the reader; what computes nothing uses few of them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

size_t bytes_of_type(int type) {
  enum { FLOAT, DOUBLE, HALF, INT8, INT32, INT8X4, UINT8, UINT8X4, INT8X32, BFLOAT16, INT64 };
  switch (type) {
    case FLOAT:
    case INT32:
    case INT8X4:
    case UINT8X4: return 4;
    case DOUBLE:
    case INT64: return 8;
    case HALF:
    case BFLOAT16: return 2;
    case INT8X32: return 32;
  }
  return 1; /* bytes, truth values, and the small floats */
}

/* ---- Versions and errors ---- */

API size_t cudnnGetVersion(void) { return (size_t)account()->cudnn_version; }
API size_t cudnnGetCudartVersion(void) { return (size_t)account()->cuda_version; }

API DnnStatus cudnnGetProperty(int property, int *value) {
  int version = account()->cudnn_version;
  const int parts[] = {version / 10000, version / 100 % 100, version % 100};
  if (property < 0 || property > 2 || !value) return DNN_BAD_PARAM;
  *value = parts[property];
  return DNN_SUCCESS;
}

API const char *cudnnGetErrorString(DnnStatus status) {
  switch (status) {
    case DNN_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case DNN_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case DNN_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case DNN_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case DNN_INTERNAL_ERROR: return "CUDNN_STATUS_INTERNAL_ERROR";
    case DNN_ALLOC_FAILED: return "CUDNN_STATUS_ALLOC_FAILED";
    case DNN_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
  }
  return "CUDNN_STATUS_UNKNOWN";
}

API void cudnnGetLastErrorString(char *message, size_t bytes) {
  if (message && bytes) snprintf(message, bytes, "a phantom GPU keeps no details");
}

/* ---- Handles ---- */

API DnnStatus cudnnCreate(DnnHandle **handle) {
  if (!handle) return DNN_BAD_PARAM;
  *handle = NULL;
  if (!num_devices()) return DNN_NOT_INITIALIZED;
  if (!use_device(current_device)) return DNN_ALLOC_FAILED;
  *handle = calloc(1, sizeof **handle);
  return *handle ? DNN_SUCCESS : DNN_ALLOC_FAILED;
}
API DnnStatus cudnnDestroy(DnnHandle *handle) {
  free(handle);
  return DNN_SUCCESS;
}
API DnnStatus cudnnSetStream(DnnHandle *handle, void *stream) {
  if (!handle) return DNN_BAD_PARAM;
  handle->stream = stream;
  return DNN_SUCCESS;
}
API DnnStatus cudnnGetStream(DnnHandle *handle, void **stream) {
  if (!handle || !stream) return DNN_BAD_PARAM;
  *stream = handle->stream;
  return DNN_SUCCESS;
}

/* ---- Tensors and filters ---- */

#define DESCRIPTOR_OF_TENSOR(Kind)                                    \
  API DnnStatus cudnnCreate##Kind##Descriptor(Tensor **descriptor) {  \
    if (!descriptor) return DNN_BAD_PARAM;                            \
    *descriptor = calloc(1, sizeof **descriptor);                     \
    return *descriptor ? DNN_SUCCESS : DNN_ALLOC_FAILED;              \
  }                                                                   \
  API DnnStatus cudnnDestroy##Kind##Descriptor(Tensor *descriptor) {  \
    free(descriptor);                                                 \
    return DNN_SUCCESS;                                               \
  }
DESCRIPTOR_OF_TENSOR(Tensor)
DESCRIPTOR_OF_TENSOR(Filter)

API DnnStatus cudnnSetTensorNdDescriptor(Tensor *tensor, int type, int num_dimensions, const int *sizes,
                                         const int *strides) {
  if (!tensor || !sizes || !strides || num_dimensions < 0 || num_dimensions > MAX_DIMENSIONS) return DNN_BAD_PARAM;
  *tensor = (Tensor){.type = type, .num_dimensions = num_dimensions};
  for (int i = 0; i < num_dimensions; i++) {
    tensor->sizes[i] = sizes[i];
    tensor->strides[i] = strides[i];
  }
  return DNN_SUCCESS;
}

/* No more than `num_wanted` dimensions are written, and how many there are. */
API DnnStatus cudnnGetTensorNdDescriptor(const Tensor *tensor, int num_wanted, int *type, int *num_dimensions,
                                         int *sizes, int *strides) {
  if (!tensor || num_wanted < 0) return DNN_BAD_PARAM;
  if (type) *type = tensor->type;
  if (num_dimensions) *num_dimensions = tensor->num_dimensions;
  for (int i = 0; i < num_wanted && i < tensor->num_dimensions; i++) {
    if (sizes) sizes[i] = (int)tensor->sizes[i];
    if (strides) strides[i] = (int)tensor->strides[i];
  }
  return DNN_SUCCESS;
}

static void set_strides(Tensor *filter) {
  enum { CHANNELS_FIRST = 0 };
  int64_t stride = 1;
  bool channels_last = filter->format != CHANNELS_FIRST && filter->num_dimensions > 2;
  if (channels_last) {
    filter->strides[1] = 1;
    stride = filter->sizes[1];
  }
  for (int i = filter->num_dimensions - 1; i >= 0; i--) {
    if (channels_last && i == 1) continue;
    filter->strides[i] = stride;
    stride *= filter->sizes[i];
  }
}

API DnnStatus cudnnSetFilterNdDescriptor(Tensor *filter, int type, int format, int num_dimensions, const int *sizes) {
  if (!filter || !sizes || num_dimensions < 0 || num_dimensions > MAX_DIMENSIONS) return DNN_BAD_PARAM;
  *filter = (Tensor){.type = type, .format = format, .num_dimensions = num_dimensions};
  for (int i = 0; i < num_dimensions; i++) filter->sizes[i] = sizes[i];
  set_strides(filter);
  return DNN_SUCCESS;
}

API DnnStatus cudnnGetFilterNdDescriptor(const Tensor *filter, int num_wanted, int *type, int *format,
                                         int *num_dimensions, int *sizes) {
  if (!filter) return DNN_BAD_PARAM;
  if (format) *format = filter->format;
  return cudnnGetTensorNdDescriptor(filter, num_wanted, type, num_dimensions, sizes, NULL);
}
