/* What torch's allocator hands out and takes back, in order, for the part of brim that runs in the job (attached/ledger.py).
 *
 * torch tells its profiler of every block, and of a request that it had to refuse, through two public functions of libc10, which are
 * seen here on their way. Each entry carries the tag that the job's Python had set: which module runs, and in which part of a step.
 */
#define _GNU_SOURCE
#include "phantom.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A step of a large job makes some 100,000; beyond this many unread ones no more are kept. */
enum { MOST_ENTRIES = 1 << 21 };

typedef struct {
  uint64_t address; /* of a request that was refused: its bytes */
  int64_t bytes;    /* negative where it is released; 0 where it was refused */
  uint32_t tag;
  int32_t device;
} Entry;

static Entry *entries;
static size_t num_entries, room_for;
static bool is_open, has_lost;
static _Atomic uint32_t current_tag;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void empty_after_fork(void) {
  pthread_mutex_init(&lock, NULL);
  num_entries = 0;
}

API void brim_ledger_open(void) {
  pthread_mutex_lock(&lock);
  if (!is_open) pthread_atfork(NULL, NULL, empty_after_fork);
  is_open = true;
  pthread_mutex_unlock(&lock);
}

API void brim_ledger_tag(uint32_t tag) { atomic_store_explicit(&current_tag, tag, memory_order_relaxed); }

/* Move what was noted since the last call into `to`; -1 where some of it was lost. */
API int64_t brim_ledger_read(Entry *to, size_t room) {
  pthread_mutex_lock(&lock);
  size_t count = num_entries < room ? num_entries : room;
  if (count) memcpy(to, entries, count * sizeof *entries);
  num_entries -= count;
  if (num_entries) memmove(entries, entries + count, num_entries * sizeof *entries);
  int64_t answer = has_lost ? -1 : (int64_t)count;
  pthread_mutex_unlock(&lock);
  return answer;
}

static void note(uint64_t address, int64_t bytes, int device) {
  if (!is_open) return;
  pthread_mutex_lock(&lock);
  if (num_entries == room_for && room_for < MOST_ENTRIES) {
    size_t larger = room_for ? 2 * room_for : 4096;
    Entry *moved = realloc(entries, larger * sizeof *moved);
    if (moved) entries = moved, room_for = larger;
  }
  if (num_entries < room_for)
    entries[num_entries++] = (Entry){address, bytes, atomic_load_explicit(&current_tag, memory_order_relaxed), device};
  else has_lost = true;
  pthread_mutex_unlock(&lock);
}

static void raise_to(_Atomic uint64_t *peak, uint64_t value) {
  uint64_t known = atomic_load_explicit(peak, memory_order_relaxed);
  while (value > known && !atomic_compare_exchange_weak(peak, &known, value)) {}
}

void note_pooled(void *start, int64_t bytes, int device) {
  Usage *usage = &this_process->devices[device];
  uint64_t allocated = atomic_fetch_add(&usage->allocated_bytes, (uint64_t)bytes) + (uint64_t)bytes;
  raise_to(&usage->allocated_peak_bytes, allocated);
  raise_to(&usage->reserved_peak_bytes, ROUND_UP(allocated, 2 * MIB));
  note((uint64_t)start, bytes, device);
  if (bytes < 0) clear_released(start, (size_t)-bytes);
}

/* ---- torch's two functions ---- */

typedef struct {
  int8_t type, index;
} TorchDevice;
enum { TORCH_CUDA = 1 };
#define REPORT "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
#define REPORT_REFUSED "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"
typedef void Report(void *, int64_t, size_t, size_t, TorchDevice);
typedef void ReportRefused(int64_t, size_t, size_t, TorchDevice);

/* Python loads torch's libraries where no other sees them, so the linker has no next one: they are asked for by name. */
static void *torch_function(_Atomic(void *) *known, const char *name) {
  void *found = atomic_load_explicit(known, memory_order_relaxed);
  if (found) return found;
  void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library) atomic_store_explicit(known, found = dlsym(library, name), memory_order_relaxed);
  return found;
}

static bool is_phantom(TorchDevice device) {
  return device.type == TORCH_CUDA && device.index >= 0 && device.index < MAX_DEVICES;
}

static Usage *count_torch(TorchDevice device, size_t allocated, size_t reserved) {
  Usage *usage = &this_process->devices[place_of(device.index)];
  atomic_store_explicit(&usage->allocated_bytes, allocated, memory_order_relaxed);
  atomic_store_explicit(&usage->reserved_bytes, reserved, memory_order_relaxed);
  raise_to(&usage->allocated_peak_bytes, allocated);
  raise_to(&usage->reserved_peak_bytes, reserved);
  return usage;
}

API void report_memory(void *start, int64_t bytes, size_t allocated, size_t reserved, TorchDevice device) __asm__(REPORT);
API void report_memory(void *start, int64_t bytes, size_t allocated, size_t reserved, TorchDevice device) {
  static _Atomic(void *) known;
  if (is_phantom(device)) {
    count_torch(device, allocated, reserved);
    note((uint64_t)start, bytes, device.index);
    if (bytes < 0) clear_released(start, (size_t)-bytes);
  }
  Report *report = (Report *)torch_function(&known, REPORT);
  if (report) report(start, bytes, allocated, reserved, device);
}

API void report_refused(int64_t bytes, size_t allocated, size_t reserved, TorchDevice device) __asm__(REPORT_REFUSED);
API void report_refused(int64_t bytes, size_t allocated, size_t reserved, TorchDevice device) {
  static _Atomic(void *) known;
  if (is_phantom(device)) {
    atomic_store(&count_torch(device, allocated, reserved)->refused_by_torch_bytes, (uint64_t)bytes);
    note((uint64_t)bytes, 0, device.index);
  }
  ReportRefused *report = (ReportRefused *)torch_function(&known, REPORT_REFUSED);
  if (report) report(bytes, allocated, reserved, device);
}
