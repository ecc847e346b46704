/* cuDNN's graphs: what is answered about them.
 *
 * Every graph has one engine with one configuration, every plan is supported, and only convolutions may ask for a
 * workspace. What cuDNN's attention takes besides is allocated by its open-source half, which is part of torch.
 */
#include "dnn_bag.h"

#include <string.h>

enum { /* descriptors */
  ENGINE = 2,
  ENGINE_CONFIGURATION = 3,
  FORWARD_OPERATION = 10,
  WEIGHT_GRADIENT_OPERATION = 11,
  INPUT_GRADIENT_OPERATION = 12,
};

enum { /* attributes */
  CONVOLUTION_DILATIONS = 102,
  CONVOLUTION_STRIDES = 103,
  CONVOLUTION_PADDINGS = 105,
  HEURISTICS_GRAPH = 201,
  HEURISTICS_RESULTS = 202,
  CONFIGURATION_ENGINE = 300,
  CONFIGURATION_KNOBS = 302,
  CONFIGURATION_WORKSPACE = 303,
  CONFIGURATION_SHARED_MEMORY = 304,
  PLAN_CONFIGURATION = 401,
  PLAN_WORKSPACE = 402,
  GRAPH_OPERATIONS = 801,
  GRAPH_NUM_ENGINES = 802,
  TENSOR_TYPE = 901,
  TENSOR_SIZES = 902,
  TENSOR_STRIDES = 903,
  ENGINE_GRAPH = 1300,
  ENGINE_NUMBER = 1301,
  ENGINE_KNOBS = 1302,
  ENGINE_NUMERICAL_NOTES = 1303,
  ENGINE_LAYOUTS = 1304,
  ENGINE_BEHAVIOR_NOTES = 1305,
};

API DnnStatus cudnnBackendCreateDescriptor(int kind, Descriptor **descriptor) {
  if (!descriptor) return DNN_BAD_PARAM;
  *descriptor = create_descriptor(kind);
  return *descriptor ? DNN_SUCCESS : DNN_ALLOC_FAILED;
}
API DnnStatus cudnnBackendDestroyDescriptor(Descriptor *descriptor) {
  release_descriptor(descriptor);
  return DNN_SUCCESS;
}
API DnnStatus cudnnBackendFinalize(Descriptor *descriptor) { return descriptor ? DNN_SUCCESS : DNN_BAD_PARAM; }
API DnnStatus cudnnBackendSetAttribute(Descriptor *descriptor, int name, int type, int64_t count, const void *values) {
  if (!descriptor || type < 0 || count < 0 || (count && !values)) return DNN_BAD_PARAM;
  if (type >= NUM_TYPES) {
    report_event("absent", "the job gives cuDNN the attribute %d, whose type (%d) phantoms do not know", name, type);
    return DNN_NOT_SUPPORTED;
  }
  return set_attribute(descriptor, name, type, count, values);
}
API DnnStatus cudnnBackendExecute(DnnHandle *handle, Descriptor *plan, Descriptor *arguments) {
  if (!handle || !plan || !arguments) return DNN_BAD_PARAM;
  count_launch();
  return DNN_SUCCESS;
}

/* ---- What a plan computes ---- */

static Tensor read_tensor(const Descriptor *descriptor) {
  Tensor tensor = {0};
  const Attribute *type = find_attribute(descriptor, TENSOR_TYPE);
  if (type) memcpy(&tensor.type, type->values, sizeof tensor.type);
  tensor.num_dimensions = find_numbers(descriptor, TENSOR_SIZES, tensor.sizes);
  find_numbers(descriptor, TENSOR_STRIDES, tensor.strides);
  return tensor;
}

/* The attributes of the three operations: the descriptor of the convolution, weights, images, outputs. */
static const struct {
  int kind, convolution, weights, images, outputs;
  Pass pass;
} operations[] = {
    {FORWARD_OPERATION, 702, 703, 704, 705, FORWARD},
    {INPUT_GRADIENT_OPERATION, 708, 709, 710, 711, INPUT_GRADIENT},
    {WEIGHT_GRADIENT_OPERATION, 714, 715, 716, 717, WEIGHT_GRADIENT},
};

static Convolution read_convolution(const Descriptor *operation) {
  Convolution convolution = {.pass = NO_CONVOLUTION};
  for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
    if (operations[i].kind != operation->kind) continue;
    const Descriptor *settings = find_held(operation, operations[i].convolution, 0);
    convolution.pass = operations[i].pass;
    convolution.weights = read_tensor(find_held(operation, operations[i].weights, 0));
    convolution.images = read_tensor(find_held(operation, operations[i].images, 0));
    convolution.outputs = read_tensor(find_held(operation, operations[i].outputs, 0));
    convolution.num_spatial = find_numbers(settings, CONVOLUTION_STRIDES, convolution.strides);
    find_numbers(settings, CONVOLUTION_DILATIONS, convolution.dilations);
    find_numbers(settings, CONVOLUTION_PADDINGS, convolution.paddings);
  }
  return convolution;
}

static int64_t workspace_of(const Descriptor *configuration) {
  const Descriptor *engine = find_held(configuration, CONFIGURATION_ENGINE, 0);
  const Descriptor *graph = find_held(engine, ENGINE_GRAPH, 0), *operation;
  size_t bytes = 0;
  for (int64_t i = 0; (operation = find_held(graph, GRAPH_OPERATIONS, i)); i++) {
    Convolution convolution = read_convolution(operation);
    if (convolution.pass != NO_CONVOLUTION) bytes += convolution_workspace(&convolution);
  }
  return (int64_t)bytes;
}

/* ---- Answers ---- */

/* Set the one engine of a graph into the configuration that a caller made for it. */
static DnnStatus configure(Descriptor *configuration, Descriptor *graph) {
  Descriptor *engine = graph ? create_descriptor(ENGINE) : NULL;
  if (!configuration || configuration->kind != ENGINE_CONFIGURATION || !engine) return DNN_BAD_PARAM;
  const int64_t number = 0;
  set_attribute(engine, ENGINE_GRAPH, DESCRIPTOR, 1, &graph);
  set_attribute(engine, ENGINE_NUMBER, INT64, 1, &number);
  DnnStatus status = set_attribute(configuration, CONFIGURATION_ENGINE, DESCRIPTOR, 1, &engine);
  release_descriptor(engine);
  return status;
}

/* On machines whose numbers begin with their lowest byte, a narrower one is the beginning of a wide one. */
static DnnStatus answer_number(int type, int64_t number, int64_t wanted, int64_t *count, void *values) {
  if (count) *count = 1;
  if (wanted > 0 && values) memcpy(values, &number, bytes_of_attribute(type));
  return DNN_SUCCESS;
}

static DnnStatus answer_known(const Attribute *attribute, int type, int64_t wanted, int64_t *count, void *values) {
  if (type != attribute->type) return DNN_BAD_PARAM;
  int64_t num_given = wanted < attribute->count ? wanted : attribute->count;
  if (count) *count = attribute->count;
  if (!values || num_given <= 0) return DNN_SUCCESS;
  if (type != DESCRIPTOR) {
    memcpy(values, attribute->values, (size_t)num_given * bytes_of_attribute(type));
    return DNN_SUCCESS;
  }
  DnnStatus status = DNN_SUCCESS;
  for (int64_t i = 0; i < num_given && !status; i++)
    status = copy_attributes(((Descriptor **)values)[i], ((Descriptor **)attribute->values)[i]);
  return status;
}

API DnnStatus cudnnBackendGetAttribute(Descriptor *descriptor, int name, int type, int64_t wanted, int64_t *count,
                                       void *values) {
  if (!descriptor) return DNN_BAD_PARAM;
  const Attribute *attribute = find_attribute(descriptor, name);
  if (attribute) return answer_known(attribute, type, wanted, count, values);
  switch (name) {
    case HEURISTICS_RESULTS:
      if (count) *count = 1;
      if (wanted <= 0 || !values) return DNN_SUCCESS;
      return configure(*(Descriptor **)values, find_held(descriptor, HEURISTICS_GRAPH, 0));
    case PLAN_WORKSPACE:
      return answer_number(type, workspace_of(find_held(descriptor, PLAN_CONFIGURATION, 0)), wanted, count, values);
    case CONFIGURATION_WORKSPACE: return answer_number(type, workspace_of(descriptor), wanted, count, values);
    case CONFIGURATION_SHARED_MEMORY: return answer_number(type, 0, wanted, count, values);
    case ENGINE_NUMBER: return answer_number(type, 0, wanted, count, values);
    case GRAPH_NUM_ENGINES: return answer_number(type, 1, wanted, count, values);
    case CONFIGURATION_KNOBS:
    case ENGINE_KNOBS:
    case ENGINE_NUMERICAL_NOTES:
    case ENGINE_LAYOUTS:
    case ENGINE_BEHAVIOR_NOTES:
      if (count) *count = 0;
      return DNN_SUCCESS;
  }
  report_event("absent", "the job asks cuDNN for the attribute %d, which phantoms do not know", name);
  return DNN_NOT_SUPPORTED;
}
