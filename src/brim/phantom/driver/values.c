/* What can be read back from a device on which no kernel runs.
 *
 * The host's small copies are kept; all else reads as zeros, as pages do that nobody touched. torch hands out the same memory again and
 * again, so what was written into a tensor is cleared when the tensor dies (ledger.c hears of that).
 */
#define _GNU_SOURCE
#include "phantom.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Larger copies are not carried out. */
#define LARGEST_COPY MIB
/* Smaller tensors are cleared as a whole, as values may be computed in place (brim.phantom.attached.values). */
#define CLEARED_UP_TO ((size_t)64 << 10)

_Thread_local int current_device;

typedef struct {
  char *start;
  size_t bytes;
} Range;

/* What was written into larger tensors that live. */
static Range *written;
static size_t num_written, room_for;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void relock(void) { pthread_mutex_init(&lock, NULL); }
__attribute__((constructor)) static void survive_forks(void) { pthread_atfork(NULL, NULL, relock); }

static void remember(char *start, size_t bytes) {
  pthread_mutex_lock(&lock);
  bool is_known = false;
  for (size_t i = 0; i < num_written && !is_known; i++) is_known = written[i].start == start && written[i].bytes >= bytes;
  if (!is_known && num_written == room_for) {
    size_t larger = room_for ? 2 * room_for : 64;
    Range *moved = realloc(written, larger * sizeof *moved);
    if (moved) written = moved, room_for = larger;
  }
  if (!is_known && num_written < room_for) written[num_written++] = (Range){start, bytes};
  pthread_mutex_unlock(&lock);
}

/* Values were computed in place, on the host. */
void note_written(char *start, size_t bytes) {
  if (bytes > CLEARED_UP_TO) remember(start, bytes);
}

/* Clear what was written between two addresses. */
static void clear_written(char *start, size_t bytes) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < num_written;) {
    Range range = written[i];
    if (range.start >= start + bytes || start >= range.start + range.bytes) {
      i++;
      continue;
    }
    written[i] = written[--num_written];
    char *end = range.start + range.bytes < start + bytes ? range.start + range.bytes : start + bytes;
    if (range.start < start) range.start = start;
    memset(range.start, 0, (size_t)(end - range.start));
  }
  pthread_mutex_unlock(&lock);
}

/* Forget what was written into memory that goes back to the system. */
void forget_written(char *start, size_t bytes) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < num_written;) {
    if (written[i].start < start + bytes && start < written[i].start + written[i].bytes) written[i] = written[--num_written];
    else i++;
  }
  pthread_mutex_unlock(&lock);
}

static bool is_on_device(const void *address) {
  MemoryKind kind = find_block(address).kind;
  return kind == DEVICE_MEMORY || kind == RESERVED_ADDRESSES;
}

void copy_bytes(void *to, const void *from, size_t bytes) {
  if (!bytes || to == from) return;
  bool writes = is_on_device(to);
  if (!writes && is_on_device(from)) atomic_fetch_add_explicit(&this_process->num_reads, 1, memory_order_relaxed);
  if (bytes <= LARGEST_COPY) memmove(to, from, bytes);
  else if (!writes) memset(to, 0, bytes);
  if (writes && bytes > CLEARED_UP_TO && bytes <= LARGEST_COPY) remember(to, bytes);
}

void fill_bytes(void *to, int value, size_t bytes) {
  count_launch();
  if (bytes > LARGEST_COPY) return;
  if (!value && bytes > CLEARED_UP_TO) {
    clear_written(to, bytes);
    return;
  }
  memset(to, value, bytes);
  if (bytes > CLEARED_UP_TO) remember(to, bytes);
}

/* A tensor has died: its memory will be another's, to whom what was written is nothing. */
void clear_released(char *start, size_t bytes) {
  forget_known(start);
  if (bytes > CLEARED_UP_TO) clear_written(start, bytes);
  else if (find_block(start).kind != OUTSIDE) memset(start, 0, bytes);
}
