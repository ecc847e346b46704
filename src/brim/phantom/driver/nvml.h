/* What NVML's two files share. */
#pragma once
#include "phantom.h"

typedef int Result;
enum {
  SUCCESS = 0,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
};

/* Monitors see all devices, whatever CUDA_VISIBLE_DEVICES says. */
static inline const Device *device_at(int place) { return &account()->devices[place]; }

/* A handle is the device's place in the account. */
static inline int index_of(const void *handle) {
  ptrdiff_t index = (const Device *)handle - account()->devices;
  return index >= 0 && index < account()->num_devices ? (int)index : -1;
}

#define INDEX_OR_RETURN(index, handle) \
  int index = index_of(handle);        \
  if (index < 0) return INVALID_ARGUMENT
