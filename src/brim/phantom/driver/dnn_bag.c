/* cuDNN's graphs: descriptors and who holds them.
 *
 * A caller may destroy a descriptor once it was set into another, so a descriptor lives as long as anything holds it.
 */
#include "dnn_bag.h"

#include <stdlib.h>
#include <string.h>

size_t bytes_of_attribute(int type) {
  enum { HANDLE = 0, BOOLEAN = 2, DOUBLE = 5, ADDRESS = 6, CHARACTER = 24, FRACTION = 26 };
  switch (type) {
    case BOOLEAN:
    case CHARACTER: return 1;
    case HANDLE:
    case INT64:
    case DOUBLE:
    case ADDRESS:
    case DESCRIPTOR: return 8;
    case FRACTION: return 16;
  }
  return 4; /* enumerations, short integers and floats */
}

static void free_attribute(Attribute *attribute) {
  Descriptor **others = (Descriptor **)attribute->values;
  for (int64_t i = 0; attribute->type == DESCRIPTOR && i < attribute->count; i++) release_descriptor(others[i]);
  free(attribute);
}

void release_descriptor(Descriptor *descriptor) {
  if (!descriptor || atomic_fetch_sub(&descriptor->num_holders, 1) > 1) return;
  for (Attribute *attribute = descriptor->attributes, *next; attribute; attribute = next) {
    next = attribute->next;
    free_attribute(attribute);
  }
  free(descriptor);
}

Descriptor *create_descriptor(int kind) {
  Descriptor *descriptor = calloc(1, sizeof *descriptor);
  if (!descriptor) return NULL;
  descriptor->kind = kind;
  atomic_init(&descriptor->num_holders, 1);
  return descriptor;
}

Attribute *find_attribute(const Descriptor *descriptor, int name) {
  Attribute *attribute = descriptor ? descriptor->attributes : NULL;
  while (attribute && attribute->name != name) attribute = attribute->next;
  return attribute;
}

static void drop(Descriptor *descriptor, int name) {
  for (Attribute **place = &descriptor->attributes; *place; place = &(*place)->next) {
    if ((*place)->name != name) continue;
    Attribute *dropped = *place;
    *place = dropped->next;
    free_attribute(dropped);
    return;
  }
}

DnnStatus set_attribute(Descriptor *descriptor, int name, int type, int64_t count, const void *values) {
  size_t bytes = (size_t)count * bytes_of_attribute(type);
  Attribute *attribute = malloc(sizeof *attribute + bytes);
  if (!attribute) return DNN_ALLOC_FAILED;
  *attribute = (Attribute){.name = name, .type = type, .count = count};
  if (bytes) memcpy(attribute->values, values, bytes);
  Descriptor **others = (Descriptor **)attribute->values;
  for (int64_t i = 0; type == DESCRIPTOR && i < count; i++)
    if (others[i]) atomic_fetch_add(&others[i]->num_holders, 1);
  drop(descriptor, name);
  attribute->next = descriptor->attributes;
  descriptor->attributes = attribute;
  return DNN_SUCCESS;
}

/* What a caller asks for goes into a descriptor of its own. */
DnnStatus copy_attributes(Descriptor *to, const Descriptor *from) {
  if (!to || !from || to->kind != from->kind) return DNN_BAD_PARAM;
  DnnStatus status = DNN_SUCCESS;
  for (const Attribute *each = from->attributes; each && !status; each = each->next)
    status = set_attribute(to, each->name, each->type, each->count, each->values);
  return status;
}

Descriptor *find_held(const Descriptor *descriptor, int name, int64_t index) {
  const Attribute *attribute = find_attribute(descriptor, name);
  if (!attribute || attribute->type != DESCRIPTOR || index >= attribute->count) return NULL;
  return ((Descriptor **)attribute->values)[index];
}

int find_numbers(const Descriptor *descriptor, int name, int64_t *numbers) {
  const Attribute *attribute = find_attribute(descriptor, name);
  if (!attribute || attribute->type != INT64) return 0;
  int count = attribute->count < MAX_DIMENSIONS ? (int)attribute->count : MAX_DIMENSIONS;
  memcpy(numbers, attribute->values, (size_t)count * sizeof *numbers);
  return count;
}
