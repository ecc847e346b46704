/* The template of a library of functions that a phantom does not have: their names are replaced when torch is known (stand_ins.py).
 *
 * Each says its name when it is called, and returns its library's own word for "not supported", which torch raises as an error.
 */
#include <stdint.h>

void report_absent(const char *function);

enum { NUM_FUNCTIONS = 1024 };
__attribute__((visibility("default"))) struct {
  char name[120];
  int64_t error;
} brim_absent[NUM_FUNCTIONS] = {{"-", 0}};

#define FUNCTION(n)                                                                                                         \
  __attribute__((visibility("default"))) int64_t brim_absent_##n##_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx( \
      void) {                                                                                                               \
    report_absent(brim_absent[0##n].name);                                                                                  \
    return brim_absent[0##n].error;                                                                                         \
  }
#define EIGHT(n) FUNCTION(n##0) FUNCTION(n##1) FUNCTION(n##2) FUNCTION(n##3) FUNCTION(n##4) FUNCTION(n##5) FUNCTION(n##6) FUNCTION(n##7)
#define SIXTY_FOUR(n) EIGHT(n##0) EIGHT(n##1) EIGHT(n##2) EIGHT(n##3) EIGHT(n##4) EIGHT(n##5) EIGHT(n##6) EIGHT(n##7)
#define HALF_OF_ALL(n) \
  SIXTY_FOUR(n##0) SIXTY_FOUR(n##1) SIXTY_FOUR(n##2) SIXTY_FOUR(n##3) SIXTY_FOUR(n##4) SIXTY_FOUR(n##5) SIXTY_FOUR(n##6) SIXTY_FOUR(n##7)
/* The numbers are octal. */
HALF_OF_ALL(0)
HALF_OF_ALL(1)
