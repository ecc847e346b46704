/* cuDNN: convolutions by the older calls, and what any convolution needs besides its tensors. */
#include "dnn.h"

#include <stdlib.h>
#include <string.h>

/* Parameters are named for the reader; what computes nothing uses few of them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* cuDNN publishes no sizes, and what it chooses differs by device and version. A model of its choices belongs here. */
size_t convolution_workspace(const Convolution *convolution) {
  static atomic_flag is_told = ATOMIC_FLAG_INIT;
  if (!atomic_flag_test_and_set(&is_told))
    note_event("remark", "The job convolves with cuDNN, whose workspaces are 0 on a phantom: a card may reserve some percent more.");
  return 0;
}

/* ---- Descriptors ---- */

API DnnStatus cudnnCreateConvolutionDescriptor(Convolution **convolution) {
  if (!convolution) return DNN_BAD_PARAM;
  *convolution = calloc(1, sizeof **convolution);
  return *convolution ? DNN_SUCCESS : DNN_ALLOC_FAILED;
}
API DnnStatus cudnnDestroyConvolutionDescriptor(Convolution *convolution) {
  free(convolution);
  return DNN_SUCCESS;
}
API DnnStatus cudnnSetConvolutionNdDescriptor(Convolution *convolution, int num_spatial, const int *paddings,
                                              const int *strides, const int *dilations, int mode, int type) {
  if (!convolution || !paddings || !strides || !dilations) return DNN_BAD_PARAM;
  if (num_spatial < 0 || num_spatial > MAX_DIMENSIONS - 2) return DNN_BAD_PARAM;
  convolution->num_spatial = num_spatial;
  for (int i = 0; i < num_spatial; i++) {
    convolution->paddings[i] = paddings[i];
    convolution->strides[i] = strides[i];
    convolution->dilations[i] = dilations[i];
  }
  return DNN_SUCCESS;
}
/* The tensors tell how many groups there are: channels of the images by channels of the weights. */
API DnnStatus cudnnSetConvolutionGroupCount(Convolution *convolution, int num_groups) { return DNN_SUCCESS; }
API DnnStatus cudnnSetConvolutionMathType(Convolution *convolution, int math) { return DNN_SUCCESS; }

/* ---- Which algorithm, and its workspace ---- */

typedef struct {
  int algorithm;
  DnnStatus status;
  float seconds;
  size_t workspace_bytes;
  int is_deterministic, math, reserved[3];
} Choice;
_Static_assert(sizeof(Choice) == 48, "callers have arrays of these");

static size_t workspace(const Convolution *convolution, Pass pass, const Tensor *images, const Tensor *weights,
                        const Tensor *outputs) {
  Convolution whole = *convolution;
  whole.pass = pass;
  whole.images = *images;
  whole.weights = *weights;
  whole.outputs = *outputs;
  return convolution_workspace(&whole);
}

/* Number 1 is a deterministic algorithm in every pass. */
static DnnStatus choose(int num_wanted, int *num_found, Choice *choices, size_t workspace_bytes) {
  enum { ALGORITHM = 1 };
  if (num_wanted <= 0 || !num_found || !choices) return DNN_BAD_PARAM;
  *num_found = 1;
  choices[0] = (Choice){.algorithm = ALGORITHM,
                        .status = DNN_SUCCESS,
                        .seconds = 1e-3f,
                        .workspace_bytes = workspace_bytes,
                        .is_deterministic = 1};
  return DNN_SUCCESS;
}

#define PASS(Name, pass, first, second, third)                                                                         \
  API DnnStatus cudnnGetConvolution##Name##WorkspaceSize(DnnHandle *handle, const Tensor *first, const Tensor *second, \
                                                         const Convolution *convolution, const Tensor *third,          \
                                                         int algorithm, size_t *bytes) {                               \
    if (!first || !second || !third || !convolution || !bytes) return DNN_BAD_PARAM;                                   \
    *bytes = workspace(convolution, pass, images, weights, outputs);                                                   \
    return DNN_SUCCESS;                                                                                                \
  }                                                                                                                    \
  API DnnStatus cudnnGetConvolution##Name##Algorithm_v7(DnnHandle *handle, const Tensor *first, const Tensor *second,  \
                                                        const Convolution *convolution, const Tensor *third,           \
                                                        int num_wanted, int *num_found, Choice *choices) {             \
    if (!first || !second || !third || !convolution) return DNN_BAD_PARAM;                                             \
    return choose(num_wanted, num_found, choices, workspace(convolution, pass, images, weights, outputs));             \
  }                                                                                                                    \
  API DnnStatus cudnnFindConvolution##Name##AlgorithmEx(                                                               \
      DnnHandle *handle, const Tensor *first, const void *first_values, const Tensor *second,                          \
      const void *second_values, const Convolution *convolution, const Tensor *third, void *third_values,              \
      int num_wanted, int *num_found, Choice *choices, void *given, size_t given_bytes) {                              \
    if (!first || !second || !third || !convolution) return DNN_BAD_PARAM;                                             \
    count_launch();                                                                                                    \
    return choose(num_wanted, num_found, choices, workspace(convolution, pass, images, weights, outputs));             \
  }                                                                                                                    \
  API DnnStatus cudnnConvolution##Name(void) {                                                                         \
    count_launch();                                                                                                    \
    return DNN_SUCCESS;                                                                                                \
  }
PASS(Forward, FORWARD, images, weights, outputs)
PASS(BackwardFilter, WEIGHT_GRADIENT, images, outputs, weights)
PASS(BackwardData, INPUT_GRADIENT, weights, outputs, images)

API DnnStatus cudnnConvolutionBiasActivationForward(void) {
  count_launch();
  return DNN_SUCCESS;
}
