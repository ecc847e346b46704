/* CUDA runtime: memory. */
#define _GNU_SOURCE
#include "runtime.h"

#include <string.h>

static Error allocate(void **start, size_t bytes, MemoryKind kind) {
  *start = NULL;
  Error error = check_device(current_device);
  if (error != SUCCESS) return error;
  if (!bytes) return SUCCESS;
  *start = kind == PINNED_MEMORY    ? allocate_pinned(bytes)
           : kind == MANAGED_MEMORY ? allocate_managed(current_device, bytes)
                                    : allocate_device(current_device, bytes);
  return *start ? SUCCESS : failed(MEMORY_ALLOCATION);
}

API Error cudaMalloc(void **start, size_t bytes) { return allocate(start, bytes, DEVICE_MEMORY); }
API Error cudaMallocManaged(void **start, size_t bytes, unsigned flags) {
  (void)flags;
  return allocate(start, bytes, MANAGED_MEMORY);
}
API Error cudaHostAlloc(void **start, size_t bytes, unsigned flags) {
  (void)flags;
  return allocate(start, bytes, PINNED_MEMORY);
}
API Error cudaMallocHost(void **start, size_t bytes) { return allocate(start, bytes, PINNED_MEMORY); }
API Error cudaMallocPitch(void **start, size_t *pitch, size_t width, size_t height) {
  *pitch = ROUND_UP(width, 512);
  return cudaMalloc(start, *pitch * height);
}

/* torch frees memory of a device from whichever thread, also after the device was lost to a fork. */
API Error cudaFree(void *start) {
  if (!start) return check_device(current_device); /* how libraries make a context */
  return release_block(start, DEVICE_MEMORY) || release_block(start, MANAGED_MEMORY) ? SUCCESS : failed(INVALID_VALUE);
}
API Error cudaFreeHost(void *start) {
  return !start || release_block(start, PINNED_MEMORY) ? SUCCESS : failed(INVALID_VALUE);
}

API Error cudaMemGetInfo(size_t *free, size_t *total) {
  Error error = check_device(current_device);
  if (error != SUCCESS) return error;
  *total = device_of(current_device)->total_bytes;
  *free = free_bytes(current_device);
  return SUCCESS;
}

API Error cudaHostRegister(void *start, size_t bytes, unsigned flags) {
  (void)flags;
  return start && bytes ? SUCCESS : failed(INVALID_VALUE);
}
API Error cudaHostUnregister(void *start) { return start ? SUCCESS : failed(INVALID_VALUE); }
API Error cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
  (void)flags;
  *device = host;
  return SUCCESS;
}
API Error cudaHostGetFlags(unsigned *flags, void *host) {
  (void)host;
  *flags = 0;
  return SUCCESS;
}

typedef struct {
  int type, device; /* 0 unregistered, 1 host, 2 device, 3 managed */
  void *device_pointer, *host_pointer;
} PointerAttributes;

API Error cudaPointerGetAttributes(PointerAttributes *attributes, const void *pointer) {
  Block block = find_block(pointer);
  void *there = (void *)pointer;
  switch (block.kind) {
    case OUTSIDE: *attributes = (PointerAttributes){0, -2, NULL, there}; break;
    case PINNED_MEMORY: *attributes = (PointerAttributes){1, current_device, there, there}; break;
    case MANAGED_MEMORY: *attributes = (PointerAttributes){3, block.device, there, there}; break;
    default: *attributes = (PointerAttributes){2, block.device, there, NULL};
  }
  return SUCCESS;
}

/* ---- Copies: all work is done at once, in whichever stream ---- */

API Error cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  (void)kind;
  copy_bytes(to, from, bytes);
  return SUCCESS;
}
API Error cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, Stream *stream) {
  (void)stream;
  return cudaMemcpy(to, from, bytes, kind);
}
API Error cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
  (void)to_device, (void)from_device;
  return cudaMemcpy(to, from, bytes, 0);
}
API Error cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, Stream *stream) {
  (void)stream;
  return cudaMemcpyPeer(to, to_device, from, from_device, bytes);
}

API Error cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind) {
  (void)kind;
  bool reads = find_block(from).kind != OUTSIDE && find_block(to).kind == OUTSIDE;
  if (width * height > MIB && !reads) return SUCCESS;
  for (size_t row = 0; row < height; row++) copy_bytes((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return SUCCESS;
}
API Error cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind,
                            Stream *stream) {
  (void)stream;
  return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}

API Error cudaMemset(void *to, int value, size_t bytes) {
  fill_bytes(to, value, bytes);
  return SUCCESS;
}
API Error cudaMemsetAsync(void *to, int value, size_t bytes, Stream *stream) {
  (void)stream;
  return cudaMemset(to, value, bytes);
}
API Error cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
  for (size_t row = 0; row < height && width * height <= MIB; row++) fill_bytes((char *)to + row * pitch, value, width);
  return SUCCESS;
}
API Error cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, Stream *stream) {
  (void)stream;
  return cudaMemset2D(to, pitch, value, width, height);
}

/* Advice and prefetching move nothing. Their last arguments differ between CUDA 12 and 13, and none is looked at. */
API Error cudaMemAdvise(void *start) { return start ? SUCCESS : failed(INVALID_VALUE); }
API Error cudaMemPrefetchAsync(void *start) { return start ? SUCCESS : failed(INVALID_VALUE); }

/* ---- Pools: a pool holds what is allocated from it, and gives back what is freed ---- */

typedef struct {
  int device;
  uint64_t threshold;
} Pool;
static Pool pools[MAX_DEVICES];

static Error allocate_from_pool(void **start, size_t bytes, int device) {
  *start = NULL;
  Error error = check_device(device);
  if (error != SUCCESS || !bytes) return error;
  *start = allocate_pooled(device, bytes);
  if (!*start) return failed(MEMORY_ALLOCATION);
  note_pooled(*start, (int64_t)find_block(*start).bytes, device);
  return SUCCESS;
}
API Error cudaMallocAsync(void **start, size_t bytes, Stream *stream) {
  (void)stream;
  return allocate_from_pool(start, bytes, current_device);
}
API Error cudaMallocFromPoolAsync(void **start, size_t bytes, Pool *pool, Stream *stream) {
  (void)stream;
  return allocate_from_pool(start, bytes, pool ? pool->device : current_device);
}
API Error cudaFreeAsync(void *start, Stream *stream) {
  (void)stream;
  Block block = find_block(start);
  if (block.kind == DEVICE_MEMORY && block.start == start) note_pooled(start, -(int64_t)block.bytes, block.device);
  return cudaFree(start);
}
API Error cudaDeviceGetDefaultMemPool(Pool **pool, int device) {
  if (device < 0 || device >= num_devices()) return failed(INVALID_DEVICE);
  *pool = &pools[device];
  (*pool)->device = device;
  return SUCCESS;
}
API Error cudaDeviceGetMemPool(Pool **pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }
API Error cudaDeviceSetMemPool(int device, Pool *pool) { return pool && pool->device == device ? SUCCESS : failed(INVALID_VALUE); }

enum { REUSE_FIRST = 1, REUSE_LAST = 3, RELEASE_THRESHOLD = 4, RESERVED_NOW, RESERVED_HIGH, USED_NOW, USED_HIGH };
API Error cudaMemPoolSetAttribute(Pool *pool, int attribute, void *value) {
  if (attribute == RELEASE_THRESHOLD) memcpy(&pool->threshold, value, sizeof pool->threshold);
  return attribute >= REUSE_FIRST && attribute <= USED_HIGH ? SUCCESS : failed(INVALID_VALUE);
}
API Error cudaMemPoolGetAttribute(Pool *pool, int attribute, void *value) {
  if (attribute < REUSE_FIRST || attribute > USED_HIGH) return failed(INVALID_VALUE);
  if (attribute <= REUSE_LAST) {
    *(int *)value = 1;
    return SUCCESS;
  }
  uint64_t bytes = attribute == RELEASE_THRESHOLD                          ? pool->threshold
                   : attribute == RESERVED_HIGH || attribute == USED_HIGH ? peak_here(pool->device)
                                                                           : used_here(pool->device);
  memcpy(value, &bytes, sizeof bytes);
  return SUCCESS;
}
API Error cudaMemPoolSetAccess(Pool *pool, const void *access, size_t count) {
  (void)access, (void)count;
  return pool ? SUCCESS : failed(INVALID_VALUE);
}
API Error cudaMemPoolTrimTo(Pool *pool, size_t bytes) {
  (void)bytes;
  return pool ? SUCCESS : failed(INVALID_VALUE);
}
