/* How a device is called, the same by every interface. */
#pragma once
void device_uuid(int index, unsigned char bytes[16]);
int device_bus(int index);           /* the bus in 0000:BUS:00.0 */
int device_on_bus(const char *address); /* -1 where there is none */
void device_bus_address(int index, char *text, int room);
