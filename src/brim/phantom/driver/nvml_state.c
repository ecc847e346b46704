/* NVML: how devices fare.
 *
 * Memory and processes are the account's, those of all processes of the job. What only a real card has is told as of a
 * card at rest: no load, no power drawn, room temperature. What cannot be told (limits of power, fans, errors of
 * memory) is "not supported", an answer that monitors know from many cards. The driver reserves nothing for itself, so
 * its total is the runtime's.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>

#include "nvml.h"

#include <string.h>

enum { ROOM_TEMPERATURE = 25, NO_INSTANCE = -1 };
enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO };

/* ---- Memory and processes ---- */

static bool is_alive(int32_t pid) { return pid > 0 && (!kill(pid, 0) || errno != ESRCH); }

/* What living processes hold there; with an array, also who. Returns how many they are. */
static unsigned list_users(int index, uint64_t *all_bytes, unsigned capacity,
                           void (*write)(void *, unsigned, unsigned, uint64_t), void *array) {
  unsigned count = 0;
  *all_bytes = 0;
  for (int i = 0; i < MAX_PROCESSES; i++) {
    Process *process = &account()->processes[i];
    int32_t pid = atomic_load(&process->pid);
    uint64_t bytes = atomic_load(&process->devices[index].used_bytes);
    if (!bytes || !is_alive(pid)) continue;
    if (array && count < capacity) write(array, count, (unsigned)pid, bytes);
    *all_bytes += bytes;
    count++;
  }
  return count;
}

typedef struct {
  unsigned long long total, free, used;
} Memory;
typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} MemoryWithReserved;

API Result nvmlDeviceGetMemoryInfo(const void *handle, Memory *memory) {
  INDEX_OR_RETURN(index, handle);
  uint64_t used, total = device_at(index)->total_bytes;
  list_users(index, &used, 0, NULL, NULL);
  *memory = (Memory){.total = total, .free = used < total ? total - used : 0, .used = used};
  return SUCCESS;
}

API Result nvmlDeviceGetMemoryInfo_v2(const void *handle, MemoryWithReserved *memory) {
  Memory plain;
  Result result = nvmlDeviceGetMemoryInfo(handle, &plain);
  if (result) return result;
  memory->total = plain.total;
  memory->reserved = 0;
  memory->free = plain.free;
  memory->used = plain.used;
  return SUCCESS;
}

typedef struct {
  unsigned pid;
  unsigned long long used_bytes;
} User; /* the first version; the second and third have two numbers more */
typedef struct {
  User user;
  int gpu_instance, compute_instance;
} UserOfInstance;

static void write_user(void *array, unsigned i, unsigned pid, uint64_t bytes) {
  ((User *)array)[i] = (User){.pid = pid, .used_bytes = bytes};
}
static void write_user_of_instance(void *array, unsigned i, unsigned pid, uint64_t bytes) {
  ((UserOfInstance *)array)[i] = (UserOfInstance){{pid, bytes}, NO_INSTANCE, NO_INSTANCE};
}

static Result give_users(const void *handle, unsigned *count, void *array,
                         void (*write)(void *, unsigned, unsigned, uint64_t)) {
  INDEX_OR_RETURN(index, handle);
  uint64_t used;
  unsigned capacity = *count;
  *count = list_users(index, &used, capacity, write, array);
  return *count > (array ? capacity : 0) ? INSUFFICIENT_SIZE : SUCCESS;
}

API Result nvmlDeviceGetComputeRunningProcesses(const void *handle, unsigned *count, void *array) {
  return give_users(handle, count, array, write_user);
}
API Result nvmlDeviceGetComputeRunningProcesses_v2(const void *handle, unsigned *count, void *array) {
  return give_users(handle, count, array, write_user_of_instance);
}
API Result nvmlDeviceGetComputeRunningProcesses_v3(const void *handle, unsigned *count, void *array) {
  return give_users(handle, count, array, write_user_of_instance);
}

static Result give_no_users(const void *handle, unsigned *count) {
  INDEX_OR_RETURN(index, handle);
  *count = 0;
  return SUCCESS;
}
#define NO_USERS(function) \
  API Result function(const void *handle, unsigned *count) { return give_no_users(handle, count); }
NO_USERS(nvmlDeviceGetGraphicsRunningProcesses)
NO_USERS(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_USERS(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_USERS(nvmlDeviceGetMPSComputeRunningProcesses)
NO_USERS(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_USERS(nvmlDeviceGetMPSComputeRunningProcesses_v3)

/* ---- A card at rest ---- */

/* Of the processors, and of the memory's bus. */
API Result nvmlDeviceGetUtilizationRates(const void *handle, unsigned percent[2]) {
  INDEX_OR_RETURN(index, handle);
  percent[0] = percent[1] = 0;
  return SUCCESS;
}

API Result nvmlDeviceGetTemperature(const void *handle, int sensor, unsigned *celsius) {
  INDEX_OR_RETURN(index, handle);
  if (sensor) return INVALID_ARGUMENT;
  *celsius = ROOM_TEMPERATURE;
  return SUCCESS;
}

typedef struct {
  unsigned version;
  int sensor, celsius;
} Temperature;

API Result nvmlDeviceGetTemperatureV(const void *handle, Temperature *temperature) {
  return nvmlDeviceGetTemperature(handle, temperature->sensor, (unsigned *)&temperature->celsius);
}

API Result nvmlDeviceGetPowerUsage(const void *handle, unsigned *milliwatts) {
  INDEX_OR_RETURN(index, handle);
  *milliwatts = 0;
  return SUCCESS;
}

API Result nvmlDeviceGetMaxClockInfo(const void *handle, int which, unsigned *megahertz) {
  INDEX_OR_RETURN(index, handle);
  const Device *device = device_at(index);
  if (which < CLOCK_GRAPHICS || which > CLOCK_VIDEO) return INVALID_ARGUMENT;
  *megahertz = (unsigned)(which == CLOCK_MEMORY ? device->memory_clock_khz : device->clock_khz) / 1000;
  return SUCCESS;
}
API Result nvmlDeviceGetClockInfo(const void *handle, int which, unsigned *megahertz) {
  return nvmlDeviceGetMaxClockInfo(handle, which, megahertz);
}

API Result nvmlDeviceGetMemoryBusWidth(const void *handle, unsigned *bits) {
  INDEX_OR_RETURN(index, handle);
  *bits = (unsigned)device_at(index)->memory_bus_bits;
  return SUCCESS;
}

/* Off, default, none: what a fresh machine says. */
static Result give_zero(const void *handle, int *value) {
  INDEX_OR_RETURN(index, handle);
  *value = 0;
  return SUCCESS;
}
API Result nvmlDeviceGetPersistenceMode(const void *handle, int *mode) { return give_zero(handle, mode); }
API Result nvmlDeviceGetComputeMode(const void *handle, int *mode) { return give_zero(handle, mode); }
API Result nvmlDeviceGetDisplayMode(const void *handle, int *mode) { return give_zero(handle, mode); }
API Result nvmlDeviceGetDisplayActive(const void *handle, int *mode) { return give_zero(handle, mode); }
API Result nvmlDeviceGetPerformanceState(const void *handle, int *state) { return give_zero(handle, state); }

/* ---- Links between devices: there is no NVLink, and every device reaches every other over the bus ---- */

#define UNSUPPORTED(function) \
  API Result function(void) { return NOT_SUPPORTED; }
UNSUPPORTED(nvmlDeviceGetNvLinkState)
UNSUPPORTED(nvmlDeviceGetNvLinkVersion)
UNSUPPORTED(nvmlDeviceGetNvLinkCapability)
UNSUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
UNSUPPORTED(nvmlDeviceGetGpuFabricInfo)

typedef struct {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
} FabricInfo; /* the beginning of nvmlGpuFabricInfoV_t */
/* Newer torch asks before it maps virtual memory, and takes no answer but this: that there is no fabric. */
API Result nvmlDeviceGetGpuFabricInfoV(const void *handle, FabricInfo *info) {
  enum { NO_FABRIC = 0 };
  INDEX_OR_RETURN(index, handle);
  memset(info->cluster, 0, sizeof info->cluster);
  info->status = SUCCESS, info->clique = 0, info->state = NO_FABRIC;
  return SUCCESS;
}

API Result nvmlDeviceGetP2PStatus(const void *one, const void *other, int capability, int *status) {
  enum { READ, WRITE, STATUS_OK = 0, STATUS_NOT_SUPPORTED = 5 };
  INDEX_OR_RETURN(index, one);
  if (index_of(other) < 0) return INVALID_ARGUMENT;
  *status = capability == READ || capability == WRITE ? STATUS_OK : STATUS_NOT_SUPPORTED;
  return SUCCESS;
}

/* ---- What a phantom cannot tell, of what monitors commonly ask ---- */

UNSUPPORTED(nvmlDeviceGetEnforcedPowerLimit)
UNSUPPORTED(nvmlDeviceGetPowerManagementLimit)
UNSUPPORTED(nvmlDeviceGetPowerManagementDefaultLimit)
UNSUPPORTED(nvmlDeviceGetTotalEnergyConsumption)
UNSUPPORTED(nvmlDeviceGetTemperatureThreshold)
UNSUPPORTED(nvmlDeviceGetFanSpeed)
UNSUPPORTED(nvmlDeviceGetFanSpeed_v2)
UNSUPPORTED(nvmlDeviceGetEccMode)
UNSUPPORTED(nvmlDeviceGetTotalEccErrors)
UNSUPPORTED(nvmlDeviceGetEncoderUtilization)
UNSUPPORTED(nvmlDeviceGetDecoderUtilization)
UNSUPPORTED(nvmlDeviceGetPcieThroughput)
UNSUPPORTED(nvmlDeviceGetCurrPcieLinkGeneration)
UNSUPPORTED(nvmlDeviceGetCurrPcieLinkWidth)
UNSUPPORTED(nvmlDeviceGetMaxPcieLinkGeneration)
UNSUPPORTED(nvmlDeviceGetMaxPcieLinkWidth)
UNSUPPORTED(nvmlDeviceGetSerial)
UNSUPPORTED(nvmlDeviceGetVbiosVersion)
UNSUPPORTED(nvmlDeviceGetBAR1MemoryInfo)
UNSUPPORTED(nvmlDeviceGetProcessUtilization)
UNSUPPORTED(nvmlDeviceGetMigMode)
UNSUPPORTED(nvmlDeviceGetMaxMigDeviceCount)
UNSUPPORTED(nvmlDeviceGetMigDeviceHandleByIndex)
