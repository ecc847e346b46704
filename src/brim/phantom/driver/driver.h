/* What the files of the CUDA driver interface share, by its public documentation. */
#pragma once
#include "phantom.h"

typedef int Result;              /* CUresult; its numbers are mostly the runtime's */
typedef unsigned long long Address; /* CUdeviceptr */
enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  NOT_FOUND = 500,
  NOT_SUPPORTED = 801,
};

/* A context is its device's number, made a pointer that nobody follows. */
#define CONTEXTS ((uintptr_t)0xC0DE000)
static inline void *context_of(int device) { return (void *)(CONTEXTS + (uintptr_t)device); }

/* The function that a name stands for in this shared object; null where there is none. */
void *own_function(const char *name);
