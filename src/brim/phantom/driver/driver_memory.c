/* CUDA driver interface: memory, pointers, and virtual memory. */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define AT(address) ((void *)(uintptr_t)(address))
#define DEVICE_PAGE (2 * MIB)

API Result cuMemGetInfo_v2(size_t *free, size_t *total) {
  if (!use_device(current_device)) return OUT_OF_MEMORY;
  *total = device_of(current_device)->total_bytes, *free = free_bytes(current_device);
  return SUCCESS;
}
static Result given(Address *address, void *start) {
  *address = (Address)(uintptr_t)start;
  return start ? SUCCESS : OUT_OF_MEMORY;
}
API Result cuMemAlloc_v2(Address *address, size_t bytes) { return given(address, allocate_device(current_device, bytes)); }
API Result cuMemAllocManaged(Address *address, size_t bytes, unsigned flags) {
  (void)flags;
  return given(address, allocate_managed(current_device, bytes));
}
API Result cuMemAllocAsync(Address *address, size_t bytes, void *stream) {
  (void)stream;
  return cuMemAlloc_v2(address, bytes);
}
API Result cuMemFree_v2(Address address) {
  void *start = AT(address);
  return !start || release_block(start, DEVICE_MEMORY) || release_block(start, MANAGED_MEMORY) ? SUCCESS : INVALID_VALUE;
}
API Result cuMemFreeAsync(Address address, void *stream) {
  (void)stream;
  return cuMemFree_v2(address);
}
API Result cuMemHostAlloc(void **start, size_t bytes, unsigned flags) {
  (void)flags;
  return (*start = allocate_pinned(bytes)) ? SUCCESS : OUT_OF_MEMORY;
}
API Result cuMemAllocHost_v2(void **start, size_t bytes) { return cuMemHostAlloc(start, bytes, 0); }
API Result cuMemFreeHost(void *start) { return release_block(start, PINNED_MEMORY) ? SUCCESS : INVALID_VALUE; }
API Result cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) {
  (void)flags;
  return start && bytes ? SUCCESS : INVALID_VALUE;
}
API Result cuMemHostUnregister(void *start) { return start ? SUCCESS : INVALID_VALUE; }
API Result cuMemHostGetDevicePointer_v2(Address *address, void *host, unsigned flags) {
  (void)flags;
  return given(address, host);
}

/* ---- Copies ---- */

static Result copied(void *to, const void *from, size_t bytes) {
  copy_bytes(to, from, bytes);
  return SUCCESS;
}
API Result cuMemcpy(Address to, Address from, size_t bytes) { return copied(AT(to), AT(from), bytes); }
API Result cuMemcpyAsync(Address to, Address from, size_t bytes, void *stream) {
  (void)stream;
  return cuMemcpy(to, from, bytes);
}
API Result cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) { return cuMemcpy(to, from, bytes); }
API Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *stream) { return cuMemcpyAsync(to, from, bytes, stream); }
API Result cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) { return copied(AT(to), from, bytes); }
API Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *stream) {
  (void)stream;
  return cuMemcpyHtoD_v2(to, from, bytes);
}
API Result cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) { return copied(to, AT(from), bytes); }
API Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream) {
  (void)stream;
  return cuMemcpyDtoH_v2(to, from, bytes);
}
API Result cuMemsetD8_v2(Address to, unsigned char value, size_t count) {
  fill_bytes(AT(to), value, count);
  return SUCCESS;
}
API Result cuMemsetD8Async(Address to, unsigned char value, size_t count, void *stream) {
  (void)stream;
  return cuMemsetD8_v2(to, value, count);
}
API Result cuMemsetD32_v2(Address to, unsigned value, size_t count) {
  count_launch();
  for (size_t i = 0; i < count && count * 4 <= MIB; i++) ((unsigned *)AT(to))[i] = value;
  return SUCCESS;
}
API Result cuMemsetD32Async(Address to, unsigned value, size_t count, void *stream) {
  (void)stream;
  return cuMemsetD32_v2(to, value, count);
}

/* ---- Pointers ---- */

API Result cuPointerGetAttribute(void *value, int attribute, Address address) {
  enum { CONTEXT = 1, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, IS_MANAGED = 8, ORDINAL, RANGE_START = 11, RANGE_BYTES, IS_MAPPED };
  enum { HOST = 1, ON_DEVICE = 2 };
  Block block = find_block(AT(address));
  if (block.kind == OUTSIDE) return INVALID_VALUE;
  switch (attribute) {
    case CONTEXT: *(void **)value = context_of(block.device); break;
    case MEMORY_TYPE: *(unsigned *)value = block.kind == PINNED_MEMORY ? HOST : ON_DEVICE; break;
    case DEVICE_POINTER: case HOST_POINTER: *(Address *)value = address; break;
    case IS_MANAGED: *(unsigned *)value = block.kind == MANAGED_MEMORY; break;
    case ORDINAL: *(int *)value = block.device; break;
    case RANGE_START: *(Address *)value = (Address)(uintptr_t)block.start; break;
    case RANGE_BYTES: *(size_t *)value = block.bytes; break;
    case IS_MAPPED: *(int *)value = 1; break;
    default: *(int *)value = 0;
  }
  return SUCCESS;
}
API Result cuPointerGetAttributes(unsigned count, const int *attributes, void **values, Address address) {
  for (unsigned i = 0; i < count; i++)
    if (cuPointerGetAttribute(values[i], attributes[i], address)) memset(values[i], 0, sizeof(int));
  return SUCCESS;
}
API Result cuPointerSetAttribute(const void *value, int attribute, Address address) {
  (void)value, (void)attribute, (void)address;
  return SUCCESS;
}
API Result cuMemGetAddressRange_v2(Address *start, size_t *bytes, Address address) {
  Block block = find_block(AT(address));
  if (block.kind == OUTSIDE) return INVALID_VALUE;
  if (start) *start = (Address)(uintptr_t)block.start;
  if (bytes) *bytes = block.bytes;
  return SUCCESS;
}

/* ---- Virtual memory: physical pages are charged when created, and given back when released and mapped nowhere ---- */

typedef struct {
  size_t bytes;
  int device, num_mappings;
  bool is_released;
} Pages;

typedef struct Mapping {
  char *start;
  Pages *pages;
  struct Mapping *next;
} Mapping;

static Mapping *mappings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct {
  int type, handle_types, location_type, location_id;
} Properties; /* the beginning of CUmemAllocationProp */
enum { LOCATION_DEVICE = 1 };

static void settle(Pages *pages) {
  if (!pages->is_released || pages->num_mappings) return;
  uncharge(pages->device, pages->bytes);
  free(pages);
}

API Result cuMemGetAllocationGranularity(size_t *bytes, const Properties *properties, int option) {
  (void)properties, (void)option;
  *bytes = DEVICE_PAGE;
  return SUCCESS;
}
API Result cuMemAddressReserve(Address *address, size_t bytes, size_t alignment, Address wanted, unsigned long long flags) {
  (void)wanted, (void)flags;
  return given(address, reserve_addresses(bytes, alignment));
}
API Result cuMemAddressFree(Address address, size_t bytes) { return release_addresses(AT(address), bytes) ? SUCCESS : INVALID_VALUE; }

API Result cuMemCreate(Pages **pages, size_t bytes, const Properties *properties, unsigned long long flags) {
  (void)flags;
  int device = properties && properties->location_type == LOCATION_DEVICE ? properties->location_id : current_device;
  if (!bytes || bytes % DEVICE_PAGE || device < 0 || device >= num_devices()) return INVALID_VALUE;
  if (!charge(device, bytes)) return OUT_OF_MEMORY;
  *pages = calloc(1, sizeof **pages);
  if (!*pages) {
    uncharge(device, bytes);
    return OUT_OF_MEMORY;
  }
  (*pages)->bytes = bytes, (*pages)->device = device;
  return SUCCESS;
}
API Result cuMemRelease(Pages *pages) {
  pthread_mutex_lock(&lock);
  pages->is_released = true;
  settle(pages);
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}
API Result cuMemMap(Address address, size_t bytes, size_t offset, Pages *pages, unsigned long long flags) {
  (void)offset, (void)flags;
  Mapping *mapping = malloc(sizeof *mapping);
  if (!mapping) return OUT_OF_MEMORY;
  if (mprotect(AT(address), bytes, PROT_READ | PROT_WRITE)) {
    free(mapping);
    return INVALID_VALUE;
  }
  pthread_mutex_lock(&lock);
  *mapping = (Mapping){AT(address), pages, mappings};
  mappings = mapping;
  pages->num_mappings++;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}
API Result cuMemUnmap(Address address, size_t bytes) {
  char *start = AT(address);
  pthread_mutex_lock(&lock);
  for (Mapping **link = &mappings; *link;) {
    Mapping *mapping = *link;
    if (mapping->start < start || mapping->start >= start + bytes) {
      link = &mapping->next;
      continue;
    }
    *link = mapping->next;
    mapping->pages->num_mappings--;
    settle(mapping->pages);
    free(mapping);
  }
  pthread_mutex_unlock(&lock);
  forget_written(start, bytes);
  /* Fresh pages: what was there is gone, and the addresses stay reserved. */
  void *again = mmap(start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return again == MAP_FAILED ? INVALID_VALUE : SUCCESS;
}
API Result cuMemSetAccess(Address address, size_t bytes, const void *access, size_t count) {
  (void)address, (void)bytes, (void)access, (void)count;
  return SUCCESS;
}
API Result cuMemGetAllocationPropertiesFromHandle(Properties *properties, Pages *pages) {
  *properties = (Properties){1, 0, LOCATION_DEVICE, pages->device};
  return SUCCESS;
}
