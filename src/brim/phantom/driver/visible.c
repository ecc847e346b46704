/* Which devices of the machine a process sees, and in which order, as it asks for in CUDA_VISIBLE_DEVICES.
 *
 * Source: CUDA C++ Programming Guide, "CUDA Environment Variables": indices or the beginnings of UUIDs; those before the first invalid
 * one count. A device that is named twice leaves none. Read when a process first asks for a device, as by cuInit.
 */
#include "ids.h"
#include "phantom.h"

#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static int places[MAX_DEVICES], num_visible;
static bool is_read;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int place_with_uuid(const char *entry, size_t length) {
  int found = -1;
  for (int i = 0; i < account()->num_devices; i++) {
    char text[UUID_TEXT];
    write_uuid(i, text);
    if (strncmp(text, entry, length)) continue;
    if (found >= 0) return -1;
    found = i;
  }
  return found;
}

static int place_named(const char *entry) {
  while (isspace((unsigned char)*entry)) entry++;
  if (!strncmp(entry, "GPU-", 4)) return place_with_uuid(entry, strcspn(entry, ", "));
  char *end;
  long place = strtol(entry, &end, 10);
  return end != entry && place >= 0 && place < account()->num_devices ? (int)place : -1;
}

static bool add_visible(int place) {
  for (int i = 0; i < num_visible; i++)
    if (places[i] == place) return false;
  places[num_visible++] = place;
  return true;
}

static void read_visible(void) {
  num_visible = 0;
  const char *setting = getenv("CUDA_VISIBLE_DEVICES");
  if (!setting) {
    while (num_visible < account()->num_devices) add_visible(num_visible);
    return;
  }
  for (const char *entry = setting; entry; entry = strchr(entry, ',')) {
    entry += *entry == ',';
    int place = place_named(entry);
    if (place < 0) return;
    if (!add_visible(place)) {
      num_visible = 0;
      return;
    }
  }
}

static void read_once(void) {
  if (__atomic_load_n(&is_read, __ATOMIC_ACQUIRE)) return;
  pthread_mutex_lock(&lock);
  if (!is_read) read_visible();
  __atomic_store_n(&is_read, true, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
}

int num_devices(void) {
  read_once();
  return num_visible;
}

int place_of(int index) {
  read_once();
  return index >= 0 && index < num_visible ? places[index] : 0;
}

int index_at(int place) {
  read_once();
  for (int i = 0; i < num_visible; i++)
    if (places[i] == place) return i;
  return -1;
}

void forget_visible(void) {
  pthread_mutex_init(&lock, NULL);
  is_read = false;
}
