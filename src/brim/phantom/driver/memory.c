/* Blocks of memory: addresses backed by pages that nobody touches, counted against the device they stand for.
 *
 * The driver hands out memory in pages of 2 MiB. Requests below 1 MiB share such pages. torch's allocator asks for 2 MiB and more.
 */
#define _GNU_SOURCE
#include "phantom.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SMALLEST = 512, PAGE = 4096 };
#define DEVICE_PAGE (2 * MIB)
#define SHARES_PAGES_BELOW MIB

typedef struct {
  char *start;
  size_t bytes, mapped_bytes;
  MemoryKind kind;
  int device;
  bool shares_pages;
} Entry;

static Entry *entries; /* sorted by their starts */
static size_t num_entries, room_for;
static size_t shared_bytes[MAX_DEVICES]; /* in pages that small requests share */
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

static void relock(void) { pthread_rwlock_init(&lock, NULL); }
static void lock_for_fork(void) { pthread_rwlock_wrlock(&lock); }
static void unlock_after_fork(void) { pthread_rwlock_unlock(&lock); }
__attribute__((constructor)) static void survive_forks(void) { pthread_atfork(lock_for_fork, unlock_after_fork, relock); }

/* The position of the first entry that starts after an address. */
static size_t position_after(const char *address) {
  size_t low = 0, high = num_entries;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (entries[middle].start <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

static Entry *holding(const char *address) {
  size_t position = position_after(address);
  Entry *entry = position ? &entries[position - 1] : NULL;
  return entry && address < entry->start + entry->bytes ? entry : NULL;
}

static bool insert(Entry entry) {
  if (num_entries == room_for) {
    size_t larger = room_for ? 2 * room_for : 256;
    Entry *moved = realloc(entries, larger * sizeof *moved);
    if (!moved) return false;
    entries = moved;
    room_for = larger;
  }
  size_t position = position_after(entry.start);
  memmove(&entries[position + 1], &entries[position], (num_entries - position) * sizeof *entries);
  entries[position] = entry;
  num_entries++;
  return true;
}

static void erase(Entry *entry) {
  size_t position = (size_t)(entry - entries);
  memmove(entry, entry + 1, (--num_entries - position) * sizeof *entries);
}

/* Pages at an aligned address; small ones as they come. Without huge pages: one written byte would take 2 MiB. */
static char *map_pages(size_t bytes, size_t alignment, int protection) {
  size_t spare = alignment > PAGE ? alignment : 0;
  char *found = mmap(NULL, bytes + spare, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) {
    report_event("host", "the host refused %zu MiB of addresses for memory of a phantom GPU. Raise `ulimit -v`, or set "
                 "vm.overcommit_memory to 0 or 1.", bytes / MIB);
    return NULL;
  }
  char *start = (char *)ROUND_UP((uintptr_t)found, spare ? spare : 1);
  if (start > found) munmap(found, (size_t)(start - found));
  if (spare && found + spare > start) munmap(start + bytes, (size_t)(found + spare - start));
  madvise(start, bytes, MADV_NOHUGEPAGE);
  return start;
}

static void *take(Entry entry, size_t alignment) {
  entry.start = map_pages(entry.mapped_bytes, alignment, PROT_READ | PROT_WRITE);
  if (!entry.start) return NULL;
  pthread_rwlock_wrlock(&lock);
  bool kept = insert(entry);
  pthread_rwlock_unlock(&lock);
  if (!kept) munmap(entry.start, entry.mapped_bytes);
  return kept ? entry.start : NULL;
}

/* Charge small requests by the pages that they share. */
static bool charge_shared(int device, size_t bytes) {
  pthread_rwlock_wrlock(&lock);
  size_t before = ROUND_UP(shared_bytes[device], DEVICE_PAGE), after = ROUND_UP(shared_bytes[device] + bytes, DEVICE_PAGE);
  bool fits = after == before ? use_device(device) : charge(device, after - before);
  if (fits) shared_bytes[device] += bytes;
  pthread_rwlock_unlock(&lock);
  return fits;
}

static void uncharge_block(const Entry *entry) {
  if (entry->kind == MANAGED_MEMORY) {
    uncharge_managed(entry->device, entry->bytes);
    return;
  }
  if (!entry->shares_pages) {
    uncharge(entry->device, entry->bytes);
    return;
  }
  size_t before = ROUND_UP(shared_bytes[entry->device], DEVICE_PAGE);
  shared_bytes[entry->device] -= entry->bytes;
  uncharge(entry->device, before - ROUND_UP(shared_bytes[entry->device], DEVICE_PAGE));
}

static void *allocate_charged(int device, size_t bytes, MemoryKind kind, bool shares) {
  if (!bytes) return NULL;
  bool is_managed = kind == MANAGED_MEMORY;
  size_t rounded = shares ? ROUND_UP(bytes, SMALLEST) : ROUND_UP(bytes, DEVICE_PAGE);
  if (rounded < bytes) return NULL;
  bool is_charged = is_managed ? charge_managed(device, rounded) : shares ? charge_shared(device, rounded) : charge(device, rounded);
  if (!is_charged) return NULL;
  Entry entry = {.bytes = rounded, .mapped_bytes = ROUND_UP(rounded, PAGE), .kind = kind, .device = device, .shares_pages = shares};
  void *start = take(entry, shares ? PAGE : DEVICE_PAGE);
  if (!start) {
    pthread_rwlock_wrlock(&lock);
    uncharge_block(&entry);
    pthread_rwlock_unlock(&lock);
  }
  return start;
}

void *allocate_device(int device, size_t bytes) {
  return allocate_charged(device, bytes, DEVICE_MEMORY, bytes < SHARES_PAGES_BELOW);
}
void *allocate_pooled(int device, size_t bytes) { return allocate_charged(device, bytes, DEVICE_MEMORY, true); }
void *allocate_managed(int device, size_t bytes) { return allocate_charged(device, bytes, MANAGED_MEMORY, false); }

static void count_pinned(size_t bytes, bool more) {
  if (!more) {
    atomic_fetch_sub(&this_process->pinned_bytes, bytes);
    return;
  }
  uint64_t now = atomic_fetch_add(&this_process->pinned_bytes, bytes) + bytes, peak = atomic_load(&this_process->pinned_peak_bytes);
  while (now > peak && !atomic_compare_exchange_weak(&this_process->pinned_peak_bytes, &peak, now)) {}
}

void *allocate_pinned(size_t bytes) {
  if (!bytes) return NULL;
  size_t rounded = ROUND_UP(bytes, PAGE);
  void *start = rounded < bytes ? NULL : take((Entry){.bytes = rounded, .mapped_bytes = rounded, .kind = PINNED_MEMORY}, PAGE);
  if (start) count_pinned(rounded, true);
  return start;
}

bool release_block(void *start, MemoryKind kind) {
  pthread_rwlock_wrlock(&lock);
  Entry *entry = holding(start);
  bool is_there = entry && entry->start == start && entry->kind == kind;
  if (is_there) {
    if (kind == PINNED_MEMORY) count_pinned(entry->bytes, false);
    else if (kind != RESERVED_ADDRESSES) uncharge_block(entry);
    forget_written(entry->start, entry->mapped_bytes);
    munmap(entry->start, entry->mapped_bytes);
    erase(entry);
  }
  pthread_rwlock_unlock(&lock);
  return is_there;
}

Block find_block(const void *address) {
  pthread_rwlock_rdlock(&lock);
  Entry *entry = holding(address);
  Block block = {.kind = OUTSIDE};
  if (entry) block = (Block){.kind = entry->kind, .start = entry->start, .bytes = entry->bytes, .device = entry->device};
  pthread_rwlock_unlock(&lock);
  return block;
}

void *reserve_addresses(size_t bytes, size_t alignment) {
  Entry entry = {.bytes = bytes, .mapped_bytes = bytes, .kind = RESERVED_ADDRESSES, .device = current_device};
  entry.start = map_pages(bytes, alignment > DEVICE_PAGE ? alignment : DEVICE_PAGE, PROT_NONE);
  if (!entry.start) return NULL;
  pthread_rwlock_wrlock(&lock);
  bool kept = insert(entry);
  pthread_rwlock_unlock(&lock);
  return kept ? entry.start : NULL;
}

bool release_addresses(void *start, size_t bytes) {
  Block block = find_block(start);
  return block.start == start && block.bytes == bytes && release_block(start, RESERVED_ADDRESSES);
}
