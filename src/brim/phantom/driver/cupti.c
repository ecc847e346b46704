/* CUPTI, the profiler's interface, is not there: a phantom has no times to tell. The job hears so once and goes on. */
#include "phantom.h"

typedef enum { CUPTI_SUCCESS = 0, CUPTI_NOT_INITIALIZED = 15 } Result;

static Result refuse(void) {
  report_event("absent", "a phantom GPU has no times: the profiler sees the CPU alone (CUPTI is not there).");
  return CUPTI_NOT_INITIALIZED;
}

/* torch reads it when it is loaded, before anyone profiles. */
API Result cuptiGetVersion(unsigned *version) {
  *version = cuda_major() < 13 ? 26 : 130000;
  return CUPTI_SUCCESS;
}

API Result cuptiGetResultString(int result, const char **text) {
  *text = result == CUPTI_SUCCESS ? "no error" : "a phantom GPU has no CUPTI";
  return CUPTI_SUCCESS;
}

API Result cuptiGetErrorMessage(int result, const char **text) { return cuptiGetResultString(result, text); }

API Result cuptiGetCallbackName(int domain, unsigned id, const char **text) {
  (void)domain, (void)id;
  *text = "none";
  return CUPTI_NOT_INITIALIZED;
}

#define REFUSED(function) \
  API Result function(void) { return refuse(); }

REFUSED(cuptiSubscribe)
REFUSED(cuptiUnsubscribe)
REFUSED(cuptiFinalize)
REFUSED(cuptiEnableCallback)
REFUSED(cuptiEnableDomain)
REFUSED(cuptiActivityEnable)
REFUSED(cuptiActivityDisable)
REFUSED(cuptiActivityEnableRuntimeApi)
REFUSED(cuptiActivityEnableDriverApi)
REFUSED(cuptiActivityEnableCudaEventDeviceTimestamps)
REFUSED(cuptiActivityFlushAll)
REFUSED(cuptiActivityRegisterCallbacks)
REFUSED(cuptiActivityRegisterTimestampCallback)
REFUSED(cuptiActivitySetAttribute)
REFUSED(cuptiActivityGetNumDroppedRecords)
REFUSED(cuptiActivityGetNextRecord)
REFUSED(cuptiActivityPushExternalCorrelationId)
REFUSED(cuptiActivityPopExternalCorrelationId)
