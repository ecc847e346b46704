#include "ids.h"

#include "phantom.h"

#include <stdio.h>
#include <string.h>

void device_uuid(int index, unsigned char bytes[16]) {
  memcpy(bytes, "brim-phantom\0\0\0", 16);
  bytes[15] = (unsigned char)index;
}

int device_bus(int index) { return index + 1; }

void device_bus_address(int index, char *text, int room) {
  snprintf(text, (size_t)room, "00000000:%02X:00.0" + (room < 17 ? 4 : 0), (unsigned)device_bus(index));
}

int device_on_bus(const char *address) {
  unsigned domain, bus;
  if (sscanf(address, "%x:%x", &domain, &bus) != 2 || bus < 1 || bus > (unsigned)num_devices()) return -1;
  return (int)bus - 1;
}
