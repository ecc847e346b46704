/* NCCL's communicators: who takes part, which rank this process has, and how communicators are made of others.
 *
 * What a communicator takes on the device is a stated term, and it is 0. The real library takes its buffers when links
 * are first used: 4 MiB for each channel, peer and direction by its documentation, with as many channels as the links
 * between the cards ask for. Reports of one communicator go from some tens of MiB (two cards, no NVLink) to 1.6 GB
 * (NVIDIA/nccl issue 864), and its maintainers name no formula. So a job of several cards needs that much room more
 * than a phantom says.
 *
 * Not there, each with its name: windows, device communicators, one-sided operations, statistics of memory.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"

typedef struct {
  char text[128];
} UniqueId;

/* ---- Strings and versions ---- */

API const char *ncclGetErrorString(int result) {
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage (or not supported by a phantom GPU)",
                                      "another rank has ended or does not take part",
                                      "in progress"};
  return result >= 0 && result < 8 ? texts[result] : "unknown result code";
}

API const char *ncclGetLastError(const Communicator *all) {
  (void)all;
  return "";
}

API NcclResult ncclGetVersion(int *version) {
  *version = account()->nccl_version;
  return NCCL_SUCCESS;
}

/* ---- Making communicators ---- */

API NcclResult ncclGetUniqueId(UniqueId *id) {
  unsigned long long number = 0;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (getrandom(&number, sizeof number, GRND_NONBLOCK) < 0) number = (unsigned long long)now.tv_nsec;
  *id = (UniqueId){0};
  snprintf(id->text, sizeof id->text, "brim-%d-%lld-%llx", (int)getpid(), (long long)now.tv_sec, number);
  return NCCL_SUCCESS;
}

static uint64_t number_of(const UniqueId *id) {
  uint64_t number = 0;
  for (size_t i = 0; i < sizeof id->text; i++) number = derive_id(number, (unsigned char)id->text[i]);
  return number;
}

NcclResult make_communicator(Communicator **made, uint64_t id, int num_ranks, int rank, int device) {
  if (!made || num_ranks < 1 || rank < 0 || rank >= num_ranks) return NCCL_INVALID_ARGUMENT;
  if (!use_device(device)) return NCCL_CUDA_ERROR;
  Communicator *all = calloc(1, sizeof *all);
  if (!all) return NCCL_SYSTEM_ERROR;
  all->id = id;
  all->num_ranks = num_ranks;
  all->rank = rank;
  all->device = device;
  *made = all;
  return NCCL_SUCCESS;
}

API NcclResult ncclCommInitRank(Communicator **made, int num_ranks, UniqueId id, int rank) {
  return make_communicator(made, number_of(&id), num_ranks, rank, current_device);
}

API NcclResult ncclCommInitRankConfig(Communicator **made, int num_ranks, UniqueId id, int rank, void *settings) {
  (void)settings; /* how many channels and threads: no matter here */
  return ncclCommInitRank(made, num_ranks, id, rank);
}

API NcclResult ncclCommInitRankScalable(Communicator **made, int num_ranks, int rank, int num_ids,
                                        const UniqueId *ids) {
  return num_ids < 1 ? NCCL_INVALID_ARGUMENT : ncclCommInitRank(made, num_ranks, ids[0], rank);
}

API NcclResult ncclCommInitAll(Communicator **made, int num_devices_used, const int *devices) {
  UniqueId id;
  ncclGetUniqueId(&id);
  for (int i = 0; i < num_devices_used; i++) {
    NcclResult result = make_communicator(&made[i], number_of(&id), num_devices_used, i, devices ? devices[i] : i);
    if (result) return result;
  }
  return NCCL_SUCCESS;
}

API NcclResult ncclCommShrink(Communicator *all, const int *excluded, int num_excluded, Communicator **made) {
  int rank = all->rank;
  for (int i = 0; i < num_excluded; i++) {
    if (excluded[i] == all->rank) return NCCL_INVALID_USAGE;
    if (excluded[i] < all->rank) rank--;
  }
  return make_communicator(made, derive_id(all->id, ++all->num_children), all->num_ranks - num_excluded, rank,
                           all->device);
}

/* The ranks that come new know only this id: those that are there derive the same. */
static UniqueId id_to_grow(const Communicator *all) {
  UniqueId id = {0};
  snprintf(id.text, sizeof id.text, "brim-grown-%016llx-%llu", (unsigned long long)all->id,
           (unsigned long long)all->num_children);
  return id;
}

API NcclResult ncclCommGetUniqueId(Communicator *all, UniqueId *id) {
  *id = id_to_grow(all);
  return NCCL_SUCCESS;
}

API NcclResult ncclCommGrow(Communicator *all, int num_ranks, const UniqueId *id, int rank, Communicator **made) {
  if (!all) return id ? ncclCommInitRank(made, num_ranks, *id, rank) : NCCL_INVALID_ARGUMENT;
  UniqueId derived = id_to_grow(all);
  all->num_children++;
  return make_communicator(made, number_of(&derived), num_ranks, all->rank, all->device);
}

/* ---- Asking and ending ---- */

API NcclResult ncclCommCount(const Communicator *all, int *count) {
  *count = all->num_ranks;
  return NCCL_SUCCESS;
}

API NcclResult ncclCommUserRank(const Communicator *all, int *rank) {
  *rank = all->rank;
  return NCCL_SUCCESS;
}

API NcclResult ncclCommCuDevice(const Communicator *all, int *device) {
  *device = all->device;
  return NCCL_SUCCESS;
}

API NcclResult ncclCommGetAsyncError(const Communicator *all, NcclResult *error) {
  (void)all;
  *error = NCCL_SUCCESS;
  return NCCL_SUCCESS;
}

API NcclResult ncclCommFinalize(const Communicator *all) { return all ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT; }

API NcclResult ncclCommDestroy(Communicator *all) {
  if (!all) return NCCL_SUCCESS;
  close_mail(all);
  free(all);
  return NCCL_SUCCESS;
}

/* Another thread may be waiting for a rank with this communicator: it is told, and the few bytes stay. */
API NcclResult ncclCommAbort(Communicator *all) {
  if (all) all->is_aborted = true;
  return NCCL_SUCCESS;
}
API NcclResult ncclCommRevoke(Communicator *all) { return ncclCommAbort(all); }

/* There is nothing on the device that could be set aside. */
API NcclResult ncclCommSuspend(const Communicator *all) { return all ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT; }
API NcclResult ncclCommResume(const Communicator *all) { return all ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT; }

/* ---- Memory ---- */

API NcclResult ncclMemAlloc(void **made, size_t bytes) {
  *made = allocate_device(current_device, ROUND_UP(bytes, 2 * MIB)); /* it comes of the driver's virtual memory */
  return *made || !bytes ? NCCL_SUCCESS : NCCL_CUDA_ERROR;
}

API NcclResult ncclMemFree(void *start) {
  return !start || release_block(start, DEVICE_MEMORY) ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

API NcclResult ncclCommRegister(const Communicator *all, void *start, size_t bytes, void **handle) {
  if (!all || !start || !bytes) return NCCL_INVALID_ARGUMENT;
  *handle = start;
  return NCCL_SUCCESS;
}

API NcclResult ncclCommDeregister(const Communicator *all, void *handle) {
  return all && handle ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}
