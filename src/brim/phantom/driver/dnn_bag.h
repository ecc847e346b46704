/* Descriptors of cuDNN's graphs: bags of attributes, some of which are other descriptors (dnn_bag.c, dnn_backend.c). */
#pragma once
#include "dnn.h"

enum { INT64 = 3, DESCRIPTOR = 15, NUM_TYPES = 32 }; /* types of attributes; those not named are enumerations */

typedef struct Attribute Attribute;
typedef struct {
  int kind;
  atomic_int num_holders;
  Attribute *attributes;
} Descriptor;

struct Attribute {
  Attribute *next;
  int name, type;
  int64_t count;
  char values[] __attribute__((aligned(16)));
};

size_t bytes_of_attribute(int type);
Descriptor *create_descriptor(int kind);
void release_descriptor(Descriptor *descriptor); /* it is gone once nothing holds it */
DnnStatus set_attribute(Descriptor *descriptor, int name, int type, int64_t count, const void *values);
DnnStatus copy_attributes(Descriptor *to, const Descriptor *from);
Attribute *find_attribute(const Descriptor *descriptor, int name);
Descriptor *find_held(const Descriptor *descriptor, int name, int64_t index); /* null where there is none */
int find_numbers(const Descriptor *descriptor, int name, int64_t *numbers); /* how many, at most MAX_DIMENSIONS */
