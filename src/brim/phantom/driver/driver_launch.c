/* CUDA driver interface: modules, functions and launches, as Triton and NVRTC's users call them. Nothing runs. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

/* Code that is loaded at run time: a handle that nobody looks into. */
static Result made(void **handle) { return (*handle = calloc(1, 64)) ? SUCCESS : OUT_OF_MEMORY; }

API Result cuModuleLoad(void **module, const char *path) {
  (void)path;
  return made(module);
}
API Result cuModuleLoadData(void **module, const void *image) {
  (void)image;
  return made(module);
}
API Result cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
  (void)image, (void)count, (void)options, (void)values;
  return made(module);
}
API Result cuModuleLoadFatBinary(void **module, const void *image) { return cuModuleLoadData(module, image); }
API Result cuModuleUnload(void *module) {
  free(module);
  return SUCCESS;
}
API Result cuModuleGetFunction(void **function, void *module, const char *name) {
  (void)name;
  *function = module;
  return SUCCESS;
}
API Result cuLibraryLoadData(void **library) { return made(library); }
API Result cuLibraryUnload(void *library) { return cuModuleUnload(library); }
API Result cuLibraryGetKernel(void **kernel, void *library, const char *name) { return cuModuleGetFunction(kernel, library, name); }
API Result cuKernelGetFunction(void **function, void *kernel) {
  *function = kernel;
  return SUCCESS;
}
API Result cuLinkCreate_v2(unsigned count, int *options, void **values, void **state) {
  (void)count, (void)options, (void)values;
  return made(state);
}
API Result cuLinkAddData_v2(void *state, int type, void *data, size_t bytes, const char *name, unsigned count, int *options, void **values) {
  (void)state, (void)type, (void)data, (void)bytes, (void)name, (void)count, (void)options, (void)values;
  return SUCCESS;
}
API Result cuLinkComplete(void *state, void **image, size_t *bytes) {
  *image = state, *bytes = 64;
  return SUCCESS;
}
API Result cuLinkDestroy(void *state) {
  free(state);
  return SUCCESS;
}

API Result cuFuncGetAttribute(int *value, int attribute, void *function) {
  enum { MOST_THREADS = 0, SHARED_BYTES, CONSTANT_BYTES, LOCAL_BYTES, NUM_REGISTERS, PTX, BINARY, CACHES, MOST_DYNAMIC_SHARED };
  (void)function;
  int binary = device_of(current_device)->binary;
  switch (attribute) {
    case MOST_THREADS: *value = 1024; break;
    case NUM_REGISTERS: *value = 32; break;
    case PTX: case BINARY: *value = binary; break;
    case MOST_DYNAMIC_SHARED: *value = 48 << 10; break;
    default: *value = 0;
  }
  return SUCCESS;
}
API Result cuFuncSetAttribute(void *function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return SUCCESS;
}
API Result cuFuncSetCacheConfig(void *function, int config) {
  (void)function, (void)config;
  return SUCCESS;
}
API Result cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  (void)device;
  return cuFuncGetAttribute(value, attribute, kernel);
}
API Result cuKernelSetAttribute(int attribute, int value, void *kernel, int device) {
  (void)device;
  return cuFuncSetAttribute(kernel, attribute, value);
}
int blocks_that_fit(int threads, size_t shared_bytes); /* runtime_launch.c */
API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, void *function, int threads, size_t shared_bytes) {
  (void)function;
  *count = blocks_that_fit(threads, shared_bytes);
  return SUCCESS;
}
API Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, void *function, int threads, size_t shared_bytes, unsigned flags) {
  (void)flags;
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, shared_bytes);
}
API Result cuOccupancyMaxActiveClusters(int *count, void *function, const void *configuration) {
  (void)function, (void)configuration;
  *count = device_of(current_device)->num_sms / 2;
  return SUCCESS;
}

static inline Result launched(void) {
  count_launch();
  return SUCCESS;
}
API Result cuLaunchKernel(void) { return launched(); }
API Result cuLaunchKernelEx(void) { return launched(); }
API Result cuLaunchCooperativeKernel(void) { return launched(); }
API Result cuTensorMapEncodeTiled(void *map) { return map ? SUCCESS : INVALID_VALUE; }
API Result cuTensorMapEncodeIm2col(void *map) { return map ? SUCCESS : INVALID_VALUE; }

API Result cuStreamSynchronize(void *stream) {
  (void)stream;
  return SUCCESS;
}
API Result cuStreamQuery(void *stream) { return cuStreamSynchronize(stream); }
API Result cuStreamWriteValue32_v2(void *stream, Address address, unsigned value, unsigned flags) {
  (void)stream, (void)address, (void)value, (void)flags;
  return SUCCESS;
}
API Result cuStreamWaitValue32_v2(void *stream, Address address, unsigned value, unsigned flags) {
  return cuStreamWriteValue32_v2(stream, address, value, flags);
}
/* By its older name where the symbol is looked up. */
API Result cuStreamWriteValue32(void *stream, Address address, unsigned value, unsigned flags) {
  return cuStreamWriteValue32_v2(stream, address, value, flags);
}
/* Streams and their states are the runtime's (runtime_stream.c). */
Result cudaStreamIsCapturing(void *stream, int *status);
Result cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph, void **dependencies, size_t *count);
API Result cuStreamIsCapturing(void *stream, int *status) { return cudaStreamIsCapturing(stream, status); }
API Result cuStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph, void **dependencies, size_t *count) {
  return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count);
}
API Result cuProfilerStart(void) { return SUCCESS; }
API Result cuProfilerStop(void) { return SUCCESS; }
