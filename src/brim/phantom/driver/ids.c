#include "ids.h"

#include "phantom.h"

#include <stdio.h>
#include <string.h>

void device_uuid(int place, unsigned char bytes[16]) {
  memcpy(bytes, "brim-phantom\0\0\0", 16);
  bytes[15] = (unsigned char)place;
}

void write_uuid(int place, char text[UUID_TEXT]) {
  unsigned char bytes[16];
  device_uuid(place, bytes);
  char *end = text + sprintf(text, "GPU-");
  for (int i = 0; i < 16; i++) end += sprintf(end, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", bytes[i]);
}

int device_bus(int place) { return place + 1; }

void device_bus_address(int place, char *text, int room) {
  snprintf(text, (size_t)room, "00000000:%02X:00.0" + (room < 17 ? 4 : 0), (unsigned)device_bus(place));
}

int device_on_bus(const char *address) {
  unsigned domain, bus;
  if (sscanf(address, "%x:%x", &domain, &bus) != 2 || bus < 1 || bus > (unsigned)account()->num_devices) return -1;
  return (int)bus - 1;
}
