/* CUDA runtime: streams, events, capture and graphs. All work is finished as soon as it is asked for. */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdlib.h>
#include <time.h>

enum { NOT_CAPTURING = 0, CAPTURING = 1 };

typedef struct {
  int device;
} Graph;

struct Stream {
  int priority, status;
  unsigned long long id, capture_id;
  Graph *graph;
};

typedef struct {
  struct timespec recorded;
  bool is_recorded;
} Event;

static Stream default_stream;
static _Atomic unsigned long long last_id;

/* The default streams are small numbers: 0, 1 (legacy) and 2 (one for each thread). */
static Stream *known(Stream *stream) { return (uintptr_t)stream <= 2 ? &default_stream : stream; }

API Error cudaStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
  (void)flags;
  Error error = check_device(current_device);
  if (error != SUCCESS) return error;
  *stream = calloc(1, sizeof **stream);
  if (!*stream) return failed(MEMORY_ALLOCATION);
  (*stream)->priority = priority;
  (*stream)->id = atomic_fetch_add(&last_id, 1) + 1;
  return SUCCESS;
}
API Error cudaStreamCreateWithFlags(Stream **stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
API Error cudaStreamCreate(Stream **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
API Error cudaStreamDestroy(Stream *stream) {
  if (known(stream) == &default_stream) return failed(INVALID_HANDLE);
  free(stream);
  return SUCCESS;
}
API Error cudaStreamSynchronize(Stream *stream) {
  (void)stream;
  return SUCCESS;
}
API Error cudaStreamQuery(Stream *stream) {
  (void)stream;
  return SUCCESS;
}
API Error cudaStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
  (void)stream, (void)event, (void)flags;
  return SUCCESS;
}
API Error cudaStreamGetPriority(Stream *stream, int *priority) {
  *priority = known(stream)->priority;
  return SUCCESS;
}
API Error cudaStreamGetFlags(Stream *stream, unsigned *flags) {
  (void)stream;
  *flags = 1; /* does not wait for the default stream */
  return SUCCESS;
}
API Error cudaStreamGetId(Stream *stream, unsigned long long *id) {
  *id = known(stream)->id;
  return SUCCESS;
}
API Error cudaStreamAttachMemAsync(Stream *stream, void *start, size_t bytes, unsigned flags) {
  (void)stream, (void)start, (void)bytes, (void)flags;
  return SUCCESS;
}
API Error cudaStreamSetAttribute(Stream *stream, int attribute, const void *value) {
  (void)stream, (void)attribute, (void)value;
  return SUCCESS;
}
API Error cudaCtxResetPersistingL2Cache(void) { return SUCCESS; }

API Error cudaLaunchHostFunc(Stream *stream, void (*function)(void *), void *data) {
  if (known(stream)->status != CAPTURING) function(data);
  return SUCCESS;
}
API Error cudaStreamAddCallback(Stream *stream, void (*function)(Stream *, Error, void *), void *data, unsigned flags) {
  (void)flags;
  function(stream, SUCCESS, data);
  return SUCCESS;
}

/* ---- Events: times are the host's, as kernels take none ---- */

API Error cudaEventCreateWithFlags(Event **event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof **event);
  return *event ? SUCCESS : failed(MEMORY_ALLOCATION);
}
API Error cudaEventCreate(Event **event) { return cudaEventCreateWithFlags(event, 0); }
API Error cudaEventDestroy(Event *event) {
  free(event);
  return SUCCESS;
}
API Error cudaEventRecord(Event *event, Stream *stream) {
  (void)stream;
  clock_gettime(CLOCK_MONOTONIC, &event->recorded);
  event->is_recorded = true;
  return SUCCESS;
}
API Error cudaEventRecordWithFlags(Event *event, Stream *stream, unsigned flags) {
  (void)flags;
  return cudaEventRecord(event, stream);
}
API Error cudaEventQuery(Event *event) {
  (void)event;
  return SUCCESS;
}
API Error cudaEventSynchronize(Event *event) {
  (void)event;
  return SUCCESS;
}
API Error cudaEventElapsedTime(float *milliseconds, Event *from, Event *to) {
  if (!from->is_recorded || !to->is_recorded) return failed(INVALID_HANDLE);
  *milliseconds = (float)((to->recorded.tv_sec - from->recorded.tv_sec) * 1e3 + (to->recorded.tv_nsec - from->recorded.tv_nsec) / 1e6);
  return SUCCESS;
}
API Error cudaEventElapsedTime_v2(float *milliseconds, Event *from, Event *to) { return cudaEventElapsedTime(milliseconds, from, to); }

/* ---- Capture: what is launched meanwhile is not looked at, and a replay does nothing ---- */

API Error cudaThreadExchangeStreamCaptureMode(int *mode) {
  static _Thread_local int current;
  int before = current;
  current = *mode;
  *mode = before;
  return SUCCESS;
}
API Error cudaStreamBeginCapture(Stream *stream, int mode) {
  (void)mode;
  stream = known(stream);
  stream->status = CAPTURING;
  stream->capture_id = atomic_fetch_add(&last_id, 1) + 1;
  stream->graph = calloc(1, sizeof *stream->graph);
  return stream->graph ? SUCCESS : failed(MEMORY_ALLOCATION);
}
API Error cudaStreamBeginCaptureToGraph(Stream *stream, Graph *graph, const void *dependencies, const void *edges, size_t count,
                                        int mode) {
  (void)dependencies, (void)edges, (void)count, (void)mode;
  stream = known(stream);
  stream->status = CAPTURING;
  stream->capture_id = atomic_fetch_add(&last_id, 1) + 1;
  stream->graph = graph;
  return SUCCESS;
}
API Error cudaStreamEndCapture(Stream *stream, Graph **graph) {
  stream = known(stream);
  if (stream->status != CAPTURING) return failed(INVALID_VALUE);
  *graph = stream->graph;
  stream->status = NOT_CAPTURING;
  return SUCCESS;
}
API Error cudaStreamIsCapturing(Stream *stream, int *status) {
  *status = known(stream)->status;
  return SUCCESS;
}

static Error capture_info(Stream *stream, int *status, unsigned long long *id, Graph **graph, void **dependencies, size_t *count) {
  stream = known(stream);
  *status = stream->status;
  if (id) *id = stream->capture_id;
  if (graph) *graph = stream->graph;
  if (dependencies) *dependencies = NULL;
  if (count) *count = 0;
  return SUCCESS;
}
API Error cudaStreamGetCaptureInfo_v2(Stream *stream, int *status, unsigned long long *id, Graph **graph, void **dependencies,
                                      size_t *count) {
  return capture_info(stream, status, id, graph, dependencies, count);
}
API Error cudaStreamGetCaptureInfo_v3(Stream *stream, int *status, unsigned long long *id, Graph **graph, void **dependencies,
                                      void **edges, size_t *count) {
  if (edges) *edges = NULL;
  return capture_info(stream, status, id, graph, dependencies, count);
}
/* CUDA 13 gives the older name to the newer function. */
API Error cudaStreamGetCaptureInfo(Stream *stream, int *status, unsigned long long *id, Graph **graph, void **dependencies,
                                   void **edges, size_t *count) {
  if (cuda_major() < 13) return capture_info(stream, status, id, NULL, NULL, NULL);
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count);
}
API Error cudaStreamUpdateCaptureDependencies(Stream *stream) {
  (void)stream;
  return SUCCESS;
}

API Error cudaGraphCreate(Graph **graph, unsigned flags) {
  (void)flags;
  *graph = calloc(1, sizeof **graph);
  return *graph ? SUCCESS : failed(MEMORY_ALLOCATION);
}
API Error cudaGraphDestroy(Graph *graph) {
  free(graph);
  return SUCCESS;
}
/* That it has one node says that it is not empty. */
API Error cudaGraphGetNodes(Graph *graph, void **nodes, size_t *count) {
  if (nodes && *count) nodes[0] = graph;
  *count = 1;
  return SUCCESS;
}
API Error cudaGraphInstantiate(Graph **executable, Graph *graph, unsigned long long flags) {
  (void)graph, (void)flags;
  return cudaGraphCreate(executable, 0);
}
API Error cudaGraphInstantiateWithFlags(Graph **executable, Graph *graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}
API Error cudaGraphExecDestroy(Graph *executable) { return cudaGraphDestroy(executable); }
API Error cudaGraphLaunch(Graph *executable, Stream *stream) {
  (void)executable, (void)stream;
  count_launch();
  return SUCCESS;
}
API Error cudaGraphUpload(Graph *executable, Stream *stream) {
  (void)executable, (void)stream;
  return SUCCESS;
}
API Error cudaGraphDebugDotPrint(Graph *graph, const char *path, unsigned flags) {
  (void)graph, (void)path, (void)flags;
  return SUCCESS;
}
/* Objects that a graph keeps alive: they are destroyed with their last reference, which the phantom leaves to the end of the job. */
API Error cudaUserObjectCreate(void **object, void *pointer, void (*destroy)(void *), unsigned count, unsigned flags) {
  (void)destroy, (void)count, (void)flags;
  *object = pointer;
  return SUCCESS;
}
API Error cudaUserObjectRelease(void *object, unsigned count) {
  (void)object, (void)count;
  return SUCCESS;
}
API Error cudaGraphRetainUserObject(Graph *graph, void *object, unsigned count, unsigned flags) {
  (void)graph, (void)object, (void)count, (void)flags;
  return SUCCESS;
}
API Error cudaDeviceGetGraphMemAttribute(int device, int attribute, void *value) {
  (void)device, (void)attribute;
  *(uint64_t *)value = 0;
  return SUCCESS;
}
API Error cudaDeviceSetGraphMemAttribute(int device, int attribute, void *value) {
  (void)device, (void)attribute, (void)value;
  return SUCCESS;
}
API Error cudaDeviceGraphMemTrim(int device) {
  (void)device;
  return SUCCESS;
}
