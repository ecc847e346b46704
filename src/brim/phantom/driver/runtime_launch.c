/* CUDA runtime: what nvcc generates in host code calls, kernels that do nothing, and what is asked about them. */
#define _GNU_SOURCE
#include "runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- Registration of kernels and variables, as libraries are loaded ---- */

typedef struct {
  const void *host;
  size_t bytes;
  void *memory; /* made when first asked for */
} Variable;

static Variable *variables;
static size_t num_variables;
static pthread_mutex_t variables_lock = PTHREAD_MUTEX_INITIALIZER;

API void **__cudaRegisterFatBinary(void *binary) {
  void **handle = malloc(sizeof *handle);
  if (handle) *handle = binary;
  return handle;
}
API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
API void __cudaUnregisterFatBinary(void **handle) { free(handle); }
API char __cudaInitModule(void **handle) {
  (void)handle;
  return 1;
}
API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *thread, void *block,
                                void *block_size, void *grid_size, int *warp) {
  (void)handle, (void)host, (void)device, (void)name, (void)limit, (void)thread, (void)block, (void)block_size, (void)grid_size, (void)warp;
}
API void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int is_external, size_t bytes, int is_constant,
                           int is_global) {
  (void)handle, (void)address, (void)name, (void)is_external, (void)is_constant, (void)is_global;
  pthread_mutex_lock(&variables_lock);
  Variable *more = realloc(variables, (num_variables + 1) * sizeof *more);
  if (more) {
    variables = more;
    variables[num_variables++] = (Variable){.host = host, .bytes = bytes};
  }
  pthread_mutex_unlock(&variables_lock);
}
API void __cudaRegisterManagedVar(void **handle, void **host, char *address, const char *name, int is_external, size_t bytes,
                                  int is_constant, int is_global) {
  (void)handle, (void)address, (void)name, (void)is_external, (void)is_constant, (void)is_global;
  *host = calloc(1, bytes);
}

API Error cudaGetSymbolAddress(void **address, const void *symbol) {
  Error error = failed(INVALID_SYMBOL);
  pthread_mutex_lock(&variables_lock);
  for (size_t i = 0; i < num_variables; i++) {
    if (variables[i].host != symbol) continue;
    if (!variables[i].memory) variables[i].memory = calloc(1, variables[i].bytes);
    *address = variables[i].memory;
    error = *address ? SUCCESS : MEMORY_ALLOCATION;
  }
  pthread_mutex_unlock(&variables_lock);
  return error;
}
API Error cudaGetSymbolSize(size_t *bytes, const void *symbol) {
  for (size_t i = 0; i < num_variables; i++)
    if (variables[i].host == symbol) return *bytes = variables[i].bytes, SUCCESS;
  return failed(INVALID_SYMBOL);
}
API Error cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, int kind) {
  (void)kind;
  void *address;
  Error error = cudaGetSymbolAddress(&address, symbol);
  if (error == SUCCESS) memcpy((char *)address + offset, from, bytes);
  return error;
}
API Error cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset, int kind, Stream *stream) {
  (void)stream;
  return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
API Error cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, int kind) {
  (void)kind;
  void *address;
  Error error = cudaGetSymbolAddress(&address, symbol);
  if (error == SUCCESS) memcpy(to, (char *)address + offset, bytes);
  return error;
}

/* ---- Launches ---- */

typedef struct {
  Dim3 grid, block;
  size_t shared_bytes;
  Stream *stream;
} Configuration;
enum { DEEPEST = 32 };
static _Thread_local Configuration pushed[DEEPEST];
static _Thread_local int depth;

API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared_bytes, Stream *stream) {
  if (depth == DEEPEST) return 1;
  pushed[depth++] = (Configuration){grid, block, shared_bytes, stream};
  return 0;
}
API Error __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared_bytes, void *stream) {
  if (!depth) return failed(INVALID_VALUE);
  Configuration *last = &pushed[--depth];
  *grid = last->grid, *block = last->block, *shared_bytes = last->shared_bytes;
  memcpy(stream, &last->stream, sizeof last->stream);
  return SUCCESS;
}

static inline Error launched(void) {
  count_launch();
  return SUCCESS;
}
API Error __cudaGetKernel(void **kernel, const void *host) {
  *kernel = (void *)host;
  return SUCCESS;
}
API Error __cudaLaunchKernel(void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared_bytes, Stream *stream) {
  (void)kernel, (void)grid, (void)block, (void)arguments, (void)shared_bytes, (void)stream;
  return launched();
}
API Error cudaLaunchKernel(const void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared_bytes, Stream *stream) {
  (void)kernel, (void)grid, (void)block, (void)arguments, (void)shared_bytes, (void)stream;
  return launched();
}
API Error cudaLaunchCooperativeKernel(const void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared_bytes, Stream *stream) {
  (void)kernel, (void)grid, (void)block, (void)arguments, (void)shared_bytes, (void)stream;
  return launched();
}
API Error cudaLaunchKernelExC(const void *configuration, const void *kernel, void **arguments) {
  (void)configuration, (void)kernel, (void)arguments;
  return launched();
}

/* ---- Kernels of libraries that are loaded at run time ---- */

API Error cudaLibraryLoadData(void **library) { return (*library = calloc(1, sizeof(void *))) ? SUCCESS : failed(MEMORY_ALLOCATION); }
API Error cudaLibraryLoadFromFile(void **library) { return cudaLibraryLoadData(library); }
API Error cudaLibraryUnload(void *library) {
  free(library);
  return SUCCESS;
}
API Error cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  (void)name;
  *kernel = library;
  return SUCCESS;
}
API Error cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) {
  (void)kernel, (void)attribute, (void)value, (void)device;
  return SUCCESS;
}

/* ---- What is asked about kernels: nobody looks into their code, so all are alike ---- */

enum { MOST_THREADS = 1024, TYPICAL_REGISTERS = 32, DEFAULT_SHARED_BYTES = 48 << 10 };

typedef struct {
  size_t shared_bytes, constant_bytes, local_bytes;
  int most_threads, num_registers, ptx, binary, caches, most_dynamic_shared_bytes, carveout;
} FunctionAttributes;

API Error cudaFuncGetAttributes(FunctionAttributes *attributes, const void *function) {
  (void)function;
  int binary = device_of(current_device)->binary;
  *attributes = (FunctionAttributes){
      .most_threads = MOST_THREADS,
      .num_registers = TYPICAL_REGISTERS,
      .ptx = binary,
      .binary = binary,
      .most_dynamic_shared_bytes = DEFAULT_SHARED_BYTES,
      .carveout = -1,
  };
  return SUCCESS;
}
API Error cudaFuncSetAttribute(const void *function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return SUCCESS;
}
API Error cudaFuncSetCacheConfig(const void *function, int config) {
  (void)function, (void)config;
  return SUCCESS;
}
API Error cudaFuncGetName(const char **name, const void *function) {
  (void)function;
  *name = "kernel";
  return SUCCESS;
}

int blocks_that_fit(int threads, size_t shared_bytes) {
  const Device *device = device_of(current_device);
  if (threads <= 0 || threads > MOST_THREADS) return 0;
  int fit = device->threads_per_sm / (int)ROUND_UP((unsigned)threads, 32u);
  if (fit > device->blocks_per_sm) fit = device->blocks_per_sm;
  int by_shared = shared_bytes ? device->shared_bytes_per_sm / (int)(shared_bytes + 1024) : fit;
  return by_shared < fit ? by_shared : fit;
}
API Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function, int threads, size_t shared_bytes) {
  (void)function;
  *count = blocks_that_fit(threads, shared_bytes);
  return SUCCESS;
}
API Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *function, int threads, size_t shared_bytes,
                                                                 unsigned flags) {
  (void)flags;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, shared_bytes);
}
API Error cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *function, int blocks, int threads) {
  (void)function, (void)threads;
  *bytes = (size_t)device_of(current_device)->shared_bytes_per_sm / (size_t)(blocks > 0 ? blocks : 1) - 1024;
  return SUCCESS;
}
API Error cudaOccupancyMaxActiveClusters(int *count, const void *function, const void *configuration) {
  (void)function, (void)configuration;
  *count = device_of(current_device)->num_sms / 2;
  return SUCCESS;
}
API Error cudaOccupancyMaxPotentialClusterSize(int *size, const void *function, const void *configuration) {
  (void)function, (void)configuration;
  *size = device_of(current_device)->major >= 9 ? 8 : 1;
  return SUCCESS;
}
