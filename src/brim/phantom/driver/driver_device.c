/* CUDA driver interface: devices, contexts, and how its functions are found by name. */
#define _GNU_SOURCE
#include "driver.h"
#include "ids.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

API Result cuInit(unsigned flags) {
  (void)flags;
  return forked_after_use() ? NOT_INITIALIZED : num_devices() ? SUCCESS : NO_DEVICE;
}
API Result cuDriverGetVersion(int *version) {
  *version = account()->cuda_version;
  return SUCCESS;
}
API Result cuDeviceGetCount(int *count) {
  *count = num_devices();
  return SUCCESS;
}
API Result cuDeviceGet(int *device, int index) {
  if (index < 0 || index >= num_devices()) return INVALID_DEVICE;
  *device = index;
  return SUCCESS;
}
API Result cuDeviceGetName(char *text, int room, int device) {
  snprintf(text, (size_t)room, "%s", device_of(device)->name);
  return SUCCESS;
}
API Result cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (device < 0 || device >= num_devices()) return INVALID_DEVICE;
  *value = device_attribute(attribute, device);
  return SUCCESS;
}
API Result cuDeviceTotalMem_v2(size_t *bytes, int device) {
  *bytes = device_of(device)->total_bytes;
  return SUCCESS;
}
API Result cuDeviceGetUuid(unsigned char *uuid, int device) {
  device_uuid(place_of(device), uuid);
  return SUCCESS;
}
API Result cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }
API Result cuDeviceGetPCIBusId(char *text, int room, int device) {
  device_bus_address(place_of(device), text, room < 17 ? room : 16);
  return SUCCESS;
}
API Result cuDeviceGetByPCIBusId(int *device, const char *text) {
  *device = index_at(device_on_bus(text));
  return *device < 0 ? INVALID_DEVICE : SUCCESS;
}
API Result cuDeviceComputeCapability(int *major, int *minor, int device) {
  *major = device_of(device)->major, *minor = device_of(device)->minor;
  return SUCCESS;
}
API Result cuDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = device != peer;
  return SUCCESS;
}
API Result cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer) {
  (void)attribute;
  *value = device != peer;
  return SUCCESS;
}

/* ---- Contexts: one for each device, the primary one ---- */

API Result cuDevicePrimaryCtxRetain(void **context, int device) {
  if (device < 0 || device >= num_devices()) return INVALID_DEVICE;
  if (!use_device(device)) return forked_after_use() ? NOT_INITIALIZED : OUT_OF_MEMORY;
  *context = context_of(device);
  return SUCCESS;
}
API Result cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  return SUCCESS;
}
API Result cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
  (void)device, (void)flags;
  return SUCCESS;
}
API Result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
  if (flags) *flags = 0;
  if (is_active) *is_active = device >= 0 && device < num_devices() && this_process->devices[place_of(device)].used_bytes > 0;
  return SUCCESS;
}
API Result cuCtxGetCurrent(void **context) {
  *context = num_devices() ? context_of(current_device) : NULL;
  return SUCCESS;
}
API Result cuCtxSetCurrent(void *context) {
  uintptr_t device = (uintptr_t)context - CONTEXTS;
  if (context && device >= (uintptr_t)num_devices()) return INVALID_CONTEXT;
  if (context) current_device = (int)device;
  return SUCCESS;
}
API Result cuCtxPushCurrent_v2(void *context) { return cuCtxSetCurrent(context); }
API Result cuCtxPopCurrent_v2(void **context) { return context ? cuCtxGetCurrent(context) : SUCCESS; }
API Result cuCtxGetDevice(int *device) {
  *device = current_device;
  return SUCCESS;
}
API Result cuCtxSynchronize(void) { return SUCCESS; }
API Result cuCtxGetApiVersion(void *context, unsigned *version) {
  (void)context;
  *version = (unsigned)account()->cuda_version;
  return SUCCESS;
}
API Result cuCtxGetStreamPriorityRange(int *lowest, int *highest) {
  *lowest = 0, *highest = -5;
  return SUCCESS;
}
/* Their numbers and errors are the runtime's (runtime_device.c). */
Result cudaDeviceGetLimit(size_t *value, int limit), cudaDeviceSetLimit(int limit, size_t value);
API Result cuCtxGetLimit(size_t *value, int limit) { return cudaDeviceGetLimit(value, limit); }
API Result cuCtxSetLimit(int limit, size_t value) { return cudaDeviceSetLimit(limit, value); }
API Result cuCtxEnablePeerAccess(void *context, unsigned flags) {
  (void)context, (void)flags;
  return SUCCESS;
}

static const struct {
  Result result;
  const char *name, *text;
} results[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported on a phantom GPU"},
};
static Result describe(Result result, const char **text, bool by_name) {
  *text = by_name ? "CUDA_ERROR_UNKNOWN" : "unknown error";
  for (size_t i = 0; i < sizeof results / sizeof *results; i++)
    if (results[i].result == result) *text = by_name ? results[i].name : results[i].text;
  return SUCCESS;
}
API Result cuGetErrorString(Result result, const char **text) { return describe(result, text, false); }
API Result cuGetErrorName(Result result, const char **text) { return describe(result, text, true); }

/* The driver's log, which since CUDA 12.9 a callback may follow: a phantom logs nothing. */
API Result cuLogsRegisterCallback(void *callback, void *data, void **handle) {
  (void)callback, (void)data;
  static char registered;
  if (handle) *handle = &registered;
  return SUCCESS;
}
API Result cuLogsUnregisterCallback(void *handle) {
  (void)handle;
  return SUCCESS;
}

/* ---- Functions by name ---- */

static void *this_object;
static void find_this_object(void) {
  Dl_info info;
  if (dladdr((void *)account, &info)) this_object = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}
void *own_function(const char *name) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, find_this_object);
  return this_object ? dlsym(this_object, name) : NULL;
}

/* Callers take any function for granted that their CUDA has: what is not there is one of these, which say their names when called. */
enum { MAX_ABSENT = 64 };
static char absent_names[MAX_ABSENT][96];
static int num_absent;
static pthread_mutex_t absent_lock = PTHREAD_MUTEX_INITIALIZER;
#define ABSENT(n)                      \
  static Result absent_##n(void) {     \
    report_absent(absent_names[n]);    \
    return NOT_SUPPORTED;              \
  }
#define EIGHT(DO, n) DO(n##0) DO(n##1) DO(n##2) DO(n##3) DO(n##4) DO(n##5) DO(n##6) DO(n##7)
#define SIXTY_FOUR(DO) \
  EIGHT(DO, 0) EIGHT(DO, 01) EIGHT(DO, 02) EIGHT(DO, 03) EIGHT(DO, 04) EIGHT(DO, 05) EIGHT(DO, 06) EIGHT(DO, 07)
SIXTY_FOUR(ABSENT) /* the numbers are octal */
#define ADDRESS(n) absent_##n,
static Result (*const absent[MAX_ABSENT])(void) = {SIXTY_FOUR(ADDRESS)};

static void *absent_function(const char *name) {
  int position = 0;
  pthread_mutex_lock(&absent_lock);
  while (position < num_absent && strcmp(absent_names[position], name)) position++;
  if (position == num_absent && num_absent < MAX_ABSENT) snprintf(absent_names[num_absent++], sizeof *absent_names, "%s", name);
  pthread_mutex_unlock(&absent_lock);
  return position < MAX_ABSENT ? (void *)absent[position] : NULL;
}

/* The driver adds _v2, _v3 … to a name when a function changes; who asks by the name means the newest. */
static void *newest(const char *name) {
  static const char *const suffixes[] = {"_v3", "_v2", ""};
  char longer[128];
  for (int i = 0; i < 3; i++) {
    snprintf(longer, sizeof longer, "%s%s", name, suffixes[i]);
    void *found = own_function(longer);
    if (found) return found;
  }
  return absent_function(name);
}

enum { FOUND = 0 };
API Result cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status) {
  (void)version, (void)flags;
  *function = newest(name);
  if (status) *status = FOUND;
  return *function ? SUCCESS : NOT_FOUND;
}
API Result cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
API Result cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
  return cuGetProcAddress_v2(name, function, 0, flags, status);
}
API Result cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, int *status) {
  return cuGetProcAddress_v2(name, function, (int)version, flags, status);
}

/* A library with a CUDA runtime of its own asks the driver for tables that only NVIDIA's has. There is no answer to that. */
API Result cuGetExportTable(const void **table, const void *id) {
  (void)id;
  if (table) *table = NULL;
  Dl_info caller;
  const char *who = dladdr(__builtin_return_address(0), &caller) && caller.dli_fname ? caller.dli_fname : "a library";
  report_event("private", "%s carries a CUDA runtime of its own that works with NVIDIA's driver alone, so it cannot use a phantom GPU. "
               "Leave that library out of this run, or run the job on a real GPU.", who);
  return NOT_SUPPORTED;
}
