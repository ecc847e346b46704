/* NCCL's operations on little data: the ranks really exchange it, and sums, products and extremes are really taken. */
#include "nccl.h"

#include <string.h>

#define COMBINE(ctype)                                            \
  for (size_t i = 0; i < count; i++) {                            \
    ctype a = ((ctype *)into)[i], b = ((const ctype *)other)[i];  \
    ((ctype *)into)[i] = reduction == PRODUCT   ? (ctype)(a * b)  \
                         : reduction == MAXIMUM ? (a > b ? a : b) \
                         : reduction == MINIMUM ? (a < b ? a : b) \
                                                : (ctype)(a + b); \
  }                                                               \
  break
#define DIVIDE(ctype)                                                        \
  for (size_t i = 0; i < count; i++) ((ctype *)into)[i] /= (ctype)num_ranks; \
  break

static void combine(void *into, const void *other, size_t count, Type type, int reduction) {
  switch (type) {
    case INT8: COMBINE(int8_t);
    case UINT8: COMBINE(uint8_t);
    case INT32: COMBINE(int32_t);
    case UINT32: COMBINE(uint32_t);
    case INT64: COMBINE(int64_t);
    case UINT64: COMBINE(uint64_t);
    case FLOAT32: COMBINE(float);
    case FLOAT64: COMBINE(double);
    default: break;
  }
}

static void divide(void *into, size_t count, Type type, int num_ranks) {
  switch (type) {
    case INT8: DIVIDE(int8_t);
    case UINT8: DIVIDE(uint8_t);
    case INT32: DIVIDE(int32_t);
    case UINT32: DIVIDE(uint32_t);
    case INT64: DIVIDE(int64_t);
    case UINT64: DIVIDE(uint64_t);
    case FLOAT32: DIVIDE(float);
    case FLOAT64: DIVIDE(double);
    default: break;
  }
}

static bool is_reduction(const Operation *it) {
  return it->kind == ALL_REDUCE || it->kind == REDUCE || it->kind == REDUCE_SCATTER;
}

/* What this rank writes into its letter. */
static size_t letter_bytes(const Operation *it) {
  switch (it->kind) {
    case SPLIT: return 2 * sizeof(int);
    case REDUCE_SCATTER:
    case ALL_TO_ALL: return it->part_bytes * (size_t)it->all->num_ranks;
    case SCATTER: return it->peer == it->all->rank ? it->part_bytes * (size_t)it->all->num_ranks : 0;
    case BROADCAST: return it->peer == it->all->rank ? it->part_bytes : 0;
    default: return it->part_bytes;
  }
}

/* All ranks must come to the same answer: it rests on what they have in common. */
bool goes_by_mail(const Operation *it) {
  if (it->kind == SEND || it->kind == RECEIVE) return false;
  if (it->kind == SPLIT) return has_mail(it->all);
  bool has_parts = it->kind == REDUCE_SCATTER || it->kind == ALL_TO_ALL || it->kind == SCATTER;
  if (it->part_bytes * (size_t)(has_parts ? it->all->num_ranks : 1) > LETTER_BYTES) return false;
  bool is_known = it->type != FLOAT16 && it->type < BFLOAT16 && it->reduction < FIRST_OF_USER;
  return (!is_reduction(it) || is_known) && has_mail(it->all);
}

void post(Operation *it) {
  int choice[2] = {it->color, it->key};
  post_letter(it->all, it->kind == SPLIT ? choice : it->from, letter_bytes(it));
  it->is_posted = true;
}

static NcclResult reduce_letters(const Operation *it) {
  Communicator *all = it->all;
  size_t offset = it->kind == REDUCE_SCATTER ? (size_t)all->rank * it->part_bytes : 0;
  size_t count = it->part_bytes / bytes_of(it->type, 1);
  _Alignas(16) static _Thread_local char result[LETTER_BYTES];
  for (int i = 0; i < all->num_ranks; i++) {
    const char *letter = await_letter(all, i);
    if (!letter) return NCCL_REMOTE_ERROR;
    if (i == 0) memcpy(result, letter + offset, it->part_bytes);
    else combine(result, letter + offset, count, it->type, it->reduction);
  }
  if (it->reduction == AVERAGE) divide(result, count, it->type, all->num_ranks);
  if (it->kind != REDUCE || it->peer == all->rank) copy_part(it->to, result, it->part_bytes);
  return NCCL_SUCCESS;
}

static NcclResult split(const Operation *it) {
  Communicator *all = it->all;
  int num_ranks = 0, rank = 0;
  for (int i = 0; i < all->num_ranks; i++) {
    const int *choice = await_letter(all, i);
    if (!choice) return NCCL_REMOTE_ERROR;
    if (choice[0] != it->color) continue;
    num_ranks++;
    rank += choice[1] < it->key || (choice[1] == it->key && i < all->rank);
  }
  uint64_t id = derive_id(derive_id(all->id, ++all->num_children), (unsigned)it->color);
  *it->made = NULL;
  return it->color < 0 ? NCCL_SUCCESS : make_communicator(it->made, id, num_ranks, rank, all->device);
}

NcclResult read_letters(const Operation *it) {
  Communicator *all = it->all;
  if (it->kind == SPLIT) return split(it);
  if (is_reduction(it)) return reduce_letters(it);
  bool is_for_us = it->kind != GATHER || it->peer == all->rank;
  for (int i = 0; i < all->num_ranks; i++) {
    const char *letter = await_letter(all, i);
    if (!letter) return NCCL_REMOTE_ERROR;
    bool is_from_root = i == it->peer;
    if (it->kind == BROADCAST && is_from_root) copy_part(it->to, letter, it->part_bytes);
    if (it->kind == SCATTER && is_from_root)
      copy_part(it->to, letter + (size_t)all->rank * it->part_bytes, it->part_bytes);
    if (it->kind == ALL_TO_ALL)
      copy_part(part(it->to, it, i), letter + (size_t)all->rank * it->part_bytes, it->part_bytes);
    if ((it->kind == GATHER || it->kind == ALL_GATHER) && is_for_us)
      copy_part(part(it->to, it, i), letter, it->part_bytes);
  }
  return NCCL_SUCCESS;
}
