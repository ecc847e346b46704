/* cuSPARSE, cuSOLVER and cuFFT: handles and descriptions are made, the work is not.
 *
 * How much memory the work takes is documented nowhere, and its results would be sizes and indices: so the first call
 * that would ask for memory or compute ends with its name (made elsewhere for each function that is not here).
 */
#include <stdlib.h>

#include "phantom.h"

enum { SUCCESS = 0, ALLOCATION_FAILED = 2 };

static int make_object(void **made) {
  *made = malloc(1);
  return *made ? SUCCESS : ALLOCATION_FAILED;
}
static int free_object(void *object) {
  free(object);
  return SUCCESS;
}

/* Other arguments describe what is made, and nothing here asks for them. */
#define MADE(function) \
  API int function(void **made) { return make_object(made); }
#define FREED(function) \
  API int function(void *object) { return free_object(object); }
#define ACCEPTED(function) \
  API int function(void) { return SUCCESS; }

MADE(cusparseCreate)
FREED(cusparseDestroy)
ACCEPTED(cusparseSetStream)
ACCEPTED(cusparseSetPointerMode)
MADE(cusparseCreateMatDescr)
FREED(cusparseDestroyMatDescr)
ACCEPTED(cusparseSetMatType)
ACCEPTED(cusparseSetMatFillMode)
ACCEPTED(cusparseSetMatDiagType)
ACCEPTED(cusparseSetMatIndexBase)
MADE(cusparseCreateDnVec)
FREED(cusparseDestroyDnVec)
MADE(cusparseCreateDnMat)
FREED(cusparseDestroyDnMat)
ACCEPTED(cusparseDnMatSetStridedBatch)
MADE(cusparseCreateCsr)
MADE(cusparseCreateCoo)
FREED(cusparseDestroySpMat)
ACCEPTED(cusparseCsrSetPointers)
ACCEPTED(cusparseCsrSetStridedBatch)
ACCEPTED(cusparseSpMatSetAttribute)
MADE(cusparseSpGEMM_createDescr)
FREED(cusparseSpGEMM_destroyDescr)
MADE(cusparseSpSV_createDescr)
FREED(cusparseSpSV_destroyDescr)
MADE(cusparseSpSM_createDescr)
FREED(cusparseSpSM_destroyDescr)
MADE(cusparseCreateBsrsv2Info)
FREED(cusparseDestroyBsrsv2Info)
MADE(cusparseCreateBsrsm2Info)
FREED(cusparseDestroyBsrsm2Info)

API const char *cusparseGetErrorName(int status) {
  return status ? "CUSPARSE_STATUS_NOT_SUPPORTED" : "CUSPARSE_STATUS_SUCCESS";
}
API const char *cusparseGetErrorString(int status) { return status ? "a phantom GPU has no cuSPARSE" : "success"; }

MADE(cusolverDnCreate)
FREED(cusolverDnDestroy)
ACCEPTED(cusolverDnSetStream)
MADE(cusolverDnCreateParams)
FREED(cusolverDnDestroyParams)
MADE(cusolverDnCreateGesvdjInfo)
FREED(cusolverDnDestroyGesvdjInfo)
ACCEPTED(cusolverDnXgesvdjSetTolerance)
ACCEPTED(cusolverDnXgesvdjSetMaxSweeps)
ACCEPTED(cusolverDnXgesvdjSetSortEig)
MADE(cusolverDnCreateSyevjInfo)
FREED(cusolverDnDestroySyevjInfo)
ACCEPTED(cusolverDnXsyevjSetSortEig)

API int cufftCreate(int *plan) {
  static _Atomic int num_plans;
  *plan = ++num_plans;
  return SUCCESS;
}
ACCEPTED(cufftDestroy)
ACCEPTED(cufftSetStream)
ACCEPTED(cufftSetAutoAllocation)
