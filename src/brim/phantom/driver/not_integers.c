/* Functions of absent libraries whose answer is no status: a pointer or a count of bytes must not be made of an error's
 * number. The rest of NVSHMEM and cuFile is made elsewhere, and ends with its name.
 */
#include <errno.h>
#include <stddef.h>
#include <sys/types.h>

#include "phantom.h"

#define NO_POINTER(function)  \
  API void *function(void) {  \
    report_absent(#function); \
    return NULL;              \
  }
NO_POINTER(nvshmem_malloc)
NO_POINTER(nvshmem_ptr)
NO_POINTER(nvshmemx_mc_ptr)

#define NO_BYTES(function)     \
  API ssize_t function(void) { \
    report_absent(#function);  \
    errno = ENOTSUP;           \
    return -1;                 \
  }
NO_BYTES(cuFileRead)
NO_BYTES(cuFileWrite)

/* Marks for a profiler: who reads them is not there, and they ask for nothing. Their answer is how deep ranges are
 * nested. */
static _Thread_local int depth;
API int nvtxRangePushA(const char *name) {
  (void)name;
  return depth++;
}
API int nvtxRangePop(void) { return depth > 0 ? --depth : -1; }
API uint64_t nvtxRangeStartA(const char *name) {
  (void)name;
  return 1;
}
API void nvtxRangeEnd(uint64_t range) { (void)range; }
API void nvtxMarkA(const char *name) { (void)name; }
