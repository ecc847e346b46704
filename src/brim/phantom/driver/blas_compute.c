/* cuBLAS: what computes. Results in device memory are left out; results in host memory are those of zeros.
 *
 * Functions that only write device memory take no parameters here: the calling conventions of x86-64 and aarch64 let a
 * function ignore what it was given. All are listed, so that one with a result on the host cannot slip in.
 */
#include "blas.h"

#include <string.h>

/* Parameters are named for the reader; what computes nothing uses few of them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define LAUNCH(name)          \
  API BlasStatus name(void) { \
    count_launch();           \
    return BLAS_SUCCESS;      \
  }
#define REAL(routine) LAUNCH(cublasS##routine) LAUNCH(cublasD##routine)
#define COMPLEX(routine) LAUNCH(cublasC##routine) LAUNCH(cublasZ##routine)
#define EVERY(routine) REAL(routine) COMPLEX(routine)

/* ---- Vectors ---- */

EVERY(axpy_v2)
EVERY(copy_v2)
EVERY(swap_v2)
EVERY(scal_v2)
EVERY(rot_v2)
REAL(rotm_v2)
LAUNCH(cublasCsscal_v2)
LAUNCH(cublasZdscal_v2)
LAUNCH(cublasCsrot_v2)
LAUNCH(cublasZdrot_v2)
LAUNCH(cublasAxpyEx)
LAUNCH(cublasScalEx)

/* ---- A matrix and a vector ---- */

EVERY(gemv_v2)
EVERY(gbmv_v2)
EVERY(trmv_v2)
EVERY(trsv_v2)
EVERY(symv_v2)
EVERY(syr_v2)
EVERY(syr2_v2)
REAL(ger_v2)
COMPLEX(geru_v2)
COMPLEX(gerc_v2)
COMPLEX(hemv_v2)
COMPLEX(her_v2)
COMPLEX(her2_v2)
EVERY(gemvBatched)
EVERY(gemvStridedBatched)

/* ---- Matrices ---- */

EVERY(gemm_v2)
EVERY(symm_v2)
EVERY(syrk_v2)
EVERY(syr2k_v2)
EVERY(trmm_v2)
EVERY(trsm_v2)
EVERY(geam)
EVERY(dgmm)
COMPLEX(hemm_v2)
COMPLEX(herk_v2)
COMPLEX(her2k_v2)
EVERY(gemmBatched)
EVERY(gemmStridedBatched)
EVERY(trsmBatched)
LAUNCH(cublasHgemm)
LAUNCH(cublasHgemmBatched)
LAUNCH(cublasHgemmStridedBatched)
LAUNCH(cublasSgemmEx)
LAUNCH(cublasCgemmEx)
LAUNCH(cublasGemmEx)
LAUNCH(cublasGemmBatchedEx)
LAUNCH(cublasGemmStridedBatchedEx)
LAUNCH(cublasGemmGroupedBatchedEx)

/* ---- Batches of small systems: pivots and how it went are in device memory… ---- */

EVERY(getrfBatched)
EVERY(getriBatched)
EVERY(matinvBatched)

/* …but for these, which say on the host whether their arguments were right. */

#define SOLVE(type)                                                                                            \
  API BlasStatus cublas##type##getrsBatched(BlasHandle *handle, int transpose, int size, int num_right,        \
                                            const void *matrices, int rows, const int *pivots, void *right,    \
                                            int right_rows, int *info, int num_batches) {                      \
    if (info) *info = 0;                                                                                       \
    count_launch();                                                                                            \
    return BLAS_SUCCESS;                                                                                       \
  }                                                                                                            \
  API BlasStatus cublas##type##geqrfBatched(BlasHandle *handle, int num_rows, int num_columns, void *matrices, \
                                            int rows, void *scales, int *info, int num_batches) {              \
    if (info) *info = 0;                                                                                       \
    count_launch();                                                                                            \
    return BLAS_SUCCESS;                                                                                       \
  }                                                                                                            \
  API BlasStatus cublas##type##gelsBatched(BlasHandle *handle, int transpose, int num_rows, int num_columns,   \
                                           int num_right, void *matrices, int rows, void *right,               \
                                           int right_rows, int *info, int *infos, int num_batches) {           \
    if (info) *info = 0;                                                                                       \
    count_launch();                                                                                            \
    return BLAS_SUCCESS;                                                                                       \
  }
SOLVE(S)
SOLVE(D)
SOLVE(C)
SOLVE(Z)

/* ---- One number for a vector: in host memory where the handle says so ---- */

static void write_result(const BlasHandle *handle, void *result, const void *value, size_t bytes) {
  if (handle->pointer_mode == POINTERS_ON_HOST && result) memcpy(result, value, bytes);
}

static BlasStatus give(const BlasHandle *handle, void *result, const void *value, size_t bytes) {
  if (!handle) return BLAS_NOT_INITIALIZED;
  count_launch();
  write_result(handle, result, value, bytes);
  return BLAS_SUCCESS;
}

static const char zeros[16];
static BlasStatus give_zero(const BlasHandle *handle, void *result, size_t bytes) {
  return give(handle, result, zeros, bytes);
}

#define SUM(name, bytes)                                                                           \
  API BlasStatus name(BlasHandle *handle, int count, const void *values, int step, void *result) { \
    return give_zero(handle, result, bytes);                                                       \
  }
SUM(cublasSnrm2_v2, 4)
SUM(cublasDnrm2_v2, 8)
SUM(cublasScnrm2_v2, 4)
SUM(cublasDznrm2_v2, 8)
SUM(cublasSasum_v2, 4)
SUM(cublasDasum_v2, 8)
SUM(cublasScasum_v2, 4)
SUM(cublasDzasum_v2, 8)

#define DOT(name, bytes)                                                                                 \
  API BlasStatus name(BlasHandle *handle, int count, const void *left, int left_step, const void *right, \
                      int right_step, void *result) {                                                    \
    return give_zero(handle, result, bytes);                                                             \
  }
DOT(cublasSdot_v2, 4)
DOT(cublasDdot_v2, 8)
DOT(cublasCdotu_v2, 8)
DOT(cublasCdotc_v2, 8)
DOT(cublasZdotu_v2, 16)
DOT(cublasZdotc_v2, 16)

/* The bytes of a number by `cudaDataType`; 0 for a type that no dot product has. */
static size_t number_bytes(int type) {
  enum { R_32F = 0, R_64F = 1, R_16F = 2, C_32F = 4, C_64F = 5, R_16BF = 14 };
  switch (type) {
    case R_16F:
    case R_16BF: return 2;
    case R_32F: return 4;
    case R_64F:
    case C_32F: return 8;
    case C_64F: return 16;
  }
  return 0;
}

#define DOT_OF_TYPES(name)                                                                                        \
  API BlasStatus name(BlasHandle *handle, int count, const void *left, int left_type, int left_step,              \
                      const void *right, int right_type, int right_step, void *result, int result_type, int by) { \
    if (!number_bytes(result_type)) return BLAS_NOT_SUPPORTED;                                                    \
    return give_zero(handle, result, number_bytes(result_type));                                                  \
  }
DOT_OF_TYPES(cublasDotEx)
DOT_OF_TYPES(cublasDotcEx)

API BlasStatus cublasNrm2Ex(BlasHandle *handle, int count, const void *values, int type, int step, void *result,
                            int result_type, int by) {
  if (!number_bytes(result_type)) return BLAS_NOT_SUPPORTED;
  return give_zero(handle, result, number_bytes(result_type));
}

/* Positions count from 1; of zeros, the first is the largest and the smallest. */
#define POSITION(name)                                                                            \
  API BlasStatus name(BlasHandle *handle, int count, const void *values, int step, int *result) { \
    int position = count > 0 && step > 0;                                                         \
    return give(handle, result, &position, sizeof position);                                      \
  }
POSITION(cublasIsamax_v2)
POSITION(cublasIdamax_v2)
POSITION(cublasIcamax_v2)
POSITION(cublasIzamax_v2)
POSITION(cublasIsamin_v2)
POSITION(cublasIdamin_v2)
POSITION(cublasIcamin_v2)
POSITION(cublasIzamin_v2)

/* ---- Rotations: of two zeros, the one that turns nothing ---- */

#define ROTATION(name, Number, Real)                                                                   \
  API BlasStatus name(BlasHandle *handle, Number *first, Number *second, Real *cosine, Number *sine) { \
    if (!handle) return BLAS_NOT_INITIALIZED;                                                          \
    const Real one = 1;                                                                                \
    write_result(handle, first, zeros, sizeof *first);                                                 \
    write_result(handle, second, zeros, sizeof *second);                                               \
    write_result(handle, sine, zeros, sizeof *sine);                                                   \
    return give(handle, cosine, &one, sizeof one);                                                     \
  }
ROTATION(cublasSrotg_v2, float, float)
ROTATION(cublasDrotg_v2, double, double)
ROTATION(cublasCrotg_v2, float _Complex, float)
ROTATION(cublasZrotg_v2, double _Complex, double)

/* A modified rotation is a flag and four numbers; the flag -2 stands for one that turns nothing. */
#define MODIFIED_ROTATION(name, Real)                                                                  \
  API BlasStatus name(BlasHandle *handle, Real *scale1, Real *scale2, Real *first, const Real *second, \
                      Real *parameters) {                                                              \
    const Real nothing[5] = {-2};                                                                      \
    return give(handle, parameters, nothing, sizeof nothing);                                          \
  }
MODIFIED_ROTATION(cublasSrotmg_v2, float)
MODIFIED_ROTATION(cublasDrotmg_v2, double)
