/* Attributes of a device by their public numbers, which the runtime and the driver interface share. */
#include "ids.h"
#include "phantom.h"

int device_attribute(int attribute, int index) {
  const Device *device = device_of(index);
  switch (attribute) {
    case 1: return 1024;                                 /* threads of a block */
    case 2: case 3: return 1024;                         /* its size in x and y */
    case 4: return 64;                                   /* in z */
    case 5: return INT32_MAX;                            /* a grid in x */
    case 6: case 7: return 65535;                        /* in y and z */
    case 8: return 48 << 10;                             /* shared memory of a block */
    case 9: return 65536;                                /* constant memory */
    case 10: return 32;                                  /* warp */
    case 11: return INT32_MAX;                           /* pitch */
    case 12: return 65536;                               /* registers of a block */
    case 13: return device->clock_khz;
    case 14: return 512;                                 /* alignment of textures */
    case 15: return 1;                                   /* copies overlap */
    case 16: return device->num_sms;
    case 19: return 1;                                   /* maps host memory */
    case 31: return 1;                                   /* concurrent kernels */
    case 33: return device_bus(place_of(index));
    case 36: return device->memory_clock_khz;
    case 37: return device->memory_bus_bits;
    case 38: return device->l2_bytes;
    case 39: return device->threads_per_sm;
    case 40: return 2;                                   /* copy engines */
    case 41: return 1;                                   /* unified addressing */
    case 75: return device->major;
    case 76: return device->minor;
    case 78: case 79: case 80: return 1;                 /* stream priorities, caching of globals and locals */
    case 81: return device->shared_bytes_per_sm;
    case 82: return 65536;                               /* registers of a multiprocessor */
    case 83: return 1;                                   /* managed memory */
    case 89: case 90: return 1;                          /* concurrent managed access, preemption */
    case 95: return 1;                                   /* cooperative launch */
    case 97: return device->shared_bytes_per_sm - 1024;  /* shared memory of a block that asks for more */
    case 99: return 1;                                   /* host memory can be registered */
    case 102: return 1;                                  /* virtual memory */
    case 103: return 1;                                  /* handles as file descriptors */
    case 106: return device->blocks_per_sm;
    case 108: return device->l2_bytes / 4 * 3;           /* L2 that persists */
    case 109: return 134213632;                          /* window of an access policy */
    case 111: return 1024;                               /* reserved shared memory of a block */
    case 115: return 1;                                  /* pools of memory */
    case 120: return device->major >= 9;                 /* clusters */
    default: return 0;
  }
}
