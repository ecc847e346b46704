/* What is known of the values of tensors that live, by the addresses where they start (attached/values.py).
 *
 * A tensor's death is the end of what was known: another tensor will be handed the same address.
 */
#define _GNU_SOURCE
#include "phantom.h"

#include <pthread.h>
#include <stdlib.h>

enum { NUM_BUCKETS = 1 << 12 };

typedef struct Known {
  struct Known *next;
  uint64_t address;
  int state;
} Known;

static Known *buckets[NUM_BUCKETS];
static _Atomic size_t num_known;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void relock(void) { pthread_mutex_init(&lock, NULL); }
__attribute__((constructor)) static void survive_forks(void) { pthread_atfork(NULL, NULL, relock); }

/* torch's blocks begin at multiples of 512 bytes. */
static Known **bucket_of(uint64_t address) { return &buckets[(address >> 9) * 0x9e3779b97f4a7c15ull >> 52]; }

static Known **slot_of(uint64_t address) {
  Known **place = bucket_of(address);
  while (*place && (*place)->address != address) place = &(*place)->next;
  return place;
}

/* The state that was set; 0 where none was. */
API int brim_values_get(uint64_t address) {
  if (!atomic_load_explicit(&num_known, memory_order_relaxed)) return 0;
  pthread_mutex_lock(&lock);
  Known *known = *slot_of(address);
  int state = known ? known->state : 0;
  pthread_mutex_unlock(&lock);
  return state;
}

/* Values were written at an address, or are known of it without; `bytes` is 0 where nothing was written. */
API void brim_values_set(uint64_t address, size_t bytes, int state) {
  pthread_mutex_lock(&lock);
  Known **place = slot_of(address);
  if (!*place && state) {
    *place = calloc(1, sizeof **place);
    if (*place) {
      (*place)->address = address;
      atomic_fetch_add(&num_known, 1);
    }
  }
  if (*place) (*place)->state = state;
  pthread_mutex_unlock(&lock);
  if (bytes) note_written((char *)address, bytes);
}

void forget_known(const char *start) {
  if (!atomic_load_explicit(&num_known, memory_order_relaxed)) return;
  pthread_mutex_lock(&lock);
  Known **place = slot_of((uint64_t)start), *known = *place;
  if (known) {
    *place = known->next;
    free(known);
    atomic_fetch_sub(&num_known, 1);
  }
  pthread_mutex_unlock(&lock);
}
