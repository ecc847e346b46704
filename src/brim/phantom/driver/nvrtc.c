/* NVRTC, the compiler of kernels at run time: it accepts every program and makes an empty image of it.
 *
 * The driver takes any image, and kernels do nothing: a program with an error in it passes here.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "phantom.h"

typedef enum { NVRTC_SUCCESS, NVRTC_OUT_OF_MEMORY, NVRTC_INVALID_INPUT = 3, NVRTC_INVALID_PROGRAM } Result;

typedef struct {
  char **names; /* of kernels, as they were asked for */
  size_t num_names;
} Program;

static const char NO_IMAGE[] = "";

API const char *nvrtcGetErrorString(int result) {
  static const char *const texts[] = {"NVRTC_SUCCESS",
                                      "NVRTC_ERROR_OUT_OF_MEMORY",
                                      "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
                                      "NVRTC_ERROR_INVALID_INPUT",
                                      "NVRTC_ERROR_INVALID_PROGRAM",
                                      "NVRTC_ERROR_INVALID_OPTION",
                                      "NVRTC_ERROR_COMPILATION",
                                      "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
                                      "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
                                      "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
                                      "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
                                      "NVRTC_ERROR_INTERNAL_ERROR"};
  return result >= 0 && result < 12 ? texts[result] : "NVRTC_ERROR unknown";
}

API Result nvrtcVersion(int *major, int *minor) {
  *major = cuda_major();
  *minor = account()->cuda_version % 1000 / 10;
  return NVRTC_SUCCESS;
}

API Result nvrtcCreateProgram(Program **made, const char *source) {
  if (!made || !source) return NVRTC_INVALID_INPUT;
  *made = calloc(1, sizeof **made);
  return *made ? NVRTC_SUCCESS : NVRTC_OUT_OF_MEMORY;
}

API Result nvrtcDestroyProgram(Program **program) {
  if (!program || !*program) return NVRTC_INVALID_PROGRAM;
  for (size_t i = 0; i < (*program)->num_names; i++) free((*program)->names[i]);
  free((*program)->names);
  free(*program);
  *program = NULL;
  return NVRTC_SUCCESS;
}

API Result nvrtcCompileProgram(const Program *program) { return program ? NVRTC_SUCCESS : NVRTC_INVALID_PROGRAM; }

/* A template's name in the image: there are no names, so it is what was asked for. The string stays as long as the
 * program. */
static const char *keep_name(Program *program, const char *name) {
  for (size_t i = 0; i < program->num_names; i++)
    if (!strcmp(program->names[i], name)) return program->names[i];
  char **names = realloc(program->names, (program->num_names + 1) * sizeof *names);
  if (!names) return NULL;
  program->names = names;
  return names[program->num_names++] = strdup(name);
}

API Result nvrtcAddNameExpression(Program *program, const char *name) {
  if (!program || !name) return NVRTC_INVALID_INPUT;
  return keep_name(program, name) ? NVRTC_SUCCESS : NVRTC_OUT_OF_MEMORY;
}

API Result nvrtcGetLoweredName(Program *program, const char *name, const char **lowered) {
  if (!program || !name) return NVRTC_INVALID_INPUT;
  *lowered = keep_name(program, name);
  return *lowered ? NVRTC_SUCCESS : NVRTC_OUT_OF_MEMORY;
}

static Result give_size(const Program *program, size_t *bytes) {
  if (!program) return NVRTC_INVALID_PROGRAM;
  *bytes = sizeof NO_IMAGE;
  return NVRTC_SUCCESS;
}

static Result give_image(const Program *program, char *to) {
  if (!program) return NVRTC_INVALID_PROGRAM;
  memcpy(to, NO_IMAGE, sizeof NO_IMAGE);
  return NVRTC_SUCCESS;
}

API Result nvrtcGetPTXSize(const Program *program, size_t *bytes) { return give_size(program, bytes); }
API Result nvrtcGetPTX(const Program *program, char *to) { return give_image(program, to); }
API Result nvrtcGetCUBINSize(const Program *program, size_t *bytes) { return give_size(program, bytes); }
API Result nvrtcGetCUBIN(const Program *program, char *to) { return give_image(program, to); }
API Result nvrtcGetProgramLogSize(const Program *program, size_t *bytes) { return give_size(program, bytes); }
API Result nvrtcGetProgramLog(const Program *program, char *to) { return give_image(program, to); }
