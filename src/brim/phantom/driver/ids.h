/* How a device is called, the same by every interface. */
#pragma once
enum { UUID_TEXT = 41 };
/* By its place in the account. */
void device_uuid(int place, unsigned char bytes[16]);
void write_uuid(int place, char text[UUID_TEXT]);
int device_bus(int place);              /* the bus in 0000:BUS:00.0 */
int device_on_bus(const char *address); /* -1 where there is none */
void device_bus_address(int place, char *text, int room);
