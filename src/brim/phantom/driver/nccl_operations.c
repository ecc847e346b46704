/* NCCL's operations between ranks.
 *
 * What is small (a letter: 64 KiB from each rank) is really exchanged between the job's processes, and small sums,
 * products and extremes of the usual types are really taken: objects that torch pickles, counts of an expert's tokens,
 * flags, barriers. What is large is memory alone: every rank is taken to hold what this one holds, so a sum is a copy
 * of this rank's own part, a gather repeats it, and a broadcast leaves what stands there. Half precision is always
 * taken so. Copies go through copy_bytes.
 *
 * The exchange waits on the host, where the real library waits on the stream. Ranks that call the same operations on a
 * communicator in the same order do not notice. Send and receive are taken as large: what comes from another rank is
 * what this rank sends to itself in the same group, and otherwise stays as it is.
 */
#include "nccl.h"

#include <stdlib.h>

#define WHAT(source, target, count, dtype, communicator) \
  .all = communicator, .from = source, .to = target, .part_bytes = bytes_of(dtype, count), .type = dtype

size_t bytes_of(Type type, size_t count) {
  static const unsigned char sizes[NUM_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return count * ((unsigned)type < NUM_TYPES ? sizes[type] : 1);
}

void copy_part(void *to, const void *from, size_t bytes) {
  if (to && from && to != from && bytes) copy_bytes(to, from, bytes);
}

/* ---- Large: this rank's own ---- */

static void take_own(const Operation *it) {
  const Communicator *all = it->all;
  bool is_root = it->peer == all->rank;
  switch (it->kind) {
    case ALL_REDUCE: copy_part(it->to, it->from, it->part_bytes); break;
    case REDUCE:
    case BROADCAST:
      if (is_root) copy_part(it->to, it->from, it->part_bytes);
      break;
    case REDUCE_SCATTER: copy_part(it->to, part(it->from, it, all->rank), it->part_bytes); break;
    case SCATTER:
      if (is_root) copy_part(it->to, part(it->from, it, all->rank), it->part_bytes);
      break;
    case GATHER:
      if (!is_root) break;
      /* fall through */
    case ALL_GATHER:
      for (int i = 0; i < all->num_ranks; i++) copy_part(part(it->to, it, i), it->from, it->part_bytes);
      break;
    case ALL_TO_ALL:
      for (int i = 0; i < all->num_ranks; i++)
        copy_part(part(it->to, it, i), part(it->from, it, all->rank), it->part_bytes);
      break;
    default: break;
  }
}

/* ---- Groups: what is called between start and end goes off together ---- */

static _Thread_local int depth;
static _Thread_local Operation *queue;
static _Thread_local size_t num_queued, queue_capacity;

static void take_what_is_sent_to_self(const Operation *received) {
  for (size_t i = 0; i < num_queued; i++) {
    const Operation *sent = &queue[i];
    if (sent->kind == SEND && sent->all == received->all && sent->peer == sent->all->rank &&
        sent->part_bytes == received->part_bytes) {
      copy_part(received->to, sent->from, sent->part_bytes);
      return;
    }
  }
}

static bool is_first_of_its_communicator(size_t first_left, size_t position) {
  for (size_t i = first_left; i < position; i++)
    if (!queue[i].is_done && queue[i].all == queue[position].all) return false;
  return true;
}

/* One thread may drive several ranks: each posts before any is waited for. */
static NcclResult run_queue(void) {
  NcclResult result = NCCL_SUCCESS;
  for (size_t first = 0; first < num_queued;) {
    for (size_t i = first; i < num_queued; i++)
      if (!queue[i].is_done && is_first_of_its_communicator(first, i)) post(&queue[i]);
    for (size_t i = first; i < num_queued; i++) {
      if (queue[i].is_done || !queue[i].is_posted) continue;
      if (!result) result = read_letters(&queue[i]);
      queue[i].is_done = true;
    }
    while (first < num_queued && queue[first].is_done) first++;
  }
  return result;
}

API NcclResult ncclGroupStart(void) {
  depth++;
  return NCCL_SUCCESS;
}

API NcclResult ncclGroupEnd(void) {
  if (depth == 0) return NCCL_INVALID_USAGE;
  if (--depth) return NCCL_SUCCESS;
  size_t kept = 0;
  for (size_t i = 0; i < num_queued; i++)
    if (queue[i].kind == RECEIVE) take_what_is_sent_to_self(&queue[i]);
  for (size_t i = 0; i < num_queued; i++)
    if (queue[i].kind != RECEIVE && queue[i].kind != SEND) queue[kept++] = queue[i];
  num_queued = kept;
  NcclResult result = run_queue();
  num_queued = 0;
  return result;
}

static NcclResult enqueue(const Operation *it) {
  if (num_queued == queue_capacity) {
    size_t capacity = queue_capacity ? 2 * queue_capacity : 64;
    Operation *larger = realloc(queue, capacity * sizeof *queue);
    if (!larger) return NCCL_SYSTEM_ERROR;
    queue = larger;
    queue_capacity = capacity;
  }
  queue[num_queued++] = *it;
  return NCCL_SUCCESS;
}

static NcclResult start(Operation it) {
  if (!it.all) return NCCL_INVALID_ARGUMENT;
  if (it.kind != SPLIT) count_launch();
  if (it.kind == SEND || it.kind == RECEIVE) return depth ? enqueue(&it) : NCCL_SUCCESS;
  if (goes_by_mail(&it)) {
    if (depth) return enqueue(&it);
    post(&it);
    return read_letters(&it);
  }
  if (it.kind == SPLIT && it.all->num_ranks > 1) return NCCL_SYSTEM_ERROR;
  if (it.kind == SPLIT && it.color < 0) *it.made = NULL;
  else if (it.kind == SPLIT)
    return make_communicator(it.made, derive_id(it.all->id, ++it.all->num_children), 1, 0, it.all->device);
  take_own(&it);
  return NCCL_SUCCESS;
}

API NcclResult ncclCommSplit(Communicator *all, int color, int key, Communicator **made) {
  return start((Operation){.kind = SPLIT, .all = all, .color = color, .key = key, .made = made});
}

/* ---- The operations ---- */

API NcclResult ncclAllReduce(const void *from, void *to, size_t count, Type type, int reduction, Communicator *all) {
  return start((Operation){.kind = ALL_REDUCE, .reduction = reduction, WHAT(from, to, count, type, all)});
}

API NcclResult ncclReduce(const void *from, void *to, size_t count, Type type, int reduction, int root,
                          Communicator *all) {
  return start((Operation){.kind = REDUCE, .reduction = reduction, .peer = root, WHAT(from, to, count, type, all)});
}

API NcclResult ncclReduceScatter(const void *from, void *to, size_t count, Type type, int reduction,
                                 Communicator *all) {
  return start((Operation){.kind = REDUCE_SCATTER, .reduction = reduction, WHAT(from, to, count, type, all)});
}

API NcclResult ncclBroadcast(const void *from, void *to, size_t count, Type type, int root, Communicator *all) {
  return start((Operation){.kind = BROADCAST, .peer = root, WHAT(from, to, count, type, all)});
}
API NcclResult ncclBcast(void *buffer, size_t count, Type type, int root, Communicator *all) {
  return ncclBroadcast(buffer, buffer, count, type, root, all);
}

API NcclResult ncclAllGather(const void *from, void *to, size_t count, Type type, Communicator *all) {
  return start((Operation){.kind = ALL_GATHER, WHAT(from, to, count, type, all)});
}

API NcclResult ncclAlltoAll(const void *from, void *to, size_t count, Type type, Communicator *all) {
  return start((Operation){.kind = ALL_TO_ALL, WHAT(from, to, count, type, all)});
}

API NcclResult ncclGather(const void *from, void *to, size_t count, Type type, int root, Communicator *all) {
  return start((Operation){.kind = GATHER, .peer = root, WHAT(from, to, count, type, all)});
}

API NcclResult ncclScatter(const void *from, void *to, size_t count, Type type, int root, Communicator *all) {
  return start((Operation){.kind = SCATTER, .peer = root, WHAT(from, to, count, type, all)});
}

API NcclResult ncclSend(const void *from, size_t count, Type type, int peer, Communicator *all) {
  return start((Operation){.kind = SEND, .peer = peer, WHAT(from, NULL, count, type, all)});
}

API NcclResult ncclRecv(void *to, size_t count, Type type, int peer, Communicator *all) {
  return start((Operation){.kind = RECEIVE, .peer = peer, WHAT(NULL, to, count, type, all)});
}

/* A reduction with a factor: a number that the operations know as no plain one. */
API NcclResult ncclRedOpCreatePreMulSum(int *made, const void *factor, Type type, int residence, Communicator *all) {
  static _Atomic int num_made;
  (void)type, (void)residence;
  if (!factor || !all) return NCCL_INVALID_ARGUMENT;
  *made = FIRST_OF_USER + atomic_fetch_add(&num_made, 1) % 1024;
  return NCCL_SUCCESS;
}
API NcclResult ncclRedOpDestroy(int reduction, Communicator *all) {
  return all && reduction >= FIRST_OF_USER ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}
