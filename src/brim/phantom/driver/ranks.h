/* What the parts of NCCL share: communicators, and the mail between their ranks (ranks.c, nccl*.c). */
#pragma once
#include "phantom.h"

typedef enum {
  NCCL_SUCCESS = 0,
  NCCL_CUDA_ERROR = 1,
  NCCL_SYSTEM_ERROR = 2,
  NCCL_INTERNAL_ERROR = 3,
  NCCL_INVALID_ARGUMENT = 4,
  NCCL_INVALID_USAGE = 5,
  NCCL_REMOTE_ERROR = 6,
  NCCL_IN_PROGRESS = 7,
} NcclResult;

enum { LETTER_BYTES = 64 << 10 };

typedef struct Mailbox Mailbox;
typedef struct Communicator {
  uint64_t id; /* the same in all ranks */
  int num_ranks, rank, device;
  uint64_t num_children; /* made by splits and the like: the same in all ranks too */
  uint64_t num_letters;  /* posted by this rank */
  Mailbox *mailboxes;    /* one for each rank, mapped at the first letter */
  _Atomic bool is_aborted;
} Communicator;

/* The id of something that all ranks derive in the same way. */
uint64_t derive_id(uint64_t id, uint64_t number);

/* Letters: all ranks post their n-th, then each reads the n-th of whom it likes, then each closes the n-th round.
 * A letter is at most LETTER_BYTES long and stands until its sender posts the next but one. */
bool has_mail(Communicator *all); /* false where ranks cannot reach each other, or there is but one */
void post_letter(Communicator *all, const void *bytes, size_t count);
const void *await_letter(Communicator *all, int from); /* null where that rank is no more */
void close_mail(Communicator *all);
