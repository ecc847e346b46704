/* cuDNN: layers without choices that cost memory. Their descriptors are handles only: nothing asks what was set.
 *
 * Not known, and 0 here: the workspaces of batch norm and of the CTC loss, and the reserve of batch norm. Nothing is
 * published. torch asks for batch norm alone, never for one with an activation, whose mask the reserve would hold.
 */
#include "dnn.h"

#include <stdlib.h>
#include <string.h>

/* Parameters are named for the reader; what computes nothing uses few of them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define OPAQUE(Kind)                                              \
  API DnnStatus cudnnCreate##Kind##Descriptor(void **descriptor) { \
    if (!descriptor) return DNN_BAD_PARAM;                        \
    *descriptor = malloc(1);                                      \
    return *descriptor ? DNN_SUCCESS : DNN_ALLOC_FAILED;          \
  }                                                               \
  API DnnStatus cudnnDestroy##Kind##Descriptor(void *descriptor) { \
    free(descriptor);                                             \
    return DNN_SUCCESS;                                           \
  }
/* Setters and kernels ignore what they are given; see blas_compute.c for why they need no parameters. */
#define SETTER(name) \
  API DnnStatus name(void) { return DNN_SUCCESS; }
#define LAUNCH(name)         \
  API DnnStatus name(void) { \
    count_launch();          \
    return DNN_SUCCESS;      \
  }

OPAQUE(Activation)
SETTER(cudnnSetActivationDescriptor)
LAUNCH(cudnnActivationForward)
LAUNCH(cudnnActivationBackward)

OPAQUE(Pooling)
SETTER(cudnnSetPooling2dDescriptor)
SETTER(cudnnSetPoolingNdDescriptor)
LAUNCH(cudnnPoolingForward)
LAUNCH(cudnnPoolingBackward)

LAUNCH(cudnnSoftmaxForward)
LAUNCH(cudnnSoftmaxBackward)
LAUNCH(cudnnAddTensor)
LAUNCH(cudnnScaleTensor)
LAUNCH(cudnnSetTensor)
LAUNCH(cudnnTransformTensor)

OPAQUE(SpatialTransformer)
SETTER(cudnnSetSpatialTransformerNdDescriptor)
LAUNCH(cudnnSpatialTfGridGeneratorForward)
LAUNCH(cudnnSpatialTfGridGeneratorBackward)
LAUNCH(cudnnSpatialTfSamplerForward)
LAUNCH(cudnnSpatialTfSamplerBackward)

/* ---- Batch norm ---- */

LAUNCH(cudnnBatchNormalizationForwardInference)
LAUNCH(cudnnBatchNormalizationForwardTrainingEx)
LAUNCH(cudnnBatchNormalizationBackwardEx)

API DnnStatus cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    DnnHandle *handle, int mode, int operations, const Tensor *images, const Tensor *added, const Tensor *outputs,
    const Tensor *scales, void *activation, size_t *bytes) {
  if (!bytes) return DNN_BAD_PARAM;
  *bytes = 0;
  return DNN_SUCCESS;
}
API DnnStatus cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    DnnHandle *handle, int mode, int operations, const Tensor *images, const Tensor *outputs,
    const Tensor *output_gradients, const Tensor *added_gradients, const Tensor *image_gradients, const Tensor *scales,
    void *activation, size_t *bytes) {
  if (!bytes) return DNN_BAD_PARAM;
  *bytes = 0;
  return DNN_SUCCESS;
}
API DnnStatus cudnnGetBatchNormalizationTrainingExReserveSpaceSize(DnnHandle *handle, int mode, int operations,
                                                                   void *activation, const Tensor *images,
                                                                   size_t *bytes) {
  if (!bytes) return DNN_BAD_PARAM;
  *bytes = 0;
  return DNN_SUCCESS;
}

/* ---- Dropout: of torch, only recurrent layers use it ---- */

OPAQUE(Dropout)
SETTER(cudnnSetDropoutDescriptor)
SETTER(cudnnRestoreDropoutDescriptor)

/* One state of a random generator for each thread that a device can run. That they take 16 bytes is not published. */
API DnnStatus cudnnDropoutGetStatesSize(DnnHandle *handle, size_t *bytes) {
  enum { STATE_BYTES = 16 };
  if (!handle || !bytes) return DNN_BAD_PARAM;
  const Device *device = device_of(current_device);
  *bytes = (size_t)device->num_sms * (size_t)device->threads_per_sm * STATE_BYTES;
  return DNN_SUCCESS;
}

/* ---- The CTC loss ---- */

OPAQUE(CTCLoss)
SETTER(cudnnSetCTCLossDescriptor)
SETTER(cudnnSetCTCLossDescriptorEx)
SETTER(cudnnSetCTCLossDescriptor_v8)
SETTER(cudnnSetCTCLossDescriptor_v9)
LAUNCH(cudnnCTCLoss)
LAUNCH(cudnnCTCLoss_v8)

API DnnStatus cudnnGetCTCLossWorkspaceSize(DnnHandle *handle, const Tensor *probabilities, const Tensor *gradients,
                                           const int *labels, const int *label_lengths, const int *input_lengths,
                                           int algorithm, void *loss, size_t *bytes) {
  if (!bytes) return DNN_BAD_PARAM;
  *bytes = 0;
  return DNN_SUCCESS;
}
API DnnStatus cudnnGetCTCLossWorkspaceSize_v8(DnnHandle *handle, int algorithm, void *loss,
                                              const Tensor *probabilities, const Tensor *gradients, size_t *bytes) {
  if (!bytes) return DNN_BAD_PARAM;
  *bytes = 0;
  return DNN_SUCCESS;
}
