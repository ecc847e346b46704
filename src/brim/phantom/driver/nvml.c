/* NVML, the interface of monitors: the library itself, and what devices there are. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdio.h>
#include <string.h>

#include "ids.h"

enum { NVIDIA_VENDOR = 0x10DE };

static Result give_text(char *to, unsigned bytes, const char *text) {
  if (!to) return INVALID_ARGUMENT;
  return (unsigned)snprintf(to, bytes, "%s", text) < bytes ? SUCCESS : INSUFFICIENT_SIZE;
}

static Result give_handle(void **handle, int index) {
  if (index < 0 || index >= account()->num_devices) return NOT_FOUND;
  *handle = (void *)device_at(index);
  return SUCCESS;
}

/* ---- The library ---- */

API Result nvmlInit(void) {
  account();
  return SUCCESS;
}
API Result nvmlInit_v2(void) { return nvmlInit(); }
API Result nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  return nvmlInit();
}
API Result nvmlShutdown(void) { return SUCCESS; }

API const char *nvmlErrorString(Result result) {
  switch (result) {
    case SUCCESS: return "Success";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    default: return "Unknown Error";
  }
}

/* The oldest driver that runs this CUDA: 525 for 12.0, 570 for 12.8, 580 for 13.0. */
static const char *driver_version(void) {
  int version = account()->cuda_version;
  return version >= 13000 ? "580.00.00" : version >= 12080 ? "570.00.00" : "525.00.00";
}

API Result nvmlSystemGetDriverVersion(char *text, unsigned bytes) { return give_text(text, bytes, driver_version()); }

API Result nvmlSystemGetNVMLVersion(char *text, unsigned bytes) {
  char version[32];
  snprintf(version, sizeof version, "%d.%.6s", cuda_major(), driver_version());
  return give_text(text, bytes, version);
}

API Result nvmlSystemGetCudaDriverVersion(int *version) {
  *version = account()->cuda_version;
  return SUCCESS;
}
API Result nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

API Result nvmlSystemGetProcessName(unsigned pid, char *text, unsigned bytes) {
  char path[64], name[4096];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE *file = fopen(path, "re");
  if (!file) return NOT_FOUND;
  size_t length = fread(name, 1, sizeof name - 1, file);
  fclose(file);
  name[length] = 0; /* the arguments follow after a zero each: the first is the program */
  return give_text(text, bytes, name);
}

/* ---- Which devices ---- */

API Result nvmlDeviceGetCount_v2(unsigned *count) {
  *count = (unsigned)account()->num_devices;
  return SUCCESS;
}
API Result nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

API Result nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  return index < (unsigned)account()->num_devices ? give_handle(handle, (int)index) : INVALID_ARGUMENT;
}
API Result nvmlDeviceGetHandleByIndex(unsigned index, void **handle) {
  return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

API Result nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **handle) {
  return give_handle(handle, device_on_bus(bus_id));
}
API Result nvmlDeviceGetHandleByPciBusId(const char *bus_id, void **handle) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, handle);
}

API Result nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  for (int i = 0; i < account()->num_devices; i++) {
    char text[UUID_TEXT];
    write_uuid(i, text);
    if (!strcmp(text, uuid)) return give_handle(handle, i);
  }
  return NOT_FOUND;
}

API Result nvmlDeviceGetIndex(const void *handle, unsigned *number) {
  INDEX_OR_RETURN(index, handle);
  *number = (unsigned)index;
  return SUCCESS;
}
API Result nvmlDeviceGetMinorNumber(const void *handle, unsigned *number) { return nvmlDeviceGetIndex(handle, number); }

API Result nvmlDeviceGetName(const void *handle, char *text, unsigned bytes) {
  INDEX_OR_RETURN(index, handle);
  return give_text(text, bytes, device_at(index)->name);
}

API Result nvmlDeviceGetUUID(const void *handle, char *text, unsigned bytes) {
  INDEX_OR_RETURN(index, handle);
  char uuid[UUID_TEXT];
  write_uuid(index, uuid);
  return give_text(text, bytes, uuid);
}

typedef struct {
  char legacy_bus_id[16];
  unsigned domain, bus, slot, device_id, subsystem_id;
  char bus_id[32];
} PciInfo;

/* The id of the chip is not known: its vendor alone is told. */
API Result nvmlDeviceGetPciInfo_v3(const void *handle, PciInfo *info) {
  INDEX_OR_RETURN(index, handle);
  *info = (PciInfo){.bus = (unsigned)device_bus(index), .device_id = NVIDIA_VENDOR, .subsystem_id = NVIDIA_VENDOR};
  device_bus_address(index, info->legacy_bus_id, sizeof info->legacy_bus_id);
  device_bus_address(index, info->bus_id, sizeof info->bus_id);
  return SUCCESS;
}

API Result nvmlDeviceGetCudaComputeCapability(const void *handle, int *major, int *minor) {
  INDEX_OR_RETURN(index, handle);
  *major = device_at(index)->major;
  *minor = device_at(index)->minor;
  return SUCCESS;
}

/* Generations as NVML counts them: 5 Volta, 6 Turing, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell. */
API Result nvmlDeviceGetArchitecture(const void *handle, unsigned *generation) {
  INDEX_OR_RETURN(index, handle);
  const Device *device = device_at(index);
  switch (device->major) {
    case 7: *generation = device->minor == 5 ? 6 : 5; break;
    case 8: *generation = device->minor == 9 ? 8 : 7; break;
    case 9: *generation = 9; break;
    case 10:
    case 11:
    case 12: *generation = 10; break;
    default: return NOT_SUPPORTED;
  }
  return SUCCESS;
}
