/* The job's account: capacity and use of every device, shared by all processes of the job through one mapped file. */
#define _GNU_SOURCE
#include "phantom.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Names the folder of the job, with the files `account` and `events`. */
static const char FOLDER[] = "BRIM_PHANTOM";

static Account no_account = {.magic = ACCOUNT_MAGIC, .layout = ACCOUNT_LAYOUT};
static Account *mapped;
static int events = -1;
static bool has_context[MAX_DEVICES], has_any_context, is_bad_fork;
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
/* Managed memory of this process: all, and what of it lies on the device, as long as nothing else needs its place. */
static size_t managed_bytes[MAX_DEVICES], resident_bytes[MAX_DEVICES];
static pthread_mutex_t managed_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t opened = PTHREAD_ONCE_INIT;
Process *this_process = &no_account.processes[0];

static void release_process(Account *all, Process *process) {
  for (int i = 0; i < MAX_DEVICES; i++) {
    uint64_t used = atomic_exchange(&process->devices[i].used_bytes, 0);
    atomic_fetch_sub(&all->devices[i].used_bytes, used);
  }
}

/* Give back what processes held that are no more; their peaks stay to be read. */
static bool release_the_dead(Account *all) {
  bool released = false;
  for (int i = 0; i < MAX_PROCESSES; i++) {
    int32_t pid = atomic_load(&all->processes[i].pid);
    if (pid > 0 && kill(pid, 0) && errno == ESRCH && atomic_compare_exchange_strong(&all->processes[i].pid, &pid, -pid)) {
      release_process(all, &all->processes[i]);
      released = true;
    }
  }
  return released;
}

static void take_slot(void) {
  if (mapped == &no_account) return;
  release_the_dead(mapped);
  for (int i = 0; i < MAX_PROCESSES; i++) {
    int32_t none = 0;
    if (atomic_compare_exchange_strong(&mapped->processes[i].pid, &none, (int32_t)getpid())) {
      this_process = &mapped->processes[i];
      return;
    }
  }
  report_event("full", "more than %d processes use the phantom: this one is not counted", MAX_PROCESSES);
}

/* A forked child has a slot of its own as soon as it uses a device; where its parent has used one it cannot. */
static void after_fork(void) {
  is_bad_fork = has_any_context;
  if (!is_bad_fork) forget_visible();
  this_process = &no_account.processes[0];
  pthread_mutex_init(&context_lock, NULL);
  pthread_mutex_init(&managed_lock, NULL);
}

static void release_at_exit(void) {
  int32_t pid = (int32_t)getpid();
  if (this_process != &no_account.processes[0] && atomic_compare_exchange_strong(&this_process->pid, &pid, -pid))
    release_process(mapped, this_process);
}

static void open_account(void) {
  mapped = &no_account;
  const char *folder = getenv(FOLDER);
  if (!folder) return;
  char path[4096];
  snprintf(path, sizeof path, "%s/account", folder);
  int file = open(path, O_RDWR | O_CLOEXEC);
  struct stat size;
  if (file >= 0 && !fstat(file, &size) && (size_t)size.st_size >= sizeof(Account)) {
    Account *found = mmap(NULL, sizeof(Account), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found != MAP_FAILED && found->magic == ACCOUNT_MAGIC && found->layout == ACCOUNT_LAYOUT) mapped = found;
  }
  if (file >= 0) close(file);
  if (mapped == &no_account) {
    fprintf(stderr, "brim: %s=%s has no account of a phantom that this version can read.\n", FOLDER, folder);
    return;
  }
  snprintf(path, sizeof path, "%s/events", folder);
  events = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  pthread_atfork(NULL, NULL, after_fork);
  atexit(release_at_exit);
}

Account *account(void) {
  pthread_once(&opened, open_account);
  return mapped;
}

static bool charge_counters(Device *device, Usage *usage, size_t bytes) {
  uint64_t used = atomic_load(&device->used_bytes);
  do {
    if (used + bytes > device->total_bytes) return false;
  } while (!atomic_compare_exchange_weak(&device->used_bytes, &used, used + bytes));
  used += bytes;
  uint64_t peak = atomic_load(&device->peak_bytes);
  while (used > peak && !atomic_compare_exchange_weak(&device->peak_bytes, &peak, used)) {}
  uint64_t own = atomic_fetch_add(&usage->used_bytes, bytes) + bytes;
  peak = atomic_load(&usage->peak_bytes);
  while (own > peak && !atomic_compare_exchange_weak(&usage->peak_bytes, &peak, own)) {}
  return true;
}

/* Move managed memory to the host until a request fits; false where there is none to move. */
static bool evict(int index, size_t wanted) {
  pthread_mutex_lock(&managed_lock);
  size_t room = free_bytes(index), lacking = wanted > room ? wanted - room : 0;
  size_t moved = lacking < resident_bytes[index] ? lacking : resident_bytes[index];
  resident_bytes[index] -= moved;
  if (moved) uncharge(index, moved);
  pthread_mutex_unlock(&managed_lock);
  return moved > 0;
}

static bool charge_or_reap(int index, size_t bytes) {
  int place = place_of(index);
  Device *device = &mapped->devices[place];
  Usage *usage = &this_process->devices[place];
  if (charge_counters(device, usage, bytes)) return true;
  if (release_the_dead(mapped) && charge_counters(device, usage, bytes)) return true;
  if (evict(index, bytes) && charge_counters(device, usage, bytes)) return true;
  atomic_store(&usage->refused_bytes, bytes);
  atomic_fetch_add(&usage->num_refused, 1);
  return false;
}

bool use_device(int index) {
  account();
  if (index < 0 || index >= num_devices() || is_bad_fork) return false;
  int place = place_of(index);
  pthread_mutex_lock(&context_lock);
  if (this_process == &no_account.processes[0]) take_slot();
  bool is_there = has_context[place] || (has_context[place] = charge_or_reap(index, mapped->devices[place].context_bytes));
  has_any_context |= is_there;
  pthread_mutex_unlock(&context_lock);
  return is_there;
}

bool forked_after_use(void) { return is_bad_fork; }

bool charge(int index, size_t bytes) { return use_device(index) && charge_or_reap(index, bytes); }

void uncharge(int index, size_t bytes) {
  int place = place_of(index);
  atomic_fetch_sub(&mapped->devices[place].used_bytes, bytes);
  atomic_fetch_sub(&this_process->devices[place].used_bytes, bytes);
}

bool charge_managed(int index, size_t bytes) {
  if (!use_device(index)) return false;
  pthread_mutex_lock(&managed_lock);
  int place = place_of(index);
  size_t room = free_bytes(index), fitting = bytes < room ? bytes : room;
  managed_bytes[index] += bytes;
  if (charge_counters(&mapped->devices[place], &this_process->devices[place], fitting)) resident_bytes[index] += fitting;
  pthread_mutex_unlock(&managed_lock);
  return true;
}

void uncharge_managed(int index, size_t bytes) {
  pthread_mutex_lock(&managed_lock);
  managed_bytes[index] -= bytes;
  size_t gone = resident_bytes[index] > managed_bytes[index] ? resident_bytes[index] - managed_bytes[index] : 0;
  resident_bytes[index] -= gone;
  uncharge(index, gone);
  pthread_mutex_unlock(&managed_lock);
}

size_t free_bytes(int index) {
  release_the_dead(account());
  const Device *device = device_of(index);
  uint64_t used = atomic_load(&device->used_bytes);
  return used < device->total_bytes ? device->total_bytes - used : 0;
}

static size_t without_context(int index, uint64_t bytes) {
  size_t context = device_of(index)->context_bytes;
  return bytes > context ? bytes - context : 0;
}
static const Usage *usage_of(int index) { return &this_process->devices[place_of(index)]; }
size_t used_here(int index) { return without_context(index, atomic_load(&usage_of(index)->used_bytes)); }
size_t peak_here(int index) { return without_context(index, atomic_load(&usage_of(index)->peak_bytes)); }

/* ---- Events ---- */

enum { MAX_LINE = 1024, MAX_KNOWN = 512 };
static char *known[MAX_KNOWN];
static int num_known;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_new(const char *line) {
  bool new = true;
  pthread_mutex_lock(&known_lock);
  for (int i = 0; i < num_known && new; i++) new = strcmp(known[i], line) != 0;
  if (new && num_known < MAX_KNOWN) known[num_known++] = strdup(line);
  pthread_mutex_unlock(&known_lock);
  return new;
}

static bool write_event(const char *kind, const char *text) {
  char line[MAX_LINE];
  account();
  int length = snprintf(line, sizeof line, "%s\t%d\t%s\n", kind, (int)getpid(), text);
  if (length >= (int)sizeof line) line[length = (int)sizeof line - 1, length - 1] = '\n';
  if (!is_new(line)) return false;
  if (events >= 0 && write(events, line, (size_t)length) < 0) return true; /* a full disk must not end the job */
  return true;
}

#define FORMAT_TEXT(text, format)              \
  char text[MAX_LINE - 64];                    \
  va_list arguments;                           \
  va_start(arguments, format);                 \
  vsnprintf(text, sizeof text, format, arguments); \
  va_end(arguments)

void note_event(const char *kind, const char *format, ...) {
  FORMAT_TEXT(text, format);
  write_event(kind, text);
}

void report_event(const char *kind, const char *format, ...) {
  FORMAT_TEXT(text, format);
  if (write_event(kind, text)) fprintf(stderr, "brim: %s\n", text);
}

/* For the part of brim that runs in the job: an event of it. */
API void brim_remark(const char *kind, const char *text) { note_event(kind, "%s", text); }

API void report_absent(const char *function) {
  report_event("absent", "the job calls %s, which a phantom GPU does not have. Write it as a workload for --engine trace, or run it on a real GPU.",
               function);
}
