/* CUDA runtime: devices, their properties, versions and errors. */
#define _GNU_SOURCE
#include "ids.h"
#include "runtime.h"

#include <stdio.h>
#include <string.h>

static _Thread_local Error last_error;

Error failed(Error error) {
  last_error = error;
  return error;
}

Error check_device(int device) {
  if (forked_after_use()) return failed(INITIALIZATION_ERROR);
  if (!num_devices()) return failed(NO_DEVICE);
  if (device < 0 || device >= num_devices()) return failed(INVALID_DEVICE);
  return use_device(device) ? SUCCESS : failed(MEMORY_ALLOCATION);
}

static const struct {
  Error error;
  const char *name, *text;
} errors[] = {
    {SUCCESS, "cudaSuccess", "no error"},
    {INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {MEMORY_ALLOCATION, "cudaErrorMemoryAllocation", "out of memory"},
    {INITIALIZATION_ERROR, "cudaErrorInitializationError", "initialization error"},
    {INVALID_SYMBOL, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {INVALID_DEVICE_FUNCTION, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {NO_KERNEL_IMAGE, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {INVALID_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {SYMBOL_NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
    {NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported on a phantom GPU"},
};

API const char *cudaGetErrorName(Error error) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == error) return errors[i].name;
  return "cudaErrorUnknown";
}

API const char *cudaGetErrorString(Error error) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == error) return errors[i].text;
  return "unknown error";
}

API Error cudaGetLastError(void) {
  Error error = last_error;
  last_error = SUCCESS;
  return error;
}
API Error cudaPeekAtLastError(void) { return last_error; }

API Error cudaGetDeviceCount(int *count) {
  *count = num_devices();
  if (forked_after_use()) return failed(INITIALIZATION_ERROR);
  return *count ? SUCCESS : failed(NO_DEVICE);
}

API Error cudaGetDevice(int *device) {
  *device = current_device;
  return num_devices() ? SUCCESS : failed(NO_DEVICE);
}

API Error cudaSetDevice(int device) {
  Error error = check_device(device);
  if (error == SUCCESS) current_device = device;
  return error;
}

API Error cudaSetValidDevices(int *devices, int count) { return count > 0 && devices ? SUCCESS : failed(INVALID_VALUE); }
API Error cudaChooseDevice(int *device, const void *wanted) {
  (void)wanted;
  *device = 0;
  return SUCCESS;
}
API Error cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  (void)device_flags, (void)flags;
  return check_device(device);
}
API Error cudaDeviceSynchronize(void) { return SUCCESS; }
API Error cudaDeviceReset(void) { return SUCCESS; }
API Error cudaSetDeviceFlags(unsigned flags) {
  (void)flags;
  return SUCCESS;
}
API Error cudaGetDeviceFlags(unsigned *flags) {
  *flags = 0;
  return SUCCESS;
}

API Error cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = device != peer;
  return SUCCESS;
}
API Error cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  (void)flags;
  return peer >= 0 && peer < num_devices() ? SUCCESS : failed(INVALID_DEVICE);
}
API Error cudaDeviceDisablePeerAccess(int peer) { return cudaDeviceEnablePeerAccess(peer, 0); }
API Error cudaDeviceGetP2PAttribute(int *value, int attribute, int device, int peer) {
  enum { PERFORMANCE_RANK = 1, ACCESS = 2, NATIVE_ATOMICS = 3 };
  *value = device != peer && (attribute == ACCESS || attribute == NATIVE_ATOMICS);
  return SUCCESS;
}

API Error cudaDeviceGetPCIBusId(char *text, int room, int device) {
  if (device < 0 || device >= num_devices()) return failed(INVALID_DEVICE);
  device_bus_address(place_of(device), text, room < 17 ? room : 16);
  return SUCCESS;
}
API Error cudaDeviceGetByPCIBusId(int *device, const char *text) {
  *device = index_at(device_on_bus(text));
  return *device < 0 ? failed(INVALID_DEVICE) : SUCCESS;
}

API Error cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) {
  if (lowest) *lowest = 0;
  if (highest) *highest = -5;
  return SUCCESS;
}

static size_t limits[16] = {1024, 1 << 20, 8 * MIB, 2, 2048, 128, 0}; /* stack, printf, heap, depth, launches, fetch, persisting L2 */
API Error cudaDeviceGetLimit(size_t *value, int limit) {
  if (limit < 0 || limit >= 16) return failed(INVALID_VALUE);
  *value = limits[limit];
  return SUCCESS;
}
API Error cudaDeviceSetLimit(int limit, size_t value) {
  if (limit < 0 || limit >= 16) return failed(INVALID_VALUE);
  limits[limit] = value;
  return SUCCESS;
}
API Error cudaDeviceGetCacheConfig(int *config) {
  *config = 0;
  return SUCCESS;
}
API Error cudaDeviceSetCacheConfig(int config) {
  (void)config;
  return SUCCESS;
}

API Error cudaRuntimeGetVersion(int *version) {
  *version = account()->cuda_version;
  return SUCCESS;
}
API Error cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }

API Error cudaDeviceGetAttribute(int *value, int attribute, int device) {
  if (device < 0 || device >= num_devices()) return failed(INVALID_DEVICE);
  *value = device_attribute(attribute, device);
  return SUCCESS;
}

/* The properties in their documented order. CUDA 13 dropped the fields in parentheses. */
#define PROPERTIES(BEFORE_13)                                                                                           \
  char name[256];                                                                                                       \
  unsigned char uuid[16];                                                                                               \
  char luid[8];                                                                                                         \
  unsigned luid_mask;                                                                                                   \
  size_t total_bytes, shared_per_block;                                                                                 \
  int registers_per_block, warp_size;                                                                                   \
  size_t pitch;                                                                                                         \
  int threads_per_block, block_size[3], grid_size[3];                                                                   \
  BEFORE_13(int clock_khz;)                                                                                             \
  size_t constant_bytes;                                                                                                \
  int major, minor;                                                                                                     \
  size_t texture_alignment, texture_pitch_alignment;                                                                    \
  BEFORE_13(int overlaps;)                                                                                              \
  int num_sms;                                                                                                          \
  BEFORE_13(int has_timeout;)                                                                                           \
  int is_integrated, maps_host_memory;                                                                                  \
  BEFORE_13(int compute_mode;)                                                                                          \
  int texture_1d, texture_1d_mipmap;                                                                                    \
  BEFORE_13(int texture_1d_linear;)                                                                                     \
  int texture_2d[2], texture_2d_mipmap[2], texture_2d_linear[3], texture_2d_gather[2], texture_3d[3], texture_3d_alt[3], \
      texture_cube, texture_1d_layered[2], texture_2d_layered[3], texture_cube_layered[2], surface_1d, surface_2d[2],   \
      surface_3d[3], surface_1d_layered[2], surface_2d_layered[3], surface_cube, surface_cube_layered[2];               \
  size_t surface_alignment;                                                                                             \
  int concurrent_kernels, has_ecc, bus, bus_device, bus_domain, is_tcc, num_copy_engines, unified_addressing;           \
  BEFORE_13(int memory_clock_khz;)                                                                                      \
  int memory_bus_bits, l2_bytes, persisting_l2_bytes, threads_per_sm, stream_priorities, caches_global, caches_local;   \
  size_t shared_per_sm;                                                                                                 \
  int registers_per_sm, managed_memory, is_multi_board, multi_board_group, native_host_atomics;                         \
  BEFORE_13(int single_to_double;)                                                                                      \
  int pageable_access, concurrent_managed_access, preempts, host_pointers_for_registered, cooperative_launch;           \
  BEFORE_13(int cooperative_multi_device_launch;)                                                                       \
  size_t shared_per_block_optin;                                                                                        \
  int pageable_uses_host_tables, direct_managed_access, blocks_per_sm, access_policy_window;                            \
  size_t reserved_shared_per_block;                                                                                     \
  int host_register, sparse_arrays, read_only_host_register, timeline_semaphores, memory_pools, gpu_direct_rdma;        \
  unsigned rdma_flush;                                                                                                  \
  int rdma_order;                                                                                                       \
  unsigned pool_handles;                                                                                                \
  int deferred_arrays, ipc_events, cluster_launch

#define KEEP(field) field
#define DROP(field)
typedef struct {
  PROPERTIES(KEEP);
} Properties12;
typedef struct {
  PROPERTIES(DROP);
} Properties13;

#define FILL_COMMON(p, d, index)                                                                             \
  memset(p, 0, sizeof *(p));                                                                                 \
  snprintf((p)->name, sizeof(p)->name, "%s", (d)->name);                                                     \
  device_uuid(place_of(index), (p)->uuid);                                                                   \
  (p)->total_bytes = (d)->total_bytes, (p)->shared_per_block = 48 << 10, (p)->registers_per_block = 65536;   \
  (p)->warp_size = 32, (p)->pitch = INT32_MAX, (p)->threads_per_block = 1024;                                \
  (p)->block_size[0] = (p)->block_size[1] = 1024, (p)->block_size[2] = 64;                                   \
  (p)->grid_size[0] = INT32_MAX, (p)->grid_size[1] = (p)->grid_size[2] = 65535;                              \
  (p)->constant_bytes = 65536, (p)->major = (d)->major, (p)->minor = (d)->minor;                             \
  (p)->texture_alignment = 512, (p)->texture_pitch_alignment = 32, (p)->num_sms = (d)->num_sms;              \
  (p)->maps_host_memory = (p)->concurrent_kernels = (p)->unified_addressing = (p)->stream_priorities = 1;    \
  (p)->caches_global = (p)->caches_local = (p)->managed_memory = (p)->concurrent_managed_access = 1;         \
  (p)->preempts = (p)->cooperative_launch = (p)->host_register = (p)->memory_pools = (p)->ipc_events = 1;    \
  (p)->texture_1d = 131072, (p)->texture_2d[0] = 131072, (p)->texture_2d[1] = 65536;                         \
  (p)->texture_3d[0] = (p)->texture_3d[1] = (p)->texture_3d[2] = 16384, (p)->surface_alignment = 512;        \
  (p)->bus = device_bus(place_of(index)), (p)->num_copy_engines = 2;                                         \
  (p)->memory_bus_bits = (d)->memory_bus_bits;                                                              \
  (p)->l2_bytes = (d)->l2_bytes, (p)->persisting_l2_bytes = (d)->l2_bytes / 4 * 3;                           \
  (p)->threads_per_sm = (d)->threads_per_sm, (p)->shared_per_sm = (size_t)(d)->shared_bytes_per_sm;          \
  (p)->registers_per_sm = 65536, (p)->shared_per_block_optin = (size_t)(d)->shared_bytes_per_sm - 1024;      \
  (p)->blocks_per_sm = (d)->blocks_per_sm, (p)->access_policy_window = 134213632;                            \
  (p)->reserved_shared_per_block = 1024, (p)->cluster_launch = (d)->major >= 9

/* Only the fields above are written, so a caller with a longer structure of its own release is safe. */
API Error cudaGetDeviceProperties_v2(Properties12 *properties, int index) {
  if (index < 0 || index >= num_devices()) return failed(INVALID_DEVICE);
  const Device *device = device_of(index);
  FILL_COMMON(properties, device, index);
  properties->clock_khz = device->clock_khz, properties->memory_clock_khz = device->memory_clock_khz;
  properties->overlaps = properties->cooperative_multi_device_launch = 1, properties->single_to_double = 32;
  return SUCCESS;
}

/* By this name only CUDA 13 and newer ask. */
API Error cudaGetDeviceProperties(Properties13 *properties, int index) {
  if (index < 0 || index >= num_devices()) return failed(INVALID_DEVICE);
  const Device *device = device_of(index);
  FILL_COMMON(properties, device, index);
  return SUCCESS;
}

API Error cudaProfilerStart(void) { return SUCCESS; }
API Error cudaProfilerStop(void) { return SUCCESS; }
