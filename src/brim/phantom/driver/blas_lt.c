/* cuBLASLt: descriptors keep their attributes, the heuristics know one algorithm, a product is a launch.
 *
 * The algorithm asks for no workspace. What a real one asks for is not published, and it need not be known: it stays
 * below the most that the caller names in its preference, and torch allocates that much for every product, whatever
 * the heuristics answer.
 */
#include "blas.h"

#include <stdlib.h>
#include <string.h>

/* Parameters are named for the reader; what computes nothing uses few of them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

API size_t cublasLtGetVersion(void) { return (size_t)account()->cublas_version; }
API size_t cublasLtGetCudartVersion(void) { return (size_t)account()->cuda_version; }
API BlasStatus cublasLtGetProperty(int property, int *value) { return blas_property(property, value); }
API const char *cublasLtGetStatusName(BlasStatus status) { return blas_status_name(status); }
API const char *cublasLtGetStatusString(BlasStatus status) { return blas_status_name(status); }

/* torch uses the handles of cuBLAS here; others make their own. */
API BlasStatus cublasLtCreate(void **handle) {
  if (!handle) return BLAS_INVALID_VALUE;
  *handle = NULL;
  if (!num_devices()) return BLAS_NOT_INITIALIZED;
  if (!use_device(current_device)) return BLAS_ALLOC_FAILED;
  *handle = calloc(1, sizeof(BlasHandle));
  return *handle ? BLAS_SUCCESS : BLAS_ALLOC_FAILED;
}
API BlasStatus cublasLtDestroy(void *handle) {
  free(handle);
  return BLAS_SUCCESS;
}

/* ---- Descriptors: of a product, of a matrix's layout, of a preference, of a transformation ---- */

enum { MAX_ATTRIBUTES = 40, MAX_ATTRIBUTE_BYTES = 16 };

typedef struct {
  int name;
  uint32_t bytes;
  char value[MAX_ATTRIBUTE_BYTES];
} Attribute;

typedef struct {
  int num_attributes;
  Attribute attributes[MAX_ATTRIBUTES];
} LtDescriptor;

static BlasStatus create(LtDescriptor **descriptor) {
  if (!descriptor) return BLAS_INVALID_VALUE;
  *descriptor = malloc(sizeof **descriptor);
  if (!*descriptor) return BLAS_ALLOC_FAILED;
  (*descriptor)->num_attributes = 0;
  return BLAS_SUCCESS;
}

static Attribute *find(LtDescriptor *descriptor, int name) {
  for (int i = 0; i < descriptor->num_attributes; i++)
    if (descriptor->attributes[i].name == name) return &descriptor->attributes[i];
  return NULL;
}

static BlasStatus set(LtDescriptor *descriptor, int name, const void *value, size_t bytes) {
  if (!descriptor || !value || bytes > MAX_ATTRIBUTE_BYTES) return BLAS_INVALID_VALUE;
  Attribute *attribute = find(descriptor, name);
  if (!attribute) {
    if (descriptor->num_attributes == MAX_ATTRIBUTES) return BLAS_INVALID_VALUE;
    attribute = &descriptor->attributes[descriptor->num_attributes++];
  }
  attribute->name = name;
  attribute->bytes = (uint32_t)bytes;
  memcpy(attribute->value, value, bytes);
  return BLAS_SUCCESS;
}

/* What was never set is not known here: its default would be a guess. */
static BlasStatus get(LtDescriptor *descriptor, int name, void *value, size_t bytes, size_t *written) {
  if (!descriptor) return BLAS_INVALID_VALUE;
  Attribute *attribute = find(descriptor, name);
  if (!attribute) return BLAS_NOT_SUPPORTED;
  if (written) *written = attribute->bytes;
  if (!bytes) return written ? BLAS_SUCCESS : BLAS_INVALID_VALUE;
  if (!value || bytes < attribute->bytes) return BLAS_INVALID_VALUE;
  memcpy(value, attribute->value, attribute->bytes);
  return BLAS_SUCCESS;
}

#define DESCRIPTOR(Kind)                                                                                      \
  API BlasStatus cublasLt##Kind##Destroy(LtDescriptor *descriptor) {                                          \
    free(descriptor);                                                                                         \
    return BLAS_SUCCESS;                                                                                      \
  }                                                                                                           \
  API BlasStatus cublasLt##Kind##SetAttribute(LtDescriptor *descriptor, int name, const void *value,          \
                                              size_t bytes) {                                                 \
    return set(descriptor, name, value, bytes);                                                               \
  }                                                                                                           \
  API BlasStatus cublasLt##Kind##GetAttribute(LtDescriptor *descriptor, int name, void *value, size_t bytes,  \
                                              size_t *written) {                                              \
    return get(descriptor, name, value, bytes, written);                                                      \
  }
DESCRIPTOR(MatmulDesc)
DESCRIPTOR(MatrixLayout)
DESCRIPTOR(MatmulPreference)
DESCRIPTOR(MatrixTransformDesc)

API BlasStatus cublasLtMatmulPreferenceCreate(LtDescriptor **preference) { return create(preference); }
API BlasStatus cublasLtMatrixTransformDescCreate(LtDescriptor **description, int scale_type) {
  return create(description);
}

API BlasStatus cublasLtMatmulDescCreate(LtDescriptor **product, int compute_type, int scale_type) {
  enum { COMPUTE_TYPE = 0, SCALE_TYPE = 1 };
  BlasStatus status = create(product);
  if (status) return status;
  set(*product, COMPUTE_TYPE, &compute_type, sizeof compute_type);
  return set(*product, SCALE_TYPE, &scale_type, sizeof scale_type);
}

API BlasStatus cublasLtMatrixLayoutCreate(LtDescriptor **layout, int type, uint64_t rows, uint64_t columns,
                                          int64_t leading) {
  enum { TYPE = 0, ROWS = 2, COLUMNS = 3, LEADING_DIMENSION = 4 };
  BlasStatus status = create(layout);
  if (status) return status;
  set(*layout, TYPE, &type, sizeof type);
  set(*layout, ROWS, &rows, sizeof rows);
  set(*layout, COLUMNS, &columns, sizeof columns);
  return set(*layout, LEADING_DIMENSION, &leading, sizeof leading);
}

/* ---- The algorithm ---- */

/* By their numbers: which algorithm, its tile, splits, reduction, order, option, stages, inner shape, cluster shape. */
enum { NUM_SETTINGS = 9, FIRST_SHORT_SETTING = 7 };

typedef union {
  uint32_t settings[NUM_SETTINGS];
  uint64_t whole[8];
} Algorithm;

typedef struct {
  Algorithm algorithm;
  size_t workspace_bytes;
  BlasStatus status;
  float waves;
  int reserved[4];
} Heuristic;
_Static_assert(sizeof(Heuristic) == 96, "callers have arrays of these");

static Heuristic heuristic_of(Algorithm algorithm) {
  return (Heuristic){.algorithm = algorithm, .workspace_bytes = 0, .status = BLAS_SUCCESS, .waves = 1};
}

static Algorithm the_algorithm(int number) {
  enum { NUMBER = 0, SPLITS = 2 };
  Algorithm algorithm = {.whole = {0}};
  algorithm.settings[NUMBER] = (uint32_t)number;
  algorithm.settings[SPLITS] = 1;
  return algorithm;
}

API BlasStatus cublasLtMatmulAlgoGetHeuristic(void *handle, LtDescriptor *product, LtDescriptor *a, LtDescriptor *b,
                                              LtDescriptor *c, LtDescriptor *d, LtDescriptor *preference,
                                              int num_wanted, Heuristic *found, int *num_found) {
  if (!handle || !found || !num_found || num_wanted <= 0) return BLAS_INVALID_VALUE;
  found[0] = heuristic_of(the_algorithm(0));
  *num_found = 1;
  return BLAS_SUCCESS;
}

API BlasStatus cublasLtMatmulAlgoGetIds(void *handle, int compute_type, int scale_type, int a_type, int b_type,
                                        int c_type, int d_type, int num_wanted, int *numbers, int *num_found) {
  if (!handle || !numbers || num_wanted <= 0) return BLAS_INVALID_VALUE;
  numbers[0] = 0;
  if (num_found) *num_found = 1;
  return BLAS_SUCCESS;
}

API BlasStatus cublasLtMatmulAlgoInit(void *handle, int compute_type, int scale_type, int a_type, int b_type,
                                      int c_type, int d_type, int number, Algorithm *algorithm) {
  if (!handle || !algorithm || number) return BLAS_INVALID_VALUE;
  *algorithm = the_algorithm(number);
  return BLAS_SUCCESS;
}

API BlasStatus cublasLtMatmulAlgoCheck(void *handle, LtDescriptor *product, LtDescriptor *a, LtDescriptor *b,
                                       LtDescriptor *c, LtDescriptor *d, const Algorithm *algorithm,
                                       Heuristic *result) {
  if (!handle || !algorithm || !result) return BLAS_INVALID_VALUE;
  *result = heuristic_of(*algorithm);
  return BLAS_SUCCESS;
}

static size_t setting_bytes(int setting) { return setting < FIRST_SHORT_SETTING ? 4 : 2; }

API BlasStatus cublasLtMatmulAlgoConfigSetAttribute(Algorithm *algorithm, int setting, const void *value,
                                                    size_t bytes) {
  if (!algorithm || !value || setting <= 0 || setting >= NUM_SETTINGS || bytes != setting_bytes(setting))
    return BLAS_INVALID_VALUE;
  algorithm->settings[setting] = 0;
  memcpy(&algorithm->settings[setting], value, bytes);
  return BLAS_SUCCESS;
}

API BlasStatus cublasLtMatmulAlgoConfigGetAttribute(const Algorithm *algorithm, int setting, void *value,
                                                    size_t bytes, size_t *written) {
  if (!algorithm || setting < 0 || setting >= NUM_SETTINGS) return BLAS_INVALID_VALUE;
  size_t needed = setting_bytes(setting);
  if (written) *written = needed;
  if (!bytes) return written ? BLAS_SUCCESS : BLAS_INVALID_VALUE;
  if (!value || bytes < needed) return BLAS_INVALID_VALUE;
  memcpy(value, &algorithm->settings[setting], needed);
  return BLAS_SUCCESS;
}

/* ---- What computes ---- */

API BlasStatus cublasLtMatmul(void) {
  count_launch();
  return BLAS_SUCCESS;
}
API BlasStatus cublasLtMatrixTransform(void) {
  count_launch();
  return BLAS_SUCCESS;
}
