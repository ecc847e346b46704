/* What NCCL's files share: operations on communicators. */
#pragma once
#include "ranks.h"

NcclResult make_communicator(Communicator **made, uint64_t id, int num_ranks, int rank, int device);

typedef enum {
  INT8,
  UINT8,
  INT32,
  UINT32,
  INT64,
  UINT64,
  FLOAT16,
  FLOAT32,
  FLOAT64,
  BFLOAT16,
  FLOAT8_E4M3,
  FLOAT8_E5M2,
  NUM_TYPES
} Type;
typedef enum { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE, FIRST_OF_USER } Reduction;
typedef enum {
  ALL_REDUCE,
  REDUCE,
  BROADCAST,
  ALL_GATHER,
  REDUCE_SCATTER,
  ALL_TO_ALL,
  GATHER,
  SCATTER,
  SPLIT,
  SEND,
  RECEIVE
} Kind;

typedef struct {
  Kind kind;
  Communicator *all;
  const void *from;
  void *to;
  size_t part_bytes; /* of one rank */
  Type type;
  int reduction;
  int peer; /* the root of a collective, the other side of a send */
  int color, key;
  Communicator **made;
  bool is_done, is_posted;
} Operation;

size_t bytes_of(Type type, size_t count);

/* By mail between the ranks; the answer to the first is the same in all of them. */
bool goes_by_mail(const Operation *it);
void post(Operation *it);
NcclResult read_letters(const Operation *it);

static inline char *part(const void *start, const Operation *it, int rank) {
  return (char *)start + (size_t)rank * it->part_bytes;
}
void copy_part(void *to, const void *from, size_t bytes);
