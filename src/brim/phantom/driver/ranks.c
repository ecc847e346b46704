/* Mail between the ranks of a communicator: a file in the job's folder, mapped by each, with a mailbox for each rank.
 *
 * A rank writes its letters into two places by turns. It can come to its next but one only when every other rank has
 * posted the next, and those have read this one by then: so two places are enough.
 */
#define _GNU_SOURCE
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct Mailbox {
  _Atomic uint64_t num_posted;
  _Atomic int32_t pid;
  char letters[2][LETTER_BYTES];
};

/* As long as torch waits for a collective. */
static const time_t PATIENCE_SECONDS = 600;

uint64_t derive_id(uint64_t id, uint64_t number) {
  uint64_t mixed = (id ^ (number + 1)) * 0x9E3779B97F4A7C15u;
  return mixed ^ (mixed >> 29);
}

static size_t file_bytes(const Communicator *all) { return (size_t)all->num_ranks * sizeof(Mailbox); }

static Mailbox *open_mail(const Communicator *all) {
  const char *folder = getenv("BRIM_PHANTOM");
  char path[4096];
  if (!folder) return NULL;
  snprintf(path, sizeof path, "%s/ranks-%016llx", folder, (unsigned long long)all->id);
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return NULL;
  void *mailboxes = MAP_FAILED;
  if (!ftruncate(file, (off_t)file_bytes(all)))
    mailboxes = mmap(NULL, file_bytes(all), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return mailboxes == MAP_FAILED ? NULL : mailboxes;
}

bool has_mail(Communicator *all) {
  if (all->num_ranks > 1 && !all->mailboxes) {
    all->mailboxes = open_mail(all);
    if (all->mailboxes) atomic_store(&all->mailboxes[all->rank].pid, (int32_t)getpid());
  }
  return all->mailboxes != NULL;
}

void post_letter(Communicator *all, const void *bytes, size_t count) {
  Mailbox *own = &all->mailboxes[all->rank];
  copy_bytes(own->letters[all->num_letters % 2], bytes, count);
  atomic_store(&own->num_posted, ++all->num_letters);
}

static bool is_gone(const Mailbox *box) {
  int32_t pid = atomic_load(&box->pid);
  return pid && kill(pid, 0) && errno == ESRCH;
}

const void *await_letter(Communicator *all, int from) {
  Mailbox *box = &all->mailboxes[from];
  time_t start = time(NULL);
  for (int round = 0; atomic_load(&box->num_posted) < all->num_letters; round++) {
    if (round < 1000) {
      sched_yield();
      continue;
    }
    usleep(200);
    if (round % 500) continue;
    bool is_late = time(NULL) - start > PATIENCE_SECONDS;
    bool has_ended = is_gone(box) && atomic_load(&box->num_posted) < all->num_letters;
    if (!all->is_aborted && !has_ended && !is_late) continue;
    report_event("ranks", "rank %d waits for rank %d of %d, which %s", all->rank, from, all->num_ranks,
                 has_ended ? "has ended" : "does not call the same collective");
    return NULL;
  }
  return box->letters[(all->num_letters - 1) % 2];
}

void close_mail(Communicator *all) {
  if (all->mailboxes) munmap(all->mailboxes, file_bytes(all));
  all->mailboxes = NULL;
}
