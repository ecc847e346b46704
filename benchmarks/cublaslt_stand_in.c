/* A stand-in for cuBLASLt that says yes to every matrix product, without a workspace.

   The real one cannot start without a device, and cuDNN then leaves out, without a word, the engines that are built on
   it. cuDNN opens it by name and looks every function up when it first calls it: these are the ones that it asks for
   until an execution plan is made, and on any other it stops and says which. Compiled by cudnn_choices.py. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* `cublasLtMatmulHeuristicResult_t` of cublasLt.h. */
typedef struct {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int status;
    float num_waves;
    int reserved[4];
} Result;

/* Any pointer but NULL: it is handed back to the functions below only, which do not look at it. */
int cublasLtCreate(void **handle) {
    *handle = (void *)8;
    return 0;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int num_wanted, Result *results, int *num_found) {
    for (int i = 0; i < num_wanted; i++) {
        memset(&results[i], 0, sizeof results[i]);
        results[i].num_waves = 1;
    }
    *num_found = num_wanted > 0;
    return 0;
}

#define SUCCEEDS(name) int name(void) { return 0; }
SUCCEEDS(cublasLtMatmulDescCreate)
SUCCEEDS(cublasLtMatmulDescSetAttribute)
SUCCEEDS(cublasLtMatmulPreferenceCreate)
SUCCEEDS(cublasLtMatmulPreferenceDestroy)
SUCCEEDS(cublasLtMatmulPreferenceSetAttribute)
SUCCEEDS(cublasLtMatrixLayoutCreate)
SUCCEEDS(cublasLtMatrixLayoutSetAttribute)
