/* cuDNN: recurrent layers. The weights' space is exact; the reserve and the workspace follow what was measured once. */
#include "dnn.h"

#include <stdlib.h>
#include <string.h>

/* Parameters are named for the reader; what computes nothing uses few of them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { RELU = 0, TANH = 1, LSTM = 2, GRU = 3 };                         /* cells */
enum { NO_BIAS = 0, INPUT_BIAS = 1, TWO_BIASES = 2, STATE_BIAS = 3 };    /* biases of a gate */
enum { STEPS_PADDED = 0, STEPS_PACKED = 1, SAMPLES_PADDED = 2 };         /* layouts of a batch of sequences */
enum { INFERENCE = 0, TRAINING = 1 };

typedef struct {
  int cell, biases, type;
  size_t num_directions, num_layers, input_size, hidden_size, output_size; /* output: the hidden size, or less */
} Recurrent;

typedef struct {
  int type, vector_size;
  size_t num_samples, num_steps, num_rows; /* rows: steps of all samples, without the padding where it is left out */
} Sequences;

/* ---- Descriptors ---- */

#define DESCRIPTOR(Kind, Type)                                    \
  API DnnStatus cudnnCreate##Kind##Descriptor(Type **descriptor) { \
    if (!descriptor) return DNN_BAD_PARAM;                        \
    *descriptor = calloc(1, sizeof **descriptor);                 \
    return *descriptor ? DNN_SUCCESS : DNN_ALLOC_FAILED;          \
  }                                                               \
  API DnnStatus cudnnDestroy##Kind##Descriptor(Type *descriptor) { \
    free(descriptor);                                             \
    return DNN_SUCCESS;                                           \
  }
DESCRIPTOR(RNN, Recurrent)
DESCRIPTOR(RNNData, Sequences)

API DnnStatus cudnnSetRNNDescriptor_v8(Recurrent *layers, int algorithm, int cell, int biases, int direction,
                                       int input_mode, int type, int precision, int math, int32_t input_size,
                                       int32_t hidden_size, int32_t output_size, int32_t num_layers, void *dropout,
                                       uint32_t flags) {
  if (!layers || cell < RELU || cell > GRU || biases < NO_BIAS || biases > STATE_BIAS) return DNN_BAD_PARAM;
  if (input_size < 0 || hidden_size <= 0 || output_size > hidden_size || num_layers <= 0) return DNN_BAD_PARAM;
  *layers = (Recurrent){.cell = cell,
                        .biases = biases,
                        .type = type,
                        .num_directions = direction ? 2 : 1,
                        .num_layers = (size_t)num_layers,
                        .input_size = (size_t)input_size,
                        .hidden_size = (size_t)hidden_size,
                        .output_size = (size_t)(output_size > 0 ? output_size : hidden_size)};
  return DNN_SUCCESS;
}

API DnnStatus cudnnSetRNNDataDescriptor(Sequences *batch, int type, int layout, int num_steps, int num_samples,
                                        int vector_size, const int *lengths, void *padding) {
  if (!batch || !lengths || num_steps <= 0 || num_samples <= 0 || vector_size <= 0) return DNN_BAD_PARAM;
  *batch = (Sequences){.type = type,
                       .vector_size = vector_size,
                       .num_samples = (size_t)num_samples,
                       .num_steps = (size_t)num_steps,
                       .num_rows = (size_t)num_steps * (size_t)num_samples};
  if (layout != STEPS_PACKED) return DNN_SUCCESS;
  batch->num_rows = 0;
  for (int i = 0; i < num_samples; i++) batch->num_rows += (size_t)lengths[i];
  return DNN_SUCCESS;
}

/* ---- Weights: the matrices of all layers, then the biases of all layers ---- */

static size_t num_gates(const Recurrent *layers) { return layers->cell == LSTM ? 4 : layers->cell == GRU ? 3 : 1; }
static size_t num_biases(const Recurrent *layers) {
  return layers->biases == NO_BIAS ? 0 : layers->biases == TWO_BIASES ? 2 : 1;
}
static bool has_projection(const Recurrent *layers) { return layers->output_size != layers->hidden_size; }

/* A layer here is one direction of one; the first of each direction reads the input, the others both directions. */
static size_t num_layers(const Recurrent *layers) { return layers->num_layers * layers->num_directions; }
static size_t input_of(const Recurrent *layers, size_t layer) {
  return layer < layers->num_directions ? layers->input_size : layers->output_size * layers->num_directions;
}
static size_t matrices_of(const Recurrent *layers, size_t layer) {
  size_t of_gates = num_gates(layers) * layers->hidden_size * (input_of(layers, layer) + layers->output_size);
  return of_gates + (has_projection(layers) ? layers->output_size * layers->hidden_size : 0);
}
static size_t matrices_before(const Recurrent *layers, size_t layer) {
  size_t before = 0;
  for (size_t i = 0; i < layer; i++) before += matrices_of(layers, i);
  return before;
}
static size_t biases_of(const Recurrent *layers) {
  return num_biases(layers) * num_gates(layers) * layers->hidden_size;
}

API DnnStatus cudnnGetRNNWeightSpaceSize(DnnHandle *handle, const Recurrent *layers, size_t *bytes) {
  if (!layers || !bytes) return DNN_BAD_PARAM;
  size_t matrices = matrices_before(layers, num_layers(layers)), biases = num_layers(layers) * biases_of(layers);
  *bytes = (matrices + biases) * bytes_of_type(layers->type);
  return DNN_SUCCESS;
}

static void describe(Tensor *tensor, int type, size_t rows, size_t columns) {
  if (!tensor) return;
  *tensor = (Tensor){.type = type,
                     .num_dimensions = 3,
                     .sizes = {1, (int64_t)rows, (int64_t)columns},
                     .strides = {(int64_t)(rows * columns), (int64_t)columns, 1}};
}

/* Of each gate the matrix for the input, then of each the one for the state, then the projection. */
static size_t find_matrix(const Recurrent *layers, size_t layer, size_t number, Tensor *shape) {
  size_t gates = num_gates(layers), hidden = layers->hidden_size, output = layers->output_size;
  size_t input = input_of(layers, layer), start = matrices_before(layers, layer);
  if (number < gates) {
    describe(shape, layers->type, hidden, input);
    return start + number * hidden * input;
  }
  start += gates * hidden * input;
  bool is_projection = number == 2 * gates;
  describe(shape, layers->type, is_projection ? output : hidden, is_projection ? hidden : output);
  return start + (number - gates) * hidden * output;
}

static bool has_bias(const Recurrent *layers, size_t number) {
  size_t gates = num_gates(layers);
  if (number >= 2 * gates || layers->biases == NO_BIAS) return false;
  return layers->biases == TWO_BIASES || (layers->biases == INPUT_BIAS) == (number < gates);
}

static size_t find_bias(const Recurrent *layers, size_t layer, size_t number, Tensor *shape) {
  size_t gates = num_gates(layers), before = matrices_before(layers, num_layers(layers)) + layer * biases_of(layers);
  describe(shape, layers->type, layers->hidden_size, 1);
  return before + (layers->biases == TWO_BIASES ? number : number % gates) * layers->hidden_size;
}

/* Callers ask for the matrix, for the bias or for both; what does not exist has no address and no dimensions. */
API DnnStatus cudnnGetRNNWeightParams(DnnHandle *handle, const Recurrent *layers, int32_t layer, size_t space_bytes,
                                      char *space, int32_t number, Tensor *matrix, void **matrix_start, Tensor *bias,
                                      void **bias_start) {
  if (!layers || layer < 0 || (size_t)layer >= num_layers(layers) || number < 0) return DNN_BAD_PARAM;
  size_t which = (size_t)number, last = 2 * num_gates(layers), bytes = bytes_of_type(layers->type);
  if (matrix) *matrix = (Tensor){.type = layers->type};
  if (bias) *bias = (Tensor){.type = layers->type};
  if (matrix_start) *matrix_start = NULL;
  if (bias_start) *bias_start = NULL;
  if (which < last || (which == last && has_projection(layers))) {
    size_t start = find_matrix(layers, (size_t)layer, which, matrix);
    if (matrix_start) *matrix_start = space + start * bytes;
  }
  if (has_bias(layers, which)) {
    size_t start = find_bias(layers, (size_t)layer, which, bias);
    if (bias_start) *bias_start = space + start * bytes;
  }
  return DNN_SUCCESS;
}

/* ---- Reserve and workspace ----
 *
 * Nothing is published. pytorch issue 2895 has what cuDNN of 2017 asked for on a P100, with 4 layers of 320 hidden
 * units: reserves of 736,000,000 (LSTM) and 864,000,000 bytes (GRU), workspaces of 17,730,560 and 13,169,920. With 250
 * steps of 100 samples, a shape that is inferred, the formulas below give exactly that. What newer versions take is not
 * known.
 */

/* What the reserve holds of every row, layer and direction, in numbers of the hidden size. */
static size_t num_reserved(const Recurrent *layers) { return layers->cell == LSTM ? 5 : layers->cell == GRU ? 6 : 1; }

static size_t reserve_of(const Recurrent *layers, const Sequences *batch) {
  size_t cells = layers->num_layers * num_reserved(layers) * layers->hidden_size;
  size_t between = (layers->num_layers - 1) * layers->output_size;
  return batch->num_rows * layers->num_directions * (cells + between);
}

static size_t workspace_of(const Recurrent *layers, const Sequences *batch) {
  size_t of_a_sample = (3 * num_gates(layers) - 1) * layers->hidden_size;
  return matrices_before(layers, num_layers(layers)) + num_layers(layers) * batch->num_samples * of_a_sample;
}

API DnnStatus cudnnGetRNNTempSpaceSizes(DnnHandle *handle, const Recurrent *layers, int mode, const Sequences *batch,
                                        size_t *workspace_bytes, size_t *reserve_bytes) {
  if (!layers || !batch) return DNN_BAD_PARAM;
  size_t bytes = bytes_of_type(layers->type);
  if (workspace_bytes) *workspace_bytes = workspace_of(layers, batch) * bytes;
  if (reserve_bytes) *reserve_bytes = mode == TRAINING ? reserve_of(layers, batch) * bytes : 0;
  return DNN_SUCCESS;
}

#define LAUNCH(name)         \
  API DnnStatus name(void) { \
    count_launch();          \
    return DNN_SUCCESS;      \
  }
LAUNCH(cudnnRNNForward)
LAUNCH(cudnnRNNBackwardData_v8)
LAUNCH(cudnnRNNBackwardWeights_v8)
