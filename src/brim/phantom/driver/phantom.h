/* What every file of the phantom driver shares. Own declarations: no header of a vendor is read.
 *
 * One shared object holds all interfaces. The names that torch asks its loader for (libcudart.so.13, libcudnn.so.9, …) are empty
 * libraries that brim makes from a template; the linker finds the functions here.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define MIB ((size_t)1 << 20)
#define ROUND_UP(n, to) (((n) + (to) - 1) / (to) * (to))

enum { MAX_DEVICES = 16, MAX_PROCESSES = 256, ACCOUNT_MAGIC = 0x6d697262, ACCOUNT_LAYOUT = 2 };

/* ---- The account: one file for a job, mapped by brim and by every process of the job (account.c, account.py) ---- */

typedef struct {
  char name[96];
  uint64_t total_bytes;   /* what cudaMemGetInfo calls the total */
  uint64_t context_bytes; /* what a process takes when it first uses the device */
  int32_t major, minor;   /* compute capability */
  int32_t num_sms, threads_per_sm, blocks_per_sm, shared_bytes_per_sm;
  int32_t l2_bytes, memory_bus_bits, clock_khz, memory_clock_khz;
  int32_t binary;         /* architecture of the kernels that the loader would choose, e.g. 86 */
  int32_t unused;
  _Atomic uint64_t used_bytes; /* by all processes of the job */
  _Atomic uint64_t peak_bytes;
} Device;

typedef struct {
  _Atomic uint64_t used_bytes, peak_bytes; /* of this process, its context among them */
  _Atomic uint64_t refused_bytes;          /* the last request that did not fit */
  _Atomic uint64_t num_refused;
  /* By torch's own allocator, as it tells its profiler. */
  _Atomic uint64_t allocated_bytes, allocated_peak_bytes, reserved_bytes, reserved_peak_bytes;
  _Atomic uint64_t refused_by_torch_bytes; /* the last request that it raised an error for */
} Usage;

typedef struct {
  _Atomic int32_t pid; /* 0: free */
  int32_t unused;
  _Atomic uint64_t num_launches, num_reads, pinned_bytes, pinned_peak_bytes;
  Usage devices[MAX_DEVICES];
} Process;

typedef struct {
  uint32_t magic, layout;
  int32_t num_devices;
  int32_t cuda_version;   /* as cudaRuntimeGetVersion tells it: 12080, 13000 */
  int32_t cudnn_version;  /* as cudnnGetVersion tells it: 91002 */
  int32_t cublas_version; /* 120804 */
  int32_t nccl_version;   /* 22705 */
  int32_t unused;
  Device devices[MAX_DEVICES];
  Process processes[MAX_PROCESSES];
} Account;

/* The account of this job; without one it has no device. Never null. */
Account *account(void);

/* A process sees the devices that CUDA_VISIBLE_DEVICES leaves it, by numbers of its own (visible.c). NVML sees all, by their places in
 * the account. */
int num_devices(void);
int place_of(int index);
int index_at(int place); /* -1 where this process does not see it */
void forget_visible(void);
static inline const Device *device_of(int index) { return &account()->devices[place_of(index)]; }
static inline int cuda_major(void) { return account()->cuda_version / 1000; }

/* Charge a device for this process; false where it would pass the device's memory. The context is charged first, once. */
bool charge(int device, size_t bytes);
void uncharge(int device, size_t bytes);
bool charge_managed(int device, size_t bytes); /* what does not fit lies in the host's memory */
void uncharge_managed(int device, size_t bytes);
bool use_device(int device); /* make this process's context there; false where not even that fits */
bool forked_after_use(void); /* CUDA does not survive a fork: nothing works in the child */
size_t free_bytes(int device);
size_t used_here(int device), peak_here(int device); /* of this process, without its context */

/* ---- Events: lines that brim reads after the job or while it runs, and perhaps one for the user ---- */

/* Write a line `kind<TAB>text` to the job's events; the same line is written once for a process. */
void note_event(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, and print the text on standard error, with "brim: " before it. */
void report_event(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A call into what phantoms do not have: the user hears its name once; the caller returns its library's own error. */
void report_absent(const char *function);

/* ---- Memory ---- */

typedef enum { OUTSIDE = 0, DEVICE_MEMORY, PINNED_MEMORY, MANAGED_MEMORY, RESERVED_ADDRESSES } MemoryKind;
typedef struct {
  MemoryKind kind;
  char *start;
  size_t bytes;
  int device;
} Block;

void *allocate_device(int device, size_t bytes); /* null where it does not fit */
void *allocate_pooled(int device, size_t bytes); /* the same from a pool, whose blocks share pages */
void *allocate_pinned(size_t bytes);
void *allocate_managed(int device, size_t bytes);
bool release_block(void *start, MemoryKind kind); /* false where no block of that kind starts there */
Block find_block(const void *address);            /* kind is OUTSIDE where none holds it */
void *reserve_addresses(size_t bytes, size_t alignment);
bool release_addresses(void *start, size_t bytes);

/* Copy as a stream would; see values.c for what is kept and what reads as zeros. */
void copy_bytes(void *to, const void *from, size_t bytes);
void fill_bytes(void *to, int value, size_t bytes);
void forget_written(char *start, size_t bytes); /* it goes back to the system */
void clear_released(char *start, size_t bytes); /* a tensor of torch has died there */
void note_written(char *start, size_t bytes);
void forget_known(const char *start); /* known.c */
API void brim_remark(const char *kind, const char *text); /* account.c */

/* A block of a pool is handed out, or taken back where `bytes` are negative: torch does not tell its profiler (ledger.c). */
void note_pooled(void *start, int64_t bytes, int device);

/* The device that is current in this thread, as cudaSetDevice says. */
extern _Thread_local int current_device;

static inline void count_launch(void);
extern Process *this_process; /* never null once account() was called */
static inline void count_launch(void) {
  atomic_store_explicit(&this_process->num_launches,
                        atomic_load_explicit(&this_process->num_launches, memory_order_relaxed) + 1,
                        memory_order_relaxed);
}

/* The numbers of the attributes are the same in the runtime and the driver interface. */
int device_attribute(int attribute, int device);
